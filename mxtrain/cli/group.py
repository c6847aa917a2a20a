"""A run of several processes: this one starts and watches them, or is one of them."""

from __future__ import annotations

import shlex
import shutil
import time
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Callable, Iterator, List, Optional, Sequence

from mxtrain.callback.status import StatusFile
from mxtrain.checkpoint.store import CHECKPOINTS
from mxtrain.cluster.local import local_orders
from mxtrain.cluster.process import Order
from mxtrain.cluster.ring import Ring
from mxtrain.cluster.supervisor import Failure, Supervisor, say, steps_of
from mxtrain.description import Description
from mxtrain.errors import EXIT_BAD_INPUT
from mxtrain.override_text import quote
from mxtrain.types import Result

LOGS = "workers"
"""The folder of a run directory with the output of all processes but rank 0."""


def supervise(description: Description, run_dir: Path, arguments: Sequence[str]) -> int:
    """Starts all processes of a run, watches them to the end, and returns the exit code.

    Args:
        description: of the run.
        run_dir: where it is kept.
        arguments: flags and overrides that describe it.
    """
    from mxtrain.checkpoint import lock_run_directory

    run_dir = run_dir.absolute()
    logs = run_dir / LOGS
    new_folders = [folder for folder in (logs, run_dir, *run_dir.parents) if not folder.exists()]
    with lock_run_directory(logs):  # rank 0 locks the run directory itself
        return _supervise(description, run_dir, arguments, logs, new_folders)


def _supervise(
    description: Description, run_dir: Path, arguments: Sequence[str], logs: Path, new_folders: List[Path]
) -> int:
    place = [f"hydra.run.dir={quote(str(run_dir))}", "hydra.mode=RUN"]

    def again(attempt: int) -> List[str]:
        given = [word for word in arguments if not (attempt and word == "checkpoint.resume=never")]
        return ["train", *given, *place]

    started = time.time()
    _announce(description, logs)
    with ring_of(description) as ring:
        supervisor = Supervisor(
            description.cluster, _orders(description, again, logs, ring), lambda: steps_of(run_dir / CHECKPOINTS), say,
            ring,
        )  # fmt: skip
        code = supervisor.run()
    if code == EXIT_BAD_INPUT:
        remove_unstarted_group(new_folders)
    elif supervisor.failure is not None:
        note_failure(run_dir, supervisor.failure, code, started)
    return code


def supervise_in(logs: Path, description: Description, arguments: Sequence[str], restarts: int) -> int:
    """As `supervise`, for a command that keeps no run."""
    cluster = description.cluster.model_copy(update={"restarts": restarts})
    _announce(description, logs)
    with ring_of(description) as ring:
        return Supervisor(cluster, _orders(description, lambda attempt: arguments, logs, ring), list, say, ring).run()


@contextmanager
def ring_of(description: Description) -> Iterator[Optional[Ring]]:
    """Where the workers find each other, for a store that needs it."""
    if not description.kvstore.ring:
        yield None
        return
    with closing(Ring()) as ring:
        yield ring


def _orders(
    description: Description, arguments: Callable[[int], Sequence[str]], logs: Path, ring: Optional[Ring]
) -> Callable[[int], List[Order]]:
    address = None if ring is None else ring.address
    return lambda attempt: local_orders(description.cluster, description.kvstore.van, arguments(attempt), logs, address)


def _announce(description: Description, logs: Path) -> None:
    def count(number: int, what: str) -> str:
        return f"{number} {what}{'s' * (number > 1)}"

    parts = [count(description.cluster.workers, "worker")]
    if description.kvstore.van is not None:
        parts.append(count(description.cluster.num_servers, "server"))
    say(f"{', '.join(parts)} on this machine; logs: {shlex.quote(str(logs))}")


def remove_unstarted_group(new_folders: List[Path]) -> None:
    """Takes back the folders that were made for a run that could not start."""
    from mxtrain.cli.train import remove_unstarted

    if new_folders:
        shutil.rmtree(new_folders[0])  # the logs, which were shown
        remove_unstarted(new_folders[1:])


def note_failure(run_dir: Path, failure: Failure, exit_code: int, started: float) -> None:
    """status.json, where no worker lived to write it."""
    path = run_dir / "status.json"
    if path.exists() and path.stat().st_mtime > started and '"running"' not in path.read_text():
        return
    checkpoints: Optional[List[str]] = steps_of(run_dir / CHECKPOINTS)
    latest = str(run_dir / CHECKPOINTS / checkpoints[-1]) if checkpoints else None
    StatusFile(run_dir).on_end(
        Result("failed", exit_code, failure.cause, step=failure.step, epoch=0, checkpoint=latest)
    )
