"""`runs`: finds run directories, and filters and sorts the runs."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Optional, Sequence, Union, overload

from mxtrain.archive.fields import best_of, check_field, needed_of, read_order, require_known, sort_runs, value_of
from mxtrain.archive.filter import filters_of, parse_filter
from mxtrain.archive.registry import CHOSEN, ListedRun
from mxtrain.archive.run_folders import named_or_default_folders, paths_in, runs_below
from mxtrain.config.specs import validate_arguments
from mxtrain.terminal.report import format_value
from mxtrain.terminal.tables import format_age, format_cell, rows_text
from mxtrain.types import Positive, Spec
from mxtrain.workflows.result_table import ResultTable


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


@dataclass(frozen=True)
class RunList(ResultTable, Sequence[ListedRun]):
    """Result of `runs`: a sequence of runs, which prints as a table.

    Attributes:
        runs: the runs, sorted, at most `limit`.
        kept: all runs that pass the filter, sorted.
        total: number of runs in the folders.
        columns: names of the further columns.
    """

    runs: Sequence[ListedRun]
    kept: Sequence[ListedRun]
    total: int
    columns: Sequence[str] = ()

    @property
    def best(self) -> Optional[ListedRun]:
        """The run with the best monitored metric of those that pass the filter.

        None if they monitor different metrics, or fewer than two were validated.
        """
        return best_of(self.kept)

    def rows(self) -> List[Dict[str, Any]]:
        """Returns a dict for each run, for `pandas.DataFrame`: the values of ``mxtrain runs format=json``.

        ``wall_s`` and ``age_s`` are seconds, ``size`` bytes, ``samples_per_s`` samples per second.
        """
        return [{**one.to_json(), **{name: value_of(one, name) for name in self.columns}} for one in self.runs]

    def __len__(self) -> int:
        return len(self.runs)

    def __iter__(self) -> Iterator[ListedRun]:
        return iter(self.runs)

    @overload
    def __getitem__(self, index: int) -> ListedRun: ...

    @overload
    def __getitem__(self, index: slice) -> RunList: ...

    def __getitem__(self, index: Union[int, slice]) -> Union[ListedRun, RunList]:
        if isinstance(index, slice):
            return RunList(self.runs[index], self.kept, self.total, self.columns)
        return self.runs[index]

    def __str__(self) -> str:
        titles = ["run", "state", "task", "model", "metric", "best", "step", "age", *self.columns]
        rows = [
            [
                os.path.normpath(one.path),
                one.state,
                *(one.choices.get(name, "-") for name in ("task", "model")),
                one.status.monitor or "-",
                "-" if one.status.best is None else format_value(one.status.best),
                str(one.status.step),
                format_age(one.age_s),
                *(format_cell(value_of(one, name)) for name in self.columns),
            ]
            for one in self.runs
        ]
        return rows_text(titles, rows)

    __repr__ = __str__


def runs(
    *folders: Any,
    where: Union[str, Sequence[str]] = (),
    sort: str = "age",
    columns: Union[str, Sequence[str]] = (),
    limit: Optional[int] = None,
) -> RunList:
    """Lists the runs below folders, the newest first, as ``mxtrain runs``. Reads run directories only, no MXNet.

    Args:
        folders: folders, each searched for run directories; default: ``outputs``.
        where: a filter, or several that must all hold: comparisons of task, model, dataset, state, metric, best, step,
            speed, size, age, of metrics (``val/loss``) and settings (``optimizer.lr``), combined by and, or, not and
            parentheses.
        sort: field to sort by; ``"-FIELD"`` reverses. ``"best"``: the best first; others: the smallest first.
        columns: further columns of the table and of `RunList.rows`: metrics and settings.
        limit: largest number of runs; default: all.

    Returns:
        A sequence of runs with ``path``, ``state``, ``status`` (``best``, ``step``, ``metrics``, ``wall_s``, ...),
        ``choices`` and ``settings``. ``rows()`` and ``frame()`` return it as dicts and as a pandas DataFrame.

    Raises:
        ConfigError: there is no such folder or no run, or the filter, order or a column is wrong.

    >>> found = mxtrain.runs("outputs", where="state=finished and model=mlp", sort="best")
    >>> found[0].path, found[0].status.best, mxtrain.load(found[0]).evaluate()
    """
    typed = columns if isinstance(columns, str) else ",".join(columns)
    values = {"sort": sort, "columns": typed, "limit": limit}
    settings = validate_arguments(RunsSettings, values, "runs")
    return list_runs(paths_in(folders, "runs"), filters_of(where), settings, settings.limit, CHOSEN)


def list_runs(
    folders: Sequence[str],
    wheres: Sequence[str],
    settings: RunsSettings,
    limit: Optional[int] = None,
    shown: Sequence[str] = (),
) -> RunList:
    """Lists the runs below folders.

    Args:
        folders: folders to search; empty: `outputs`.
        wheres: filters that must all hold.
        settings: order and columns.
        limit: largest number of runs.
        shown: fields besides the columns that are read of all runs, for the caller.

    Raises:
        ConfigError: there is no such folder or no run, or the filter, order or a column is wrong.
    """
    filtered = parse_filter(wheres)
    order, is_reversed = read_order(settings.sort)
    columns = [check_field(name.strip(), "columns") for name in settings.columns.split(",") if name.strip()]
    found = named_or_default_folders(folders, "runs")
    # With a limit, the other fields are read only of runs that are shown, at their first use.
    needed = sorted({*filtered.needed, *needed_of([order, *columns, *([] if limit else shown)])})
    everything = runs_below(found, needed, "runs")
    require_known([order], everything, f"sort={settings.sort}")
    require_known(columns, everything, f"columns={settings.columns}")
    kept = sort_runs(filtered.apply(everything), order, is_reversed)
    return RunList(kept[:limit] if limit else kept, kept, len(everything), columns)
