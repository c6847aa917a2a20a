"""Separates the settings of a command itself (`split=test`) from overrides on the same command line."""

from __future__ import annotations

import os
from typing import Dict, List, Sequence, Tuple, Type, TypeVar, Union

from mxtrain.cli.arguments import Arguments
from mxtrain.composing.setting_names import OTHER_NAMES
from mxtrain.config.specs import validate
from mxtrain.errors import ConfigError, did_you_mean, nearest
from mxtrain.types import Spec, expand_path

S = TypeVar("S", bound=Spec)


def split_settings(parsed: Arguments, spec: Type[S], command: str) -> Tuple[S, List[str]]:
    """Returns the command's own settings (`split=test`), and the overrides that are left.

    Raises:
        ConfigError: a setting has a wrong value.
    """
    values: Dict[str, object] = {}
    rest: List[str] = []
    fields = {field.alias or name: field for name, field in spec.model_fields.items()}
    for word in parsed.overrides:
        key, _, value = word.partition("=")
        if key in fields:
            values[key] = _parse_value(value, fields[key].default)
        else:
            refuse_misspelled(word, list(fields), command, parsed.config_dirs)
            rest.append(word)
    return validate(spec, values, command, lambda group: f"`{command}` takes {', '.join(fields)}"), rest


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
    key = word.partition("=")[0]
    groups = _groups()
    if not _is_unknown_group(key, word, groups, config_dirs):
        return
    nearest_setting = nearest(key, names)
    if nearest_setting and nearest(key, [*names, *groups]) == nearest_setting:
        raise ConfigError(
            f"{command}: there is no setting '{key}'.{did_you_mean(key, names)} `{command}` takes {', '.join(names)}."
        )


def refuse_misspelled_groups(overrides: Sequence[str], command: str, config_dirs: Sequence[str] = ()) -> None:
    """Rejects overrides of a misspelled group (`modle=lenet`) before the run that the command takes is opened.

    Words without a similar group pass: they are compared with all settings of the run later.

    Args:
        overrides: without the settings of the command itself.
        command: name of the command.
        config_dirs: the user's own folders of configuration, which may have further groups.

    Raises:
        ConfigError: there are some; a line for each.
    """
    if any("hydra.searchpath" in word for word in overrides):
        return  # its folders may have further groups
    groups = _groups()
    wrong = []
    for word in overrides:
        key = word.lstrip("+~").partition("=")[0]
        group, _, field = key.partition(".")
        near = nearest(group, groups) if _is_unknown_group(group, word, groups, config_dirs) else []
        if near and key not in OTHER_NAMES:
            suggestion = f"{near[0]}.{field}" if field else near[0]
            wrong.append(f"{command}: there is no group '{group}'. Did you mean '{suggestion}'?")
    if wrong:
        raise ConfigError("\n".join([*wrong, f"Groups: {', '.join(sorted({*groups} - {'hydra'}))}."]))


def _groups() -> Tuple[str, ...]:
    # Imported here, which takes time: most command lines have only settings of the command, and need no groups.
    from mxtrain.config.groups import GROUPS, NAMED_GROUPS, PRESET_GROUPS

    return tuple(dict.fromkeys((*GROUPS, *NAMED_GROUPS, *PRESET_GROUPS, "hydra")))


def _is_unknown_group(name: str, word: str, groups: Sequence[str], config_dirs: Sequence[str]) -> bool:
    """Returns True if a name could be a group but is none, and the word it is from is not a path."""
    if name in groups or not name.isidentifier() or os.path.exists(expand_path(word)):
        return False
    return not any(os.path.isdir(os.path.join(folder, name)) for folder in config_dirs)


def _parse_value(text: str, default: object) -> Union[None, bool, int, float, str]:
    """Converts the text of a setting to the type of its default, as far as it is written so.

    Returns:
        None for `null` if that is the default, a boolean or number if the text is one; else the text, which validation
        then accepts or refuses.
    """
    if default is None and text.lower() == "null":
        return None
    if isinstance(default, bool):
        return {"true": True, "false": False}.get(text.lower(), text)
    try:
        if text.removeprefix("-").isdigit():
            return int(text)
        return float(text) if isinstance(default, float) else text
    except ValueError:
        return text
