"""Runs a command in several processes: this process either supervises them or is one of them."""

from __future__ import annotations

import functools
import importlib
import os
import shlex
import shutil
import time
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Callable, Dict, Iterator, List, Optional, Sequence, Tuple, Type

from mxtrain.archive.run_files import STATUS_FILE
from mxtrain.archive.status import read_status_object
from mxtrain.callback.protocol import Result
from mxtrain.callback.status import StatusFile
from mxtrain.checkpoint.store import CHECKPOINTS
from mxtrain.cluster.joining import find_scheduler
from mxtrain.cluster.launch.run_dir_rollback import remove_unstarted
from mxtrain.cluster.launched import launched_environment
from mxtrain.cluster.launcher import Launcher
from mxtrain.cluster.member import Member, find_member
from mxtrain.cluster.ring import Ring
from mxtrain.cluster.supervisor import ProcessFailure, Supervisor, say, steps_of
from mxtrain.config.groups import Description
from mxtrain.config.override_text import quote
from mxtrain.errors import EXIT_BAD_INPUT, ConfigError, RunDirectoryError
from mxtrain.files.durable import append_to
from mxtrain.kvstore.world import RING
from mxtrain.terminal.program import program

MIN_S = 1.0
"""Smallest `trainer.max_time` of a restart, in seconds. If the time is up, the restart still ends the run in order."""
LOGS = "workers"
"""The folder of a run directory with the output of all processes but rank 0."""


def find_role(description: Description) -> Optional[Member]:
    """Returns the role and rank of this process in a run of several processes, which its launcher has put into the
    environment. None if it runs alone, or is the supervisor that starts the others.

    Raises:
        ConfigError: the processes that mpirun or srun started do not fit the description, or the scheduler cannot
            listen.
        NotJoined: there is no scheduler.
    """
    member = find_member()
    # The supervisor of a node may itself be a task of srun.
    if member is None and description.kvstore.distributed and description.cluster.launcher != "nodes":
        os.environ.update(launched_environment(description.cluster, description.kvstore.van) or {})
        member = find_member()
    if member is not None and description.kvstore.van is not None:
        find_scheduler(member, description.cluster.start_timeout)
    return member


def supervise(description: Description, run_dir: Path, arguments: Sequence[str]) -> int:
    """Starts all processes of a run, watches them to the end, and returns the exit code.

    Args:
        description: description of the run.
        run_dir: directory of the run.
        arguments: flags and overrides of the run.

    Raises:
        ConfigError: the launcher cannot work, or a host cannot be reached; nothing was written.
    """
    from mxtrain.checkpoint import lock_run_directory, refuse_links

    with closing(build_launcher(description)) as launcher:
        if not launcher.writes_logs:
            raise ConfigError(
                "cluster.launcher=nodes runs one run: neither a sweep, a search, folds nor a call of Python."
            )
        run_dir = run_dir.absolute()
        logs = run_dir / LOGS
        # The run directory may be untrusted, and a link in it would redirect logs to other files of the user.
        refuse_links(run_dir)
        new_folders = [folder for folder in (logs, run_dir, *run_dir.parents) if not folder.exists()]
        with lock_run_directory(logs, name=run_dir):  # rank 0 locks the run directory itself
            try:
                return _supervise(description, launcher, run_dir, arguments, logs, new_folders)
            except ConfigError:
                if not (run_dir / CHECKPOINTS).exists():
                    remove_unstarted_group(new_folders)
                raise


def _supervise(
    description: Description,
    launcher: Launcher,
    run_dir: Path,
    arguments: Sequence[str],
    logs: Path,
    new_folders: List[Path],
) -> int:
    run_dir_overrides = overrides_of_run_dir(run_dir)

    started = time.time()

    def overrides_of(attempt: int) -> List[str]:
        passed = time.time() - started if attempt else 0.0
        return ["train", *arguments_of(arguments, description, supervisor.has_trained, passed), *run_dir_overrides]

    def print_and_log(line: str) -> None:
        say(line)
        with suppress(OSError), append_to(logs / "supervisor.log", encoding="utf-8") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}\n")

    def refer_to_step(failure: ProcessFailure) -> None:
        if description.cluster.balance == "dynamic":
            return  # a step has no share of the worker that could be read again
        step, folder = failure.step + 1, write_reference(run_dir, failure, description.cluster.workers)
        if folder is not None:
            print_and_log(f"`{program()} replay {shlex.quote(str(folder))}` repeats step {step} layer by layer")

    _announce(description, launcher, logs)
    with ring_of(description, launcher) as ring, _memory_of(description, print_and_log):
        supervisor = Supervisor(
            launcher.cluster,
            lambda attempt, stack: launcher.start(overrides_of(attempt), logs, attempt, stack),
            lambda: steps_of(run_dir / CHECKPOINTS),
            print_and_log,
            launcher.obstacle,
            ring,
            refer_to_step,
            launcher.prepare,
            # A replacement has the command line of the lost worker: with resume=never it would begin anew.
            replaces_first=launcher.cluster.standby
            and description.checkpoint.resume != "never"
            and description.trainer.max_time is None,
            goes_on=description.cluster.balance == "dynamic",
        )
        code = supervisor.run()
    if code == EXIT_BAD_INPUT and not supervisor.has_trained:
        remove_unstarted_group(new_folders)
    elif supervisor.failure is not None:
        note_failure(run_dir, supervisor.failure, code, started)
    return code


def overrides_of_run_dir(run_dir: Path) -> List[str]:
    """Returns the overrides with which a worker trains in a run directory."""
    return [f"hydra.run.dir={quote(str(run_dir))}", "hydra.mode=RUN"]


def write_reference(run_dir: Path, failure: ProcessFailure, workers: int) -> Optional[Path]:
    """Writes a bundle for `mxtrain replay` that refers to the step in which a worker was killed. Returns its folder, or
    None if it cannot be written."""
    from mxtrain.training.replay_bundle import StepReference  # imports numpy, which a supervisor rarely needs

    assert failure.worker is not None
    reference = StepReference(run_dir, failure.step + 1, failure.worker, workers, failure.cause)
    with suppress(OSError, RunDirectoryError):
        return reference.write()
    return None


def arguments_of(
    arguments: Sequence[str], description: Description, has_trained: bool, seconds_passed: float
) -> List[str]:
    """Returns the command line for the processes of an attempt. A restart continues the run, and has only the remaining
    time.

    Args:
        arguments: flags and overrides of the command.
        description: description of the run.
        has_trained: True if an earlier attempt has trained on a batch.
        seconds_passed: seconds since the first attempt began; 0 for the first.
    """
    changed = []
    # `never` moves earlier files away, so a restart with it would discard the checkpoints of this very run.
    if has_trained and description.checkpoint.resume == "never":
        changed.append("checkpoint.resume=auto")
    if seconds_passed and description.trainer.max_time is not None:
        changed.append(f"trainer.max_time={max(description.trainer.max_time - seconds_passed, MIN_S):.0f}")
    keys = {word.partition("=")[0] for word in changed}
    return [*(word for word in arguments if word.lstrip("+").partition("=")[0] not in keys), *changed]


def supervise_in(logs: Path, description: Description, arguments: Sequence[str]) -> int:
    """Supervises as `supervise` does, for a command that keeps no run, so that nothing can be restarted."""
    cluster = description.cluster.model_copy(update={"restarts": 0})
    with closing(build_launcher(description)) as launcher:
        _announce(description, launcher, logs)
        with ring_of(description, launcher) as ring:
            start = functools.partial(launcher.start, arguments, logs)
            return Supervisor(cluster, start, list, say, launcher.obstacle, ring).run()


def is_further_node(description: Description) -> bool:
    """Returns True if this process supervises a node without worker 0, and so has no run directory."""
    if description.cluster.launcher != "nodes" or not description.kvstore.distributed or find_member() is not None:
        return False
    from mxtrain.cluster.nodes import find_node

    return find_node()[0] > 0


@contextmanager
def ring_of(description: Description, launcher: Launcher) -> Iterator[Optional[Ring]]:
    """Opens the ring in which workers find each other, if the store needs one; an environment variable names it."""
    if not description.kvstore.ring:
        yield None
        return
    with closing(Ring(launcher.address, description.cluster.interface, description.kvstore.is_elastic)) as ring:
        os.environ[RING] = ring.address
        try:
            yield ring
        finally:
            del os.environ[RING]


@contextmanager
def _memory_of(description: Description, print_line: Callable[[str], None]) -> Iterator[None]:
    """Opens the folder in memory for the last state of a run, if `cluster.memory_steps` asks for it."""
    if description.cluster.memory_steps is None:
        yield
        return
    from mxtrain.checkpoint.memory import memory_folder  # imports numpy, which a supervisor rarely needs

    with memory_folder() as problem:
        if problem:
            print_line(f"cluster.memory_steps: {problem}. A restart begins at the last checkpoint")
        yield


def _announce(description: Description, launcher: Launcher, logs: Path) -> None:
    def count(number: int, noun: str) -> str:
        return f"{number} {noun}{'s' * (number > 1)}"

    parts = [count(description.cluster.workers, "worker")]
    if description.kvstore.van is not None:
        parts.append(count(description.cluster.num_servers, "server"))
    where = f"; logs: {shlex.quote(str(logs))}" if launcher.writes_logs else ""
    say(f"{', '.join(parts)} {launcher.place}{where}")


def remove_unstarted_group(new_folders: List[Path]) -> None:
    """Removes the folders that were created for a run that could not start."""
    if new_folders:
        shutil.rmtree(new_folders[0])  # the logs, which were printed already
        remove_unstarted(new_folders[1:])


def _has_ended(run_dir: Path) -> bool:
    """Returns True if status.json can be read and its state is not "running"."""
    return read_status_object(run_dir).get("state", "running") != "running"


def note_failure(run_dir: Path, failure: ProcessFailure, exit_code: int, started: float) -> None:
    """Writes status.json if no worker lived long enough to write it."""
    path = run_dir / STATUS_FILE
    # The status that worker 0 has written in this call says more than the supervisor knows.
    if path.exists() and path.stat().st_mtime > started and _has_ended(run_dir):
        return
    checkpoints: Optional[List[str]] = steps_of(run_dir / CHECKPOINTS)
    latest = str(run_dir / CHECKPOINTS / checkpoints[-1]) if checkpoints else None
    StatusFile(run_dir).on_end(
        Result("failed", exit_code, failure.cause, step=failure.step, epoch=0, checkpoint=latest)
    )


LAUNCHERS: Dict[str, Tuple[str, str]] = {
    "local": ("mxtrain.cluster.launcher", "Launcher"),
    "nodes": ("mxtrain.cluster.nodes", "NodeLauncher"),
    "ssh": ("mxtrain.cluster.ssh", "SSHLauncher"),
    "slurm": ("mxtrain.cluster.slurm", "SlurmLauncher"),
    "ray": ("mxtrain.cluster.ray_launcher", "RayLauncher"),
}
"""`cluster.launcher` -> module and class; a run imports only its own."""


def build_launcher(description: Description) -> Launcher:
    """Builds the launcher that `cluster.launcher` names.

    Raises:
        ConfigError: it cannot work here; nothing was started.
    """
    cluster = description.cluster
    kind, _, count = description.parallel.devices.partition(":")
    if cluster.launcher == "ray" and kind == "gpu":
        # Options of the user come later, and count.
        options = [f"gpus={count}", *cluster.launcher_options]
        cluster = cluster.model_copy(update={"launcher_options": options})
    module, name = LAUNCHERS[cluster.launcher]
    launcher: Type[Launcher] = getattr(importlib.import_module(module), name)
    return launcher(cluster, description.kvstore.van)
