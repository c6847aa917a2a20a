"""Keeps the last state of a run in memory (a tmpfs), from which its supervisor restarts it after a failure.

    supervisor   creates the folder, and names it to its workers by an environment variable
    worker 0     writes a checkpoint there in the background, every `cluster.memory_steps` steps, with hashes
    worker 0     of the next attempt continues from it if it is newer than the checkpoints of the run directory

The folder ends with the supervisor. If that is killed, another process removes the folder.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator, Optional

from mxtrain.checkpoint.contents import Checkpoint, Snapshot
from mxtrain.checkpoint.store import CheckpointStore
from mxtrain.files.unused_folders import locked_folder
from mxtrain.runtime.memory import shown_size

MEMORY = "MXTRAIN_MEMORY"
"""Environment variable with the folder of the last state."""
ROOT = Path("/dev/shm")
PREFIX = "mxtrain-state-"
_SPARE_BYTES = 1 << 20
"""Bytes that remain free, for headers and for other programs' small files."""

_REMOVE_AT_END = """
import shutil, sys, time
sys.stdin.buffer.read()
for _ in range(20):
    shutil.rmtree(sys.argv[1], ignore_errors=True)
    time.sleep(0.1)
"""
"""Removes a folder when the other end of standard input is closed, as it is when its process was killed. Repeated for
two seconds, because a worker may end a little later and still write."""


@contextmanager
def memory_folder() -> Iterator[str]:
    """Creates the folder of the last state for the processes that are started within the context.

    Yields why there is none, as part of a sentence; "" if there is one.
    """
    if not os.access(ROOT, os.W_OK | os.X_OK):
        yield f"{ROOT} cannot be written"
        return
    with locked_folder(ROOT, PREFIX) as folder:
        # In a session of its own, so that a signal to the process group of the supervisor does not end it.
        guard = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _REMOVE_AT_END, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.environ[MEMORY] = str(folder)
        try:
            yield ""
        finally:
            del os.environ[MEMORY]
            guard.kill()
            guard.communicate()


def is_kept_in_memory() -> bool:
    """Returns True if a supervisor wants the last state of this run."""
    return MEMORY in os.environ


class MemoryState:
    """The last state of a run in memory, for worker 0.

    Args:
        folder: folder that the supervisor has created.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        # One complete state, and the next one while it is written.
        self._store = CheckpointStore(folder / "states", keep_last=1, keep_top=0)
        self._is_off = False

    def keep(self, snapshot: Snapshot) -> str:
        """Writes a state in the background. If there is no room, none is kept from now on.

        Returns:
            A sentence if this state, or the one before it, cannot be kept; otherwise "".
        """
        if self._is_off:
            return ""
        outcome = self._store.wait()
        problem = "" if outcome is None else outcome.error or ""
        if not problem:
            problem = self._why_too_large(snapshot)
        if problem:
            self._is_off = True
            return (
                f"the state of step {snapshot.step} is not kept in memory: {problem}. A restart begins at the last "
                "checkpoint in the run directory"
            )
        self._store.save(snapshot)
        return ""

    def latest(self) -> Optional[Checkpoint]:
        """Returns the newest intact state, or None."""
        return self._store.latest()

    def close(self) -> None:
        """Waits for the state that is being written."""
        self._store.close()

    def _why_too_large(self, snapshot: Snapshot) -> str:
        needed = sum(array.nbytes for arrays in snapshot.arrays.values() for array in arrays.values())
        try:
            free = os.statvfs(self._folder)
        except OSError as error:
            return f"{self._folder} cannot be used: {error.strerror}"
        if needed + _SPARE_BYTES > free.f_bavail * free.f_frsize:
            return (
                f"it takes {shown_size(needed)}, and {ROOT} has {shown_size(free.f_bavail * free.f_frsize)} left "
                "(in containers: --shm-size)"
            )
        return ""


def build_memory_state() -> Optional[MemoryState]:
    """Returns the last state in memory; None if no supervisor wants one."""
    folder = os.environ.get(MEMORY)
    return None if folder is None else MemoryState(Path(folder))


def newest_in_memory() -> Optional[Checkpoint]:
    """Returns the last state of this run that its supervisor has in memory, or None."""
    memory = build_memory_state()
    return None if memory is None else memory.latest()
