"""Writes files that are either complete or absent: every write is checked, hashed and synced to the disk.

MXNet's own writer reports success on a full disk (notes: Gluon and autograd), so all files are written here. All
functions use `os`, one system call each, so that a test can stop the process at each of them.

A run directory may be untrusted and contain symbolic links instead of files; no function writes through a link. All
code that writes to a run directory or output folder opens files with `open_file`, `create_file` or `replace_file`.

Reasons: docs/decisions/0021-untrusted-run-directories.md.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import stat
import threading
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Mapping, Optional, Type, Union

PathLike = Union[str, "os.PathLike[str]"]

CHUNK_BYTES = 1 << 20
"""Small enough that what was hashed is still in the cache when it is written."""

_REPLACING = threading.Lock()
"""Held while a file is replaced: its temporary name is fixed, so two threads must not use it at once."""
A_LINK = "it is a link, and links are not written through"
"""Reason of an `OSError`, as a clause."""


def open_file(path: PathLike, flags: int, mode: int = 0o666) -> int:
    """Opens a file, existing or not, without following a link, and returns its descriptor.

    Args:
        path: path of the file; its parent folders may be links.
        flags: flags of os.open.
        mode: permissions of a new file, as in os.open.

    Raises:
        OSError: the file cannot be opened, or is a link, a folder or a pipe.
    """
    try:
        # Without O_NONBLOCK, opening a pipe for writing would wait for a reader.
        fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY, mode)
    except OSError as error:
        if error.errno == errno.ELOOP and os.path.islink(path):
            raise OSError(errno.ELOOP, A_LINK, os.fspath(path)) from None
        raise
    kind = os.fstat(fd).st_mode
    if stat.S_ISCHR(kind):  # a device such as /dev/null; writes to a terminal must not fail with EAGAIN
        os.set_blocking(fd, True)
    elif not stat.S_ISREG(kind):
        os.close(fd)
        raise OSError(errno.EINVAL, "it is no file", os.fspath(path))
    return fd


def append_to(path: PathLike, mode: str = "a", **options: Any) -> IO[Any]:
    """Opens a file for appending as the built-in `open` does, through `open_file`.

    Raises:
        OSError: see `open_file`.
    """
    return open(open_file(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), mode, **options)


def create_file(path: PathLike, mode: int = 0o666) -> int:
    """Creates a new, empty file and returns its descriptor. An existing file or link of that name is removed.

    Raises:
        OSError: the file cannot be created.
    """
    new = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    try:
        return open_file(path, new, mode)
    except FileExistsError:
        # Unlinking removes a link itself, so nothing is written to what it points to.
        kind = os.lstat(path).st_mode
        if not (stat.S_ISREG(kind) or stat.S_ISLNK(kind)):
            return open_file(path, os.O_WRONLY)  # a device; `open_file` rejects anything else
        os.unlink(path)
    return open_file(path, new, mode)


def write_all(descriptor: int, data: Union[bytes, memoryview]) -> None:
    """Writes all bytes at the position of a descriptor; one call of os.write may write only a part.

    Raises:
        OSError: they cannot be written.
    """
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


@dataclass(frozen=True)
class Digest:
    """Size and hash of a file, as recorded in a manifest."""

    size: int
    """Bytes."""
    sha256: str
    """64 lowercase hexadecimal digits."""


class HashedFile:
    """A new file that is written once from start to end. After the `with` block it is on the disk and `digest` is set.

    If anything fails, the file is removed and the error propagates. Writing is not atomic: a process that dies leaves a
    part of the file, so write to a temporary directory or a temporary name.

    Raises:
        OSError: the file cannot be created, written or synced to the disk.
    """

    def __init__(self, path: PathLike, mode: int = 0o666) -> None:
        self.path = Path(path)
        self._mode = mode
        self.digest: Optional[Digest] = None
        self._hash = hashlib.sha256()
        self._size = 0
        self._fd = -1
        self._is_regular = False

    def __enter__(self) -> HashedFile:
        self._fd = create_file(self.path, self._mode)
        self._is_regular = stat.S_ISREG(os.fstat(self._fd).st_mode)
        return self

    def write(self, data: Union[bytes, memoryview]) -> None:
        """Appends bytes. Hashing and writing release the GIL, so that training continues."""
        view = memoryview(data)
        for start in range(0, len(view), CHUNK_BYTES):
            chunk = view[start : start + CHUNK_BYTES]
            self._hash.update(chunk)
            write_all(self._fd, chunk)
        self._size += len(view)

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        try:
            try:
                if error is None and self._is_regular:
                    os.fsync(self._fd)
            finally:
                os.close(self._fd)  # may fail: network file systems report lost writes here
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
            pass  # the first error is the one to report


def fsync_directory(path: PathLike) -> None:
    """Syncs a directory to the disk. Only then is a rename or a new file in it durable.

    Raises:
        OSError: the directory cannot be opened or synced.
    """
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def replace_file(path: PathLike, content: bytes, *, durable: bool = True, mode: int = 0o666) -> None:
    """Replaces a file atomically: readers, also after a crash, see either the old or the new content.

    Only one process may write a file at a time. A link of that name is replaced, not followed. A device such as
    /dev/null is written to.

    Args:
        path: path of the file; it need not exist.
        content: the new content.
        durable: whether to sync the rename to the disk. Without it, the old file may be back after a power cut.
        mode: permissions of the new file, as in os.open.

    Raises:
        OSError: the file could not be written; the old file is unchanged.
    """
    path = Path(path)
    if not path.is_symlink() and path.is_char_device():
        with HashedFile(path) as device:
            device.write(content)
        return
    temporary = path.with_name(f".tmp-{path.name}")  # a fixed name: the file of a killed process is overwritten
    with _REPLACING:
        with HashedFile(temporary, mode) as file:
            file.write(content)
        try:
            os.replace(temporary, path)
        except OSError:
            os.unlink(temporary)
            raise
    if durable:
        fsync_directory(path.parent)


def write_json_atomic(path: PathLike, value: object, *, durable: bool = True) -> None:
    """Replaces a JSON file atomically; see `replace_file`.

    Args:
        path: path of the file, e.g. status.json.
        value: dicts, lists, tuples, strings, numbers and paths. NaN and infinity become null.
        durable: whether to sync the rename to the disk.

    Raises:
        OSError: the file could not be written; the old file is unchanged.
        TypeError: a value cannot be represented in JSON.
    """
    replace_file(path, encode_json(value, indent=2) + b"\n", durable=durable)


def encode_json(value: object, indent: Optional[int] = None) -> bytes:
    """Encodes a value as JSON in UTF-8. Non-ASCII letters are not escaped; NaN and infinity become null.

    Bytes of file names that are not valid Unicode become escapes, which Python decodes to the same name.

    Raises:
        TypeError: a value cannot be represented in JSON.
    """
    text = json.dumps(to_strict_json(value), indent=indent, allow_nan=False, ensure_ascii=False)
    return text.encode("utf-8", "backslashreplace")


def to_strict_json(value: object) -> object:
    """Copies nested dicts, lists, paths and numbers (also NumPy's) to JSON values. NaN and infinity become None."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): to_strict_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_strict_json(item) for item in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if type(value).__module__ == "numpy" and hasattr(value, "item") and getattr(value, "ndim", 1) == 0:
        return to_strict_json(value.item())
    return value
