"""Opens the run or checkpoint that a command line names."""

from __future__ import annotations

import os
import shlex
from typing import Sequence, Tuple, Type, TypeVar

from mxtrain.cli import arguments as command_line
from mxtrain.cli.arguments import Arguments
from mxtrain.cli.settings import refuse_misspelled_groups, split_settings
from mxtrain.composing.restored import latest_runs, restore
from mxtrain.errors import ConfigError
from mxtrain.training.restored_run import RestoredRun
from mxtrain.types import Spec, expand_path

S = TypeVar("S", bound=Spec)


def restore_named(arguments: Sequence[str], spec: Type[S], command: str) -> Tuple[RestoredRun, S]:
    """Returns the run that the command line of a command with one run names, and the settings of the command.

    Args:
        arguments: words after the name of the command.
        spec: settings of the command, with `which`.
        command: name of the command.

    Raises:
        ConfigError: the command line is wrong.
        CheckpointError: there is no usable checkpoint.
    """
    parsed = command_line.parse(arguments, reads_checkpoint=True)
    settings, overrides = split_settings(parsed, spec, command)
    refuse_misspelled_groups(overrides, command, parsed.config_dirs)
    if len(parsed.positionals) > 1:
        raise ConfigError(f"{command} takes one run or checkpoint, not also '{parsed.positionals[1]}'.")
    return restore_run(parsed, settings, overrides, command), settings


def restore_run(
    parsed: Arguments, settings: Spec, overrides: Sequence[str], command: str, path: str = ""
) -> RestoredRun:
    """Opens the run or checkpoint at a path, or the first one of the command line. Raises as `restore_named`."""
    return restore(
        path or one_run(parsed, command),
        which=settings.which,  # type: ignore[attr-defined]  # all commands that read checkpoints have it
        overrides=overrides,
        config_dirs=parsed.config_dirs,
        trust_code=parsed.trusts_code,
        command=command,
        settings=type(settings).model_fields,
    )


def one_run(parsed: Arguments, command: str) -> str:
    """Returns the run or checkpoint that was named.

    Raises:
        ConfigError: none was; names the path that was taken for a setting, or lists the latest runs here.
    """
    if parsed.positionals:
        return parsed.positionals[0]
    for word in parsed.overrides:
        if os.path.exists(path := expand_path(word)):
            raise ConfigError(
                f"{shlex.quote(word)} was taken for a setting, since it begins with ~ or holds =. The path that is "
                f"there is written {shlex.quote(os.path.abspath(path))}."
            )
    hint = latest_runs(command)
    raise ConfigError(f"{command} takes a run directory or a checkpoint.{hint}")
