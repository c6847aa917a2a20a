"""Chooses the launcher that a description means."""

from __future__ import annotations

from typing import Dict, Optional, Type

from mxtrain.cluster.launcher import Launcher
from mxtrain.cluster.ranked import MPILauncher, SlurmLauncher
from mxtrain.cluster.spec import Cluster
from mxtrain.cluster.ssh import SSHLauncher

LAUNCHERS: Dict[str, Type[Launcher]] = {
    "local": Launcher,
    "ssh": SSHLauncher,
    "mpi": MPILauncher,
    "slurm": SlurmLauncher,
}


def build_launcher(cluster: Cluster, van: Optional[str]) -> Launcher:
    """Builds the launcher that `cluster.launcher` names.

    Raises:
        ConfigError: it cannot work here; nothing was started.
    """
    launcher: Launcher = LAUNCHERS[cluster.launcher](cluster, van)
    return launcher
