"""Files that are complete or absent: every write is checked, hashed on the way and on the disk before it counts.

MXNet's own writer returns success on a full disk (notes: Gluon and autograd), so nothing here trusts a return value.
All functions go through `os`, one system call each, so that a test can stop the process at any of them.

A run directory may be somebody's, with links where files are expected: nothing here writes through one. Whoever writes
into a run directory or an output folder opens files with `open_file`, `create_file` or `replace_file`.
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
A_LINK = "it is a link, and links are not written through"


def open_file(path: PathLike, flags: int, mode: int = 0o666) -> int:
    """A descriptor of a file that may be there already, e.g. to append to it; never of what a link points to.

    Args:
        path: the file; the folders on the way to it may be links.
        flags: of os.open.
        mode: of a new file, as os.open takes it.

    Raises:
        OSError: it cannot be opened, or is no file: a link, a folder, a pipe.
    """
    try:
        # O_NONBLOCK: to open a pipe for writing would wait for its reader.
        fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY, mode)
    except OSError as error:
        if error.errno == errno.ELOOP and os.path.islink(path):
            raise OSError(errno.ELOOP, A_LINK, os.fspath(path)) from None
        raise
    kind = os.fstat(fd).st_mode
    if stat.S_ISCHR(kind):
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
    """A descriptor of a new, empty file; what had its name, a file or a link, is removed.

    Raises:
        OSError: it cannot be made.
    """
    new = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    try:
        return open_file(path, new, mode)
    except FileExistsError:
        kind = os.lstat(path).st_mode
        if not (stat.S_ISREG(kind) or stat.S_ISLNK(kind)):
            return open_file(path, os.O_WRONLY)  # a device; anything else is refused
        os.unlink(path)
    return open_file(path, new, mode)


@dataclass(frozen=True)
class Digest:
    """Size and hash of one file, as a manifest holds them."""

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
                if error is None and self._is_regular:
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


def replace_file(path: PathLike, content: bytes, *, durable: bool = True, mode: int = 0o666) -> None:
    """Replace a file as a whole: readers and crashes see the old content or the new.

    Args:
        path: the file; it need not exist.
        content: all of it.
        durable: also bring the rename to the disk. Without it a power cut may bring the old file back.
        mode: of the new file, as os.open takes it.

    One process may write a file at a time. A link of that name is replaced, not followed; a device such as /dev/null
    stays what it is, and gets the content.

    Raises:
        OSError: it could not be written; the old file is unchanged.
    """
    path = Path(path)
    if not path.is_symlink() and path.is_char_device():
        with HashedFile(path) as device:
            device.write(content)
        return
    temporary = path.with_name(f".tmp-{path.name}")  # one name: what a killed process left is written over
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
    """Replace a JSON file as a whole: readers and crashes see the old one or the new one.

    Args:
        path: the file, e.g. status.json.
        value: dicts, lists, tuples, strings, numbers, paths; numbers that JSON has no word for become null.
        durable: also bring the rename to the disk. Without it a power cut may bring the old file back.

    One process may write a file at a time.

    Raises:
        OSError: it could not be written; the old file is unchanged.
        TypeError: something in it is no JSON value.
    """
    replace_file(path, encode_json(value, indent=2) + b"\n", durable=durable)


def encode_json(value: object, indent: Optional[int] = None) -> bytes:
    """JSON in UTF-8, for people and programs: letters of any script as they are; a NaN is null.

    Bytes of file names that are not valid Unicode become escapes, which Python reads back unchanged.

    Raises:
        TypeError: something in it is no JSON value.
    """
    text = json.dumps(to_strict_json(value), indent=indent, allow_nan=False, ensure_ascii=False)
    return text.encode("utf-8", "backslashreplace")


def to_strict_json(value: object) -> object:
    """A copy of dicts, lists, paths and numbers (NumPy's too) that JSON can hold; NaN and infinity become None."""
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
