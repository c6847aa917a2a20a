"""`mxtrain train`: checks everything first, then trains in Hydra's run directory."""

from __future__ import annotations

import json
import os
from typing import Sequence

from mxtrain.cli import arguments as given_arguments
from mxtrain.cli.commands import Command
from mxtrain.cluster.launch.worker_script import SCRIPT, run_script
from mxtrain.composing.composer import Composer
from mxtrain.composing.environment import compose_and_check
from mxtrain.config.groups import Description, describe
from mxtrain.errors import ConfigError

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
        if parsed.shows == "dry_run":
            from mxtrain.cli.dry_run import show_dry_run

            return show_dry_run(description, [*given_arguments.config_flags(parsed.config_dirs), *composed.overrides])
        if composed.hydra.mode is not None and composed.hydra.mode.name == "MULTIRUN":
            return run_sweep(composer, parsed.overrides)
        # Takes time to load: only from here on, when everything is right.
        flags = given_arguments.config_flags(parsed.config_dirs)
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


def asks_for_sweep(composer: Composer, overrides: Sequence[str]) -> bool:
    """Returns True if the overrides say what `-m` says."""
    return any(o.key_or_group == "hydra.mode" and str(o.value()) == "MULTIRUN" for o in composer.parse(overrides))


def run_sweep(composer: Composer, overrides: Sequence[str]) -> int:
    """Trains all jobs of a sweep; returns the exit code."""
    from mxtrain.cluster.launch.job import train_sweep

    return train_sweep(composer, overrides).exit_code
