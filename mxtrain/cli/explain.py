"""`mxtrain explain KEY`: a setting's value, where it came from, what it overrode, and what it means."""

from __future__ import annotations

from typing import Sequence

from mxtrain.cli import arguments as command_line
from mxtrain.cli.commands import Command
from mxtrain.composing.composer import Composer
from mxtrain.composing.explain import explain
from mxtrain.errors import ConfigError

COMMAND = Command(
    "explain",
    position=190,
    listed="explain KEY [overrides]",
    help="a setting's value, where it came from and what it overrode",
    usage="KEY [group=option ...] [group.field=value ...]",
    examples=("explain optimizer.lr", "explain model model=resnet", "explain trainer experiment=NAME"),
)


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
