"""The command lines of `runs`, `report`, `diff` and `clean`, and what they print for programs."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import Any, Dict, List, Optional, Sequence, Tuple, Type, TypeVar

from mxtrain.cli import arguments as command_line
from mxtrain.cli.arguments import Arguments
from mxtrain.cli.settings import split_settings
from mxtrain.errors import ConfigError, did_you_mean
from mxtrain.files.durable import encode_json
from mxtrain.types import Spec, expand_path

S = TypeVar("S", bound=Spec)


def parse_run_arguments(
    arguments: Sequence[str],
    spec: Type[S],
    command: str,
    reads_checkpoint: bool = False,
    takes: Optional[Sequence[str]] = None,
) -> Tuple[Arguments, S, List[str]]:
    """Returns the command line, the settings of the command, and the filters of all `where=`.

    Args:
        arguments: what follows the command.
        spec: settings of the command.
        command: its name.
        reads_checkpoint: True if the flags of commands that read checkpoints are allowed.
        takes: names of the positional arguments; those in brackets may be missing. None: any number.

    Raises:
        ConfigError: something is no setting of the command, or an argument is missing or surplus.
    """
    parsed = command_line.parse(arguments, reads_checkpoint)
    is_filter = [word.partition("=")[0] == "where" for word in parsed.overrides]
    filters = [word.partition("=")[2] for word, is_where in zip(parsed.overrides, is_filter) if is_where]
    # `where=` may be given several times, unlike settings. A command without it refuses it as an unknown setting.
    takes_filters = "where" in spec.model_fields
    others = [word for word, is_where in zip(parsed.overrides, is_filter) if not (is_where and takes_filters)]
    settings, unknown = split_settings(replace(parsed, overrides=others), spec, command)
    names = [field.alias or name for name, field in spec.model_fields.items()]
    for word in unknown:
        if os.path.exists(path := expand_path(word)):
            raise ConfigError(f"{word!r} was taken for a setting, since it holds =. Type {os.path.abspath(path)!r}.")
        near = did_you_mean(word.partition("=")[0], names)
        raise ConfigError(
            f"{command}: there is no setting '{word.partition('=')[0]}'.{near} There are {', '.join(names)}."
        )
    if any(not text.strip() for text in filters):
        raise ConfigError("where=: the filter is empty. Type for example where='task=classification and best>0.9'.")
    if parsed.config_dirs and not reads_checkpoint:
        raise ConfigError(f"--config-dir: {command} only reads run directories. Leave it out.")
    if takes is not None:
        _require_positionals(parsed.positionals, takes, command)
    return parsed, settings, filters


def _require_positionals(given: Sequence[str], takes: Sequence[str], command: str) -> None:
    """Checks the number of positional arguments.

    Raises:
        ConfigError: one is missing or surplus.
    """
    usage = f"Type `{' '.join([command, *takes])}`."
    missing = [name for name in takes[len(given) :] if not name.startswith("[")]
    if missing:
        raise ConfigError(f"{command}: {missing[0]} is missing. {usage}")
    if len(given) > len(takes):
        raise ConfigError(f"{command}: there is no place for {given[len(takes)]!r}. {usage}")


def print_json(value: Any) -> None:
    """Prints a value as JSON, and nothing else."""
    sys.stdout.write(encode_json(value, indent=2).decode("utf-8") + "\n")


def print_line(first: str, values: Dict[str, str]) -> None:
    """Prints `name=value` words after a first one, on one line."""
    print(" ".join([first, *(f"{name}={value}" for name, value in values.items() if value)]))


def is_table(output_format: str) -> bool:
    """Returns True if `format=` asks for a table: table, or auto on a terminal."""
    return output_format == "table" or (output_format == "auto" and sys.stdout.isatty())
