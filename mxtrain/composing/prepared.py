"""Composes the files of a configuration once for many runs, which differ only in overrides of settings.

Hydra composes files first, by the overrides of groups, and then applies the overrides of settings. The files take nine
tenths of the time, and are the same for all trials of a study. So are the environment, which lists of defaults may
name, and the folders that plug-ins of Hydra add to its search path, which are not looked at again.

Reasons: docs/decisions/0155-fork-server.md.
"""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Callable, List, NamedTuple, Optional, Sequence, Tuple

from hydra._internal.config_loader_impl import ConfigLoaderImpl, get_overrides_dirname
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig

RUN_DIR = "hydra.run.dir"

FileStates = Tuple[Tuple[str, int, int], ...]


class _Prepared(NamedTuple):
    groups: Tuple[str, ...]
    """Overrides of groups, as typed and in their order."""
    files: FileStates
    """Path, time in ns and size of each file of the search path; of folders the path alone."""
    config: DictConfig
    """The composed files, before overrides of settings."""


_prepared: Optional[_Prepared] = None


def prepare(
    folders: Sequence[Path],
    parsed: Sequence[Override],
    is_group: Callable[[str], bool],
    load: Callable[[Sequence[Override]], DictConfig],
) -> None:
    """Composes the files for runs with the same overrides of groups; does nothing if that cannot be done once for all.

    Args:
        folders: search path of the files.
        parsed: overrides of one of these runs.
        is_group: returns True for the name of a group.
        load: composes overrides.
    """
    global _prepared
    _prepared = None
    parts = _split(parsed, is_group)
    if parts is None:
        return
    files = _list_files(folders)  # first: a file that changes meanwhile then differs later
    config = load(parts[0])
    if files is not None and not config.hydra.job.env_copy:  # Hydra copies variables after it applies the settings
        _prepared = _Prepared(_texts(parts[0]), files, config)


def compose_prepared(
    folders: Sequence[Path], parsed: Sequence[Override], is_group: Callable[[str], bool]
) -> Optional[DictConfig]:
    """Returns the configuration with these overrides as Hydra composes it; None if Hydra has to compose it.

    Args:
        folders: search path of the files.
        parsed: overrides.
        is_group: returns True for the name of a group.
    """
    parts = None if _prepared is None else _split(parsed, is_group)
    if _prepared is None or parts is None:
        return None
    groups, settings = parts
    if _prepared[:2] != (_texts(groups), _list_files(folders)):
        return None
    config = copy.deepcopy(_prepared.config)
    ConfigLoaderImpl._apply_overrides_to_config(settings, config)
    hydra = config.hydra
    of_run = [override for override in parsed if not override.is_hydra_override()]
    hydra.overrides.hydra = list(_texts([override for override in parsed if override.is_hydra_override()]))
    hydra.overrides.task = list(_texts(of_run))
    name = hydra.job.config.override_dirname
    hydra.job.override_dirname = get_overrides_dirname(of_run, name.exclude_keys, name.item_sep, name.kv_sep)
    return config


def _split(
    parsed: Sequence[Override], is_group: Callable[[str], bool]
) -> Optional[Tuple[List[Override], List[Override]]]:
    """Returns the overrides of groups and those of settings, as Hydra divides them; None if some change both."""
    groups: List[Override] = []
    settings: List[Override] = []
    for override in parsed:
        key = override.key_or_group
        # Hydra's own settings choose files, and a replaced class has other defaults.
        if key.endswith("_target_") or (key.startswith("hydra") and key != RUN_DIR):
            return None
        chooses = is_group(key) and not isinstance(override.value(), dict)
        (groups if chooses else settings).append(override)
    return groups, settings


def _texts(overrides: Sequence[Override]) -> Tuple[str, ...]:
    return tuple(override.input_line or "" for override in overrides)


def _list_files(folders: Sequence[Path]) -> Optional[FileStates]:
    """Returns the state of all files that composing may read, in the order of the folders; None if links hide some."""
    found = []
    for folder in folders:
        for parent, subfolders, names in os.walk(folder):
            if any(os.path.islink(os.path.join(parent, name)) for name in subfolders):
                return None
            found.append((parent, 0, 0))
            for path in (os.path.join(parent, name) for name in names if name.endswith(".yaml")):
                try:
                    status = os.stat(path)
                except OSError:  # a link to nothing
                    return None
                found.append((path, status.st_mtime_ns, status.st_size))
    return tuple(found)
