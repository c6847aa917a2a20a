"""`mxtrain diff A B` compares two runs: settings, code, versions, data, machine, results, the first step whose training
loss differs, and the first layer whose output differs.

For the layer, the next training batch runs through both networks, with the weights of the last checkpoints that both
have before the curves part. `replay=false` leaves that out, and then MXNet is not needed."""

from __future__ import annotations

import logging
import os
import sys
from functools import partial
from typing import Literal, Sequence, Tuple

from mxtrain.cli.arguments import Arguments
from mxtrain.cli.commands import Command
from mxtrain.cli.run_arguments import is_table, parse_run_arguments, print_json
from mxtrain.composing.restored import restore
from mxtrain.errors import EXIT_FINISHED, ConfigError
from mxtrain.terminal.tables import on_one_line, print_rows
from mxtrain.workflows.diff import DiffResult, DiffSettings, diff_runs, short_text

MAX_LINES = 40


class DiffOptions(DiffSettings):
    """Settings of `diff`, and of its output."""

    format: Literal["auto", "table", "lines", "json"] = "auto"
    """auto: tables on a terminal, else plain lines; json: all as JSON."""


COMMAND = Command(
    "diff",
    position=160,
    listed="diff RUN RUN",
    help="what differs: settings, code, data, results, the first step, the first layer",
    usage="RUN RUN [--config-dir DIR | --trust-code] [setting=value ...]",
    settings="DiffOptions",
    examples=("diff outputs/a outputs/b", "diff outputs/a outputs/b replay=false format=json"),
)


def run(arguments: Sequence[str]) -> int:
    """Compares and prints; returns the exit code."""
    parsed, settings, _ = parse_run_arguments(arguments, DiffOptions, "diff", reads_checkpoint=True)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    opened = partial(
        restore, which="last", config_dirs=parsed.config_dirs, trust_code=parsed.trusts_code, command="diff"
    )
    found = diff_runs(*two_runs(parsed), settings, opened)
    if settings.format == "json":
        print_json(found.to_json())
    else:
        _print(found, is_table(settings.format))
    sys.stdout.flush()
    return EXIT_FINISHED


def two_runs(parsed: Arguments) -> Tuple[str, str]:
    """Returns the two paths. Raises: ConfigError: there are not two."""
    positionals = parsed.positionals
    if len(positionals) != 2:
        count = (
            f"{len(positionals)} {'was' if len(positionals) == 1 else 'were'} given"
            if positionals
            else "none was given"
        )
        raise ConfigError(f"diff takes two run directories, and {count}. `mxtrain runs` lists those that there are.")
    return positionals[0], positionals[1]


def _print(found: DiffResult, as_table: bool) -> None:
    titles = [on_one_line(os.path.normpath(run.path)) for run in (found.first, found.second)]
    for name, differing in found.sections.items():
        rows = [[short_text(text) for text in (one.name, one.first, one.second)] for one in differing[:MAX_LINES]]
        if not rows:
            print(found.section_remark(name))
        elif as_table:
            print()
            print_rows([name, *titles], rows)
        else:
            for setting, first, second in rows:
                print(f"{name}: {setting}: {first} -> {second}")
        if len(differing) > MAX_LINES:
            print(f"and {len(differing) - MAX_LINES} more: format=json lists all")
    if as_table:
        print()
        print_rows(["results", *titles, "change"], found.metric_rows())
        print()
    else:
        for name, before, after, change in found.metric_rows():
            print(f"results: {name}: {before} -> {after}{f' ({change})' if change else ''}")
    for line in found.closing_lines():
        print(line)
