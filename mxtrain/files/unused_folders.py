"""Removes temporary folders of processes that have ended.

A process holds a lock (`flock`) on its folder while it uses it. The kernel releases the lock when the process ends for
any reason, so a folder without one is abandoned.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path


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
