"""Lists and removes prepared data in the cache, with sizes, sources and times of use."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from pathlib import Path
from typing import List, NamedTuple

from mxtrain.data.corpus.preparing import KIND, PART
from mxtrain.data.corpus.shards import MANIFEST
from mxtrain.errors import ConfigError, did_you_mean
from mxtrain.files.cache import own_folder, read_sealed
from mxtrain.files.durable import open_file

UNFINISHED = "unfinished"


class CachedData(NamedTuple):
    """Prepared data in the cache.

    Attributes:
        key: name of its folder.
        what: description, e.g. "tokens of train.csv".
        num_bytes: size on the disk.
        unused_days: days since it was last opened.
    """

    key: str
    what: str
    num_bytes: int
    unused_days: float


def data_cache_folder() -> Path:
    """Returns the folder of prepared data in the cache.

    Raises:
        OSError, RuntimeError, KeyError: the cache cannot be used.
    """
    return own_folder(KIND)


def list_cached_data() -> List[CachedData]:
    """Returns all prepared data, the largest first; raises as `data_cache_folder`."""
    cached = []
    for folder in data_cache_folder().iterdir():
        if folder.is_dir() and not folder.is_symlink():
            content = read_sealed(folder / MANIFEST)
            what = UNFINISHED if content is None else json.loads(content)["what"]
            size = sum(entry.stat(follow_symlinks=False).st_size for entry in os.scandir(folder))
            cached.append(CachedData(folder.name, what, size, (time.time() - folder.stat().st_mtime) / 86400))
    return sorted(cached, key=lambda one: (-one.num_bytes, one.key))


def remove_cached_data(name: str) -> List[CachedData]:
    """Removes prepared data, and returns what was removed.

    Data that another process is preparing are kept. A process that has opened removed data can go on reading them.

    Args:
        name: a key; `all`; or e.g. `30d` for data that were not opened for 30 days.

    Raises:
        ConfigError: there is no such key.
    """
    kept = list_cached_data()
    if name.endswith("d") and name[:-1].isdigit():
        removed = [data for data in kept if data.unused_days > int(name[:-1])]
    else:
        removed = [data for data in kept if name in ("all", data.key)]
        if not removed and name != "all":
            keys = [data.key for data in kept]
            raise ConfigError(
                f"remove={name}: there is nothing of that name.{did_you_mean(name, keys)} Type a key that "
                "`data cache` lists, all, or e.g. 30d for what was not used for 30 days."
            )
    return [data for data in removed if _remove(data_cache_folder(), data.key)]


def _remove(root: Path, key: str) -> bool:
    lock = root / f"{key[: -len(PART)] if key.endswith(PART) else key}.lock"
    fd = open_file(lock, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        # The process that prepares the data holds this lock, so unfinished data in use are kept.
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(root / key)
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
