"""`mxtrain push RUN tracker=NAME`: sends what a run has written to a tracker, such as MLflow; no MXNet is needed.

A run that had the tracker while it trained goes on there: only what is missing is sent. Keys are read from the
environment, as in training (docs/training/trackers.md)."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Optional, Sequence

from mxtrain.cli import arguments as command_line
from mxtrain.cli.commands import Command
from mxtrain.cli.restored import one_run
from mxtrain.cli.settings import split_settings
from mxtrain.composing.composer import Composer
from mxtrain.composing.trackers import tracker_of
from mxtrain.errors import EXIT_CRASHED, EXIT_FINISHED, ConfigError
from mxtrain.types import Spec
from mxtrain.workflows.push import push_run


class PushSettings(Spec):
    """Settings of `push`."""

    tracker: Optional[str] = None
    """Name of the tracker: mlflow, wandb, or one of your own in conf/logger/."""


COMMAND = Command(
    "push",
    position=80,
    listed="push RUN tracker=NAME",
    help="send the curves, settings and result of a run to MLflow, wandb or another tracker",
    usage="RUN tracker=NAME [--config-dir DIR] [logger.NAME.field=value ...]",
    settings="PushSettings",
    examples=(
        "push RUN tracker=mlflow",
        "push RUN tracker=mlflow logger.mlflow.uri=http://host:5000",
        "push RUN tracker=wandb",
    ),
)


def run(arguments: Sequence[str]) -> int:
    """Sends the run; returns the exit code."""
    parsed = command_line.parse(arguments)
    settings, overrides = split_settings(parsed, PushSettings, "push")
    path = Path(one_run(parsed, "push"))
    if parsed.positionals[1:]:
        raise ConfigError(f"push takes one run directory, not also '{parsed.positionals[1]}'.")
    with Composer(parsed.config_dirs) as composer:
        # The destination comes from the command line alone: settings of an untrusted run could send the keys to any
        # server.
        tracker = tracker_of(settings.tracker, overrides, composer)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    result = push_run(path, tracker)
    if result.complete:
        print(result)
    return EXIT_FINISHED if result.complete else EXIT_CRASHED
