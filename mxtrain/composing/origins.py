"""Finds the files and overrides that give a setting its value."""

from __future__ import annotations

import copy
import functools
import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Any, List, Optional, Sequence, Tuple, Type

import yaml

from mxtrain.composing.config_files import ConfigFiles, short
from mxtrain.config.specs import default_settings, find_declaration, import_target, shown
from mxtrain.errors import ConfigError
from mxtrain.files.regular_files import read_regular_text
from mxtrain.types import Spec


@dataclass(frozen=True)
class Origin:
    """One place that gives a setting a value."""

    place: str
    value: str
    in_file: bool = True
    comment: str = ""
    """Text of the setting in a file, on its line."""


def find_origins(path: str, files: ConfigFiles, overrides: Sequence[str]) -> List[Origin]:
    """Returns all places that give `path` a value, in the order in which they are applied; the default of its class
    first.

    Args:
        path: dotted path of the setting.
        files: files of the configuration.
        overrides: overrides of the command line.
    """
    default = _default_of(path, files, overrides)
    origins = [*([default] if default else []), *_origins_in_files(path, files, overrides)]
    for override in files.parse(overrides):
        key = override.key_or_group
        if key == path or path.startswith(key + ".") and key not in files.groups():
            value = "(deleted)" if override.is_delete() else shown(override.value())
            origins.append(Origin(f"command line: {override.input_line}", value, in_file=False))
    return origins


def file_with_target(path: str, files: ConfigFiles, overrides: Sequence[str]) -> str:
    """Returns the file that names the class of a setting; an empty string if none does."""
    _, target = _target_of(path, files, overrides)
    return target.place.rpartition(":")[0] if target else ""


def _origins_in_files(path: str, files: ConfigFiles, overrides: Sequence[str]) -> List[Origin]:
    origins: List[Origin] = []
    for entry in files.defaults(overrides):
        file = files.find_file(entry.config_path)
        package = "" if entry.package in (None, "_global_") else str(entry.package)
        if file is None or not (not package or path.startswith(package + ".")):
            continue
        origin = read_origin(file, path[len(package) + 1 if package else 0 :].split("."))
        if origin is not None and origin not in origins:
            origins.append(origin)
    return origins


def _target_of(path: str, files: ConfigFiles, overrides: Sequence[str]) -> Tuple[List[str], Optional[Origin]]:
    """Returns the names of a setting below the node with the nearest `_target_` above it in a file, and the path of
    that node."""
    names = path.split(".")
    for depth in range(len(names) - 1, 0, -1):
        targets = _origins_in_files(".".join([*names[:depth], "_target_"]), files, overrides)
        if targets:
            return names[depth:], targets[-1]
    return names, None


def _default_of(path: str, files: ConfigFiles, overrides: Sequence[str]) -> Optional[Origin]:
    """Returns the default that `mxtrain.composing.config_files` gives to what files leave out."""
    names, target = _target_of(path, files, overrides)
    spec = _spec_at(target.value) if target else None
    declaration = find_declaration(spec, names) if spec is not None else None
    if spec is None or declaration is None:
        return None
    value: Any = default_settings(spec)
    for name in names:
        if not isinstance(value, dict) or name not in value:
            return None
        value = value[name]
    location = f"the default of {spec.__name__} ({short(declaration.file)}:{declaration.line})"
    return Origin(location, shown(value), in_file=False)


def _spec_at(target: str) -> Optional[Type[Spec]]:
    """Returns the spec at an import path, of mxtrain or the user's own; None for anything else."""
    try:
        target_object = import_target(target, "")
    except ConfigError:
        return None  # reported when the description is validated
    return target_object if inspect.isclass(target_object) and issubclass(target_object, Spec) else None


def read_origin(file: Path, names: Sequence[str]) -> Optional[Origin]:
    """Returns file, line and value of a setting; None if the file does not set it."""
    node = _read_node(file)
    line = 0
    for name in names:
        if not isinstance(node, yaml.MappingNode):
            return None
        entry = next(((key, value) for key, value in node.value if key.value == name), None)
        if entry is None:
            return None
        key, node = entry
        line = key.start_mark.line + 1
    text = read_regular_text(file).splitlines()[line - 1] if line else ""
    ends_here = names and node.end_mark.line == line - 1
    remaining = text[node.end_mark.column if ends_here else key.end_mark.column :] if line else ""
    return Origin(f"{short(file)}:{line}", shown_node(node), comment=remaining.partition("#")[2].strip())


@functools.cache
def _read_node(file: Path) -> yaml.Node:
    return yaml.compose(read_regular_text(file), Loader=yaml.SafeLoader)


def shown_node(node: yaml.Node) -> str:
    """Returns a YAML node on one line."""
    if isinstance(node, yaml.ScalarNode):
        return str(node.value)
    return yaml.serialize(_flow(copy.copy(node)), width=10_000).strip()


def _flow(node: yaml.Node) -> yaml.Node:
    node.flow_style = True
    return node
