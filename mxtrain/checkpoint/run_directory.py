"""Locks a run directory, so that two runs never write into the same one.

The lock is flock(2) on `<run directory>/.lock`. The kernel releases it when the process ends for any reason. The file
stays and names the holder for messages. We call flock directly because the `filelock` releases for Python 3.9 let a
forked child (a loader worker) keep, or even release, its parent's lock.
"""

from __future__ import annotations

import datetime
import errno
import fcntl
import json
import os
import socket
import stat
from pathlib import Path
from typing import Literal, Optional, Sequence

from mxtrain.errors import RunDirectoryError, RunDirectoryLost, run_dir_setting
from mxtrain.files.durable import PathLike, open_file

LOCK_FILE = ".lock"
NEVER_LINKS = (
    LOCK_FILE,
    ".hydra",
    ".hydra/config.yaml",
    ".hydra/hydra.yaml",
    ".hydra/overrides.yaml",
    "train.log",
    "checkpoints",
    "previous",
    "workers",
)
"""Files that a run or Hydra writes in place. All others are replaced, or opened by `durable.open_file`."""
_MAX_HOLDER_BYTES = 4096


class RunDirectoryLock:
    """A held lock, returned by `lock_run_directory`. As a context manager it releases the lock at the end."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        """The run directory."""
        self._fd = fd
        # While this descriptor is open, the kernel cannot give the directory's inode number to a new directory, so
        # comparing inodes proves that `path` is still the same one.
        self._directory_fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        _HELD.append(self)

    @property
    def held(self) -> bool:
        """Returns True until the lock is released."""
        return self._fd >= 0

    def is_in_place(self) -> bool:
        """Returns True if `path` still leads to the locked directory. Costs two system calls."""
        return not self.held or _is_still_there(self.path, self._directory_fd)

    def require_in_place(self) -> None:
        """Checks that `path` still leads to the locked directory. Call it before writing there.

        Raises:
            RunDirectoryLost: the directory was removed, moved away or replaced.
        """
        if not self.is_in_place():
            raise RunDirectoryLost(
                f"The run directory {self.path} was removed or replaced while the run wrote to it: what was trained "
                "is lost unless it was moved elsewhere. Put it back, or give the same command again to begin anew."
            )

    def release(self) -> None:
        """Releases the lock. Further calls do nothing."""
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
    """Closes inherited locks after a fork: a loader worker that outlives a killed run must not keep its lock."""
    for lock in list(_HELD):
        lock._close()


os.register_at_fork(after_in_child=_forget_in_child)


def refuse_links(folder: PathLike, names: Sequence[str] = NEVER_LINKS) -> None:
    """Rejects symbolic links in an untrusted folder before anything is written there: they could lead anywhere.

    Raises:
        RunDirectoryError: a path of `names` below `folder` is a symbolic link.
    """
    for path in (Path(folder, name) for name in names):
        if path.is_symlink():
            raise RunDirectoryError(
                f"{path} is a link, and mxtrain writes through none in a run directory: it may lead to files of yours. "
                "Put what it points to in its place, or remove it; the run directory itself may be a link."
            )


def lock_run_directory(
    path: PathLike, name: Optional[PathLike] = None, holds: Literal["run", "sweep"] = "run"
) -> RunDirectoryLock:
    """Locks a run directory for this process, and creates it if needed. Call it before any other write.

    Does not wait for another holder. The lock is held until it is released or the process ends.

    Args:
        path: the run directory.
        name: name of the directory in messages, if it differs from its path.
        holds: whose directory it is, for messages.

    Raises:
        RunDirectoryError: another process holds the lock (named by id, host and start), the directory cannot be
            written, or it contains symbolic links.
    """
    path = Path(path)
    try:
        refuse_links(path)
        path.mkdir(parents=True, exist_ok=True)
        while True:
            fd = open_file(path / LOCK_FILE, os.O_RDWR | os.O_CREAT)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # The lock belongs to an inode, so it counts only while the name leads to that inode.
                if _is_still_there(path / LOCK_FILE, fd):
                    try:
                        _write_holder(fd)
                        return RunDirectoryLock(path, fd)
                    except BaseException:  # also a signal: the file must not name a holder that has gone
                        os.ftruncate(fd, 0)
                        raise
            except BlockingIOError:
                message = _in_use(Path(name or path), fd, holds)
                os.close(fd)
                raise RunDirectoryError(message) from None
            except BaseException:
                os.close(fd)
                raise
            # Another process removed the file between open and flock, so this lock protects nothing: try again.
            os.close(fd)
    except OSError as error:
        reason = "this file system has no locks" if error.errno in (errno.ENOSYS, errno.ENOLCK) else error.strerror
        raise RunDirectoryError(
            f"The {_NAMES[holds]} {path} cannot be used: {reason}. Choose another one with "
            f"{run_dir_setting(_SETTINGS[holds])}=..."
        ) from error


def is_locked(path: PathLike, name: str = LOCK_FILE, may_be_empty: bool = False) -> bool:
    """Returns True if a process, of this machine or another, holds the lock of a run directory. Writes nothing.

    A run that ended by itself has emptied the file, so the lock is tried only for running and killed runs. Trying takes
    the lock for a few microseconds. A killed run that is started again in that moment is rejected as in use.

    Args:
        path: the run directory.
        name: name of the lock file in it.
        may_be_empty: False if holders write their id into the file, so that an empty file is not locked.
    """
    try:
        fd = os.open(Path(path, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or (status.st_size == 0 and not may_be_empty):
            return False
        # A shared lock, so that several commands that check at the same time do not take each other for a run.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    except OSError:  # no locks on this file system, so no run can have started here
        return False
    finally:
        os.close(fd)


def held_lock(path: PathLike) -> Optional[RunDirectoryLock]:
    """Returns the lock that this process holds on a run directory, or None."""
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


_NAMES = {"run": "run directory", "sweep": "folder of the sweep"}
_SETTINGS = {"run": "hydra.run.dir", "sweep": "hydra.sweep.dir"}


def _in_use(path: Path, fd: int, holds: str) -> str:
    try:
        holder = json.loads(os.pread(fd, _MAX_HOLDER_BYTES, 0))
        holder_text = f"process {holder['pid']} on {holder['host']}, started {holder['started']}"
    except (ValueError, KeyError, TypeError, OSError):  # the holder has not written its id yet
        holder_text = "another process"
    return (
        f"The {_NAMES[holds]} {path} is in use by {holder_text}. Wait for that {holds} or stop it, "
        f"or choose another directory with {run_dir_setting(_SETTINGS[holds])}=..."
    )
