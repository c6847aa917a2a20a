"""Separates the settings of a command itself (`split=test`) from overrides on the same command line."""

from __future__ import annotations

import os
from typing import Dict, List, Sequence, Tuple, Type, TypeVar, Union

from mxtrain.cli.arguments import Arguments
from mxtrain.config.specs import validate
from mxtrain.errors import ConfigError, did_you_mean, nearest
from mxtrain.types import Spec, expand_path

S = TypeVar("S", bound=Spec)


def split_settings(given: Arguments, spec: Type[S], command: str) -> Tuple[S, List[str]]:
    """Returns the command's own settings (`split=test`), and the overrides that are left.

    Raises:
        ConfigError: a setting has a wrong value.
    """
    own: Dict[str, object] = {}
    rest: List[str] = []
    fields = {field.alias or name: field for name, field in spec.model_fields.items()}
    for word in given.overrides:
        key, _, value = word.partition("=")
        if key in fields:
            own[key] = _read(value, fields[key].default)
        else:
            refuse_misspelled(word, list(fields), command, given.config_dirs)
            rest.append(word)
    return validate(spec, own, command, lambda group: f"`{command}` takes {', '.join(fields)}"), rest


def refuse_misspelled(word: str, names: Sequence[str], command: str, config_dirs: Sequence[str] = ()) -> None:
    """Rejects a misspelled setting of the command itself.

    Without this, the override would be compared with all groups and settings of a run, one of which may be nearer.

    Args:
        word: an override.
        names: settings of the command.
        command: name of the command.
        config_dirs: the user's own folders of configuration, which may have further groups.

    Raises:
        ConfigError: the override names no group, and a setting of the command has a similar name.
    """
    # Takes time to load, and most command lines have no such word.
    from mxtrain.description.groups import GROUPS, NAMED_GROUPS, PRESET_GROUPS

    key = word.partition("=")[0]
    groups = (*GROUPS, *NAMED_GROUPS, *PRESET_GROUPS, "hydra")
    is_group = key in groups or any(os.path.isdir(os.path.join(folder, key)) for folder in config_dirs)
    if is_group or not key.isidentifier() or os.path.exists(expand_path(word)):
        return
    if nearest(key, [*names, *groups])[:1] == nearest(key, names)[:1] != []:
        raise ConfigError(
            f"{command}: there is no setting '{key}'.{did_you_mean(key, names)} `{command}` takes {', '.join(names)}."
        )


def _read(text: str, default: object) -> Union[None, bool, int, float, str]:
    """Returns a number where the setting is one, and None if that is its default and `null` was typed; else the text,
    which is judged later."""
    if default is None and text.lower() == "null":
        return None
    if isinstance(default, bool):
        return {"true": True, "false": False}.get(text.lower(), text)
    try:
        return int(text) if text.isdigit() else float(text) if isinstance(default, float) else text
    except ValueError:
        return text
