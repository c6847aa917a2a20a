"""Starts the processes of a run on this machine; base of the other launchers.

If the launcher allows it, scheduler and worker 0 run on the host of the supervisor: then the address of the scheduler
is known before anything starts, and only worker 0 needs the run directory.
"""

from __future__ import annotations

import os
import secrets
import sys
import time
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Callable, Dict, List, Optional, Sequence

import mxtrain
from mxtrain.cluster.frames import Message
from mxtrain.cluster.launch_spec import inherited, launch_specs, local_root, passed
from mxtrain.cluster.process import LaunchSpec, LocalProcess, Process
from mxtrain.cluster.relayed import MIN_SILENCE_S, Channel, RelayedProcess
from mxtrain.cluster.spec import Cluster
from mxtrain.files.durable import replace_file
from mxtrain.runtime.network import LOOPBACK

FIRST_S, NEXT_S = 1.0, 10.0
"""Seconds from the start until the first query of a state by `QueueDisplay`, and between two queries."""


class Launcher:
    """Starts all processes on this machine.

    Args:
        cluster: description of the processes.
        van: transport of ps-lite; None if there are no servers.
    """

    address = LOOPBACK
    """Address of this machine, as the processes reach it."""
    place = "on this machine"
    """Location of the processes, for messages."""
    writes_logs = True
    """True if the output of the processes goes to files, except that of worker 0."""

    def __init__(self, cluster: Cluster, van: Optional[str]):
        self.cluster, self.van = cluster, van
        self._standbys: Dict[str, Process] = {}

    def obstacle(self) -> str:
        """Returns why nothing can be started now, though it may be later; empty if it can."""
        return ""

    def close(self) -> None:
        """Ends what the launcher keeps between attempts."""
        for standby in self._standbys.values():
            standby.kill()  # all at once, because `close` waits
        for standby in self._standbys.values():
            standby.close()
        self._standbys.clear()

    def prepare(self, processes: Sequence[Process]) -> None:
        """Starts a standby for each process that has none, if `cluster.standby` asks for it. Called again and again
        while all processes train."""
        if not self.cluster.standby:
            return
        for process in processes:
            if process.spec.name not in self._standbys:
                self._standbys[process.spec.name] = self._start_standby(process)
            self._standbys[process.spec.name].listen()  # or its heartbeats would fill the pipe

    def _start_standby(self, process: Process) -> Process:
        """Starts a standby on the host of a process."""
        return LocalProcess(process.spec, self._start_one, is_standby=True)

    def _begin_standby(self, spec: LaunchSpec) -> Optional[Process]:
        """Returns the standby of a process after it was told to take its place; None if none is alive."""
        standby = self._standbys.pop(spec.name, None)
        if standby is None:
            return None
        with suppress(OSError):
            standby.begin(spec)
            return standby
        standby.close()
        return None

    def _start_one(self, spec: LaunchSpec) -> Process:
        """Starts a process on this machine, by its standby if that is alive."""
        return self._begin_standby(spec) or LocalProcess(spec, self._start_one)

    def start(self, arguments: Sequence[str], logs: Path, attempt: int, stack: ExitStack) -> List[Process]:
        """Starts all processes; the stack closes them.

        Args:
            arguments: arguments of the workers' command line.
            logs: folder for the output of all processes except worker 0.
            attempt: number of the attempt, from 0.
            stack: closes the processes.
        """
        root = local_root(self.van)
        specs = launch_specs(self.cluster, self.van, arguments, logs, root)
        # Registered first, because the stack unwinds in reverse: sockets are removed after their processes have ended.
        stack.callback(root.remove_sockets, len(specs))
        return [self._start_here(spec, stack) for spec in specs]

    def _start_here(self, spec: LaunchSpec, stack: ExitStack) -> Process:
        """Starts a process on this machine with the environment of this one; the stack closes it."""
        environment = {**inherited(), **spec.environment, "DMLC_NODE_HOST": self.address}
        return stack.enter_context(closing(self._start_one(replace(spec, environment=environment))))


def relayed(
    channel: Channel, specs: Sequence[Optional[LaunchSpec]], ranked: bool, attempt: int, stack: ExitStack
) -> List[Process]:
    """Returns the processes of a channel, which the stack closes; None for a process on another host."""
    stack.callback(channel.close)
    return [
        stack.enter_context(closing(RelayedProcess(spec, channel, index, ranked, attempt == 0)))
        for index, spec in enumerate(specs)
        if spec is not None
    ]


def write_proof(logs: Path, stack: ExitStack) -> Path:
    """Writes a file beside the run directory, which the stack removes. Only a host that sees its random content has the
    run directory, so that worker 0 may run there."""
    proof = logs / ".here"
    replace_file(proof, secrets.token_hex(16).encode())
    stack.callback(proof.unlink)
    return proof


def launch_message(
    cluster: Cluster,
    specs: Sequence[Optional[LaunchSpec]],
    proof: Optional[Path] = None,
    is_standby: bool = False,
    kept_back: Sequence[str] = (),
) -> Message:
    """Returns the message to relays, each of which starts the specs that are meant for it.

    Args:
        cluster: description of the processes.
        specs: launch specs by number; None for processes of other relays.
        proof: file next to the run directory that worker 0 must see.
        is_standby: True if the processes wait for an order to begin.
        kept_back: variables of this process that do not go along.
    """
    return {
        "launch_specs": [
            spec
            and {
                "command": [python_of(cluster), *spec.command[1:]],
                "environment": dict(spec.environment),
                "is_worker": spec.name.startswith("worker"),
                "is_standby": is_standby,
                "proof": [str(proof), proof.read_text()] if proof is not None and spec.name == "worker 0" else None,
            }
            for spec in specs
        ],
        "environment": {n: value for n, value in passed(cluster.environment).items() if n not in kept_back},
        "interface": cluster.interface,
        "silence_s": max(cluster.heartbeat_timeout, MIN_SILENCE_S),
        "version": mxtrain.__version__,
    }


def python_of(cluster: Cluster) -> str:
    """Returns the path of Python on the other hosts."""
    return sys.executable if cluster.python == "auto" else cluster.python


def directory_of(cluster: Cluster) -> str:
    """Returns the working directory on the other hosts."""
    return os.getcwd() if cluster.directory == "auto" else cluster.directory


class QueueDisplay:
    """Shows a state on standard error: in one line on a terminal, otherwise only when it changes.

    Args:
        state: returns the line; empty if it is not known.
    """

    def __init__(self, state: Callable[[], str]):
        self._state = state
        self._next_s = time.monotonic() + FIRST_S
        self._shown: Optional[str] = None

    def update(self) -> None:
        """Asks for the state if it is time to."""
        if time.monotonic() < self._next_s:
            return
        line, self._next_s = self._state(), time.monotonic() + NEXT_S
        if line and line != self._shown:
            start, end = ("\r\x1b[K", "") if sys.stderr.isatty() else ("", "\n")
            print(f"{start}{line}", end=end, file=sys.stderr, flush=True)
            self._shown = line

    def close(self) -> None:
        """Ends the line."""
        if self._shown is not None and sys.stderr.isatty():
            print(file=sys.stderr, flush=True)
        self._shown, self._next_s = None, float("inf")
