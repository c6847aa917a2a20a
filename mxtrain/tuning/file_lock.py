"""Locks that the kernel frees when their process ends, however it ends."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from mxtrain.files.durable import open_file


class FileLock:
    """flock(2) on a file of its own. A process that inherits the descriptor `fd` holds the lock as well, also after the
    one that took it has ended.

    Args:
        path: of the file, which is made if need be and stays.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fd = -1

    def acquire(self, wait: bool = True) -> bool:
        """Takes the lock; returns False if another has it and `wait` is False.

        Raises:
            OSError: the file cannot be opened, or its file system has no locks.
        """
        fd = open_file(self.path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return False
        except BaseException:
            os.close(fd)
            raise
        self.fd = fd
        return True

    def release(self) -> None:
        """Closes this process's descriptor."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> FileLock:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
