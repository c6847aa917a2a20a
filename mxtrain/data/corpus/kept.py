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


class KeptData(NamedTuple):
    """Prepared data in the cache.

    Attributes:
        key: its name.
        what: it is.
        num_bytes: on the disk.
        unused_days: since it was opened.
    """

    key: str
    what: str
    num_bytes: int
    unused_days: float


def folder_of_kept() -> Path:
    """Returns the folder of the cache.

    Raises:
        OSError, RuntimeError, KeyError: there is no cache that can be used.
    """
    return own_folder(KIND)


def list_kept() -> List[KeptData]:
    """Returns all that there is, the largest first; raises as `folder_of_kept`."""
    found = []
    for folder in folder_of_kept().iterdir():
        if folder.is_dir() and not folder.is_symlink():
            content = read_sealed(folder / MANIFEST)
            what = UNFINISHED if content is None else json.loads(content)["what"]
            size = sum(entry.stat(follow_symlinks=False).st_size for entry in os.scandir(folder))
            found.append(KeptData(folder.name, what, size, (time.time() - folder.stat().st_mtime) / 86400))
    return sorted(found, key=lambda one: (-one.num_bytes, one.key))


def remove_kept(name: str) -> List[KeptData]:
    """Removes what has a key, `all`, or what was not opened for so many days (`30d`), and returns it. What a process
    prepares just now stays; one that has it open goes on.

    Raises:
        ConfigError: there is no such key.
    """
    kept = list_kept()
    if name.endswith("d") and name[:-1].isdigit():
        chosen = [one for one in kept if one.unused_days > int(name[:-1])]
    else:
        chosen = [one for one in kept if name in ("all", one.key)]
        if not chosen and name != "all":
            keys = [one.key for one in kept]
            raise ConfigError(
                f"remove={name}: there is nothing of that name.{did_you_mean(name, keys)} Type a key that "
                "`data cache` lists, all, or e.g. 30d for what was not used for 30 days."
            )
    return [one for one in chosen if _remove(folder_of_kept(), one.key)]


def _remove(root: Path, key: str) -> bool:
    lock = root / f"{key[: -len(PART)] if key.endswith(PART) else key}.lock"
    fd = open_file(lock, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(root / key)
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
