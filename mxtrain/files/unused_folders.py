"""Removes temporary folders of processes that have ended.

A process holds a lock (`flock`) on its folder while it uses it. The kernel releases the lock when the process ends for
any reason, so a folder without one is abandoned.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator, Tuple


def remove_unused(folder: Path) -> None:
    """Removes a folder that no process has locked.

    Raises:
        OSError: a process has locked it, it does not exist any more, or its file system has no locks.
    """
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The name may belong to a new folder by now: another process may have removed and recreated it.
        if os.path.samestat(os.fstat(opened), folder.lstat()):
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(opened)


def remove_abandoned(parent: Path, prefix: str) -> None:
    """Removes this user's folders with these names whose processes have ended. Living processes lock their folders."""
    for folder in parent.glob(f"{glob.escape(prefix)}*"):
        with contextlib.suppress(OSError):
            if folder.lstat().st_uid == os.getuid():
                remove_unused(folder)


def make_locked(parent: Path, prefix: str) -> Tuple[Path, int]:
    """Creates and locks a temporary folder; returns it with a file descriptor that holds the lock."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        # Until it is locked, another process may remove the folder: then try again.
        with contextlib.suppress(FileNotFoundError):
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            with contextlib.suppress(OSError):  # without locks on this file system nothing is removed, either
                # A shared lock is enough: removal asks for an exclusive one.
                fcntl.flock(lock, fcntl.LOCK_SH)
            if folder.exists() and os.path.samestat(os.fstat(lock), folder.lstat()):
                return folder, lock
            os.close(lock)


@contextmanager
def locked_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """Creates a temporary folder for the `with` block, after those of killed processes were removed.

    Args:
        parent: folder for it.
        prefix: beginning of its name.
    """
    remove_abandoned(parent, prefix)
    folder, lock = make_locked(parent, prefix)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)
