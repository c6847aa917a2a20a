"""Renders the configuration of a run as a tree: first the overrides, then each group in the form of an override."""

from __future__ import annotations

import shlex
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Mapping, Sequence, Tuple

import pydantic
from rich.console import Group, RenderableType
from rich.text import Text
from rich.tree import Tree

from mxtrain.callback.protocol import CommandLine
from mxtrain.config.specs import import_target
from mxtrain.errors import ConfigError
from mxtrain.types import Spec

if TYPE_CHECKING:
    from mxtrain.types.annotations import Config

ORDER = ("dataset", "model", "loss", "metric", "optimizer", "lr_scheduler", "trainer", "parallel", "kvstore", "amp")
"""Groups shown first: task, data, network and training. The remaining groups follow."""
ALWAYS_SHOWN = {"dataset": ("batch_size",), "optimizer": ("lr",), "trainer": ("max_epochs", "seed")}
"""Settings that are shown even where they have their defaults."""
MAX_CHARACTERS, NUM_SHOWN = 700, 40
"""A longer value is shown by its first characters."""
HIDDEN_DEFAULTS = "defaults are hidden (logger.console.show_config=full)"


def render_config(config: Config, command: CommandLine, full: bool = False, plain: bool = False) -> RenderableType:
    """Renders the overrides and one or two lines for each group.

    Args:
        config: resolved configuration as plain nested dicts.
        command: command that has started the run, with the chosen options.
        full: whether to show all settings, not only those that differ from their defaults.
        plain: whether to print lines without the branches of a tree, for pipes and files.

    Returns:
        An object for `rich.print`, which wraps it to the width of the console.
    """
    title = Text("configuration", style="bold")
    if not full:
        title.append(f"  {HIDDEN_DEFAULTS}", style="not bold dim")
    overrides_label = Text("overrides", style="bold cyan").append(
        f" {shlex.join(command.arguments) or 'none'}", style="not bold default"
    )
    branches = [(overrides_label, []), *_branches(config, command.choices, full)]
    if plain:
        lines = [title]
        for label, nested in branches:
            lines += [Text("  ").append_text(label), *(Text("    ").append_text(setting) for setting in nested)]
        return Group(*lines)
    tree = Tree(title, guide_style="dim")
    for label, nested in branches:
        branch = tree.add(label)
        for setting in nested:
            branch.add(setting)
    return tree


def _branches(config: Config, choices: Mapping[str, str], full: bool) -> Iterator[Tuple[Text, List[Text]]]:
    """Yields the label and the nested settings of each group. Unless `full`, groups with only defaults share a line."""
    scalars = {name: value for name, value in config.items() if not isinstance(value, Mapping)}
    if scalars:
        yield _label("", scalars), []
    default_groups = Text()
    for name in sorted((name for name in config if name not in scalars), key=_rank):
        settings, nested = _split(name, config[name], full)
        head = _head(name, config[name], choices)
        if full or settings or nested or name in ORDER:
            yield _label(head, settings), [_label(part_name, values) for part_name, values in nested.items()]
        elif config[name] and choices.get(name) != "default":
            default_groups.append(" " if default_groups else "").append(head, style="bold cyan")
    if default_groups:
        yield default_groups, []


def _rank(name: str) -> Tuple[int, str]:
    return (ORDER.index(name), "") if name in ORDER else (len(ORDER), name)


def _head(name: str, group: Config, choices: Mapping[str, str]) -> str:
    """Returns the head of a group in the form of an override: `amp=off`, `metric=[accuracy,f1]`.

    A group without a chosen option has the name of its class, and one with an object of the Python API the kind of the
    object: `dataset=(arrays)`, `model=Dense`.
    """
    if "given_as" in group:
        return f"{name}={object_name(group)}"
    if name in choices:
        return name if choices[name] == "default" else f"{name}={choices[name]}"
    if "_target_" in group:
        return f"{name} {str(group['_target_']).rsplit('.', 1)[-1]}"
    return f"{name}=[{','.join(map(str, group))}]" if group else name


def object_name(group: Config) -> str:
    """Returns the kind of an object of the Python API, by its placeholder: `(arrays)`, `Dense`."""
    networks = [f"{name}: {_class(path)}" for name, path in group.get("networks", {}).items()]
    if networks:
        return f"({', '.join(networks)})"
    kinds = [_class(path) for path in group["object"].strip("()").split(", ")]
    if {"ndarray", "NDArray"}.issuperset(kinds):
        return "(arrays)"
    return kinds[0] if len(kinds) == 1 else f"({', '.join(kinds)})"


def _class(path: str) -> str:
    return path.rsplit(".", 1)[-1]


def _split(name: str, group: Config, full: bool) -> Tuple[Config, Mapping[str, Config]]:
    """Returns a group's own settings to show, and the settings of its parts by name."""
    values = group if full else changed_settings(group, ALWAYS_SHOWN.get(name, ()))
    if "given_as" in group:  # the head shows these
        values = {key: value for key, value in values.items() if key not in ("given_as", "object", "networks")}
    settings = {key: value for key, value in values.items() if not isinstance(value, Mapping) and key != "_target_"}
    parts = {str(key): value for key, value in values.items() if isinstance(value, Mapping)}
    if not full:
        parts = {key: changed_settings(value) if "_target_" in value else value for key, value in parts.items()}
    return settings, {key: value for key, value in parts.items() if value}


def changed_settings(node: Config, always_shown: Sequence[str] = ()) -> Dict[str, Any]:
    """Returns the settings of a node that differ from the defaults of its class, and those of `always_shown`.

    A user's own class that is no `Spec` has no known defaults, so all of its settings are returned.
    """
    target = None
    with suppress(ConfigError):
        target = import_target(str(node.get("_target_", "")), "")
    fields = target.model_fields if isinstance(target, type) and issubclass(target, Spec) else {}
    changed = {}
    for key, value in node.items():
        if key == "_target_":
            continue
        # Compared with the class and not with the composed defaults: another composition takes as long as the first.
        default = _plain(fields[key].default) if key in fields else None
        if isinstance(value, Mapping) and isinstance(default, Mapping):
            value = {name: entry for name, entry in value.items() if default.get(name) != entry}
            if value:
                changed[key] = value
        elif key in always_shown or key not in fields or _plain(value) != default:
            changed[key] = value
    return changed


def _plain(value: object) -> object:
    if isinstance(value, pydantic.BaseModel):
        return {key: _plain(item) for key, item in value.model_dump().items()}
    return list(value) if isinstance(value, tuple) else value


def _label(head: str, values: Config) -> Text:
    label = Text(head, style="bold cyan")
    for key, value in values.items():
        if key == "_target_":
            continue
        label.append(" " if label else "", style="not bold default")
        label.append(f"{key}=", style="not bold default dim")
        typed = as_typed_value(value)
        if len(typed) > MAX_CHARACTERS:  # the content of a file, such as the graph of model=symbol
            typed = f"{typed[:NUM_SHOWN]}... ({len(typed):,} characters)"
        label.append(typed, style="not bold default")
    return label


def as_typed_value(value: object) -> str:
    """Formats a value in the form of an override, so that it can be copied from the screen."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(as_typed_value, value))}]"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{as_typed_value(item)}" for key, item in value.items()) + "}"
    return str(value) if value != "" else "''"
