"""Reads files of a checkpoint and verifies every byte against the manifest before it is used."""

from __future__ import annotations

import hashlib
import mmap
import os
import stat
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator, Optional, Tuple

from mxtrain.errors import CheckpointError, DamagedCheckpoint, UnreadableCheckpoint
from mxtrain.files.durable import CHUNK_BYTES, Digest, PathLike


def read_file(path: PathLike, *, expected: Optional[Digest] = None) -> memoryview:
    """Returns the bytes of a regular file in one read, as a read-only view.

    Args:
        path: the file.
        expected: what its manifest says; the bytes that are returned are the bytes that were checked.

    Raises:
        UnreadableCheckpoint: the file cannot be read now.
        DamagedCheckpoint: it is not there, or differs from `expected`.
    """
    path = Path(path)
    filled = 0
    with _opened(path, expected) as (fd, size):
        try:
            # One buffer of the known size: what is hashed is what is returned, with no second read in between.
            buffer = memoryview(bytearray(size))
        except MemoryError as error:
            raise UnreadableCheckpoint(f"{path.name} has {size} bytes, more than there is memory for") from error
        while filled < size:
            count = os.readv(fd, [buffer[filled:]])
            if count == 0:
                raise DamagedCheckpoint(f"{path.name} ended at byte {filled} of {size} while it was read")
            filled += count
    if expected is not None:
        _check_hash(path, hashlib.sha256(buffer).hexdigest(), expected)
    return buffer.toreadonly()


def map_file(path: PathLike, expected: Digest) -> memoryview:
    """Maps a large regular file into memory, read-only, after it was verified.

    Memory is only used for the parts that are read. The file may be removed afterwards, but must not be modified.

    Raises:
        UnreadableCheckpoint, DamagedCheckpoint: see `read_file`.
    """
    path = Path(path)
    with _opened(path, expected) as (fd, size):
        _verify(path, fd, expected)
        return memoryview(mmap.mmap(fd, size, access=mmap.ACCESS_READ))


def verify_file(path: PathLike, expected: Digest) -> None:
    """Reads a file and compares it with its manifest entry, in constant memory.

    Raises:
        UnreadableCheckpoint, DamagedCheckpoint: see `read_file`.
    """
    path = Path(path)
    with _opened(path, expected) as (fd, _):
        _verify(path, fd, expected)


def _verify(path: Path, fd: int, expected: Digest) -> None:
    buffer = memoryview(bytearray(CHUNK_BYTES))
    hash_ = hashlib.sha256()
    while True:
        count = os.readv(fd, [buffer])
        if count == 0:
            break
        hash_.update(buffer[:count])
    _check_hash(path, hash_.hexdigest(), expected)


def of_os_error(error: OSError, text: str) -> CheckpointError:
    """Returns the error for a file that cannot be opened: a missing file is damage, other reasons may be temporary."""
    missing = isinstance(error, (FileNotFoundError, NotADirectoryError))
    return (DamagedCheckpoint if missing else UnreadableCheckpoint)(text)


@contextmanager
def _opened(path: Path, expected: Optional[Digest]) -> Iterator[Tuple[int, int]]:
    """Opens a file for reading, as a context of (descriptor, size); errors in it become `UnreadableCheckpoint`."""
    fd, size = _open_regular(path, expected)
    try:
        yield fd, size
    except OSError as error:
        raise UnreadableCheckpoint(f"{path.name} cannot be read: {error.strerror}") from error
    finally:
        os.close(fd)


def _open_regular(path: Path, expected: Optional[Digest]) -> Tuple[int, int]:
    """Returns an open descriptor and the size; O_NONBLOCK because opening a named pipe would wait for ever."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise of_os_error(error, f"{path.name} cannot be opened: {error.strerror}") from error
    status = os.fstat(fd)
    problem = ""
    if not stat.S_ISREG(status.st_mode):
        problem = f"{path.name} is not a regular file"
    elif expected is not None and status.st_size != expected.size:
        problem = f"{path.name} has {status.st_size} bytes, its manifest says {expected.size}"
    if problem:
        os.close(fd)
        raise DamagedCheckpoint(problem)
    return fd, status.st_size


def _check_hash(path: Path, sha256: str, expected: Digest) -> None:
    if sha256 != expected.sha256:
        raise DamagedCheckpoint(
            f"{path.name} has SHA-256 {sha256[:12]}..., its manifest says {expected.sha256[:12]}..."
        )
