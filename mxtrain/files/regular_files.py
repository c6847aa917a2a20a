"""Opens untrusted files for reading: only regular files of limited size.

Pipes and devices have no end: a pipe without a writer blocks for ever, and /dev/zero fills the memory. So all paths and
files of users are opened here (tests/test_file_access.py lists the exceptions). `files.durable` writes files.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Iterator, Tuple, Union

AnyPath = Union[str, Path]

MAX_BYTES = 16 << 30
MAX_TEXT_BYTES = 1 << 26
"""Limit for files that people write by hand or that describe a run: settings, lists of hosts, status.json."""

_KINDS = {
    stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}  # fmt: skip


class UnsuitableFile(OSError):
    """The file is not regular or is too large. `strerror` completes the sentence "The file cannot be read: ..."."""


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
    # Without O_NONBLOCK, opening a pipe would wait for a writer.
    with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY), "rb") as file:
        status = os.fstat(file.fileno())
        kind = irregular_kind(status)
        if kind:
            raise UnsuitableFile(errno.EINVAL, f"it is {kind}, and only regular files are read", os.fspath(path))
        if status.st_size > at_most:
            reason = f"it has {status.st_size:,} bytes; at most {at_most:,} are read"
            raise UnsuitableFile(errno.EFBIG, reason, os.fspath(path))
        yield file, status.st_size


def read_regular(path: AnyPath, at_most: int = MAX_BYTES) -> bytes:
    """Reads a whole regular file.

    Raises:
        OSError, UnsuitableFile: see `open_regular`.
    """
    with open_regular(path, at_most) as (file, size):
        return file.read(size)  # not at_most: Python allocates the requested size first


def read_regular_text(path: AnyPath, at_most: int = MAX_TEXT_BYTES) -> str:
    """Reads a whole regular file in UTF-8. Line ends are unchanged; a byte order mark is removed.

    Raises:
        OSError, UnsuitableFile: see `open_regular`.
        UnicodeDecodeError: it is not UTF-8.
    """
    return read_regular(path, at_most).decode("utf-8-sig")


def irregular_kind(status: os.stat_result) -> str:
    """Returns the kind of a file that is not regular, e.g. "a named pipe"; "" for a regular file."""
    if stat.S_ISREG(status.st_mode):
        return ""
    return _KINDS.get(stat.S_IFMT(status.st_mode), "something else")
