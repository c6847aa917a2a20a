"""`mxtrain report RUN... [out=FILE.html]` writes one page about runs: the curves of all in one chart, results, settings
that differ, samples and tables of evaluations, the commands to reproduce each run, and a model card.

The page is one file without scripts that loads nothing from elsewhere: it can be sent by mail. A folder stands for the
runs below it. `mxtrain eval RUN` before adds the tables and figures of an evaluation."""

from __future__ import annotations

import os
import sys
import time
from typing import Literal, Optional, Sequence

from mxtrain import __version__
from mxtrain.archive.fields import read_order, sort_runs
from mxtrain.archive.filter import parse_filter
from mxtrain.archive.run_folders import folders_of, parse_words, print_json, runs_below
from mxtrain.errors import EXIT_FINISHED, ConfigError
from mxtrain.types import Spec
from mxtrain.workflows.output_file import OutputFile, open_output_file


class ReportSettings(Spec):
    """Settings of `report`."""

    out: OutputFile = "report.html"
    """HTML file to write; an earlier one is replaced."""
    title: Optional[str] = None
    """Heading of the page; null: the names of the runs."""
    where: str = ""
    """Runs below the named folders to show, e.g. 'best>0.9', as for `mxtrain runs`; may be given several times."""
    sort: str = ""
    """Field to sort by, e.g. best, as for `mxtrain runs`; empty: the order of the command line."""
    format: Literal["auto", "lines", "json"] = "auto"
    """Of what is printed: json: file and runs as JSON."""


def run(arguments: Sequence[str]) -> int:
    """Writes the page; returns the exit code."""
    parsed, settings, wheres = parse_words(arguments, ReportSettings, "report")
    filtered = parse_filter(wheres)
    order = read_order(settings.sort) if settings.sort else None
    folders = folders_of(parsed, "report")
    runs = filtered.apply(runs_below(folders, filtered.needed, "report"))
    if order:
        runs = sort_runs(runs, *order)
    from mxtrain.archive.report import MAX_RUNS, collect, render_report, short_names

    if not runs:
        raise ConfigError(f"where={filtered.text}: no run passes the filter.")
    if len(runs) > MAX_RUNS:
        raise ConfigError(
            f"report: {len(runs):,} runs are more than a page can show ({MAX_RUNS}). Choose some with where=..., e.g. "
            "where='best>0.9', or name them."
        )
    names = short_names([one.path for one in runs])
    title = settings.title or f"mxtrain: {', '.join(names[:3])}{f' and {len(names) - 3} more' if names[3:] else ''}"
    footer = f"made {time.strftime('%Y-%m-%d %H:%M')} by mxtrain {__version__}, {len(runs)} run{'s' * (len(runs) > 1)}"
    page = render_report(collect(runs), title, footer)
    with open_output_file(settings.out) as file:
        file.write(page)
    if settings.format == "json":
        print_json(
            {
                "file": settings.out,
                "bytes": len(page.encode("utf-8", "backslashreplace")),
                "runs": [one.path for one in runs],
            }
        )
    elif settings.out != "/dev/stdout":
        print(f"written to {os.path.abspath(settings.out)} ({len(page) / 1e6:.1f} MB, {len(runs)} runs)")
    sys.stdout.flush()
    return EXIT_FINISHED
