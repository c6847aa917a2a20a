"""Opens untrusted files for reading: only regular files of limited size.

Pipes and devices have no end: a pipe without a writer blocks for ever, and /dev/zero fills the memory. So all paths and
files of users are opened here (`scripts/lint` finds other calls). `files.durable` writes files.
"""

from __future__ import annotations

import errno
import os
import stat
import weakref
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Iterable, Iterator, Optional, Protocol, Tuple, Union

AnyPath = Union[str, Path]

MAX_BYTES = 16 << 30
MAX_TEXT_BYTES = 1 << 26
"""Limit for files that people write by hand or that describe a run: settings, lists of hosts, status.json."""

_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}


# Without O_NONBLOCK, opening a pipe would wait for a writer.
_OPEN_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


class UnsuitableFile(OSError):
    """The file is not regular or is too large. `strerror` completes the sentence "The file cannot be read: ..."."""


class PositionedFile(Protocol):
    """A file that is read by position, from any thread."""

    @property
    def size(self) -> int:
        """Returns its size in bytes."""

    def read(self, length: int, position: int) -> bytes:
        """Returns bytes from a position on; fewer at the end of the file."""

    def prefetch(self, ranges: Iterable[Tuple[int, int]]) -> None:
        """Requests ranges (position, length) that will be read soon, without waiting for them."""


class RemoteFiles(Protocol):
    """Files of an object store, with a folder that holds their names; see `object_store.local_names`."""

    prefix: str
    """Path of the folder, with a slash at its end."""

    def open(self, path: str) -> BinaryIO:
        """Opens a file for reading."""

    def reader(self, path: str) -> PositionedFile:
        """Returns a reader of a file."""

    def local_copy(self, path: str) -> str:
        """Returns the path of a local copy."""


_remote: Optional[RemoteFiles] = None


def set_remote_files(files: RemoteFiles) -> None:
    """Sets the remote files through which paths below their folder are read from now on."""
    global _remote
    _remote = files


def is_remote(path: AnyPath) -> bool:
    """Returns True if a path is below the folder of remote files."""
    return _remote_of(path) is not None


def _remote_of(path: AnyPath) -> Optional[RemoteFiles]:
    return _remote if _remote is not None and os.fspath(path).startswith(_remote.prefix) else None


@contextmanager
def open_regular(path: AnyPath, at_most: int = MAX_BYTES) -> Iterator[Tuple[BinaryIO, int]]:
    """Opens a regular file for reading and yields it with its size in bytes. Links are followed.

    Args:
        path: path of the file.
        at_most: largest allowed size in bytes.

    Raises:
        OSError: the file cannot be opened.
        UnsuitableFile: the file is not regular, or is larger.
    """
    remote = _remote_of(path)
    if remote is not None:
        with remote.open(os.fspath(path)) as file:
            yield file, _suitable_status_of(os.stat(path), path, at_most).st_size
        return
    with open(os.open(path, _OPEN_FLAGS), "rb") as file:
        yield file, _suitable_status(file.fileno(), path, at_most).st_size


def read_regular(path: AnyPath, at_most: int = MAX_BYTES) -> bytes:
    """Reads a whole regular file.

    Raises:
        OSError, UnsuitableFile: see `open_regular`.
    """
    return read_with_status(path, at_most)[0]


def read_with_status(path: AnyPath, at_most: int = MAX_BYTES) -> Tuple[bytes, os.stat_result]:
    """Reads a whole regular file, and returns its content and its status, which has the time of its last change.

    Raises:
        OSError, UnsuitableFile: see `open_regular`.
    """
    remote = _remote_of(path)
    if remote is not None:
        status = _suitable_status_of(os.stat(path), path, at_most)
        return remote.reader(os.fspath(path)).read(status.st_size, 0), status
    # Reads the descriptor without a file object: for small files that takes half the time.
    descriptor = os.open(path, _OPEN_FLAGS)
    try:
        status = _suitable_status(descriptor, path, at_most)
        content = os.read(descriptor, status.st_size)
        # One call returns 2 GiB at most, and a network file system may return less.
        parts = [content]
        missing = status.st_size - len(content)
        while missing and content:
            content = os.read(descriptor, missing)
            parts.append(content)
            missing -= len(content)
    finally:
        os.close(descriptor)
    return parts[0] if len(parts) == 1 else b"".join(parts), status


def read_regular_text(path: AnyPath, at_most: int = MAX_TEXT_BYTES) -> str:
    """Reads a whole regular file in UTF-8. Line ends are unchanged; a byte order mark is removed.

    Raises:
        OSError, UnsuitableFile: see `open_regular`.
        UnicodeDecodeError: it is not UTF-8.
    """
    return read_regular(path, at_most).decode("utf-8-sig")


def open_positioned(path: AnyPath) -> PositionedFile:
    """Opens a regular file of any size that is read by position.

    Raises:
        OSError, UnsuitableFile: see `open_regular`.
    """
    remote = _remote_of(path)
    if remote is not None:
        return remote.reader(os.fspath(path))
    return _LocalFile(path)


class _LocalFile:
    """A local file that is read by position; see `PositionedFile`."""

    def __init__(self, path: AnyPath) -> None:
        self._descriptor = os.open(path, _OPEN_FLAGS)
        weakref.finalize(self, os.close, self._descriptor)
        self.size = _suitable_status(self._descriptor, path, 1 << 62).st_size

    def read(self, length: int, position: int) -> bytes:
        # The position is an argument, so threads need no lock.
        return os.pread(self._descriptor, length, position)

    def prefetch(self, ranges: Iterable[Tuple[int, int]]) -> None:
        """Does nothing: the disk is fast."""


def path_for_library(path: AnyPath) -> str:
    """Returns the path of a file for a library that opens it by itself: a local copy of a remote file.

    Raises:
        OSError: the path is in the folder of remote files, but no file has this name.
    """
    remote = _remote_of(path)
    return os.fspath(path) if remote is None else remote.local_copy(os.fspath(path))


def prefetch_files(paths: Iterable[AnyPath]) -> None:
    """Requests remote files that will be read soon, all at the same time; local files are left alone."""
    for path in paths if _remote is not None else ():
        remote = _remote_of(path)
        if remote is not None:
            reader = remote.reader(os.fspath(path))
            reader.prefetch([(0, reader.size)])


def _suitable_status(descriptor: int, path: AnyPath, at_most: int) -> os.stat_result:
    return _suitable_status_of(os.fstat(descriptor), path, at_most)


def _suitable_status_of(status: os.stat_result, path: AnyPath, at_most: int) -> os.stat_result:
    kind = irregular_kind(status)
    if kind:
        raise UnsuitableFile(errno.EINVAL, f"it is {kind}, and only regular files are read", os.fspath(path))
    # Judged by the open descriptor, before a byte is read, so the path cannot be exchanged in between.
    if status.st_size > at_most:
        reason = f"it has {status.st_size:,} bytes; at most {at_most:,} are read"
        raise UnsuitableFile(errno.EFBIG, reason, os.fspath(path))
    return status


def irregular_kind(status: os.stat_result) -> str:
    """Returns the kind of a file that is not regular, e.g. "a named pipe"; "" for a regular file."""
    if stat.S_ISREG(status.st_mode):
        return ""
    return _KINDS.get(stat.S_IFMT(status.st_mode), "something else")
