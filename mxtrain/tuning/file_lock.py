"""File locks that the kernel releases when their process ends, even if it is killed."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from mxtrain.files.durable import open_file


class FileLock:
    """flock(2) on a separate lock file.

    A child process that inherits the descriptor `fd` holds the lock, too, even after the parent has ended.

    Args:
        path: lock file; it is created if necessary and never removed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fd = -1

    def acquire(self, wait: bool = True) -> bool:
        """Takes the lock. Returns False if another process holds it and `wait` is False.

        Raises:
            OSError: the file cannot be opened, or its file system does not support locks.
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
        """Closes the descriptor of this process. The lock is free once all inherited descriptors are closed, too."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            # No LOCK_UN: it would release the lock for the process that has inherited the descriptor, too.
            os.close(fd)

    def __enter__(self) -> FileLock:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
