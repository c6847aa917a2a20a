"""Fingerprints of datasets: a hash that tells whether two runs have read the same data, at a cost with a fixed limit.

Three sources, none of which is read as a whole (docs/decisions/0113-reproduction.md):

- files and folders that settings name: names and sizes of up to `MAX_FILES` files. The content of `MAX_READ_FILES` of
  them: all of a file of at most `SMALL_BYTES` while `BUDGET_BYTES` last, otherwise blocks at its start, middle and end.
- splits: the number of samples, the class names, and about `MAX_ITEMS` elements of each array of numbers that a source
  holds in memory, such as labels.
- generated and bundled data without files: also lists of texts, and `NUM_FETCHED` samples of each split.
"""

from __future__ import annotations

import functools
import glob
import hashlib
import heapq
import os
import stat
from typing import TYPE_CHECKING, Collection, Dict, Iterator, List, Mapping, NamedTuple, Optional, Tuple

import numpy as np

from mxtrain.data.loading.described_paths import named_paths, with_local_names
from mxtrain.data.loading.samples import Source
from mxtrain.errors import MxtrainError
from mxtrain.files.regular_files import open_regular

if TYPE_CHECKING:
    from mxtrain.data.spec import BaseDataset, Samples, Splits
    from mxtrain.types.annotations import Json, JsonObject

MAX_FILES = 100_000
MAX_READ_FILES = 256
SMALL_BYTES = 1 << 22
BUDGET_BYTES = 1 << 25
BLOCK_BYTES = 1 << 16
MAX_ITEMS = 1024
MAX_LETTERS = 1024
NUM_FETCHED = 8
RUN_FOLDER = ".hydra"
"""Marks a folder as the directory of a run, which may be below the data when these are in the current folder."""


def fingerprint(dataset: BaseDataset, splits: Splits) -> JsonObject:
    """Returns the fingerprint of an opened dataset.

    Args:
        dataset: description of the dataset.
        splits: its splits, newly opened.

    Returns:
        `sha256` of everything below; by setting, the number, size and hash of the files; by split, the number of
        samples and a hash.
    """
    dataset = with_local_names(dataset)
    settings = {name: paths for name, paths in named_paths(dataset).items() if paths}
    if len(settings) > 1 and settings.get("root") == [os.curdir]:
        del settings["root"]  # means that there is no root: the other settings name the files
    files: Dict[str, Json] = {name: describe_files(paths) for name, paths in settings.items()}
    has_files = any(isinstance(description, dict) and description["files"] for description in files.values())
    splits_by_name = {"train": splits.train, "val": splits.val, "test": splits.test}
    sources = {name: source for name, source in splits_by_name.items() if source is not None}
    parts: Dict[str, Json] = {
        name: {"samples": len(source), "sha256": _hash_samples(source, has_files)} for name, source in sources.items()
    }
    digest = hashlib.sha256()
    for part in (files, parts, list(splits.class_names)):
        digest.update(repr(part).encode("utf-8", "backslashreplace"))
    return {"sha256": digest.hexdigest(), "files": files, "splits": parts}


# Files.


class _File(NamedTuple):
    """A file by its name below the path that a setting gives, so that a dataset can be moved."""

    name: str
    path: str
    size: int


def describe_files(paths: List[str]) -> Mapping[str, Json]:
    """Returns number, bytes and hash of the files below some paths."""
    count, total, mixed = 0, 0, 0
    # The files whose hashed names are the largest: a choice that depends neither on the order of folders nor on
    # memory, and is the same on every machine.
    chosen: List[Tuple[int, _File]] = []
    is_complete = True
    for file in walk_files(paths):
        if count == MAX_FILES:
            is_complete = False
            break
        count, total = count + 1, total + file.size
        rank = int.from_bytes(hashlib.sha256(f"{file.name}\0{file.size}".encode("utf-8", "replace")).digest(), "big")
        mixed = (mixed + rank) % (1 << 256)  # a sum, so that the order of files does not matter
        (heapq.heappush if len(chosen) < MAX_READ_FILES else heapq.heappushpop)(chosen, (rank, file))
    digest = hashlib.sha256(f"{count} {total} {mixed:x}".encode())
    budget = BUDGET_BYTES
    # Of a folder that was not listed to its end, the files seen depend on the order of the file system.
    for _, file in sorted(chosen, reverse=True) if is_complete else ():
        used, content = hash_content(file, budget)
        budget -= used
        digest.update(content)
    description: Dict[str, Json] = {"files": count, "bytes": total, "sha256": digest.hexdigest()}
    if not is_complete:
        description = {"files": count, "sha256": None, "not_listed": f"there are more than {MAX_FILES:,} files"}
    return description


def walk_files(paths: List[str], without: Collection[str] = ()) -> Iterator[_File]:
    """Yields the regular files at and below paths, without hidden ones. Links to folders are followed once, at the
    top.

    Args:
        paths: files and folders.
        without: extensions of files in folders that are left out, such as ".jpg"; these are not even looked up.
    """
    for number, path in enumerate(paths):
        top = str(number)
        if os.path.isdir(path):
            yield from _walk_folder(path, top, without)
            continue
        # Settings of parallel files name a prefix.
        for match in [path] if os.path.lexists(path) else sorted(glob.glob(f"{glob.escape(path)}.*")):
            file = _regular(match, f"{top}{match[len(path) :]}")
            if file is not None:
                yield file


def _walk_folder(folder: str, name: str, without: Collection[str]) -> Iterator[_File]:
    pending = [(folder, name)]
    while pending:
        folder, name = pending.pop()
        try:
            entries = os.scandir(folder)
        except OSError:
            continue
        if os.path.isdir(os.path.join(folder, RUN_FOLDER)):
            # A run below its own data grows while it trains, and would change the fingerprint.
            entries.close()
            continue
        with entries:
            for entry in entries:
                if entry.name.startswith(".") or (without and os.path.splitext(entry.name)[1].lower() in without):
                    continue
                below = f"{name}/{entry.name}"
                if entry.is_dir(follow_symlinks=False):
                    pending.append((entry.path, below))
                else:
                    file = _regular(entry.path, below)
                    if file is not None:
                        yield file


def _regular(path: str, name: str) -> Optional[_File]:
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return _File(name, path, status.st_size) if stat.S_ISREG(status.st_mode) else None


def hash_content(file: _File, budget: int) -> Tuple[int, bytes]:
    """Returns the number of bytes read from a file, and their hash; empty if it cannot be read."""
    digest = hashlib.sha256()
    try:
        with open_regular(file.path, at_most=1 << 62) as (stream, size):
            if size <= min(SMALL_BYTES, budget):
                digest.update(stream.read(size))
                return size, digest.digest()
            for start in (0, max(0, size // 2 - BLOCK_BYTES // 2), max(0, size - BLOCK_BYTES)):
                stream.seek(start)
                digest.update(stream.read(BLOCK_BYTES))
    except OSError:
        return 0, b""
    return 0, digest.digest()  # blocks are limited by `MAX_READ_FILES`


# Samples.


def _hash_samples(source: Samples, has_files: bool) -> str:
    digest = hashlib.sha256(str(len(source)).encode())
    for name, value in _held(source, has_files):
        digest.update(name.encode() + b"\0")
        _update(digest, value)
    if not has_files and isinstance(source, Source) and len(source):
        index_B = np.unique(np.linspace(0, len(source) - 1, NUM_FETCHED).astype(np.int64))
        try:
            for array in source.fetch(index_B, seed=0, epoch=0, train=False):
                _update(digest, np.asarray(array), at_most=1 << 62)
        except (MxtrainError, OSError):
            digest.update(b"unreadable")  # training reports the error, if it reads these samples
    return digest.hexdigest()


def _held(source: Samples, has_files: bool) -> Iterator[Tuple[str, object]]:
    """Yields the public attributes of a source that hold samples.

    Cached properties are left out: they exist only once something has asked for them. Of data in files, texts are left
    out: they may be paths, and data may be moved. Mapped files are not read, since each element may cost a seek.
    """
    for name, value in sorted(getattr(source, "__dict__", {}).items()):
        is_cached = isinstance(getattr(type(source), name, None), functools.cached_property)
        if name.startswith("_") or is_cached or isinstance(value, np.memmap):
            continue
        is_numbers = isinstance(value, np.ndarray) and value.dtype.kind in "biuf"
        if is_numbers or (not has_files and isinstance(value, (list, tuple))):
            yield name, value


def _update(digest: hashlib._Hash, value: object, at_most: int = MAX_ITEMS) -> None:
    """Adds about `at_most` elements of an array or a list, evenly spread, and its size."""
    if isinstance(value, np.ndarray) and value.dtype.hasobject:
        _update(digest, value.reshape(-1).tolist(), at_most)  # its memory holds addresses, which differ between runs
    elif isinstance(value, np.ndarray):
        digest.update(f"{value.dtype.str}{value.shape}".encode())
        if value.flags.c_contiguous:
            digest.update(np.ascontiguousarray(value.reshape(-1)[:: max(1, value.size // at_most)]).tobytes())
        else:
            digest.update(np.asarray(value.flat[:at_most]).tobytes())
    elif isinstance(value, (list, tuple)):
        digest.update(str(len(value)).encode())
        for item in value[:: max(1, len(value) // at_most)]:
            digest.update(_text_of(item).encode("utf-8", "backslashreplace") + b"\0")


def _text_of(value: object) -> str:
    """Returns texts and numbers as they are, also in tuples, and of other objects only their class: their `repr` may
    contain an address."""
    if isinstance(value, (tuple, list)):
        return f"({','.join(map(_text_of, value[:16]))})"
    is_plain = value is None or isinstance(value, (str, bytes, bool, int, float, np.generic))
    return repr(value)[:MAX_LETTERS] if is_plain else type(value).__name__
