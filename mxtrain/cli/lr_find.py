"""`mxtrain lr_find`: a learning-rate range test. It trains a copy at rising rates until the loss diverges, writes the
curve and prints a range with its reasons. It chooses nothing."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Sequence

from mxtrain.cli import arguments as command_line
from mxtrain.cli.commands import Command
from mxtrain.cli.settings import split_settings
from mxtrain.cluster.launch.range_test import run_range_test
from mxtrain.composing.composer import Composer
from mxtrain.composing.environment import compose_and_check
from mxtrain.errors import EXIT_FINISHED
from mxtrain.terminal.progress import ProgressDisplay
from mxtrain.workflows.lr_find import LrFindSettings

COMMAND = Command(
    "lr_find",
    position=130,
    listed="lr_find [overrides]",
    help="the training loss of a copy at rising learning rates, and a range with its reasons",
    usage="[setting=value ...] [group=option ...] [group.field=value ...]",
    settings="LrFindSettings",
    examples=("lr_find model=resnet optimizer=sgd", "lr_find start=1e-5 end=1 steps=200 output=lr_find_resnet"),
)


def run(arguments: Sequence[str]) -> int:
    """Tests, writes and prints; returns the exit code."""
    parsed = command_line.parse(arguments)
    settings, overrides = split_settings(parsed, LrFindSettings, "lr_find")
    command_line.no_positionals(parsed, "lr_find")
    with Composer(parsed.config_dirs) as composer:
        _, description = compose_and_check(composer, overrides)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    flags = command_line.config_flags(parsed.config_dirs)
    curve = run_range_test(description, settings, flags, overrides, ProgressDisplay())
    for line in curve.reasons():
        print(line)
    print(*curve.write(Path(settings.output)), sep="\n")
    return EXIT_FINISHED
