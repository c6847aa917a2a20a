"""Launches processes through one srun, whose tasks know their ranks, and shows the state of its job while it waits in
Slurm's queue. The job is cancelled if the run ends meanwhile."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, List, Optional, Sequence

from mxtrain.cluster.hosts import NOWHERE, free_port
from mxtrain.cluster.launch_spec import Root, launch_specs
from mxtrain.cluster.launched import own_address
from mxtrain.cluster.launcher import (
    Launcher,
    QueueDisplay,
    directory_of,
    launch_message,
    python_of,
    relayed,
    write_proof,
)
from mxtrain.cluster.process import Process
from mxtrain.cluster.relayed import Channel
from mxtrain.cluster.spec import Cluster
from mxtrain.config.search_path import module_command
from mxtrain.errors import ConfigError

TIMEOUT_S = 5.0
"""Timeout of a command of Slurm."""
_QUEUED = re.compile(r"srun: job (\d+) queued")


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
        self.address = own_address(cluster.interface, NOWHERE)

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


class SlurmChannel(Channel):
    """The connection to the relays of srun.

    Args:
        arguments: arguments of `Channel`.
    """

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self.job = ""
        """Id of the job while it waits in the queue, according to the output of srun; otherwise empty."""
        self._display = QueueDisplay(self._state)

    def exchange_messages(self) -> None:
        super().exchange_messages()
        # A relay that has answered proves that the job runs, so there is nothing to show or to cancel.
        if self.heartbeat_at or self.end is not None:
            self.job = ""
            self._display.close()
            return
        self.job = self.job or next((found[1] for found in map(_QUEUED.match, self.last_lines) if found), "")
        if self.job:
            self._display.update()

    def close(self) -> None:
        self.kill()
        job, self.job = self.job, ""
        self._display.close()
        if job:  # killing srun leaves its job in the queue
            with suppress(OSError, subprocess.TimeoutExpired):
                subprocess.run(["scancel", job], capture_output=True, timeout=TIMEOUT_S, check=False)
            print(f"job {job} was taken out of Slurm's queue", file=sys.stderr, flush=True)
        super().close()

    def _state(self) -> str:
        """Returns a line about the job; empty if Slurm does not answer."""
        command = ["squeue", "-h", "-j", self.job, "-o", "%T, reason %r, expected start %S"]
        with suppress(OSError, subprocess.TimeoutExpired):
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
            line = done.stdout.strip()
            return f"Slurm's job {self.job}: {line} (Ctrl-C cancels it)" if line else ""
        return ""
