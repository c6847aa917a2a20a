"""`mxtrain runs [FOLDER...]` lists the runs below folders (default: outputs), the newest first.

The run directories are the registry: nothing was registered, and a folder that is copied or removed needs no repair.
`where=` keeps some of the runs: comparisons of task, model, dataset, state, metric, best, step, speed, size, age, of
metrics (val/loss) and settings (optimizer.lr), combined by and, or, not and parentheses. Several where= must all hold.
A run whose state is `killed` has ended without a word; the command that started it continues it."""

from __future__ import annotations

import os
import shlex
import sys
from collections import Counter
from typing import Dict, List, Literal, Optional, Sequence, Tuple

from rich.cells import cell_len

from mxtrain.archive.fields import value_of
from mxtrain.archive.registry import CHOSEN, ListedRun
from mxtrain.cli.commands import Command
from mxtrain.cli.run_arguments import is_table, parse_run_arguments, print_json, print_line
from mxtrain.errors import EXIT_FINISHED
from mxtrain.terminal.console import open_console
from mxtrain.terminal.program import program
from mxtrain.terminal.report import format_rate, format_value, print_commands
from mxtrain.terminal.tables import BEST, format_age, format_cell, format_size, on_one_line, print_rows
from mxtrain.types import expand_path
from mxtrain.workflows.runs import RunList, RunsSettings, list_runs

SHOWN = 50
LESS_IMPORTANT = ("size", "samples/s", "age", "task", "model")
"""Columns that are left out of the table on a narrow terminal, in this order."""


class RunsOptions(RunsSettings):
    """Settings of `runs`, and of its output."""

    format: Literal["auto", "table", "lines", "json"] = "auto"
    """auto: a table on a terminal, else one line for each run, with its size only if columns=size; json: all values of
    each run."""


COMMAND = Command(
    "runs",
    position=150,
    listed="runs [FOLDER...]",
    help="a table of runs: where='task=classification and best>0.9' sort=best",
    usage="[FOLDER...] [setting=value ...]",
    settings="RunsOptions",
    examples=(
        "runs",
        "runs studies/lr sort=best columns=optimizer.lr",
        "runs where='task=classification and best>0.9'",
        "runs where='state=failed,killed' where='age<2d' format=json",
    ),
)


def run(arguments: Sequence[str]) -> int:
    """Lists runs; returns the exit code."""
    parsed, settings, wheres = parse_run_arguments(arguments, RunsOptions, "runs")
    as_table = is_table(settings.format)
    # Lines have no size unless it is a column, because reading it takes as long as reading everything else.
    shown = [*CHOSEN, *(["size"] if settings.format == "json" else [])]
    limit = settings.limit or (SHOWN if as_table else None)
    found = list_runs(list(map(expand_path, parsed.positionals)), wheres, settings, limit, shown)
    if settings.format == "json":
        print_json(found.rows())
    elif as_table:
        _print_table(found)
    else:
        for one in found:
            words = {**_cells(one), **_extra(one, found.columns)}
            print_line(shlex.quote(on_one_line(os.path.normpath(one.path))), words)
    return EXIT_FINISHED


def _cells(one: ListedRun) -> Dict[str, str]:
    """Returns the cells of a run as words without spaces, by name."""
    best = f"{one.status.monitor}:{format_value(one.status.best)}" if one.status.best is not None else ""
    cells = {
        "state": one.state,
        "task": one.choices.get("task", ""),
        "model": one.choices.get("model", ""),
        "best": best,
        "step": str(one.status.step),
        "samples_per_s": _speed(one),
        "age_s": f"{one.age_s:.0f}",
    }
    return {name: on_one_line(value).replace(" ", "_") for name, value in cells.items()}


def _extra(one: ListedRun, columns: Sequence[str]) -> Dict[str, str]:
    found = {name: value_of(one, name) for name in columns}
    return {name: on_one_line(format_cell(value))[:60] for name, value in found.items()}


def _speed(one: ListedRun) -> str:
    return "" if one.status.samples_per_s is None else format_rate(one.status.samples_per_s)


def _print_table(found: RunList) -> None:
    kept, shown, columns = found.kept, found.runs, found.columns
    monitors = {one.status.monitor for one in shown if one.status.monitor}
    is_same = len(monitors) <= 1
    titles = [
        "run",
        "state",
        "task",
        "model",
        *([] if is_same else ["metric"]),
        next(iter(monitors), "best") if is_same else "best",
        "step",
        "samples/s",
        "size",
        "age",
        *columns,
    ]
    best = found.best if is_same else None
    rows = []
    for one in shown:
        value = "-" if one.status.best is None else format_value(one.status.best)
        cells = [
            os.path.normpath(one.path),
            one.state,
            one.choices.get("task", "-"),
            one.choices.get("model", "-"),
            *([] if is_same else [one.status.monitor or "-"]),
            value,
            str(one.status.step),
            _speed(one) or "-",
            format_size(one.size),
            format_age(one.age_s),
            *_extra(one, columns).values(),
        ]
        rows.append(cells)
    console = open_console(sys.stdout)
    console.print()
    styles = {number: BEST for number, one in enumerate(shown) if one is best}
    left_out = left_out_columns(titles, rows, console.width) if console.is_terminal else []
    titles, *rows = ([cell for number, cell in enumerate(line) if number not in left_out] for line in (titles, *rows))
    print_rows(titles, rows, styles, unbroken=[title for title in titles if title not in ("task", "model")])
    console.print(_summary(kept, shown, found.total), soft_wrap=True)
    print_commands(console, _next_steps(kept, best))
    sys.stdout.flush()


def left_out_columns(titles: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> List[int]:
    """Returns the indices of the columns to leave out of a table, so that the others fit into a line of `width`."""
    widths = [2 + max(map(cell_len, cells)) for cells in zip(titles, *rows)]
    left_out: List[int] = []
    for title in LESS_IMPORTANT:
        if sum(widths) - sum(widths[number] for number in left_out) <= width + 2:
            break
        left_out.append(titles.index(title))
    return left_out


def _summary(kept: Sequence[ListedRun], shown: Sequence[ListedRun], total: int) -> str:
    states = Counter(one.state for one in kept)
    counts = ", ".join(f"{count:,} {state}" for state, count in states.most_common())
    of = f" of {total:,}" if len(kept) < total else ""
    more = f"; {len(shown):,} are listed, limit={len(kept)} lists all" if len(shown) < len(kept) else ""
    return on_one_line(f"{len(kept):,}{of} runs{': ' if counts else ''}{counts}{more}")


def _next_steps(kept: Sequence[ListedRun], best: Optional[ListedRun]) -> List[Tuple[str, str]]:
    steps: List[Tuple[str, str]] = []
    if best is not None:
        steps.append(("evaluate the best", f"{program()} eval {_quoted_path(best)}"))
    if len(kept) > 1:
        steps.append(("what differs between two", f"{program()} diff {_quoted_path(kept[0])} {_quoted_path(kept[1])}"))
        paths = " ".join(map(_quoted_path, kept[:5]))
        steps.append(("a page with all curves", f"{program()} report {paths} out=report.html"))
    return steps


def _quoted_path(one: ListedRun) -> str:
    # A path that contains `=`, or starts with +, ~ or -, would be taken for an override or a flag.
    path = os.path.relpath(one.path) if not os.path.isabs(one.path) else one.path
    return shlex.quote(on_one_line(f"./{path}" if "=" in path or path.startswith(("+", "~", "-")) else path))
