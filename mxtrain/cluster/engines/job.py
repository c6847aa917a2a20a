"""A run that an engine starts, and the targets that files are written for."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Callable, List, Mapping, Sequence, Tuple

from mxtrain.cluster.launched import ROOT
from mxtrain.cluster.nodes import NODE_RANK, NUM_NODES

PORT = 9091
"""Port of MXNet's scheduler on node 0."""
GRACE_S = 60
"""Seconds that an engine gives a node to save after SIGTERM; the run itself takes at most `cluster.grace`."""
RESTARTS = 3
"""Restarts from the last checkpoint by an engine."""
OUTPUTS = "/outputs"
"""Folder of run directories in a container."""
Commands = Sequence[Tuple[str, str]]
"""Pairs of a purpose and a command."""


@dataclass(frozen=True)
class LaunchJob:
    """A run on an engine.

    Attributes:
        name: name of the job, of small letters, digits and hyphens.
        overrides: overrides of the run, already checked.
        flags: flags by which the run finds the user's own configuration.
        workers: number of workers.
        servers: number of parameter servers; 0 = the kvstore has none.
        ring: True if the kvstore is Horovod's.
        nodes: number of machines, pods or instances.
        image: container image; empty for targets without one.
        storage: URI of the folder of run directories; empty for targets without one.
        cpus: cores of a node.
        memory: GiB of a node.
        gpus: GPUs of a node.
    """

    name: str
    overrides: Sequence[str]
    flags: Sequence[str]
    workers: int
    servers: int
    ring: bool
    nodes: int
    image: str
    storage: str
    cpus: int
    memory: int
    gpus: int

    @property
    def run_dir(self) -> str:
        """Returns the run directory in a container."""
        return f"{OUTPUTS}/{self.name}"

    def arguments(self, run_dir: str) -> List[str]:
        """Returns the overrides of a node's command: those of the run, the launcher and the run directory."""
        launcher = ["cluster.launcher=nodes"] if self.nodes > 1 and not self.ring else []
        words = [word for word in self.overrides if word not in launcher]
        return [*words, *launcher, f"hydra.run.dir={run_dir}"]

    def script(self, rank: str, root: str, start: str = "exec ") -> str:
        """Returns the shell script of each node.

        Args:
            rank: shell expression of the node's number, from 0.
            root: shell expression of the host name or address of node 0.
            start: word before the command. By exec, the command takes the place of the shell, which does not forward
                signals.
        """
        lines = []
        if self.nodes > 1:
            lines = [
                f"export {NODE_RANK}={rank} {NUM_NODES}={self.nodes}",
                f"export {ROOT}={root}:{PORT}",
            ]
        return "\n".join([*lines, f"{start}{self.command()}", ""])

    def commands(self, templates: Commands, folder: str) -> Commands:
        """Returns commands whose fields are filled in: {name} of the job, {image}, {max_pods} of which logs are shown,
        and {folder} with the files."""
        # Five is the default of kubectl, which refuses more pods.
        fields = {"name": self.name, "image": shlex.quote(self.image), "max_pods": max(5, self.nodes), "folder": folder}
        return [(purpose, command.format_map(fields)) for purpose, command in templates]

    def command(self) -> str:
        """Returns the command that trains in a container, as text for a shell."""
        return shlex.join(["mxtrain", *self.arguments(self.run_dir)])


@dataclass(frozen=True)
class LaunchTarget:
    """An engine that files are written for.

    Attributes:
        title: name of the engine.
        files: returns the files of a job: name -> content.
        commands: the next commands, with the fields of `LaunchJob.commands`.
        needs: settings of `launch` that must be given.
        takes: settings of `launch` that may be given besides `name` and `out`.
        storage: schemes of `storage`.
        rings: True if Horovod's workers can run on several nodes.
        remarks: paragraphs of the README.
    """

    title: str
    files: Callable[[LaunchJob], Mapping[str, str]]
    commands: Commands
    needs: Sequence[str] = ()
    takes: Sequence[str] = ()
    storage: Sequence[str] = ()
    rings: bool = False
    remarks: Sequence[str] = ()


def without_expansion(text: str) -> str:
    """Escapes a text that Kubernetes or Docker Compose would search for variables."""
    return text.replace("$", "$$")
