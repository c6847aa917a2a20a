"""`mxtrain train`: checks everything first, then trains in Hydra's run directory."""

from __future__ import annotations

import json
import logging
import os
import shlex
import sys
from typing import Sequence

from mxtrain.cli import arguments as given_arguments
from mxtrain.cli.commands import Command
from mxtrain.cluster.launch.worker_script import SCRIPT, run_script
from mxtrain.cluster.member import is_standby
from mxtrain.composing.composer import Composer
from mxtrain.composing.environment import compose_and_check, prepare_environment
from mxtrain.config.groups import Description, describe
from mxtrain.errors import EXIT_FINISHED, ConfigError
from mxtrain.runtime import preloaded
from mxtrain.terminal.program import program

COMMAND = Command(
    "train",
    position=10,
    listed="train",
    help="train; the same command in the same run directory continues",
    helps_itself=True,
    in_groups=True,
)


def run(arguments: Sequence[str]) -> int:
    """Trains, or runs a sweep, or prints what a flag asks for; returns the exit code."""
    # Removed, so that processes that this one starts do not take it for theirs.
    script = os.environ.pop(SCRIPT, None)
    parsed = given_arguments.parse(arguments, trains=True)
    if script is not None:
        return run_script(json.loads(script), parsed.overrides)
    if parsed.shows not in (None, "dry_run"):
        from mxtrain.cli.show import show

        return show(parsed)
    given_arguments.no_positionals(parsed, "train")
    with Composer(parsed.config_dirs) as composer:
        if parsed.multirun or asks_for_sweep(composer, parsed.overrides):
            if parsed.shows == "dry_run":
                raise ConfigError(given_arguments.NO_DRY_SWEEP)
            return run_sweep(composer, parsed.overrides)
        composed, description = compose_and_check(composer, parsed.overrides)
        preloaded.require_environment()
        if is_standby():
            from mxtrain.cluster.launch.preload import stand_by

            final = stand_by(description)
            if final is not None and final[1:] != list(arguments):  # without the name of the command
                return run(final[1:])
        if parsed.shows == "dry_run":
            return show_dry_run(description, [*given_arguments.config_flags(parsed.config_dirs), *composed.overrides])
        if composed.hydra.mode is not None and composed.hydra.mode.name == "MULTIRUN":
            return run_sweep(composer, parsed.overrides)
        # Takes time to load: only from here on, when everything is right.
        flags = given_arguments.config_flags(parsed.config_dirs)
        if description.parallel.is_chosen_before_run:
            from mxtrain.cluster.launch.automatic import with_placement

            composed, description = with_placement(
                composer, composed, description, parsed.overrides, parsed.config_dirs
            )
        if description.trainer.is_fold_group:
            from mxtrain.cluster.launch.folds import report_end, train_folds

            return report_end(train_folds(composer, composed, description, parsed.overrides, flags))
        from mxtrain.cluster.launch.run import run_once

        return run_once(composed, description, flags)


def description_of(arguments: Sequence[str]) -> Description:
    """Returns the description for a server, from the same arguments as the workers'. Raises: ConfigError: they are
    wrong."""
    parsed = given_arguments.parse(arguments, trains=True)
    with Composer(parsed.config_dirs) as composer:
        composed = composer.compose(parsed.overrides)
        return describe(composed.config, composed.where)


def checked_description(arguments: Sequence[str]) -> Description:
    """Returns the description of a run, checked as before it begins, and prepares for others with the same options.

    Raises:
        ConfigError: the arguments are wrong.
    """
    parsed = given_arguments.parse(arguments, trains=True)
    with Composer(parsed.config_dirs) as composer:
        composed, description = compose_and_check(composer, parsed.overrides)
        composer.prepare(composed.overrides)
        return description


def asks_for_sweep(composer: Composer, overrides: Sequence[str]) -> bool:
    """Returns True if the overrides say what `-m` says."""
    return any(o.key_or_group == "hydra.mode" and str(o.value()) == "MULTIRUN" for o in composer.parse(overrides))


def run_sweep(composer: Composer, overrides: Sequence[str]) -> int:
    """Trains all jobs of a sweep; returns the exit code."""
    from mxtrain.cluster.launch.job import train_sweep

    return train_sweep(composer, overrides).exit_code


def show_dry_run(description: Description, arguments: Sequence[str]) -> int:
    """Prints the table and the command that starts the run; returns the exit code.

    Args:
        description: of the run.
        arguments: flags and overrides that describe it.

    Raises:
        MxtrainError: the run could not begin.
    """
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    prepare_environment(description)
    from mxtrain.terminal.console import open_console
    from mxtrain.terminal.report import print_commands
    from mxtrain.workflows.dry_run import dry_run  # imports MXNet: only from here on

    result = dry_run(description)
    console = open_console(sys.stdout)
    console.print(str(result), soft_wrap=True, markup=False, highlight=False)
    console.print("nothing was trained or written", markup=False, highlight=False)
    print_commands(console, [("train", " ".join([program(), *map(shlex.quote, arguments)]))])
    return EXIT_FINISHED
