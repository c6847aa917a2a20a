"""Files with which other engines start a run: Kubernetes, Kubeflow, Volcano, Slurm, SkyPilot, SageMaker, Docker.

A target is a module with a constant `TARGET`. On several nodes all engines but Slurm run the same command once on each
node, with the environment variables that `mxtrain.cluster.nodes` reads.
"""

from __future__ import annotations

from typing import Dict

from mxtrain.cluster.engines import docker, kubeflow, kubernetes, sagemaker, skypilot, slurm, volcano
from mxtrain.cluster.engines.job import LaunchTarget

TARGETS: Dict[str, LaunchTarget] = {
    "kubernetes": kubernetes.TARGET,
    "kubeflow": kubeflow.TARGET,
    "volcano": volcano.TARGET,
    "slurm": slurm.TARGET,
    "skypilot": skypilot.TARGET,
    "sagemaker": sagemaker.TARGET,
    "docker": docker.TARGET,
}
"""Name in `launch for=` -> target."""
