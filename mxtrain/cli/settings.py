"""Separates the settings of a command itself (`split=test`) from overrides on the same command line."""

from __future__ import annotations

from typing import Dict, List, Tuple, Type, TypeVar, Union

from mxtrain.cli.arguments import Arguments
from mxtrain.config.specs import validate
from mxtrain.types import Spec

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
            rest.append(word)
    return validate(spec, own, command, lambda group: f"`{command}` takes {', '.join(fields)}"), rest


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
