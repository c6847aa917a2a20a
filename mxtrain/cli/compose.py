"""Composes the configuration with Hydra, and replaces Hydra's messages by ones that name the remedy.

Hydra's own answer to a misspelt key is to add it with `+`, which makes the typo part of the configuration.
"""

from __future__ import annotations

import itertools
import os
import re
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from mxtrain.config import flatten
from mxtrain.errors import ConfigError, did_you_mean

CONFIG_NAME = "config"
MAX_CHECKED_JOBS = 64


def conf_dir() -> Path:
    """Our own configuration: inside the package in a wheel, at the top level in a checkout."""
    inside = Path(__file__).resolve().parent.parent / "conf"
    return inside if inside.is_dir() else inside.parent.parent / "conf"


def register_resolvers() -> None:
    """Interpolations of our own: `unique_suffix` keeps two runs that start in the same second apart."""
    OmegaConf.register_new_resolver("unique_suffix", lambda: uuid.uuid4().hex[:4], use_cache=True, replace=True)


@dataclass(frozen=True)
class Composed:
    """A composed configuration.

    Attributes:
        config: the resolved groups as plain nested dicts.
        hydra: Hydra's own node.
        overrides: the overrides that Hydra has to be given to compose this.
    """

    config: Mapping[str, Any]
    hydra: DictConfig
    overrides: Sequence[str]
    search_path: Sequence[Path]

    def where(self, group: str) -> str:
        """The file of a group's chosen option, as short as it can be written."""
        option = self.hydra.runtime.choices.get(group)
        names = option if isinstance(option, (list, tuple)) else [option]
        for folder in self.search_path:
            path = folder / group / f"{names[0]}.yaml"
            if path.is_file():
                return short(path)
        return short(self.search_path[-1] / group)


def short(path: Path) -> str:
    """Relative to the current folder where that is shorter."""
    relative = os.path.relpath(path)
    return relative if len(relative) < len(str(path)) else str(path)


class Composer:
    """Hydra, initialised for one command. Use as a context manager.

    Args:
        config_dirs: folders of the user's own groups and presets (`--config-dir`), which go before ours.
    """

    def __init__(self, config_dirs: Sequence[str] = ()):
        register_resolvers()
        self.search_path = [*(Path(folder).resolve() for folder in config_dirs), conf_dir()]
        for folder in self.search_path[:-1]:
            if not folder.is_dir():
                raise ConfigError(f"--config-dir {folder}: there is no such folder.")

    def __enter__(self) -> Composer:
        GlobalHydra.instance().clear()
        self._context = initialize_config_dir(version_base="1.3", config_dir=str(self.search_path[-1]))
        self._context.__enter__()
        extra = [f"file://{folder}" for folder in self.search_path[:-1]]
        self._search_override = [f"hydra.searchpath=[{','.join(extra)}]"] if extra else []
        loader = GlobalHydra.instance().config_loader()
        for folder in extra:
            loader.get_search_path().append("mxtrain", folder)
        self._loader = loader
        return self

    def __exit__(self, *error: Any) -> None:
        self._context.__exit__(*error)

    def groups(self) -> List[str]:
        return [name for name in self._loader.list_groups("") if name != "hydra"]

    def options(self, group: str) -> List[str]:
        return self._loader.get_group_options(group, results_filter=ObjectType.CONFIG)

    def compose(self, overrides: Sequence[str]) -> Composed:
        """The configuration with these overrides, which must not sweep.

        Raises:
            ConfigError: an override is wrong; the message says what is right.
        """
        parsed = self.parse(overrides)
        self._check_groups(parsed)
        parsed = self._fit(parsed)
        self._check_keys(parsed)
        lines = [override.input_line for override in parsed]
        config = self._compose(lines)
        try:
            hydra = config.hydra
            plain = OmegaConf.to_container(OmegaConf.masked_copy(config, [k for k in config if k != "hydra"]),
                                           resolve=False)  # fmt: skip
            copy = OmegaConf.create(plain)
            plain = OmegaConf.to_container(copy, resolve=True)
        except OmegaConfBaseException as error:
            raise ConfigError(f"{getattr(error, 'full_key', '') or 'the configuration'}: {first_line(error)}") from None
        return Composed(plain, hydra, lines, self.search_path)

    def parse(self, overrides: Sequence[str]) -> List[Override]:
        """Raises: ConfigError: one is no override at all."""
        parser = OverridesParser.create(config_loader=self._loader)
        parsed = []
        for text in overrides:
            try:
                parsed.extend(parser.parse_overrides([text]))
            except HydraException as error:
                hint = "" if "=" in text else " Write key=value."
                raise ConfigError(f"'{text}' is no override: {first_line(error)}.{hint}") from None
        return parsed

    def _compose(self, overrides: Sequence[str]) -> DictConfig:
        try:
            return compose(CONFIG_NAME, overrides=[*self._search_override, *overrides], return_hydra_config=True)
        except (HydraException, OmegaConfBaseException) as error:
            raise ConfigError(f"the configuration cannot be composed: {readable(error)}") from None

    def _check_groups(self, parsed: Sequence[Override]) -> None:
        groups = self.groups()
        for override in parsed:
            key = override.key_or_group
            if key not in groups or override.is_delete():
                continue
            value = override.value()
            chosen = value if isinstance(value, list) else [value]
            options = self.options(key)
            for option in chosen:
                if option is not None and str(option) not in options:
                    raise ConfigError(
                        f"{key}={option}: there is no such option.{did_you_mean(str(option), options)} "
                        f"{key} can be: {', '.join(options)} ({short(self.search_path[-1] / key)}/)."
                    )

    def _fit(self, parsed: Sequence[Override]) -> List[Override]:
        """`model.name=` alone means a GluonCV network; keys below an open mapping (`options: {}`) need no `+`."""
        keys = [override.key_or_group for override in parsed]
        if "model.name" in keys and "model" not in keys:
            parsed = [*self.parse(["model=gluoncv"]), *parsed]
        open_mappings = [path for path, value in self._known(parsed).items() if value == {}]
        fitted = []
        for override in parsed:
            below = any(override.key_or_group.startswith(path + ".") for path in open_mappings)
            if below and override.type is not None and override.type.name == "CHANGE":
                override = self.parse(["++" + override.input_line])[0]
            fitted.append(override)
        return fitted

    def _known(self, parsed: Sequence[Override]) -> Dict[str, Any]:
        """Every setting with the chosen groups, before values are changed."""
        groups = self.groups()
        structural = [o.input_line for o in parsed if o.key_or_group in groups or not is_change(o)]
        config = self._compose(structural)
        plain = OmegaConf.to_container(OmegaConf.masked_copy(config, [k for k in config if k != "hydra"]))
        return flatten(plain)

    def _check_keys(self, parsed: Sequence[Override]) -> None:
        groups = self.groups()
        known: Optional[Dict[str, Any]] = None
        for override in parsed:
            key = override.key_or_group
            if key in groups or key.startswith("hydra") or not is_change(override):
                continue
            known = self._known(parsed) if known is None else known
            if key in known or any(path.startswith(key + ".") for path in known):
                continue
            raise ConfigError(self._unknown_key(key, known, groups))

    def _unknown_key(self, key: str, known: Mapping[str, Any], groups: Sequence[str]) -> str:
        group, _, field = key.partition(".")
        if "/" in key or not field:
            return (
                f"there is no group '{key}'.{did_you_mean(key, groups)} Groups: {', '.join(groups)} "
                f"({short(self.search_path[-1])}/)."
            )
        if group not in {path.split(".")[0] for path in known}:
            return f"there is no group '{group}'.{did_you_mean(key, known)} Groups: {', '.join(groups)}."
        siblings = [path for path in known if path.startswith(group + ".")]
        fields = ", ".join(path[len(group) + 1 :] for path in siblings if not path.endswith("._target_"))
        elsewhere = "" if did_you_mean(key, siblings) else self._options_with(group, field)
        return (
            f"there is no '{key}'.{did_you_mean(key, siblings)}{elsewhere} {group} takes: {fields} "
            f"({short(self.search_path[-1] / group)}/)."
        )

    def _options_with(self, group: str, field: str) -> str:
        """Says which other options of the group have this field."""
        having = []
        for option in self.options(group) if group in self.groups() else []:
            for folder in self.search_path:
                path = folder / group / f"{option}.yaml"
                if path.is_file() and re.search(rf"^{re.escape(field.split('.')[0])}:", path.read_text(), re.MULTILINE):
                    having.append(option)
        return f" It belongs to {group}={'|'.join(having)}." if having else ""


def is_change(override: Override) -> bool:
    """Whether it changes a value that must exist: not `+key`, `++key` or `~key`."""
    return override.type is not None and override.type.name == "CHANGE"


def jobs(composer: Composer, overrides: Sequence[str]) -> Iterator[List[str]]:
    """The override lists of a sweep's jobs, as far as they can be known before it starts: all combinations up to
    `MAX_CHECKED_JOBS`, else each value once. Distributions (interval(...)) are left to the sweeper."""
    choices: List[List[str]] = []
    for override in composer.parse(overrides):
        if not override.is_sweep_override():
            choices.append([override.input_line])
        elif override.is_discrete_sweep():
            key = override.get_key_element()
            choices.append([f"{key}={value}" for value in override.sweep_string_iterator()])
    count = 1
    for values in choices:
        count *= len(values)
    if count <= MAX_CHECKED_JOBS:
        yield from (list(job) for job in itertools.product(*choices))
        return
    first = [values[0] for values in choices]
    for position, values in enumerate(choices):
        for value in values:
            yield [*first[:position], value, *first[position + 1 :]]


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


def readable(error: BaseException) -> str:
    """Hydra's message without its advice to add keys with `+`."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and "append to your config" not in line]
    return " ".join(lines)


