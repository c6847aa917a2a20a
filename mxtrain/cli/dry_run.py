"""`train --dry-run`: prints data, network, devices, memory and time of a run that is not started."""

from __future__ import annotations

import logging
import shlex
import sys
from typing import Sequence

from mxtrain.cli.environment import set_environment
from mxtrain.cli.program import program
from mxtrain.description import rules
from mxtrain.description.groups import Description
from mxtrain.errors import EXIT_FINISHED


def show_dry_run(description: Description, words: Sequence[str]) -> int:
    """Prints the table and the command that starts the run; returns the exit code.

    Args:
        description: of the run.
        words: flags and overrides that describe it.

    Raises:
        MxtrainError: the run could not begin.
    """
    for rule in rules.OF_THE_ENVIRONMENT:
        rule(description)
    set_environment(description)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    # Imports MXNet: only from here on.
    from mxtrain.dry_run import dry_run
    from mxtrain.logger.report import print_commands
    from mxtrain.logger.terminal import open_console

    found = dry_run(description)
    console = open_console(sys.stdout)
    width = max(len(name) for name, _ in found.rows) + 2
    for name, value in found.rows:
        console.print(f"{name:<{width}}{value}", soft_wrap=True, markup=False, highlight=False)
    for text in found.warnings:
        console.print(f"warning: {text}", soft_wrap=True, markup=False, highlight=False)
    console.print("nothing was trained or written", markup=False, highlight=False)
    print_commands(console, [("train", " ".join([program(), *map(shlex.quote, words)]))])
    return EXIT_FINISHED
