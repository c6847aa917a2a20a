"""The folders and filters that `runs`, `report`, `diff` and `clean` take."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import Any, Dict, List, Sequence, Tuple, Type, TypeVar

from mxtrain.archive.registry import ListedRun, read_runs
from mxtrain.composing import arguments as command_line
from mxtrain.composing.arguments import Arguments
from mxtrain.composing.settings import split_settings
from mxtrain.errors import ConfigError, did_you_mean
from mxtrain.files.durable import encode_json
from mxtrain.types import Spec, expand_path

S = TypeVar("S", bound=Spec)
DEFAULT_FOLDER = "outputs"
FILTER_WORDS = ("and", "or", "not")


def parse_words(
    arguments: Sequence[str], spec: Type[S], command: str, reads_checkpoint: bool = False
) -> Tuple[Arguments, S, List[str]]:
    """Returns the command line, the settings of the command, and the filters of all `where=`.

    Raises:
        ConfigError: something is no setting of the command.
    """
    parsed = command_line.parse(arguments, reads_checkpoint)
    wheres = [word.partition("=")[2] for word in parsed.overrides if word.partition("=")[0] == "where"]
    takes_where = "where" in spec.model_fields
    others = [word for word in parsed.overrides if word.partition("=")[0] != "where" or not takes_where]
    settings, unknown = split_settings(replace(parsed, overrides=others), spec, command)
    names = [field.alias or name for name, field in spec.model_fields.items()]
    for word in unknown:
        if os.path.exists(path := expand_path(word)):
            raise ConfigError(f"{word!r} was taken for a setting, since it holds =. Type {os.path.abspath(path)!r}.")
        near = did_you_mean(word.partition("=")[0], names)
        raise ConfigError(
            f"{command}: there is no setting '{word.partition('=')[0]}'.{near} There are {', '.join(names)}."
        )
    if any(not where.strip() for where in wheres):
        raise ConfigError("where=: the filter is empty. Type for example where='task=classification and best>0.9'.")
    if parsed.config_dirs and not reads_checkpoint:
        raise ConfigError(f"--config-dir: {command} only reads run directories. Leave it out.")
    return parsed, settings, wheres


def folders_of(parsed: Arguments, command: str) -> List[str]:
    """Returns the folders that were named, else `outputs`.

    Raises:
        ConfigError: one is no folder.
    """
    folders = [expand_path(word) for word in parsed.positionals]
    if not folders and not os.path.isdir(DEFAULT_FOLDER):
        raise ConfigError(
            f"{command}: there is no folder '{DEFAULT_FOLDER}' here, where runs are by default. Name the folder of "
            f"your runs: {command} FOLDER."
        )
    for folder in folders:
        require_folder(folder, command)
    return folders or [DEFAULT_FOLDER]


def require_folder(folder: str, command: str) -> None:
    """Checks that a folder exists.

    Raises:
        ConfigError: it does not; the message suggests the nearest name.
    """
    if os.path.isdir(folder):
        return
    if folder in FILTER_WORDS:
        raise ConfigError(
            f"{command}: '{folder}' belongs to a filter. Put it in quotes: where='state=failed and best>0.9'."
        )
    if os.path.exists(folder):
        raise ConfigError(f"{command}: '{folder}' is a file, not a folder of runs.")
    parent = os.path.dirname(os.path.abspath(folder))
    try:
        near = did_you_mean(os.path.basename(folder), [entry.name for entry in os.scandir(parent) if entry.is_dir()])
    except OSError:
        near = ""
    raise ConfigError(f"{command}: there is no folder '{folder}'.{near}")


def runs_below(folders: Sequence[str], needed: Sequence[str], command: str) -> List[ListedRun]:
    """Returns all runs below folders.

    Raises:
        ConfigError: a folder cannot be read, or there is no run.
    """
    try:
        runs = read_runs(folders, needed)
    except OSError as error:
        raise ConfigError(f"{command}: {error.filename} cannot be read: {error.strerror}.") from error
    if not runs:
        raise ConfigError(f"{command}: there is no run directory in {', '.join(folders)}.")
    return runs


def print_json(value: Any) -> None:
    """Prints a value as JSON, and nothing else."""
    sys.stdout.write(encode_json(value, indent=2).decode("utf-8") + "\n")


def print_line(first: str, values: Dict[str, str]) -> None:
    """Prints `name=value` words after a first one, on one line."""
    print(" ".join([first, *(f"{name}={value}" for name, value in values.items() if value)]))
