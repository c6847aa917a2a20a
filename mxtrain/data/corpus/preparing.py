"""Prepares data once for all processes of a machine, in the user's cache, and finds it again.

<cache>/corpora/<key>/         prepared; <key>.part/ while it is made, <key>.lock its lock
"""

from __future__ import annotations

import atexit
import errno
import fcntl
import hashlib
import json
import logging
import os
import shutil
import tempfile
import time
import weakref
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Callable, Iterator, Mapping, Optional

from mxtrain.data.corpus.shards import ArrayForm, DamagedShards, Shards, ShardWriter, open_shards, remove_tree
from mxtrain.errors import DataError
from mxtrain.files.cache import CACHE_VARIABLE, own_folder
from mxtrain.files.durable import fsync_directory, open_file
from mxtrain.files.temporary import temporary_root
from mxtrain.terminal.durations import format_seconds
from mxtrain.terminal.progress import ProgressDisplay

if TYPE_CHECKING:
    from mxtrain.types.annotations import Json, JsonObject

log = logging.getLogger(__name__)
KIND = "corpora"
PART = ".part"
"""Suffix of the name of an incomplete folder."""
FORMAT = 2
"""Version of the format of shards and of their content; all data are prepared again after it changes."""
_POLL_S = 0.1
_FULL = (errno.ENOSPC, errno.EDQUOT)

Advance = Callable[[int], None]
Write = Callable[[ShardWriter, Advance], "JsonObject"]
"""Function that appends the missing records, commits at intervals, reports progress to its second argument, and returns
the facts."""


def key_of(kind: str, key_parts: Json, forms: Mapping[str, ArrayForm]) -> str:
    """Returns the name of prepared data: a hash of everything that determines its content."""
    text = json.dumps([FORMAT, kind, key_parts, forms], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def prepare(
    kind: str,
    key_parts: Json,
    forms: Mapping[str, ArrayForm],
    write: Write,
    *,
    what: str,
    total: int = 0,
    is_shown: bool = True,
) -> Shards:
    """Opens data that was prepared before, or prepares it now while other processes wait.

    Args:
        kind: kind of data, part of its key, e.g. tokens.
        key_parts: plain values that decide the content: hashes of files, settings, versions.
        forms: form of each array.
        write: function that writes the records. If an earlier process was killed, its writer already holds the records
            that were committed, and the function appends the others.
        what: description for the progress line, e.g. "tokens of train.csv".
        total: total of what `write` counts, for the progress line; 0 = unknown.
        is_shown: whether progress is shown.

    Raises:
        DataError: the disk is full or corrupts data, or an error of `write`.
    """
    key = key_of(kind, key_parts, forms)
    root = _root()
    shards = _open(root / key, key)
    if shards is not None:
        return shards
    # A shared read-only cache may already hold the data, so write access is checked only after the search.
    if not os.access(root, os.W_OK):
        root = _temporary_root(f"{root} is read-only")
    try:
        with _locked(root / f"{key}.lock", what):
            # Searched again under the lock: the process that held it has usually prepared the data.
            shards = _open(root / key, key, is_locked=True)
            return _make(root, key, forms, write, what, total, is_shown) if shards is None else shards
    except OSError as error:
        if error.errno in _FULL:
            raise DataError(
                f"{root} is full: preparing {what} needs more room. Free some, or set {CACHE_VARIABLE} to a folder on "
                "another disk; the prepared part is kept, and the next start continues it."
            ) from error
        raise


def prepare_temporary(kind: str, forms: Mapping[str, ArrayForm], write: Write) -> Shards:
    """Returns prepared data that is not reused, e.g. of files with problems; deleted together with the returned
    object."""
    folder = Path(tempfile.mkdtemp(prefix="check-", dir=_root()))
    try:
        _write_into(folder, kind, forms, write, lambda count: None)
        shards = _open_written(folder, kind)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    # Mapped files stay readable after their names are gone, so arrays that live longer do no harm.
    weakref.finalize(shards, shutil.rmtree, folder, ignore_errors=True)
    return shards


def _root() -> Path:
    """Returns the folder of prepared data; a temporary one where the cache cannot be written."""
    try:
        return own_folder(KIND)
    except (OSError, RuntimeError, KeyError) as error:
        return _temporary_root(str(error))


def _temporary_root(reason: str) -> Path:
    global _temporary
    if _temporary is None:
        _temporary = Path(tempfile.mkdtemp(prefix="mxtrain-corpora-", dir=temporary_root()))
        atexit.register(shutil.rmtree, _temporary, ignore_errors=True)
        log.warning(
            "The cache cannot be used (%s): data is prepared in %s, anew at each start. Set %s to a folder of yours.",
            reason,
            _temporary,
            CACHE_VARIABLE,
        )
    return _temporary


_temporary: Optional[Path] = None


def _open(folder: Path, key: str, is_locked: bool = False) -> Optional[Shards]:
    """Returns prepared data, or None if it is absent or damaged. Damaged data is removed only under the lock: without
    it, another process may just have replaced the folder by a complete one."""
    try:
        shards = open_shards(folder, key)
    except DamagedShards as error:
        if is_locked:
            log.warning("%s: it is prepared again", error)
            remove_tree(folder)
        return None
    if shards is not None:
        with suppress(OSError):  # a read-only folder is usable too
            os.utime(folder)  # the time of last use, by which unused data is found
    return shards


@contextmanager
def _locked(path: Path, what: str) -> Iterator[None]:
    """Holds a lock that one process has at a time; the system releases it when the process dies."""
    fd = open_file(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        is_logged = False
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not is_logged:
                    log.info("another process prepares %s: waiting for it", what)
                    is_logged = True
                time.sleep(_POLL_S)
        yield
    finally:
        os.close(fd)


def _make(
    root: Path, key: str, forms: Mapping[str, ArrayForm], write: Write, what: str, total: int, is_shown: bool
) -> Shards:
    unfinished, folder = root / f"{key}{PART}", root / key
    if unfinished.is_symlink() or not unfinished.is_dir():
        remove_tree(unfinished)  # writing through a link would fill, and then rename, another folder
    unfinished.mkdir(mode=0o700, exist_ok=True)
    began_s = time.monotonic()
    if is_shown:
        with ProgressDisplay() as display:
            display.begin(what, total)
            _write_into(unfinished, key, forms, write, display.advance, what)
    else:
        _write_into(unfinished, key, forms, write, lambda count: None, what)
    remove_tree(folder)
    # One rename: a reader sees all of the data or none.
    unfinished.rename(folder)
    fsync_directory(root)
    shards = _open_written(folder, key)
    took_s = time.monotonic() - began_s
    if took_s > 2 and is_shown:
        log.info(
            "%s: %s records in %s, %s in %s",
            what,
            f"{len(shards):,}",
            format_seconds(took_s),
            _size(shards.num_bytes),
            folder,
        )
    return shards


def _open_written(folder: Path, key: str) -> Shards:
    """Opens shards that were written a moment ago.

    Raises:
        DataError: they cannot be read back.
    """
    try:
        shards = open_shards(folder, key)
    except DamagedShards as error:
        remove_tree(folder)
        raise DataError(
            f"{error}, although it was written just now: the disk, or another program, corrupts files. Set "
            f"{CACHE_VARIABLE} to a folder on another disk."
        ) from error
    assert shards is not None
    return shards


def _write_into(
    folder: Path, key: str, forms: Mapping[str, ArrayForm], write: Write, advance: Advance, what: str = ""
) -> None:
    writer = ShardWriter(folder, key, forms)
    try:
        writer.finish(write(writer, advance), what)
    finally:
        writer.close()


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes > 1e9 else f"{num_bytes / 1e6:.0f} MB"
