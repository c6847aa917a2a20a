"""Files that are complete or absent: every write is checked, hashed on the way and on the disk before it counts.

MXNet's own writer returns success on a full disk (notes: Gluon and autograd), so nothing here trusts a return value.
All functions go through `os`, one system call each, so that a test can stop the process at any of them.
"""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Optional, Type, Union

from mxtrain.errors import CheckpointError

PathLike = Union[str, "os.PathLike[str]"]

CHUNK_BYTES = 1 << 20
"""Small enough that what was hashed is still in the cache when it is written."""


@dataclass(frozen=True)
class Digest:
    """What a manifest knows of one file."""

    size: int
    """Bytes."""
    sha256: str
    """64 lowercase hexadecimal digits."""


class HashedFile:
    """A new file, written once from start to end; after the `with` block it is on the disk and `digest` is known.

    When anything fails the file is removed and the error goes on. Not atomic by itself: a process that dies leaves a
    part of the file, so write into a temporary directory or to a temporary name.

    Raises:
        OSError: the file cannot be created, written or brought to the disk.
    """

    def __init__(self, path: PathLike) -> None:
        self.path = Path(path)
        self.digest: Optional[Digest] = None
        self._hash = hashlib.sha256()
        self._size = 0
        self._fd = -1
        self._is_regular = False

    def __enter__(self) -> HashedFile:
        self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        self._is_regular = stat.S_ISREG(os.fstat(self._fd).st_mode)
        return self

    def write(self, data: Union[bytes, memoryview]) -> None:
        """Append bytes; both hashing and writing release the GIL, so training goes on meanwhile."""
        view = memoryview(data)
        for start in range(0, len(view), CHUNK_BYTES):
            chunk = view[start : start + CHUNK_BYTES]
            self._hash.update(chunk)
            while len(chunk):
                chunk = chunk[os.write(self._fd, chunk) :]
        self._size += len(view)

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        try:
            try:
                if error is None:
                    os.fsync(self._fd)
            finally:
                os.close(self._fd)  # may fail too: network file systems report lost writes here
        except BaseException:
            self._remove()
            raise
        if error is not None:
            self._remove()
        else:
            self.digest = Digest(self._size, self._hash.hexdigest())

    def _remove(self) -> None:
        try:
            if self._is_regular:  # never a device such as /dev/full
                os.unlink(self.path)
        except OSError:
            pass  # the first error is the one to tell


def fsync_directory(path: PathLike) -> None:
    """Bring the names in a directory to the disk: a rename is durable only after this.

    Raises:
        OSError: the directory cannot be opened or synchronised.
    """
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def read_file(path: PathLike, *, expected: Optional[Digest] = None) -> memoryview:
    """The bytes of a regular file in one read, as a read-only view.

    Args:
        path: the file.
        expected: what its manifest says; the bytes that are returned are the bytes that were checked.

    Raises:
        CheckpointError: the file cannot be read, or differs from `expected`.
    """
    path = Path(path)
    fd, size = _open_regular(path, expected)
    buffer = memoryview(bytearray(size))
    filled = 0
    try:
        while filled < size:
            count = os.readv(fd, [buffer[filled:]])
            if count == 0:
                raise CheckpointError(f"{path.name} ended at byte {filled} of {size} while it was read")
            filled += count
    except OSError as error:
        raise CheckpointError(f"{path.name} cannot be read: {error.strerror}") from error
    finally:
        os.close(fd)
    if expected is not None:
        _check_hash(path, hashlib.sha256(buffer).hexdigest(), expected)
    return buffer.toreadonly()


def verify_file(path: PathLike, expected: Digest) -> None:
    """Read a file and compare it with its manifest entry, in constant memory.

    Raises:
        CheckpointError: the file cannot be read, or differs.
    """
    path = Path(path)
    fd, _ = _open_regular(path, expected)
    buffer = memoryview(bytearray(CHUNK_BYTES))
    hash_ = hashlib.sha256()
    try:
        while True:
            count = os.readv(fd, [buffer])
            if count == 0:
                break
            hash_.update(buffer[:count])
    except OSError as error:
        raise CheckpointError(f"{path.name} cannot be read: {error.strerror}") from error
    finally:
        os.close(fd)
    _check_hash(path, hash_.hexdigest(), expected)


def _open_regular(path: Path, expected: Optional[Digest]) -> tuple[int, int]:
    """An open descriptor and the size; O_NONBLOCK because opening a named pipe would wait for ever."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise CheckpointError(f"{path.name} cannot be opened: {error.strerror}") from error
    status = os.fstat(fd)
    problem = ""
    if not stat.S_ISREG(status.st_mode):
        problem = f"{path.name} is not a regular file"
    elif expected is not None and status.st_size != expected.size:
        problem = f"{path.name} has {status.st_size} bytes, its manifest says {expected.size}"
    if problem:
        os.close(fd)
        raise CheckpointError(problem)
    return fd, status.st_size


def _check_hash(path: Path, sha256: str, expected: Digest) -> None:
    if sha256 != expected.sha256:
        raise CheckpointError(f"{path.name} has SHA-256 {sha256[:12]}..., its manifest says {expected.sha256[:12]}...")
