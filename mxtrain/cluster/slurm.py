"""Launches processes through one srun, whose tasks know their ranks."""

from __future__ import annotations

import os
import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import List, Optional, Sequence

from mxtrain.cluster.hosts import NOWHERE, free_port, interface_address
from mxtrain.cluster.launch_spec import Root, launch_specs
from mxtrain.cluster.launcher import Launcher, directory_of, launch_message, python_of, relayed, write_proof
from mxtrain.cluster.process import Process
from mxtrain.cluster.slurm_queue import SlurmChannel
from mxtrain.cluster.spec import Cluster
from mxtrain.config.search_path import module_command
from mxtrain.errors import ConfigError
from mxtrain.runtime.network import address_towards


class SlurmLauncher(Launcher):
    """One srun, in the allocation that there is or in one that it asks for, that starts as many relays as there are
    workers and servers, the workers first. The scheduler runs here. srun hands on stdin to all tasks.

    Raises:
        ConfigError: srun is not installed, or this machine has no address for the hosts.
    """

    place = "through srun"

    def __init__(self, cluster: Cluster, van: Optional[str]):
        super().__init__(cluster, van)
        if shutil.which("srun") is None:
            raise ConfigError(
                "cluster.launcher=slurm: srun is not on PATH. Start the command where Slurm's clients are."
            )
        self.address = _own_address(cluster)

    def start(self, arguments: Sequence[str], logs: Path, attempt: int, stack: ExitStack) -> List[Process]:
        root = Root(self.address, free_port(self.address))
        specs = launch_specs(self.cluster, self.van, arguments, logs, root)
        processes = []
        if specs[0].name == "scheduler":
            processes.append(self._start_here(specs.pop(0), stack))
        specs.sort(key=lambda spec: not spec.name.startswith("worker"))  # ranks keep their order
        # srun may place worker 0 on another host.
        message = launch_message(self.cluster, specs, write_proof(logs, stack))
        command = [
            "srun",
            f"--ntasks={len(specs)}",
            "--kill-on-bad-exit=1",
            # A task that is bound to some cores could not use the others for its threads.
            "--cpu-bind=none",
            "--chdir",
            directory_of(self.cluster),
            *self.cluster.launcher_options,
            *module_command("mxtrain.cluster.remote", python_of(self.cluster)),
            "--ranked",
        ]
        channel = SlurmChannel(command, os.environ, message, None, "srun")
        return [*processes, *relayed(channel, specs, ranked=True, attempt=attempt, stack=stack)]


def _own_address(cluster: Cluster) -> str:
    """Returns the address of this machine for the hosts.

    Raises:
        ConfigError: there is none.
    """
    if cluster.interface is not None:
        return interface_address(cluster.interface)
    address = address_towards(NOWHERE)
    if address is None:
        raise ConfigError("this machine has no default route: set cluster.interface to the network of the hosts.")
    return address
