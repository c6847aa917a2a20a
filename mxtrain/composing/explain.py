"""Explains settings: their values, where these came from, what they overrode, and what they mean."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Mapping, Sequence

from omegaconf import OmegaConf

from mxtrain.composing.composer import Composed
from mxtrain.composing.mistakes import refuse_unknown
from mxtrain.composing.origins import Origin, find_origins
from mxtrain.config.groups import GROUPS, complete_group, describe
from mxtrain.config.specs import flatten, import_target, shown, spec_help
from mxtrain.errors import ConfigError
from mxtrain.types import Spec

if TYPE_CHECKING:
    from mxtrain.types.annotations import Config


@dataclass(frozen=True)
class ExplainedSetting:
    """One setting.

    Attributes:
        path: dotted path, e.g. "optimizer.lr".
        value: its value.
        meaning: the documentation of the field, or the comment of its line in a file; may be empty.
        used: the value that is used, if it is scaled for the global batch; else empty.
        origins: places that give it a value, in the order in which they are applied: the last one counts.
    """

    path: str
    value: object
    meaning: str
    used: str
    origins: Sequence[Origin]

    def __str__(self) -> str:
        lines = [f"{self.path} = {shown(self.value)}"]
        if self.meaning:
            lines.append(f"  meaning   {self.meaning}")
        if self.used:
            lines.append(f"  used      {self.used}")
        if self.origins:
            *overridden, last = self.origins
            through = f" ({last.value})" if "${" in last.value else ""
            lines.append(f"  from      {last.place}{through}")
            lines.extend(f"  overrides {origin.place}: {origin.value}" for origin in reversed(overridden))
        return "\n".join(lines)


@dataclass(frozen=True)
class Explanation:
    """Explanation of a setting, or of a group with all of its settings; its text is what ``mxtrain explain`` prints.

    Attributes:
        key: the setting or group.
        settings: the setting, or those of the group, in their order.
        chosen: of a group, its chosen options; else empty.
        options: of a group, all options; else empty.
        place: of a group, the file of the chosen option.
    """

    key: str
    settings: Sequence[ExplainedSetting]
    chosen: Sequence[str] = ()
    options: Sequence[str] = ()
    place: str = ""

    def __str__(self) -> str:
        lines = [str(one) for one in self.settings]
        if self.options:
            chosen = shown(self.chosen[0] if len(self.chosen) == 1 else list(self.chosen) or None)
            lines.insert(0, f"{self.key}={chosen} ({self.place}); it can be: {', '.join(self.options)}")
        return "\n".join(lines)

    __repr__ = __str__


def explain(key: str, composed: Composed) -> Explanation:
    """Explains a setting or a group.

    Args:
        key: e.g. "optimizer.lr" or "model".
        composed: the configuration.

    Raises:
        ConfigError: there is no such setting or group; names the nearest.
    """
    composer = composed.composer
    values = settings_of(key, composed)
    is_group = key in composer.groups()
    keys = [path for path in values if path == key or path.startswith(key + ".")]
    if not is_group and not keys:
        refuse_unknown(key, composer, composed.tree)
    shown_keys = [path for path in keys if not path.endswith("._target_") or path == key]
    settings = [explain_setting(path, values[path], composed) for path in shown_keys]
    if not is_group:
        return Explanation(key, settings)
    options, place = composer.options(key), composer.file_of(key, composed.hydra)
    return Explanation(key, settings, list(composed.chosen(key)), list(options), place)


def settings_of(key: str, composed: Composed) -> Mapping[str, object]:
    """Returns every setting by its dotted path; Hydra's own unresolved, because some are known only in a run."""
    if key.partition(".")[0] == "hydra":
        return flatten({"hydra": OmegaConf.to_container(composed.hydra)})
    config, group = dict(composed.config), key.partition(".")[0]
    if config.get(group) and group in GROUPS:
        with suppress(ConfigError):  # training reports the error
            config[group] = complete_group(config[group], group)
    return flatten(config)


def explain_setting(path: str, value: object, composed: Composed) -> ExplainedSetting:
    """Explains one setting."""
    origins = find_origins(path, composed.composer, composed.overrides)
    meaning = meaning_of(path, composed.config) or next((origin.comment for origin in origins if origin.comment), "")
    return ExplainedSetting(path, value, meaning, scaled_for_the_batch(path, composed), origins)


SCALED = {"optimizer.lr": "lr", "lr_scheduler.warmup": "warmup"}
"""Settings that are scaled for the global batch, and their names in `LearningRates.facts`."""


def scaled_for_the_batch(path: str, composed: Composed) -> str:
    """Describes how a setting is scaled for the global batch; empty if it is not, or if the description is invalid."""
    if path not in SCALED:
        return ""
    try:
        rates = describe(composed.config, composed.where, check_rules=False).rates
    except ConfigError:
        return ""
    return rates.remark if SCALED[path] in rates.facts else ""


def meaning_of(path: str, config: Config) -> str:
    """Returns the docstring of the field in the class that the nearest `_target_` names."""
    names = path.split(".")
    for depth in range(len(names) - 1, 0, -1):
        node: Any = config
        for name in names[:depth]:
            node = node.get(name, {}) if isinstance(node, Mapping) else {}
        if isinstance(node, Mapping) and "_target_" in node:
            if not isinstance(node["_target_"], str):
                return ""
            target = import_target(node["_target_"], ".".join(names[:depth]))
            is_spec = isinstance(target, type) and issubclass(target, Spec)
            return spec_help(target, names[depth:]) if is_spec else ""
    return ""
