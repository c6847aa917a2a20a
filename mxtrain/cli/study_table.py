"""The table of a study, its best trial, and the commands to go on with."""

from __future__ import annotations

import os
import shlex
import sys
from typing import List, Tuple

from mxtrain.config.override_text import code_arguments
from mxtrain.terminal.console import open_console
from mxtrain.terminal.program import program, tensorboard
from mxtrain.terminal.report import print_commands
from mxtrain.terminal.tables import BEST, print_rows
from mxtrain.tuning.space import override_words
from mxtrain.workflows.tune import StudyResult

MAX_CAUSE = 60
"""Characters of a cause on a terminal; elsewhere the whole cause is printed."""


def print_study(result: StudyResult) -> None:
    """Prints all trials, best first, and commands to evaluate and retrain the best one and to compare all."""
    titles, rows = result.cells()
    console = open_console(sys.stdout)
    if console.is_terminal:
        rows = [[*row[:-1], row[-1][:MAX_CAUSE]] for row in rows]
    console.print()
    print_rows(titles, rows, {number: BEST for number, trial in enumerate(result.trials) if trial.is_best})
    console.print(result.summary(), soft_wrap=True, highlight=False)
    print_commands(console, next_steps(result))
    sys.stdout.flush()


def next_steps(result: StudyResult) -> List[Tuple[str, str]]:
    """Returns the commands that a user may want next, as pairs of a purpose and a command."""
    steps: List[Tuple[str, str]] = []
    description, best = result.description, result.best_trial
    place = shlex.quote(os.path.relpath(result.path))
    if not result.is_complete:
        steps.append(("a further worker, here or on a machine with this folder", f"{program()} tune worker {place}"))
    if best is not None:
        words = [*description.flags, *description.overrides, *override_words(best.active)]
        own_code = "".join(f" {shlex.quote(word)}" for word in code_arguments(words))
        run_dir = os.path.join(os.path.relpath(result.path), best.path.name)
        steps.append(("evaluate the best", f"{program()} eval {shlex.quote(run_dir)}{own_code}"))
        if description.settings.sampler != "pbt":  # whose weights come from several runs
            steps.append(("train the best again", " ".join([program(), *map(shlex.quote, words)])))
    if any(result.path.glob("*/events.out.tfevents.*")):
        steps.append(("compare", f"{tensorboard()} --logdir {place}"))
    return steps
