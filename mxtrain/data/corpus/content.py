"""Content hashes of files, cached so that a second start does not read the files again.

A cached hash is used while device, inode, size and both times of the file are unchanged. The hash of a file that was
written less than a second before it was read is not cached, because a later change could leave the same times.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from typing import List, NamedTuple, Sequence

from mxtrain.data.corpus.threads import map_in_order
from mxtrain.data.loading.dataset_files import file_error, open_regular
from mxtrain.errors import DataError
from mxtrain.files.cache import read_cached, write_cached
from mxtrain.files.durable import CHUNK_BYTES
from mxtrain.files.regular_files import AnyPath
from mxtrain.terminal.progress import ProgressDisplay

_KIND = "contents"
OLD_ENOUGH_NS = 1_000_000_000
"""Age of a file from which its hash is cached."""


class FileContent(NamedTuple):
    """Content of a file.

    Attributes:
        path: path of the file.
        sha256: SHA-256 of its content.
        stamp: device, inode, size and times, by which a change is noticed.
    """

    path: AnyPath
    sha256: str
    stamp: List[int]

    @property
    def num_bytes(self) -> int:
        """Returns the size of the file."""
        return self.stamp[2]

    def require_unchanged(self) -> None:
        """Checks that the file has not changed since it was read.

        Raises:
            DataError: it has changed.
        """
        _require_stamp(self.path, self.stamp)


def contents_of(
    paths: Sequence[AnyPath], description: str = "content of files", num_threads: int = 1
) -> List[FileContent]:
    """Returns the content of each file, and shows a progress line where reading takes long.

    Args:
        paths: paths of the files.
        description: what the files are, for the progress line.
        num_threads: number of threads that read.

    Raises:
        DataError: one cannot be read, is no regular file, or is written to meanwhile.
    """
    names = [os.path.realpath(path) for path in paths]
    index = f"{hashlib.sha256(json.dumps(names).encode()).hexdigest()[:32]}.json"
    # Taken before the files are read, and compared afterwards, so that a change in between is noticed.
    stamps = [_stamp(path) for path in paths]
    cached = read_cached(_KIND, index)
    cached_rows = json.loads(cached) if cached is not None else [[None, ""]] * len(paths)
    now_ns = time.time_ns()
    digests = [digest if cached_stamp == stamp else "" for stamp, (cached_stamp, digest) in zip(stamps, cached_rows)]
    new = [number for number, digest in enumerate(digests) if not digest]
    with ProgressDisplay() as display:
        display.begin(description, len(new))
        new_digests = map_in_order(lambda number: _digest(paths[number], stamps[number]), new, num_threads)
        for number, digest in zip(new, new_digests):
            digests[number] = digest
            display.advance(1)
    # Times of a file system may be as coarse as a second: a change within it would leave the same stamp.
    is_old = [now_ns - max(stamp[3:]) > OLD_ENOUGH_NS for stamp in stamps]
    rows = [[stamp if old else None, digest] for stamp, old, digest in zip(stamps, is_old, digests)]
    if rows != cached_rows:
        write_cached(_KIND, index, json.dumps(rows).encode())
    return list(map(FileContent, paths, digests, stamps))


def _require_stamp(path: AnyPath, stamp: List[int]) -> None:
    if _stamp(path) != stamp:
        raise DataError(f"'{path}' was changed while it was read. Start again when it is complete.")


def _stamp(path: AnyPath) -> List[int]:
    try:
        status = os.stat(path)
    except OSError as error:
        raise file_error(path, error) from error
    # ctime as well, which `touch -d` cannot set.
    return [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def _digest(path: AnyPath, stamp: List[int]) -> str:
    digest = hashlib.sha256()
    with open_regular(path) as (file, _):
        while part := file.read(CHUNK_BYTES):
            digest.update(part)
    _require_stamp(path, stamp)
    return digest.hexdigest()
