"""`report`: writes one HTML page about several runs."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any, Optional, Sequence, Union

from mxtrain import __version__
from mxtrain.archive.fields import read_order, sort_runs
from mxtrain.archive.filter import filters_of, parse_filter
from mxtrain.archive.registry import ListedRun
from mxtrain.archive.run_folders import named_or_default_folders, paths_in, runs_below
from mxtrain.config.specs import validate_arguments
from mxtrain.errors import ConfigError
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


@dataclass(frozen=True)
class WrittenReport:
    """Result of `report`.

    Attributes:
        file: path of the page.
        size: its size in bytes.
        runs: the runs on it, in their order.
    """

    file: str
    size: int
    runs: Sequence[ListedRun]

    def __str__(self) -> str:
        return f"{self.file} ({self.size / 1e6:.1f} MB, {len(self.runs)} runs)"


def report(
    *runs: Any,
    out: Any = "report.html",
    title: Optional[str] = None,
    where: Union[str, Sequence[str]] = (),
    sort: str = "",
) -> WrittenReport:
    """Writes one HTML page about runs, as ``mxtrain report``: curves, results, differing settings, evaluations.

    The page is one file without scripts that loads nothing from elsewhere. `Run.evaluate` writes no files, so the page
    shows the evaluations of ``mxtrain eval``. MXNet is not imported.

    Args:
        runs: run directories, folders with runs below them, results of `train`, `load` and `runs`, or lists of these;
            default: ``outputs``. At most 30 runs.
        out: HTML file to write; an earlier one is replaced.
        title: heading; default: the names of the runs.
        where: filters of runs; see `runs`.
        sort: field to sort by (see `runs`); default: the given order.

    Returns:
        ``file``, ``size`` in bytes, and ``runs``.

    Raises:
        ConfigError: there is no such run, too many runs were given, or an argument is wrong.
        DataError: the file cannot be written.

    >>> mxtrain.report("outputs", out="report.html").size
    """
    values = {"out": os.fspath(out) if isinstance(out, os.PathLike) else out, "title": title, "sort": sort}
    settings = validate_arguments(ReportSettings, values, "report")
    return write_report(paths_in(runs, "report"), filters_of(where), settings)


def write_report(folders: Sequence[str], wheres: Sequence[str], settings: ReportSettings) -> WrittenReport:
    """Writes the page.

    Args:
        folders: run directories and folders; empty: `outputs`.
        wheres: filters that must all hold.
        settings: file, heading and order.

    Raises:
        ConfigError: there is no such run, or too many.
        DataError: the file cannot be written.
    """
    filtered = parse_filter(wheres)
    order = read_order(settings.sort) if settings.sort else None
    runs = filtered.apply(runs_below(named_or_default_folders(folders, "report"), filtered.needed, "report"))
    if order:
        runs = sort_runs(runs, *order)
    # Takes time to load.
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
    return WrittenReport(settings.out, len(page.encode("utf-8", "backslashreplace")), runs)
