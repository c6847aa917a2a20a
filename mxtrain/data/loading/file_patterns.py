"""Expands a setting to the files of one split: one file, a list, or a pattern such as `train-*-of-*.parquet`."""

from __future__ import annotations

import glob
import logging
import re
from pathlib import Path
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple, Union

from mxtrain.data.loading.dataset_files import exists, files_in, list_first
from mxtrain.errors import DataError

_SHARD = re.compile(r"(.*)-(\d+)-of-(\d+)(-[0-9a-f]{6,})?((?:\.[^/]*)?)", re.DOTALL)
"""Path of one of several shards, as TensorFlow and Hugging Face number them: train-00000-of-00004.parquet. Older
versions of Hugging Face's datasets add a hash."""

log = logging.getLogger(__name__)


class _ShardName(NamedTuple):
    """Parts of the path of a shard; `digits` is the width of its number."""

    name: str
    number: int
    total: int
    ending: str
    digits: int
    has_hash: bool

    def named(self, number: int) -> str:
        """Returns the path of another shard."""
        return f"{self.name}-{number:0{self.digits}}-of-{self.total:0{self.digits}}{self.ending}"

    @property
    def pattern(self) -> str:
        """Returns the path that stands for all shards."""
        return f"{self.name}-*-of-{self.total:0{self.digits}}{'-*' if self.has_hash else ''}{self.ending}"


def expand_files(paths: Union[str, Sequence[str]], may_repeat: bool = False) -> List[str]:
    """Returns the paths of a setting. One with `*`, `?` or `[...]` that is no path itself stands for all files that
    match, sorted by name.

    Args:
        paths: one path or several.
        may_repeat: True if the caller handles files that are named twice.

    Raises:
        DataError: there is no path, no file matches, a file is named twice, or a shard is missing. A shard that is
            named by itself is read without the others.
    """
    listed = [paths] if isinstance(paths, str) else list(paths)
    if not listed:
        raise DataError("The list of files is empty. Name at least one.")
    found: List[str] = []
    for path in listed:
        found += _matches(path) if is_pattern(path) else [path]
    twice = next((path for number, path in enumerate(found) if path in found[:number]), None)
    if twice is not None and not may_repeat:
        raise DataError(f"'{twice}' is named twice in [{list_first(listed)}]. Name each file once.")
    if found == listed and len(found) == 1:
        _warn_about_others(found[0])
    else:
        _require_all_shards(found)
    return found


def files_in_root(root: str, settings: Mapping[str, Union[None, str, Sequence[str]]]) -> Dict[str, List[str]]:
    """Returns the files of each setting that has any, which are relative to a folder; see `expand_files`."""
    listed = {name: [paths] if isinstance(paths, str) else paths for name, paths in settings.items()}
    return {
        name: expand_files([str(Path(root) / path) for path in paths])
        for name, paths in listed.items()
        if paths is not None
    }


def is_pattern(path: str) -> bool:
    """Returns True if a path stands for all files that match it."""
    return glob.has_magic(path) and not exists(path)


def shard_pattern(path: str) -> Optional[Tuple[str, str]]:
    """Returns the beginning of the path of a shard, and the pattern of all shards, or the path itself if there is only
    one; None if it is no shard by its name."""
    shard = _parse_shard(path)
    return None if shard is None else (shard.name, path if shard.total == 1 else shard.pattern)


def _matches(pattern: str) -> List[str]:
    matches = sorted(path for path in glob.glob(pattern) if not Path(path).is_dir())
    if not matches:
        folder = Path(pattern).parent
        raise DataError(
            f"'{pattern}': no file matches. The folder '{folder}' holds {list_first(files_in(folder)) or 'no file'}."
        )
    log.info("%s: %d files in the order of their names, %s to %s", pattern, len(matches), matches[0], matches[-1])
    return matches


def _parse_shard(path: str) -> Optional[_ShardName]:
    match = _SHARD.fullmatch(path)
    if match is None:
        return None
    name, number, total, hashed, ending = match.groups()
    return _ShardName(name, int(number), int(total), ending, len(number), hashed is not None)


def _warn_about_others(path: str) -> None:
    shard = _parse_shard(path)
    if shard is not None and shard.total > 1:
        message = "%s is one of %d shards, and the others are not read. To read all, type '%s'."
        log.warning(message, path, shard.total, shard.pattern)


def _require_all_shards(paths: Sequence[str]) -> None:
    first_of: Dict[Tuple[str, str], _ShardName] = {}
    numbers_of: Dict[Tuple[str, str], Set[int]] = {}
    for shard in filter(None, map(_parse_shard, paths)):
        key = (shard.name, shard.ending)
        first = first_of.setdefault(key, shard)
        if first.total != shard.total:
            raise DataError(
                f"There are shards of {first.total} and of {shard.total}: {first.named(first.number)} and "
                f"{shard.named(shard.number)}. Name those of one version, e.g. '{first.pattern}'."
            )
        numbers_of.setdefault(key, set()).add(shard.number)
    for key, first in first_of.items():
        numbers = numbers_of[key]
        # Some programs count from 1.
        begin = 1 if first.total in numbers and 0 not in numbers else 0
        missing = next((number for number in range(begin, begin + first.total) if number not in numbers), None)
        if missing is not None:
            raise DataError(
                f"'{first.named(missing)}' is missing: {len(numbers)} of {first.total} shards are there. Complete "
                "them, or name one shard alone to read only that."
            )
