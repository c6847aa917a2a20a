"""Locks a run directory, so that no two runs write into the same one.

The lock is flock(2) on `<run directory>/.lock`. The kernel frees it when the process ends, however it ends; the file
stays and says who holds it. We call flock ourselves: the `filelock` releases for Python 3.9 let a forked child (a
loader worker) keep, or even release, its parent's lock.
"""

from __future__ import annotations

import datetime
import errno
import fcntl
import json
import os
import socket
from pathlib import Path
from typing import Optional, Sequence

from mxtrain.errors import RunDirectoryError, RunDirectoryLost
from mxtrain.files.durable import PathLike, open_file

LOCK_FILE = ".lock"
NEVER_LINKS = (
    LOCK_FILE, ".hydra", ".hydra/config.yaml", ".hydra/hydra.yaml", ".hydra/overrides.yaml", "train.log", "checkpoints",
    "previous", "workers",
)  # fmt: skip
"""Files that a run or Hydra writes in place. All others are replaced, or opened by `durable.open_file`."""
_MAX_HOLDER_BYTES = 4096


class RunDirectoryLock:
    """A held lock; a context manager that releases it at the end. Made by `lock_run_directory`."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        """The run directory."""
        self._fd = fd
        # Held open: while it is, no other directory can get its number.
        self._directory_fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        _HELD.append(self)

    @property
    def held(self) -> bool:
        """True if it was not released yet."""
        return self._fd >= 0

    def is_in_place(self) -> bool:
        """Returns True if the directory is there under its name; two system calls."""
        return not self.held or _is_still_there(self.path, self._directory_fd)

    def require_in_place(self) -> None:
        """Checks that the run directory is still the one that was locked, before somebody writes there.

        Raises:
            RunDirectoryLost: the directory was removed or moved away, or there is another one under its name.
        """
        if not self.is_in_place():
            raise RunDirectoryLost(
                f"The run directory {self.path} was removed or replaced while the run wrote to it: what was trained "
                "is lost unless it was moved elsewhere. Put it back, or give the same command again to begin anew."
            )

    def release(self) -> None:
        """Let the next run in. Does nothing the second time."""
        if self.held:
            os.ftruncate(self._fd, 0)
            self._close()

    def _close(self) -> None:
        # In a forked child this must not unlock: the lock belongs to the open file that parent and child share, and
        # closing one descriptor of it leaves it locked.
        fd, self._fd = self._fd, -1
        if fd >= 0:
            _HELD.remove(self)
            os.close(fd)
            os.close(self._directory_fd)

    def __enter__(self) -> RunDirectoryLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


_HELD: list[RunDirectoryLock] = []


def _forget_in_child() -> None:
    """A worker that outlives a killed parent must not keep the run directory locked."""
    for lock in list(_HELD):
        lock._close()


os.register_at_fork(after_in_child=_forget_in_child)


def refuse_links(folder: PathLike, names: Sequence[str] = NEVER_LINKS) -> None:
    """Refuses links in a folder that may be somebody's, before anything is written there.

    Raises:
        RunDirectoryError: one of the names in it is a link.
    """
    for path in (Path(folder, name) for name in names):
        if path.is_symlink():
            raise RunDirectoryError(
                f"{path} is a link, and mxtrain writes through none in a run directory: it may lead to files of yours. "
                "Put what it points to in its place, or remove it; the run directory itself may be a link."
            )


def lock_run_directory(path: PathLike, name: Optional[PathLike] = None) -> RunDirectoryLock:
    """Take a run directory for this process, before anything else is written into it; creates it if needed.

    Never waits. It is held until it is released or the process ends.

    Args:
        path: the folder.
        name: name of the directory in errors, if it differs from its path.

    Raises:
        RunDirectoryError: another process holds it (named with its id, host and start), it cannot be written, or
            files or folders are symbolic links.
    """
    path = Path(path)
    try:
        refuse_links(path)
        path.mkdir(parents=True, exist_ok=True)
        while True:
            fd = open_file(path / LOCK_FILE, os.O_RDWR | os.O_CREAT)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_still_there(path / LOCK_FILE, fd):
                    try:
                        _write_holder(fd)
                        return RunDirectoryLock(path, fd)
                    except BaseException:  # a signal, too: then the lock has no holder
                        os.ftruncate(fd, 0)
                        raise
            except BlockingIOError:
                message = _in_use(Path(name or path), fd)
                os.close(fd)
                raise RunDirectoryError(message) from None
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)  # somebody removed the file between open and flock: take the new one
    except OSError as error:
        reason = "this file system has no locks" if error.errno in (errno.ENOSYS, errno.ENOLCK) else error.strerror
        raise RunDirectoryError(
            f"The run directory {path} cannot be used: {reason}. Choose another one with hydra.run.dir=..."
        ) from error


def held_lock(path: PathLike) -> Optional[RunDirectoryLock]:
    """The lock that this process holds on a run directory, or None."""
    return next((lock for lock in _HELD if os.path.realpath(lock.path) == os.path.realpath(path)), None)


def _is_still_there(path: Path, fd: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(fd))
    except (FileNotFoundError, NotADirectoryError):
        return False


def _write_holder(fd: int) -> None:
    now = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
    holder = {"pid": os.getpid(), "host": socket.gethostname(), "started": now}
    os.ftruncate(fd, 0)
    os.pwrite(fd, json.dumps(holder).encode("utf-8"), 0)


def _in_use(path: Path, fd: int) -> str:
    try:
        holder = json.loads(os.pread(fd, _MAX_HOLDER_BYTES, 0))
        who = f"process {holder['pid']} on {holder['host']}, started {holder['started']}"
    except (ValueError, KeyError, TypeError, OSError):  # it holds the lock but has not written its name yet
        who = "another process"
    return (
        f"The run directory {path} is in use by {who}. Wait for that run or stop it, "
        "or choose another directory with hydra.run.dir=..."
    )
