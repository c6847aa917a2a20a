"""The container image of a run: mxtrain's own, with further packages and code of the user."""

from __future__ import annotations

import shlex
from typing import Mapping

from mxtrain.cluster.engines.job import Commands, LaunchJob

DOCKERFILE = "Dockerfile"
BUILD_BASE = ("mxtrain's image, in its repository", "docker build -f examples/container/Dockerfile -t mxtrain .")
"""Purpose and command of the build of the image that the Dockerfile starts from."""
BASE = """\
# BASE is the image of mxtrain: in its repository, docker build -f examples/container/Dockerfile -t mxtrain .
ARG BASE=mxtrain
FROM ${BASE}
# Further packages and code of the run, e.g.
# RUN pip install --no-cache-dir NAME
# COPY my_package my_package
"""


def image_files(further_lines: str = "") -> Mapping[str, str]:
    """Returns the Dockerfile.

    Args:
        further_lines: instructions of the target.
    """
    return {DOCKERFILE: BASE + further_lines}


def image_commands(job: LaunchJob, folder: str) -> Commands:
    """Returns the commands that build the image, and push it to the registry of the nodes."""
    image = shlex.quote(job.image)
    return [
        BUILD_BASE,
        ("the image of the job", f"docker build -t {image} {folder}"),
        ("send it to the registry", f"docker push {image}"),
    ]
