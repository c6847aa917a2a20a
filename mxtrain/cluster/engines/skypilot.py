"""SkyPilot: a task on several machines of a cloud, with a bucket for the run directory.

Source of the fields: skypilot 0.14.1, sky/utils/schemas.py.
"""

from __future__ import annotations

from typing import Any, Dict

from mxtrain.cluster.engines.job import OUTPUTS, LaunchJob, LaunchTarget
from mxtrain.cluster.engines.kubernetes import dump

TASK = "task.yaml"


def task(job: LaunchJob) -> Dict[str, Any]:
    """Returns the task as a JSON object."""
    # SkyPilot appends a script to `run` that waits until the bucket has all files: exec would skip it.
    run = job.script('"$SKYPILOT_NODE_RANK"', '"$(head -n 1 <<< "$SKYPILOT_NODE_IPS")"', start="")
    return {
        "name": job.name,
        "num_nodes": job.nodes,
        "resources": {"cpus": f"{job.cpus}+", "memory": f"{job.memory}+", "image_id": f"docker:{job.image}"},
        # A plain mount has no rename and no lock, which a run directory needs.
        "file_mounts": {OUTPUTS: {"source": job.storage, "mode": "MOUNT_CACHED"}},
        "run": run,
    }


TARGET = LaunchTarget(
    "SkyPilot",
    lambda job: {TASK: dump(f"sky launch -c {job.name} {TASK}", task(job))},
    (
        ("start", f"sky launch -c {{name}} {{folder}}/{TASK}"),
        ("start on spot machines, which are replaced", f"sky jobs launch -n {{name}} --use-spot {{folder}}/{TASK}"),
        ("output", "sky logs {name}"),
        ("remove the machines", "sky down {name}"),
    ),
    needs=("image", "storage"),
    takes=("nodes", "cpus", "memory"),
    storage=("s3", "gs"),
    remarks=(
        "The bucket must exist. Node 0 writes the run directory into it. The same "
        "command continues the run from its last checkpoint, also on other machines.",
        "For GPUs add accelerators to the resources, e.g. `accelerators: T4:1`, and parallel.devices=gpu:1 to the "
        "command.",
    ),
)
