"""A KServe InferenceService that serves a Triton model repository.

Source of the fields: kserve/kserve, config/crd/full/serving.kserve.io_inferenceservices.yaml, version v1beta1, and
config/runtimes/kserve-tritonserver.yaml.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict

import yaml

from mxtrain.files.durable import replace_file

MANIFEST = "inference-service.yaml"
RUNTIME = "kserve-tritonserver"
MIN_REPLICAS, MAX_REPLICAS, CONCURRENCY, TIMEOUT_S = 1, 4, 16, 60
SERVER_MIB, COPIES = 2048, 3
"""Memory of Triton itself, and how many times that of the file a loaded network takes at most."""


def write(folder: Path, name: str, storage: str, size: int) -> None:
    """Writes the manifest.

    Args:
        folder: beside the repository.
        name: of the service.
        storage: URI of the repository, where the cluster reads it.
        size: bytes of the network's files.
    """
    text = yaml.safe_dump(manifest(name, storage, size), sort_keys=False)
    head = f"# kubectl apply -f {MANIFEST}, after the content of repository/ was copied to {storage}\n"
    replace_file(folder / MANIFEST, (head + text).encode())


def manifest(name: str, storage: str, size: int) -> Dict[str, Any]:
    """Returns the InferenceService as a JSON object."""
    memory = f"{SERVER_MIB + COPIES * (size // 2**20)}Mi"
    return {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {"name": name},
        "spec": {
            "predictor": {
                "minReplicas": MIN_REPLICAS,
                "maxReplicas": MAX_REPLICAS,
                "scaleMetric": "concurrency",
                "scaleTarget": CONCURRENCY,
                "timeout": TIMEOUT_S,
                "model": {
                    "modelFormat": {"name": "onnx", "version": "1"},
                    # Triton, so that this manifest and Triton's own configuration describe the same repository.
                    "runtime": RUNTIME,
                    "protocolVersion": "v2",
                    "storageUri": storage,
                    "resources": {"requests": {"cpu": "1", "memory": memory}, "limits": {"cpu": "2", "memory": memory}},
                },
            }
        },
    }
