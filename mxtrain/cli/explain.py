"""`mxtrain explain KEY`: a setting's value, where it came from, what it overrode, and what it means."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, List, Mapping, Optional, Sequence

import yaml
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode

from mxtrain.cli import arguments as command_line
from mxtrain.cli.compose import CONFIG_NAME, Composed, Composer, short
from mxtrain.config import flatten, import_target, shown, spec_help
from mxtrain.errors import ConfigError, did_you_mean
from mxtrain.types import Spec


@dataclass(frozen=True)
class Origin:
    """One place that gives a setting a value."""

    place: str
    value: str


def run(arguments: Sequence[str]) -> int:
    """Prints the explanation; returns the exit code."""
    given = command_line.parse(arguments)
    if len(given.positionals) != 1:
        raise ConfigError("explain takes one setting, e.g. `python -m mxtrain explain optimizer.lr`, and any overrides.")
    key = given.positionals[0]
    with Composer(given.config_dirs) as composer:
        composed = composer.compose(given.overrides)
        values = flatten(composed.config)
        keys = [path for path in values if path == key or path.startswith(key + ".")]
        if not keys:
            raise ConfigError(f"there is no '{key}'.{did_you_mean(key, [*values, *composed.config])}")
        choice = composed.hydra.runtime.choices.get(key)
        if choice is not None:
            print(f"{key}={choice} ({composed.where(key)}); it can be: {', '.join(composer.options(key))}")
        for path in keys:
            if not path.endswith("._target_"):
                print("\n".join(describe_setting(path, values[path], composed, composer)))
    return 0


def describe_setting(path: str, value: Any, composed: Composed, composer: Composer) -> List[str]:
    """The lines about one setting."""
    origins = find_origins(path, composed, composer)
    lines = [f"{path} = {shown(value)}"]
    meaning = meaning_of(path, composed.config)
    if meaning:
        lines.append(f"  meaning   {meaning}")
    if origins:
        last = origins[-1]
        through = f" ({last.value})" if "${" in last.value else ""
        lines.append(f"  from      {last.place}{through}")
        lines.extend(f"  overrides {origin.place}: {origin.value}" for origin in reversed(origins[:-1]))
    return lines


def find_origins(path: str, composed: Composed, composer: Composer) -> List[Origin]:
    """All places that give `path` a value, in the order in which they are applied."""
    loader: Any = GlobalHydra.instance().config_loader()
    overrides = composer.parse(composed.overrides)
    defaults = loader.compute_defaults_list(CONFIG_NAME, list(composed.overrides), RunMode.RUN).defaults
    origins: List[Origin] = []
    for entry in defaults:
        file = find_file(entry.config_path, composed.search_path)
        package = "" if entry.package in (None, "_global_") else str(entry.package)
        if file is None or not (not package or path.startswith(package + ".")):
            continue
        origin = read_origin(file, path[len(package) + 1 if package else 0 :].split("."))
        if origin is not None and origin not in origins:
            origins.append(origin)
    for override in overrides:
        if override.key_or_group == path:
            origins.append(Origin(f"command line: {override.input_line}", shown(override.value())))
    return origins


def find_file(config_path: Optional[str], search_path: Sequence[Path]) -> Optional[Path]:
    for folder in search_path:
        file = folder / f"{config_path}.yaml"
        if config_path and file.is_file():
            return file
    return None


def read_origin(file: Path, names: Sequence[str]) -> Optional[Origin]:
    """File, line and value of a setting, or None if the file doesn't give it."""
    with open(file) as stream:
        node = yaml.compose(stream, Loader=yaml.SafeLoader)
    for name in names:
        if not isinstance(node, yaml.MappingNode):
            return None
        node = next((value for key, value in node.value if key.value == name), None)
    if node is None:
        return None
    value = node.value if isinstance(node, yaml.ScalarNode) else yaml.serialize(node).strip()
    return Origin(f"{short(file)}:{node.start_mark.line + 1}", str(value))


def meaning_of(path: str, config: Mapping[str, Any]) -> str:
    """The docstring of the field in the class that the nearest `_target_` names."""
    names = path.split(".")
    for depth in range(len(names) - 1, 0, -1):
        node: Any = config
        for name in names[:depth]:
            node = node.get(name, {}) if isinstance(node, Mapping) else {}
        if isinstance(node, Mapping) and "_target_" in node:
            target = import_target(str(node["_target_"]), ".".join(names[:depth]))
            is_spec = isinstance(target, type) and issubclass(target, Spec)
            return spec_help(target, names[depth:]) if is_spec else ""
    return ""
