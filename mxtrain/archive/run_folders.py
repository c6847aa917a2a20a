"""The folders of runs that commands take."""

from __future__ import annotations

import os
from typing import Any, Iterable, Iterator, List, Sequence

from mxtrain.archive.registry import ListedRun, is_run_dir, read_runs
from mxtrain.errors import ConfigError, did_you_mean
from mxtrain.types import expand_path

DEFAULT_FOLDER = "outputs"
FILTER_WORDS = ("and", "or", "not")


def paths_in(given: Sequence[Any], command: str) -> List[str]:
    """Returns the paths of folders and runs.

    Args:
        given: paths, objects with a `path` such as runs, or lists of these.
        command: name of the command, for messages.

    Raises:
        ConfigError: one has another type, or there are only empty lists.
    """
    paths = list(_paths(given, command))
    if given and not paths:
        # No path means the default folder: `clean(found, delete=True)` of an empty list would delete from all runs.
        raise ConfigError(f"{command}: the list of runs is empty.")
    return paths


def path_in(given: Any, command: str) -> str:
    """Returns the path of a folder or a run.

    Raises:
        ConfigError: it has another type, or is a list of several.
    """
    path, *others = paths_in([given], command)
    if others:
        raise ConfigError(f"{command}: {given!r:.60} are {len(others) + 1} runs: give one.")
    return path


def _paths(given: Iterable[Any], command: str) -> Iterator[str]:
    for one in given:
        path = getattr(one, "path", one)
        if isinstance(path, (str, os.PathLike)):
            yield expand_path(os.fspath(path))
        elif isinstance(one, Sequence):
            yield from _paths(one, command)
        else:
            raise ConfigError(f"{command}: {one!r:.60} is a {type(one).__name__}: give the path of a run or a folder.")


def named_or_default_folders(given: Sequence[str], command: str) -> List[str]:
    """Returns the folders that were named, else `outputs`.

    Raises:
        ConfigError: one is no folder.
    """
    if not given and not os.path.isdir(DEFAULT_FOLDER):
        raise ConfigError(
            f"{command}: there is no folder '{DEFAULT_FOLDER}' here, where runs are by default. Name the folder of "
            f"your runs: {command} FOLDER."
        )
    for folder in given:
        require_folder(folder, command)
    return list(given) or [DEFAULT_FOLDER]


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


def require_run(folder: str, command: str) -> None:
    """Checks that a folder is a run directory.

    Raises:
        ConfigError: it is not, or cannot be read.
    """
    require_folder(folder, command)
    try:
        names = os.listdir(folder)
    except OSError as error:
        raise ConfigError(f"{command}: {folder} cannot be read: {error.strerror}.") from error
    if not is_run_dir(folder, names):
        raise ConfigError(
            f"{command}: {folder} is no run directory: it has no status.json. `mxtrain runs {folder}` lists runs below "
            "it."
        )


def runs_below(folders: Sequence[str], needed: Sequence[str], command: str) -> List[ListedRun]:
    """Returns all runs below folders.

    Args:
        folders: folders that exist.
        needed: properties to read now; see `read_run`.
        command: name of the command, for messages.

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
