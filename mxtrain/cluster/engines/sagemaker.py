"""SageMaker: the request of a training job, and an image whose entry point keeps SageMaker's contract.

Source of the fields: botocore, data/sagemaker/2017-07-24/service-2.json, CreateTrainingJob; of the contract: Amazon
SageMaker AI Developer Guide, "How Amazon SageMaker AI runs your training image".
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Dict, Mapping, Sequence

from mxtrain.cluster.engines.docker import image_files
from mxtrain.cluster.engines.job import LaunchJob, LaunchTarget
from mxtrain.files.regular_files import read_regular

REQUEST, ENTRY = "training-job.json", "sagemaker_entry.py"
INSTANCE, VOLUME_GB, HOURS, ATTEMPTS = "ml.m5.xlarge", 50, 24, 3
INPUT = re.compile(r"/opt/ml/input/data/([A-Za-z0-9._-]+)")
"""Folder of a channel in a container, as in dataset.root=/opt/ml/input/data/training."""
ENTRY_LINES = f"""\
COPY {ENTRY} /opt/mxtrain/{ENTRY}
ENTRYPOINT ["python", "/opt/mxtrain/{ENTRY}"]
"""


def files(job: LaunchJob) -> Mapping[str, str]:
    """Returns the request, the Dockerfile and the entry point."""
    source = read_regular(Path(__file__).with_name(ENTRY)).decode()
    return {
        REQUEST: json.dumps(request(job), indent=2, ensure_ascii=False) + "\n",
        ENTRY: source,
        **image_files(ENTRY_LINES),
    }


def request(job: LaunchJob) -> Dict[str, Any]:
    """Returns the arguments of CreateTrainingJob except RoleArn."""
    channels = dict.fromkeys(name for word in job.overrides for name in INPUT.findall(word))
    return {
        "TrainingJobName": job.name,
        "AlgorithmSpecification": {"TrainingImage": job.image, "TrainingInputMode": "File"},
        "HyperParameters": hyperparameters(job.overrides),
        **({"InputDataConfig": [_channel(job, name) for name in channels]} if channels else {}),
        "OutputDataConfig": {"S3OutputPath": f"{job.storage}/output"},
        # Spot instances and further attempts continue from these checkpoints.
        "CheckpointConfig": {"S3Uri": f"{job.storage}/{job.name}", "LocalPath": "/opt/ml/checkpoints"},
        "ResourceConfig": {"InstanceType": INSTANCE, "InstanceCount": job.nodes, "VolumeSizeInGB": VOLUME_GB},
        "StoppingCondition": {"MaxRuntimeInSeconds": HOURS * 3600},
        "RetryStrategy": {"MaximumRetryAttempts": ATTEMPTS},
    }


def hyperparameters(overrides: Sequence[str]) -> Dict[str, str]:
    """Returns overrides as SageMaker's hyperparameters: texts by name."""
    pairs = [word.partition("=") for word in overrides]
    return {key: value for key, _, value in pairs}


def _channel(job: LaunchJob, name: str) -> Dict[str, Any]:
    source = {
        "S3DataType": "S3Prefix",
        "S3Uri": f"{job.storage}/data/{name}",
        "S3DataDistributionType": "FullyReplicated",
    }
    return {"ChannelName": name, "DataSource": {"S3DataSource": source}}


TARGET = LaunchTarget(
    "SageMaker",
    files,
    (
        (
            "start",
            f'aws sagemaker create-training-job --cli-input-json file://{{folder}}/{REQUEST} --role-arn "$ROLE"',
        ),
        ("state", "aws sagemaker describe-training-job --training-job-name {name}"),
        ("save and stop", "aws sagemaker stop-training-job --training-job-name {name}"),
    ),
    needs=("image", "storage"),
    takes=("nodes",),
    storage=("s3",),
    remarks=(
        "ROLE is the ARN of the execution role. Edit InstanceType, VolumeSizeInGB and MaxRuntimeInSeconds in the "
        "request. The name of a training job is used once: change TrainingJobName for the next one; with the same "
        "CheckpointConfig it continues.",
        "Each hyperparameter is an override. A path below /opt/ml/input/data/NAME becomes the channel NAME, which is "
        "read from data/NAME in the storage. The run directory is /opt/ml/checkpoints/run of the first host, and is "
        "copied to /opt/ml/model at the end; the cause of a failure is in /opt/ml/output/failure.",
    ),
)
