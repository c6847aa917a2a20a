"""Docker: an image, which other engines run as well, and a Compose file that trains in one container.

The image is mxtrain's own, with further packages and code of the user.

Source of the fields: compose-spec/compose-spec, schema/compose-spec.json.
"""

from __future__ import annotations

from typing import Any, Dict, Mapping

from mxtrain.cluster.engines.job import GRACE_S, OUTPUTS, RESTARTS, Commands, LaunchJob, LaunchTarget, without_expansion
from mxtrain.cluster.engines.kubernetes import dump

COMPOSE = "compose.yaml"
DOCKERFILE = "Dockerfile"
BUILD_BASE = ("mxtrain's image, in its repository", "docker build -f examples/container/Dockerfile -t mxtrain .")
"""Purpose and command of the build of the image that the Dockerfile starts from."""
IMAGE_COMMANDS: Commands = (
    BUILD_BASE,
    ("the image of the job", "docker build -t {image} {folder}"),
    ("send it to the registry", "docker push {image}"),
)
"""Commands that build the image, and push it to the registry of the nodes."""
BASE = """\
# BASE is the image of mxtrain: in its repository, docker build -f examples/container/Dockerfile -t mxtrain .
ARG BASE=mxtrain
FROM ${BASE}
# Further packages and code of the run, e.g.
# RUN pip install --no-cache-dir NAME
# COPY my_package my_package
"""


def files(job: LaunchJob) -> Mapping[str, str]:
    """Returns the Dockerfile and the Compose file."""
    return {**image_files(), COMPOSE: dump(f"docker compose -f {COMPOSE} up --build", compose_file(job))}


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


def image_files(further_lines: str = "") -> Mapping[str, str]:
    """Returns the Dockerfile.

    Args:
        further_lines: instructions of the target.
    """
    return {DOCKERFILE: BASE + further_lines}


TARGET = LaunchTarget(
    "Docker",
    files,
    commands=(
        BUILD_BASE,
        ("start", f"docker compose -f {{folder}}/{COMPOSE} up --build"),
        ("save and stop; starting again continues the run", f"docker compose -f {{folder}}/{COMPOSE} down"),
    ),
    takes=("image", "cpus", "memory", "gpus"),
    remarks=(
        "The run directory is outputs/NAME in this folder. Workers and parameter servers run in the same container.",
        "Data are mounted: add a line to volumes, e.g. `- /data/photos:/photos:ro`, and name /photos in the settings.",
    ),
)
