"""Docker: an image, and a Compose file that trains in one container.

Source of the fields: compose-spec/compose-spec, schema/compose-spec.json.
"""

from __future__ import annotations

from typing import Any, Dict, Mapping

from mxtrain.cluster.engines.images import BUILD_BASE, image_files
from mxtrain.cluster.engines.job import GRACE_S, OUTPUTS, RESTARTS, Commands, LaunchJob, LaunchTarget, without_expansion
from mxtrain.cluster.engines.kubernetes import dump

COMPOSE = "compose.yaml"


def files(job: LaunchJob) -> Mapping[str, str]:
    """Returns the Dockerfile and the Compose file."""
    return {**image_files(), COMPOSE: dump(f"docker compose -f {COMPOSE} up --build", compose_file(job))}


def commands(job: LaunchJob, folder: str) -> Commands:
    """Returns the commands that build mxtrain's image, and start and stop the container."""
    return [
        BUILD_BASE,
        ("start", f"docker compose -f {folder}/{COMPOSE} up --build"),
        ("save and stop; starting again continues the run", f"docker compose -f {folder}/{COMPOSE} down"),
    ]


def compose_file(job: LaunchJob) -> Dict[str, Any]:
    """Returns the content of the Compose file."""
    gpus = {"driver": "nvidia", "count": job.gpus, "capabilities": ["gpu"]}
    reserved = {"deploy": {"resources": {"reservations": {"devices": [gpus]}}}} if job.gpus else {}
    return {
        "name": job.name,
        "services": {
            "train": {
                "build": ".",
                "image": job.image or f"{job.name}:latest",
                "command": [without_expansion(word) for word in job.arguments(job.run_dir)],
                "volumes": [f"./outputs:{OUTPUTS}"],
                "cpus": job.cpus,
                "mem_limit": f"{job.memory}g",
                "shm_size": "1g",
                "init": True,
                "stop_grace_period": f"{GRACE_S}s",
                "restart": f"on-failure:{RESTARTS}",
                **reserved,
            }
        },
    }


TARGET = LaunchTarget(
    "Docker",
    files,
    commands,
    takes=("image", "cpus", "memory", "gpus"),
    remarks=(
        "The run directory is outputs/NAME in this folder. Workers and parameter servers run in the same container.",
        "Data are mounted: add a line to volumes, e.g. `- /data/photos:/photos:ro`, and name /photos in the settings.",
    ),
)
