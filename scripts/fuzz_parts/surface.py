"""The surface of the configuration: groups, their options, and each option's settings with their types."""

from __future__ import annotations

import inspect
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Sequence, Tuple

from omegaconf import OmegaConf

from mxtrain.composing.composer import Composer
from mxtrain.config.groups import PRESET_GROUPS
from mxtrain.config.specs import default_settings, flatten, own_spec


@dataclass(frozen=True)
class Setting:
    """One setting of one option.

    Attributes:
        path: as it is typed, e.g. `logger.csv.file_name`.
        default: what the YAML gives, or the class.
        choices: the values that its type lists (literals, booleans, null); empty where it takes any of a kind.
    """

    path: str
    default: Any
    choices: Tuple[Any, ...]


@dataclass(frozen=True)
class Surface:
    """All options of all groups, in an order that does not change from call to call."""

    options: Mapping[str, Sequence[str]]
    settings: Mapping[Tuple[str, str], Sequence[Setting]]
    """(group, option) -> its settings."""

    @property
    def groups(self) -> List[str]:
        """Options that take settings; presets only override."""
        return [group for group in self.options if group not in PRESET_GROUPS]


def read_surface() -> Surface:
    """Reads every option's file once; composing each of them would take a minute."""
    options: Dict[str, Sequence[str]] = {}
    settings: Dict[Tuple[str, str], Sequence[Setting]] = {}
    with Composer() as composer:
        for group in sorted(composer.groups()):
            options[group] = sorted(composer.options(group))
            for option in options[group]:
                file = composer.find_file(f"{group}/{option}")
                node = OmegaConf.to_container(OmegaConf.load(str(file))) if file is not None else None
                if file is not None and group not in PRESET_GROUPS and isinstance(node, dict):
                    settings[group, option] = list(_settings(_package(file) or group, node))
    return Surface(options, settings)


def _package(file: Path) -> str:
    """Returns the package in which Hydra puts the file's settings, if its first line names one."""
    first = file.read_text(encoding="utf-8").partition("\n")[0].split()
    return first[-1] if first[:2] == ["#", "@package"] else ""


def _settings(prefix: str, node: Dict[str, Any]) -> Iterator[Setting]:
    if "_target_" not in node:
        for name, child in node.items():
            if isinstance(child, dict):
                yield from _settings(name if prefix == "_global_" else f"{prefix}.{name}", child)
        return
    node.pop("defaults", None)
    spec = own_spec(node["_target_"])
    fields = spec.model_fields if spec is not None else {}
    for path, default in flatten({**(default_settings(spec) if spec is not None else {}), **node}).items():
        info = fields.get(path)
        yield Setting(f"{prefix}.{path}", default, tuple(_choices(info.annotation)) if info is not None else ())


def _choices(annotation: Any) -> Iterator[Any]:
    if typing.get_origin(annotation) is typing.Literal:
        yield from typing.get_args(annotation)
    elif annotation is bool:
        yield from (True, False)
    elif annotation is type(None):
        yield None
    elif not inspect.isclass(annotation):
        for part in typing.get_args(annotation):
            yield from _choices(part)
