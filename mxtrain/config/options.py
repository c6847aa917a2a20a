"""The classes that options of conf/ configure, for messages on what would fit and for the default task of a dataset."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import re
import sys
from importlib.abc import InspectLoader
from pathlib import Path
from typing import Dict, Iterable, List, Type

from mxtrain.config.plugins import conf_dirs
from mxtrain.files.regular_files import read_regular_text
from mxtrain.types.kinds import TargetKind

TARGET = re.compile(r"^\s*_target_:\s*([\w.]+)", re.MULTILINE)
DEFAULT_TASK = "classification"
"""The task of conf/config.yaml, if no other is chosen."""

_user_folders: List[Path] = []


def remember_folders(folders: Iterable[Path]) -> None:
    """Replaces the folders of the user's options (`--config-dir`), which messages name if their class is imported."""
    _user_folders[:] = folders


def option_classes(group: str) -> Dict[str, type]:
    """Returns the classes of a group's options by name: those of mxtrain, of plug-ins and of the user.

    Classes of the user are not imported for this; those whose module was not imported yet are left out.

    Args:
        group: folder of conf/ with one class for each file, such as "dataset" or "metric".
    """
    classes = dict(own_classes(group))
    for folder in _user_folders:
        for option, target in _targets(folder / group).items():
            module, _, name = target.rpartition(".")
            # Looked up and not imported: a message must not run the user's code.
            found = getattr(sys.modules.get(module), name, None)
            if isinstance(found, type):
                classes[option] = found
    return classes


def setting_of(group: str, part: object) -> str:
    """Returns the setting that chooses a part of a run, for messages, e.g. "kvstore=dist_sync".

    Args:
        group: folder of conf/ with one class for each file.
        part: the validated settings; a class without an option is named by its import path.
    """
    path = f"{type(part).__module__}.{type(part).__qualname__}"
    for folder in (*conf_dirs(), *_user_folders):
        for option, target in _targets(folder / group).items():
            if target == path:
                return f"{group}={option}"
    return f"{group}._target_={path}"


@functools.cache
def task_for(target: Type[TargetKind]) -> str:
    """Returns the option of conf/task/ for targets of a kind; the default task if several fit; empty if none does."""
    names = [kind.__name__ for kind in target.__mro__ if issubclass(kind, TargetKind)]
    targets = _installed_targets("task")
    for option in sorted(targets, key=lambda option: option != DEFAULT_TASK):
        # Importing every task takes long, reading its source does not.
        if _source_mentions(targets[option], names):
            taken = _import(targets[option]).takes.targets  # type: ignore[attr-defined]  # a task
            if taken and issubclass(target, taken):
                return option
    return ""


@functools.cache
def usual_options(task: str, group: str) -> List[str]:
    """Returns the options of a group that a task of mxtrain chooses, or those of conf/config.yaml.

    Args:
        task: option of conf/task/; "" for the default.
        group: e.g. "model".
    """
    files = (*(folder / "task" / f"{task}.yaml" for folder in conf_dirs()), conf_dirs()[0] / "config.yaml")
    for file in files:
        found = re.search(
            rf"^\s*- (?:override /)?{group}(?:@[\w.]+)?: *(.+?)(?: +#.*)?$",
            file.read_text(encoding="utf-8") if file.is_file() else "",
            re.MULTILINE,
        )
        if found is not None:
            return re.findall(r"\w+", found.group(1))
    return []


@functools.cache
def own_classes(group: str) -> Dict[str, type]:
    """Returns the classes of a group's options, those of mxtrain and of plug-ins, by the name of the option."""
    return {option: _import(target) for option, target in _installed_targets(group).items()}


def _installed_targets(group: str) -> Dict[str, str]:
    """Returns the targets of a group's options, those of mxtrain and of plug-ins."""
    return {option: target for folder in conf_dirs() for option, target in _targets(folder / group).items()}


def _targets(folder: Path) -> Dict[str, str]:
    """Returns the first `_target_` of each YAML file of a folder, by name of the file."""
    targets = {}
    for file in sorted(folder.glob("*.yaml")):
        try:
            match = TARGET.search(read_regular_text(file))
        except (OSError, ValueError):
            continue  # a user's file; choosing this option reports the error
        if match is not None:
            targets[file.stem] = match.group(1)
    return targets


def _import(target: str) -> type:
    module, _, name = target.rpartition(".")
    found: type = getattr(importlib.import_module(module), name)
    return found


def _source_mentions(target: str, names: Iterable[str]) -> bool:
    """Returns True if the source of a class's module contains one of the names, or cannot be read."""
    spec = importlib.util.find_spec(target.rpartition(".")[0])
    loader = None if spec is None else spec.loader
    source = loader.get_source(target.rpartition(".")[0]) if isinstance(loader, InspectLoader) else None
    return source is None or re.search(rf"\b(?:{'|'.join(names)})\b", source) is not None
