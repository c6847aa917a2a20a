"""`train --dry-run`: prints data, network, devices, memory and time of a run that is not started."""

from __future__ import annotations

import logging
import shlex
import sys
from typing import TYPE_CHECKING, Sequence

from mxtrain.composing.environment import set_environment
from mxtrain.config import rules
from mxtrain.config.groups import Description
from mxtrain.errors import EXIT_FINISHED
from mxtrain.terminal.program import program

if TYPE_CHECKING:
    from mxtrain.workflows.dry_run import DryRun


def rehearse(description: Description) -> DryRun:
    """Builds a run up to its first step; see `mxtrain.workflows.dry_run`.

    Raises:
        MxtrainError: the run could not begin.
    """
    for rule in rules.ENVIRONMENT_RULES:
        rule(description)
    set_environment(description)
    # Imports MXNet: only from here on.
    from mxtrain.workflows.dry_run import rehearse as build

    return build(description)


def show_dry_run(description: Description, words: Sequence[str]) -> int:
    """Prints the table and the command that starts the run; returns the exit code.

    Args:
        description: of the run.
        words: flags and overrides that describe it.

    Raises:
        MxtrainError: the run could not begin.
    """
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    rehearsal = rehearse(description)
    from mxtrain.terminal.console import open_console
    from mxtrain.terminal.report import print_commands

    console = open_console(sys.stdout)
    console.print(str(rehearsal), soft_wrap=True, markup=False, highlight=False)
    console.print("nothing was trained or written", markup=False, highlight=False)
    print_commands(console, [("train", " ".join([program(), *map(shlex.quote, words)]))])
    return EXIT_FINISHED
