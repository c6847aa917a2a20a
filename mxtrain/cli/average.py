"""`mxtrain average RUN` writes the mean of the weights of a run's last checkpoints.

`average RUN RUN... soup=greedy` averages the best checkpoints of several runs: each further run is added if the mean is
at least as good on the validation split; soup=uniform averages all. Thresholds and margins, which validations choose,
are chosen for the mean. `eval`, `predict` and `export` take the result like any checkpoint."""

from __future__ import annotations

import shlex
import sys
from functools import partial
from pathlib import Path
from typing import Sequence

from mxtrain.cli import arguments as command_line
from mxtrain.cli.commands import Command
from mxtrain.cli.restored import one_run, restore_run
from mxtrain.cli.settings import refuse_misspelled_groups, split_settings
from mxtrain.errors import EXIT_FINISHED, ConfigError
from mxtrain.terminal.console import open_console
from mxtrain.terminal.program import program
from mxtrain.terminal.report import format_value
from mxtrain.terminal.tables import BEST, print_rows
from mxtrain.workflows.average import AverageSettings, SoupResult, average_last, average_runs

COMMAND = Command(
    "average",
    position=60,
    listed="average RUN [last=5]",
    help="the mean of the weights of a run's last checkpoints, as a checkpoint; of several runs: "
    "average RUN RUN... soup=greedy|uniform",
    usage="RUN [last=N] | RUN RUN... soup=greedy|uniform [--config-dir DIR | --trust-code] "
    "[setting=value ...] [group.field=value ...]",
    settings="AverageSettings",
    examples=("average RUN last=5", "average runs/1 runs/2 runs/3 soup=greedy", "eval runs/1/averaged/greedy-soup"),
)


def run(arguments: Sequence[str]) -> int:
    """Averages and writes; returns the exit code."""
    parsed = command_line.parse(arguments, reads_checkpoint=True)
    settings, overrides = split_settings(parsed, AverageSettings, "average")
    if settings.soup is not None:
        refuse_misspelled_groups(overrides, "average", parsed.config_dirs)
    one_run(parsed, "average")

    def warn(text: str) -> None:
        print(f"warning: {text}", file=sys.stderr)

    open_run = partial(restore_run, parsed, settings, overrides, "average")
    if settings.soup is not None:
        print_soup(average_runs(parsed.positionals, settings, open_run, warn))
        return EXIT_FINISHED
    if parsed.positionals[1:]:
        raise ConfigError(
            f"average takes one run directory, not also '{parsed.positionals[1]}'. To average several runs, type "
            "soup=greedy or soup=uniform."
        )
    for name in sorted({"which", "out"} & settings.model_fields_set):
        raise ConfigError(f"{name} is for averages of several runs. Type soup=greedy, or leave it out.")
    if overrides:
        raise ConfigError(f"average takes `last=N` and nothing else, not '{overrides[0]}'.")
    result = average_last(Path(parsed.positionals[0]), settings.last, open_run, warn)
    print(f"the mean of the weights after steps {', '.join(map(str, result.steps))}: {result.path}")
    print(f"  {program()} eval {shlex.quote(str(result.path))}")
    return EXIT_FINISHED


def print_soup(soup: SoupResult) -> None:
    """Prints a table of the members, best first, and the values of the soup."""
    rows = [
        [member.run, str(member.step), format_value(member.value), "in the soup" if member.kept else "left out"]
        for member in soup.members
    ]
    num_members = sum(member.kept for member in soup.members)
    rows.append([f"{soup.method} soup of {num_members}", "", format_value(soup.values[soup.monitor]), ""])
    console = open_console(sys.stdout)
    print_rows(["run", "step", soup.monitor, ""], rows, {len(rows) - 1: BEST})
    shown = "  ".join(f"{name} {format_value(value)}" for name, value in soup.values.items())
    console.print(f"{shown}\nwritten to {soup.path}", soft_wrap=True)
    print(f"  {program()} eval {shlex.quote(str(soup.path))}")
