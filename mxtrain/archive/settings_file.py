"""Reads the settings of a run from its run directory, without composing them again."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Dict, List, Mapping, Tuple

import yaml

from mxtrain.files.regular_files import read_regular_text

if TYPE_CHECKING:
    from mxtrain.types.annotations import Json

_CONFIG_FILE = ".hydra/config.yaml"
_MAX_CONFIG_BYTES = 1 << 20
_MAX_SETTINGS, _MAX_DEPTH = 20_000, 40
_REFERENCE = re.compile(r"\$\{([\w.]+)\}")
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_settings(run_dir: str) -> Dict[str, Json]:
    """Returns all settings of a run by dotted path; empty if they are missing or damaged.

    A setting that is another one, `${trainer.monitor}`, has its value. Other interpolations stay as they are written:
    they could read the environment.
    """
    try:
        text = read_regular_text(os.path.join(run_dir, _CONFIG_FILE), _MAX_CONFIG_BYTES)
        config = yaml.load(text, _LOADER)  # builds only plain values
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        return {}
    settings = flatten_untrusted(config) if isinstance(config, dict) else {}
    for name, value in settings.items():
        reference = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
        if reference:
            settings[name] = settings.get(reference[1], value)
    return settings


def flatten_untrusted(config: Mapping[str, Json]) -> Dict[str, Json]:
    """Returns dotted path -> value for all leaves, like `config.specs.flatten`.

    Aliases of YAML make a short text as large as one likes, or endless: leaves beyond limits are left out.
    """
    settings: Dict[str, Json] = {}
    waiting: List[Tuple[str, Json, int]] = [("", config, 0)]
    while waiting and len(settings) < _MAX_SETTINGS:
        path, value, depth = waiting.pop()
        if isinstance(value, dict) and value and depth < _MAX_DEPTH:
            below = [(f"{path}.{name}" if path else str(name), item, depth + 1) for name, item in value.items()]
            waiting.extend(reversed(below[:_MAX_SETTINGS]))
            del waiting[_MAX_SETTINGS:]
        else:
            settings[path] = _plain(value)
    return settings


def _plain(value: Json, depth: int = 0) -> Json:
    """Limits a list from a file; dates and other values of YAML become text."""
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, list) and depth < 4:
        return [_plain(item, depth + 1) for item in value[:100]]
    if isinstance(value, dict) and depth < 4:
        return {str(name): _plain(item, depth + 1) for name, item in list(value.items())[:100]}
    return f"({type(value).__name__})"
