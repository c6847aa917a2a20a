"""`mxtrain explain KEY`: a setting's value, where it came from, what it overrode, and what it means."""

from __future__ import annotations

from typing import Sequence

from mxtrain.composing import arguments as command_line
from mxtrain.composing.composer import Composer
from mxtrain.composing.explain import explain
from mxtrain.errors import ConfigError


def run(arguments: Sequence[str]) -> int:
    """Prints the explanation; returns the exit code."""
    parsed = command_line.parse(arguments)
    if len(parsed.positionals) != 1:
        raise ConfigError(
            "explain takes one setting or group, e.g. `python -m mxtrain explain optimizer.lr`, and overrides."
        )
    with Composer(parsed.config_dirs) as composer:
        print(explain(parsed.positionals[0], composer.compose(parsed.overrides)))
    return 0
