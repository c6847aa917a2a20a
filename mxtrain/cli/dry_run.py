"""`train --dry-run`: prints data, network, devices, memory and time of a run that is not started."""

from __future__ import annotations

import logging
import shlex
import sys
from typing import Sequence

from mxtrain.composing.environment import prepare_environment
from mxtrain.config.groups import Description
from mxtrain.errors import EXIT_FINISHED
from mxtrain.terminal.program import program


def show_dry_run(description: Description, words: Sequence[str]) -> int:
    """Prints the table and the command that starts the run; returns the exit code.

    Args:
        description: of the run.
        words: flags and overrides that describe it.

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
    print_commands(console, [("train", " ".join([program(), *map(shlex.quote, words)]))])
    return EXIT_FINISHED
