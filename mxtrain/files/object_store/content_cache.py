"""Content of objects on the local disk: blocks of a fixed size and whole objects, each in a file of its own.

    CACHE/objects/content/AB/NAME-NUMBER

The name is a hash of endpoint, bucket, key, ETag and size, so content never becomes stale: a changed object has other
files. Files are renamed into place when they are complete, so all processes of a host share them without a lock. The
least recently used ones are removed when there are more bytes than allowed; a file that is open can be read to its end,
and each process keeps some open.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import logging
import math
import os
import shutil
import threading
import time
import weakref
from pathlib import Path
from typing import Dict, Iterator, List, Optional, Tuple, Union

from mxtrain.errors import ConfigError
from mxtrain.files.cache import ANOTHER_DISK, own_folder
from mxtrain.files.durable import open_file, write_all

log = logging.getLogger(__name__)

BLOCK_BYTES = 1 << 20
"""Large enough that a connection is busy for longer than the latency of a request, and small enough that a random
record of 100 kB does not wait for much else."""
CACHE_SIZE = "MXTRAIN_STORE_CACHE_GB"
"""Environment variable: largest size of the content on this disk, in units of 10^9 bytes."""
_USUAL_BYTES = 100 * 10**9
_CHECKS_PER_SIZE = 32
"""The size is measured after each 32nd part of the allowed bytes that this process has written."""
_KEPT = 0.9
"""Share of the allowed bytes that a clean-up keeps, so that the next one is not due at once."""
_TOUCH_S = 60.0
"""Shortest time in seconds between two updates of a file's time of use."""
_ABANDONED_S = 3600.0
"""Age from which unfinished files belong to killed processes."""
_MAX_OPEN = 128
"""Largest number of parts that a process keeps open: opening a part for each record costs more than reading it."""
_UNFINISHED = ".new-"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def allowed_bytes() -> Optional[int]:
    """Returns the configured size; None if the variable is not set.

    Raises:
        ConfigError: the variable is no positive number.
    """
    given = os.environ.get(CACHE_SIZE)
    try:
        size = None if given is None else int(float(given) * 10**9)
    except (ValueError, OverflowError):
        size = 0
    if size is not None and not 0 < size < 1 << 62:
        raise ConfigError(f"{CACHE_SIZE}={given}: it must be a positive number of gigabytes.")
    return size


class _OpenPart:
    """A part that is open for reading. It is closed when the last thread that reads it has dropped it.

    Args:
        path: path of the file.

    Raises:
        OSError: it cannot be opened.
    """

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._descriptor)
        self.size = os.fstat(self._descriptor).st_size
        self._touched_s = -math.inf

    def read(self, begin: int, end: int) -> bytes:
        """Returns a range, and notes that the part is used, unless that was noted a moment ago."""
        now_s = time.monotonic()
        if now_s - self._touched_s > _TOUCH_S:
            self._touched_s = now_s
            _touch(self._descriptor, os.fstat(self._descriptor))
        return os.pread(self._descriptor, end - begin, begin)


class ContentCache:
    """Files in a folder, up to a number of bytes.

    Args:
        folder: an existing folder that only this user can enter.
        size: allowed bytes; None = 100 GB, or half of what the disk has to offer if that is less.
    """

    def __init__(self, folder: Path, size: Optional[int] = None) -> None:
        self.folder = folder
        self._size = size
        self._written = 0
        self._checked_bytes = 0
        """Allowed bytes when the size was last measured; 0 = never."""
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._open: Dict[str, _OpenPart] = {}
        self.is_writable = True
        """False after a part could not be stored."""

    def path(self, name: str, part: str) -> str:
        """Returns the path of a part of an object; the file need not exist."""
        return f"{self.folder}/{name[:2]}/{name}-{part}"

    def read(self, name: str, part: str, size: int, begin: int, end: int) -> Optional[bytes]:
        """Returns a range of a part; None if it is not there.

        Args:
            name: name of the object.
            part: name of the part.
            size: bytes of the whole part; a file of another size is damaged, and ignored.
            begin, end: range within the part.
        """
        path = self.path(name, part)
        opened = self._open.get(path)
        try:
            if opened is None:
                opened = self._open_part(path, size)
            content = b"" if opened is None else opened.read(begin, end)
        except OSError:  # it is not there, or the disk fails
            content = b""
        if len(content) == end - begin:
            return content
        with self._lock:
            self._open.pop(path, None)
        return None

    def _open_part(self, path: str, size: int) -> Optional[_OpenPart]:
        """Opens a part, and keeps it open; None if it has another size.

        Raises:
            OSError: it cannot be opened.
        """
        opened = _OpenPart(path)
        if opened.size != size:
            return None
        with self._lock:
            self._open[path] = opened
            if len(self._open) > _MAX_OPEN:
                # The one that was opened first: the order of records is random, so another choice is no better.
                del self._open[next(iter(self._open))]
        return opened

    def has(self, name: str, part: str, size: int) -> bool:
        """Returns True if a part is there and complete. It counts as used."""
        path = self.path(name, part)
        try:
            status = os.stat(path)
        except OSError:
            return False
        _touch(path, status)
        return status.st_size == size

    def write(self, name: str, part: str, content: bytes) -> None:
        """Stores a part. If it cannot be stored, a warning says so once, and it will be read from the store again."""
        try:
            with self.new_file(name, part, len(content)) as descriptor:
                write_all(descriptor, content)
            self.is_writable = True
        except OSError as error:
            if self.is_writable:
                self.is_writable = False
                log.warning(
                    "'%s' cannot hold what is read from the object store: %s. It is read from the store each time. "
                    "Free some space, or %s.",
                    self.folder,
                    error.strerror or error,
                    ANOTHER_DISK,
                )

    @contextlib.contextmanager
    def new_file(self, name: str, part: str, size: int) -> Iterator[int]:
        """Yields the descriptor of a new file, which becomes the part at the end of the `with` block.

        Args:
            name: name of the object.
            part: name of the part.
            size: bytes that will be written.

        Raises:
            OSError: it cannot be written; nothing is left of it.
        """
        path = self.path(name, part)
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        self._make_room(size)
        unfinished = f"{os.path.dirname(path)}/{_UNFINISHED}{os.getpid()}-{next(self._numbers)}"
        descriptor = open_file(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            try:
                yield descriptor
            finally:
                os.close(descriptor)
            os.replace(unfinished, path)
        except BaseException as error:
            with contextlib.suppress(OSError):
                os.unlink(unfinished)
            if isinstance(error, OSError) and error.errno in _FULL:
                # Others fill the disk, too: half of this cache is given back.
                self._clean_up(self.used_bytes() // 2)
            raise

    @property
    def allowed(self) -> int:
        """Returns the allowed bytes, as of the last measurement, which lists the whole cache."""
        return self._checked_bytes or self._allowed(self.used_bytes())

    def _allowed(self, used: int) -> int:
        if self._size is not None:
            return self._size
        return min(_USUAL_BYTES, (used + shutil.disk_usage(self.folder).free) // 2)

    def _make_room(self, size: int) -> None:
        """Removes parts if the cache becomes too large by a number of bytes."""
        with self._lock:
            self._written += size
            if self._written * _CHECKS_PER_SIZE < self._checked_bytes:
                return
            self._written = 0
        used = self.used_bytes()
        allowed = self._checked_bytes = self._allowed(used)
        until_next = allowed // _CHECKS_PER_SIZE
        if used + size + until_next > allowed:
            self._clean_up(min(int(allowed * _KEPT), allowed - size - until_next))

    def used_bytes(self) -> int:
        """Returns the bytes of all parts."""
        return sum(size for _, size, _ in self._files())

    def _files(self) -> Iterator[Tuple[float, int, str]]:
        """Yields time of use, size and path of each file; those of killed processes are removed."""
        try:
            folders = [entry.path for entry in os.scandir(self.folder) if entry.is_dir(follow_symlinks=False)]
        except FileNotFoundError:  # a user has removed the cache
            return
        for folder in folders:
            try:
                entries = list(os.scandir(folder))
            except OSError:
                continue
            for entry in entries:
                with contextlib.suppress(OSError):  # removed by another process
                    status = entry.stat(follow_symlinks=False)
                    if not entry.name.startswith(_UNFINISHED):
                        yield status.st_mtime, status.st_size, entry.path
                    elif time.time() - status.st_mtime > _ABANDONED_S:
                        os.unlink(entry.path)

    def _clean_up(self, kept_bytes: int) -> None:
        """Removes the least recently used files until at most a number of bytes are left."""
        try:
            lock = open_file(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError:
            return
        try:
            # Another process that cleans up at this moment makes room for both.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            return
        try:
            files: List[Tuple[float, int, str]] = sorted(self._files())
            used = sum(size for _, size, _ in files)
            for _, size, path in files:
                if used <= kept_bytes:
                    break
                with contextlib.suppress(OSError):
                    os.unlink(path)
                used -= size
        finally:
            os.close(lock)


def _touch(file: Union[int, str], status: os.stat_result) -> None:
    """Notes that a file is used, unless that was noted a moment ago."""
    if time.time() - status.st_mtime > _TOUCH_S:
        with contextlib.suppress(OSError):
            os.utime(file)


def user_cache() -> ContentCache:
    """Returns the cache of this user.

    Raises:
        ConfigError: the size in the environment is invalid.
        OSError, RuntimeError, KeyError: see `own_folder`.
    """
    return ContentCache(own_folder("objects", "content"), allowed_bytes())
