"""Arguments of the functions of the Python API, and the composer that they open."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Integral
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Literal, Mapping, Optional, Sequence, Union

from mxtrain.cluster.launch.preserved import preserved_process
from mxtrain.composing.objects import ObjectComposer, Objects, read_arguments, require_overrides
from mxtrain.config.override_text import config_flags, quote
from mxtrain.errors import ConfigError, run_dir_set_by
from mxtrain.types import expand_path

if TYPE_CHECKING:
    from mxtrain.types.annotations import Config

AnyPath = Union[str, "os.PathLike[str]"]
Which = Literal["best", "last"]
Split = Literal["auto", "train", "val", "test"]


@dataclass(frozen=True)
class CallArguments:
    """Arguments of a call that composes a description; see `read_call`.

    Attributes:
        overrides: the overrides of the call, and those for keyword arguments that are options or settings.
        objects: keyword arguments that are objects.
        folders: folders with further groups and options.
    """

    overrides: List[str]
    objects: Objects
    folders: List[str]

    @property
    def flags(self) -> List[str]:
        """Returns the flags by which a command finds the folders."""
        return config_flags(self.folders)

    @contextmanager
    def composer(self, replaced: Optional[Mapping[str, Config]] = None) -> Iterator[ObjectComposer]:
        """Yields a composer in a context that restores the state of the process at its end.

        Args:
            replaced: see `ObjectComposer`.
        """
        with (
            run_dir_set_by("dir"),
            preserved_process(),
            ObjectComposer(self.folders, self.objects, replaced) as composer,
        ):
            yield composer


def read_call(
    function: Callable[..., Any],
    overrides: Sequence[str],
    config_dir: Optional[AnyPath],
    parts: Mapping[str, Any] = MappingProxyType({}),
) -> CallArguments:
    """Checks the arguments of a function of the Python API.

    Args:
        function: the function that was called. Its name is used in messages, and its signature lists the groups.
        overrides: the positional arguments of the call.
        config_dir: its argument `config_dir`.
        parts: its keyword arguments for groups, by name.

    Raises:
        ConfigError: an argument is of a wrong type, or there is no such group.
    """
    require_overrides(overrides, function.__name__)
    with preserved_process():  # describing an object may import MXNet, which changes environment variables
        part_overrides, objects = read_arguments(parts, function)
    return CallArguments([*overrides, *part_overrides], objects, folders_of(config_dir))


def without_none(**values: Any) -> Dict[str, Any]:
    """Returns the arguments that are not None, which means that the caller did not give them."""
    return {name: value for name, value in values.items() if value is not None}


def folders_of(config_dir: Optional[AnyPath]) -> List[str]:
    """Returns the folders with further groups and options: one, or none.

    Raises:
        ConfigError: there is no such folder.
    """
    if config_dir is None:
        return []
    folder = expand_path(text_of_path(config_dir, "config_dir"))
    if not os.path.isdir(folder):
        raise ConfigError(f"config_dir={folder}: there is no such folder.")
    return [folder]


def optional_path(path: Optional[AnyPath], argument: str) -> Optional[str]:
    """Returns a path as an absolute one, see `absolute_path`; None if none was given."""
    return None if path is None else absolute_path(path, argument)


def absolute_path(path: AnyPath, argument: str) -> str:
    """Returns a path as an absolute one; ``~`` and variables are expanded. Raises as `text_of_path`."""
    return os.path.abspath(expand_path(text_of_path(path, argument)))


def text_of_path(path: AnyPath, argument: str) -> str:
    """Returns a path as a string. Raises a `ConfigError` for other types, an empty path and one with a null byte."""
    if not isinstance(path, (str, os.PathLike)):
        raise ConfigError(f"{argument}={path!r:.60}: must be a path, and is a {type(path).__name__}.")
    text = os.fspath(path)
    if not text or "\0" in text:
        # An empty path would be the current folder, and fill it with the files of a run.
        raise ConfigError(f"{argument}={text!r:.60}: must be a path, and names no file. The current folder is '.'.")
    return text


def require_count(value: object, argument: str, or_none: bool = False) -> None:
    """Raises a `ConfigError` unless an argument is a positive integer, also one of NumPy, or None if it may be."""
    if value is None and or_none:
        return
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise ConfigError(f"{argument}={value!r:.60}: it must be a positive integer{', or None' * or_none}.")


def require_flag(value: object, argument: str) -> None:
    """Raises a `ConfigError` unless an argument is True or False: a text such as "false" would count as True."""
    if not isinstance(value, bool):
        raise ConfigError(f"{argument}={value!r:.60}: it may be True or False.")


def override_of_dir(folder: Optional[AnyPath], function: str, setting: str = "hydra.run.dir") -> List[str]:
    """Returns the override that sets the folder of a run or sweep, as a list; empty if `folder` is None."""
    return [] if folder is None else [f"{setting}={quote(absolute_path(folder, f'{function}: dir'))}"]
