"""`mxtrain explain KEY`: a setting's value, where it came from, what it overrode, and what it means."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, List, Mapping, Sequence

from omegaconf import OmegaConf

from mxtrain.composing import arguments as command_line
from mxtrain.composing.composer import Composed, Composer
from mxtrain.composing.mistakes import refuse_unknown
from mxtrain.composing.origins import find_origins
from mxtrain.config.groups import GROUPS, complete_group, describe
from mxtrain.config.specs import flatten, import_target, shown, spec_help
from mxtrain.errors import ConfigError
from mxtrain.types import Spec

if TYPE_CHECKING:
    from mxtrain.types.annotations import Config


def run(arguments: Sequence[str]) -> int:
    """Prints the explanation; returns the exit code."""
    parsed = command_line.parse(arguments)
    if len(parsed.positionals) != 1:
        raise ConfigError(
            "explain takes one setting or group, e.g. `python -m mxtrain explain optimizer.lr`, and overrides."
        )
    key = parsed.positionals[0]
    with Composer(parsed.config_dirs) as composer:
        composed = composer.compose(parsed.overrides)
        values = settings(key, composed)
        keys = [path for path in values if path == key or path.startswith(key + ".")]
        if key in composer.groups():
            chosen = composed.chosen(key)
            place = composer.file_of(key, composed.hydra)
            options = ", ".join(composer.options(key))
            print(f"{key}={shown(chosen[0] if len(chosen) == 1 else chosen or None)} ({place}); it can be: {options}")
        elif not keys:
            refuse_unknown(key, composer, composed.tree)
        for path in keys:
            if not path.endswith("._target_") or path == key:
                print("\n".join(describe_setting(path, values[path], composed)))
    return 0


def settings(key: str, composed: Composed) -> Mapping[str, object]:
    """Returns every setting by its dotted path; Hydra's own unresolved, because some are known only in a run."""
    if key.partition(".")[0] == "hydra":
        return flatten({"hydra": OmegaConf.to_container(composed.hydra)})
    config, group = dict(composed.config), key.partition(".")[0]
    if config.get(group) and group in GROUPS:
        with suppress(ConfigError):  # which training says
            config[group] = complete_group(config[group], group)
    return flatten(config)


def describe_setting(path: str, value: object, composed: Composed) -> List[str]:
    """Returns the lines about one setting."""
    origins = find_origins(path, composed.composer, composed.overrides)
    lines = [f"{path} = {shown(value)}"]
    meaning = meaning_of(path, composed.config) or next((origin.comment for origin in origins if origin.comment), "")
    if meaning:
        lines.append(f"  meaning   {meaning}")
    used = scaled_for_the_batch(path, composed)
    if used:
        lines.append(f"  used      {used}")
    if origins:
        last = origins[-1]
        through = f" ({last.value})" if "${" in last.value else ""
        lines.append(f"  from      {last.place}{through}")
        lines.extend(f"  overrides {origin.place}: {origin.value}" for origin in reversed(origins[:-1]))
    return lines


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
