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

from mxtrain.archive.fields import best_of, check_field, needed_of, read_order, require_known, sort_runs, value_of
from mxtrain.archive.filter import parse_filter
from mxtrain.archive.registry import CHOSEN, ListedRun
from mxtrain.archive.run_folders import folders_of, parse_words, print_json, print_line, runs_below
from mxtrain.errors import EXIT_FINISHED
from mxtrain.terminal.console import open_console
from mxtrain.terminal.program import program
from mxtrain.terminal.report import format_rate, format_value, print_commands
from mxtrain.terminal.tables import BEST, format_age, format_size, on_one_line, print_rows
from mxtrain.types import Positive, Spec

SHOWN = 50
LESS_IMPORTANT = ("size", "samples/s", "age", "task", "model")
"""Columns that are left out of the table on a narrow terminal, in this order."""


class RunsSettings(Spec):
    """Settings of `runs`."""

    where: str = ""
    """Runs to list, e.g. 'task=classification and best>0.9'; may be given several times."""
    sort: str = "age"
    """Field to sort by; -FIELD reverses. best: the best first; others: the smallest first."""
    columns: str = ""
    """Further columns with commas between them: settings and metrics, e.g. optimizer.lr,test/accuracy."""
    limit: Optional[Positive] = None
    """Largest number of runs to list; null: 50 in a table, all otherwise."""
    format: Literal["auto", "table", "lines", "json"] = "auto"
    """auto: a table on a terminal, else one line for each run, with its size only if columns=size; json: all values of
    each run."""


def run(arguments: Sequence[str]) -> int:
    """Lists runs; returns the exit code."""
    parsed, settings, wheres = parse_words(arguments, RunsSettings, "runs")
    filtered = parse_filter(wheres)
    order, is_reversed = read_order(settings.sort)
    columns = [check_field(name.strip(), "columns") for name in settings.columns.split(",") if name.strip()]
    folders = folders_of(parsed, "runs")
    is_table = settings.format == "table" or (settings.format == "auto" and sys.stdout.isatty())
    limit = settings.limit or (SHOWN if is_table else None)
    # With a limit, the other columns are read only of runs that are shown. Lines have no size unless it is a column,
    # because reading it takes as long as all else.
    shown_fields = [] if limit else [*CHOSEN, *(["size"] if settings.format == "json" else [])]
    needed = sorted({*filtered.needed, *needed_of([order, *columns, *shown_fields])})
    everything = runs_below(folders, needed, "runs")
    require_known([order], everything, f"sort={settings.sort}")
    require_known(columns, everything, f"columns={settings.columns}")
    kept = sort_runs(filtered.apply(everything), order, is_reversed)
    shown = kept[:limit] if limit else kept
    if settings.format == "json":
        print_json([{**one.to_json(), **{name: value_of(one, name) for name in columns}} for one in shown])
    elif is_table:
        _print_table(kept, shown, len(everything), columns)
    else:
        for one in shown:
            print_line(shlex.quote(on_one_line(os.path.normpath(one.path))), {**_words(one), **_extra(one, columns)})
    return EXIT_FINISHED


def _words(one: ListedRun) -> Dict[str, str]:
    """Returns the cells of a run as words without spaces, by name."""
    best = f"{one.status.monitor}:{format_value(one.status.best)}" if one.status.best is not None else ""
    words = {
        "state": one.state,
        "task": one.choices.get("task", ""),
        "model": one.choices.get("model", ""),
        "best": best,
        "step": str(one.status.step),
        "samples_per_s": _speed(one),
        "age_s": f"{one.age_s:.0f}",
    }
    return {name: on_one_line(value).replace(" ", "_") for name, value in words.items()}


def _extra(one: ListedRun, columns: Sequence[str]) -> Dict[str, str]:
    found = {name: value_of(one, name) for name in columns}
    return {name: "" if value is None else on_one_line(_short(value))[:60] for name, value in found.items()}


def _short(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _speed(one: ListedRun) -> str:
    return "" if one.status.samples_per_s is None else format_rate(one.status.samples_per_s)


def _print_table(kept: Sequence[ListedRun], shown: Sequence[ListedRun], total: int, columns: Sequence[str]) -> None:
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
    best = best_of(kept) if is_same else None
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
    console.print(_summary(kept, shown, total), soft_wrap=True)
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
        steps.append(("evaluate the best", f"{program()} eval {_place(best)}"))
    if len(kept) > 1:
        steps.append(("what differs between two", f"{program()} diff {_place(kept[0])} {_place(kept[1])}"))
        places = " ".join(map(_place, kept[:5]))
        steps.append(("a page with all curves", f"{program()} report {places} out=report.html"))
    return steps


def _place(one: ListedRun) -> str:
    path = os.path.relpath(one.path) if not os.path.isabs(one.path) else one.path
    return shlex.quote(on_one_line(f"./{path}" if "=" in path or path.startswith(("+", "~", "-")) else path))
