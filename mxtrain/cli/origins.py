"""Which files and overrides give a setting its value."""

from __future__ import annotations

import copy
import functools
from dataclasses import dataclass
from pathlib import Path
from typing import List, Optional, Sequence

import yaml

from mxtrain.cli.config_files import ConfigFiles, short
from mxtrain.description.config import shown
from mxtrain.files.regular_files import read_regular_text


@dataclass(frozen=True)
class Origin:
    """One place that gives a setting a value."""

    place: str
    value: str
    in_file: bool = True
    comment: str = ""
    """What the file says of the setting, on its line."""


def find_origins(path: str, files: ConfigFiles, given: Sequence[str]) -> List[Origin]:
    """All places that give `path` a value, in the order in which they are applied.

    Args:
        path: a setting.
        files: of the configuration.
        given: the overrides.
    """
    overrides = files.parse(given)
    origins: List[Origin] = []
    for entry in files.defaults(given):
        file = files.find_file(entry.config_path)
        package = "" if entry.package in (None, "_global_") else str(entry.package)
        if file is None or not (not package or path.startswith(package + ".")):
            continue
        origin = read_origin(file, path[len(package) + 1 if package else 0 :].split("."))
        if origin is not None and origin not in origins:
            origins.append(origin)
    for override in overrides:
        key = override.key_or_group
        if key == path or path.startswith(key + ".") and key not in files.groups():
            value = "(deleted)" if override.is_delete() else shown(override.value())
            origins.append(Origin(f"command line: {override.input_line}", value, in_file=False))
    return origins


def read_origin(file: Path, names: Sequence[str]) -> Optional[Origin]:
    """File, line and value of a setting, or None if the file doesn't give it."""
    node = _read_node(file)
    line = 0
    for name in names:
        if not isinstance(node, yaml.MappingNode):
            return None
        found = next(((key, value) for key, value in node.value if key.value == name), None)
        if found is None:
            return None
        key, node = found
        line = key.start_mark.line + 1
    text = read_regular_text(file).splitlines()[line - 1] if line else ""
    ends_here = names and node.end_mark.line == line - 1
    rest = text[node.end_mark.column if ends_here else key.end_mark.column :] if line else ""
    return Origin(f"{short(file)}:{line}", shown_node(node), comment=rest.partition("#")[2].strip())


@functools.cache
def _read_node(file: Path) -> yaml.Node:
    return yaml.compose(read_regular_text(file), Loader=yaml.SafeLoader)


def shown_node(node: yaml.Node) -> str:
    """A YAML node on one line."""
    if isinstance(node, yaml.ScalarNode):
        return str(node.value)
    return yaml.serialize(_flow(copy.copy(node)), width=10_000).strip()


def _flow(node: yaml.Node) -> yaml.Node:
    node.flow_style = True
    return node
