"""Builds series from the rows of a table, and windows of series. Exported folders have a copy of this module.

Legend: R rows, T steps of a series, P past steps, H steps to predict, K facts of a step, C covariates, B batch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from mxtrain.forecasting.time_grid import STEP, TimeGrid, describe_grid, find_grid, parse_times

DUPLICATE_TIME, TIME_GAP, TIME_ORDER, WRONG_TIME = "duplicate_time", "time_gap", "time_order", "wrong_time"
CHANGING_STATIC, EMPTY_SERIES, SHORT_SERIES = "changing_static", "empty_series", "short_series"
SERIES_PROBLEMS = (
    DUPLICATE_TIME,
    TIME_GAP,
    TIME_ORDER,
    WRONG_TIME,
    CHANGING_STATIC,
    EMPTY_SERIES,
    SHORT_SERIES,
)
HARMLESS = (TIME_ORDER, EMPTY_SERIES)
"""Kinds of problems that do not prevent training."""
MAX_SPARSITY = 100
"""Largest number of steps for each row of a series, besides `MIN_STEPS`: a wrong year would fill the memory."""
MIN_STEPS = 100_000
ONE_SERIES = "series"
"""Name of the only series of a table without a column of items."""


class SeriesProblem(NamedTuple):
    """A problem of the rows of a table.

    Attributes:
        kind: one of `SERIES_PROBLEMS`.
        row: index of the row.
        fact: the problem in one sentence, without the location of the row.
        remedy: what to do, in a sentence.
    """

    kind: str
    row: int
    fact: str
    remedy: str


@dataclass(frozen=True)
class OneSeries:
    """One series.

    Attributes:
        name: name of the item.
        first: index on the grid of the first step.
        target_T: values; NaN = missing.
        known_NC: covariates of each step, and of later ones whose target is not known yet; NaN = missing, in columns
            that are known for the past alone.
        static_S: numbers that belong to the item.
        categories: texts that belong to the item.
        row: index of its first row.
    """

    name: str
    first: int
    target_T: np.ndarray
    known_NC: np.ndarray
    static_S: np.ndarray
    categories: Sequence[str]
    row: int = 0


@dataclass(frozen=True)
class SeriesSet:
    """The series of a table on one grid.

    Attributes:
        grid: times of all series.
        series: the series.
    """

    grid: TimeGrid
    series: Sequence[OneSeries]


@dataclass(frozen=True)
class SeriesRows:
    """Rows of a table in long form.

    Attributes:
        items: name of the item of each row.
        times: time of each row, as a text.
        target_R: value of each row; NaN = missing.
        known_RC: covariates.
        static_RS: numbers of the item.
        categories: one column of texts of the item each.
        location: function from the index of a row to where it is, for messages.
    """

    items: Sequence[str]
    times: Sequence[str]
    target_R: np.ndarray
    known_RC: np.ndarray
    static_RS: np.ndarray
    categories: Sequence[Sequence[str]] = ()
    location: Callable[[int], str] = field(default=lambda row: f"row {row}")


@dataclass(frozen=True)
class GridSettings:
    """Settings of the conversion of times to a grid.

    Attributes:
        frequency: distance of two times; None: it is found.
        time_format: form of the times; None: ISO 8601 or whole numbers.
        gaps: "refuse", or the value of missing rows: "missing", "zero" or "previous".
    """

    frequency: Optional[str] = None
    time_format: Optional[str] = None
    gaps: str = "refuse"


def build_series(rows: SeriesRows, settings: GridSettings) -> Tuple[SeriesSet, List[SeriesProblem]]:
    """Builds the series of a table. Rows with problems are left out.

    Args:
        rows: rows in any order.
        settings: how times become a grid.

    Raises:
        ValueError: no row has a time, or the frequency cannot be found.
    """
    time_R, has_calendar, wrong = parse_times(rows.times, settings.time_format)
    problems = [
        SeriesProblem(WRONG_TIME, row, f"the time '{rows.times[row]:.40}' is {reason}", _time_remedy(settings))
        for row, reason in wrong.items()
    ]
    number_of: Dict[str, int] = {}
    item_R = np.array([number_of.setdefault(item, len(number_of)) for item in rows.items], np.int64)
    order = np.lexsort((np.arange(len(time_R)), time_R, item_R))
    if wrong:
        order = order[~np.isin(order, list(wrong))]
    if not len(order):
        fact = f": {problems[0].fact}. {problems[0].remedy.rstrip('.')}" if problems else ""
        raise ValueError(f"no row has a time{fact}")
    problems += _disorder(rows, time_R, item_R, np.sort(order))
    order, repeated = _without_repeated(rows, time_R, item_R, order)
    problems += repeated
    grid = find_grid(time_R[order], item_R[order], has_calendar, settings.frequency)
    index_R, is_on_R = grid.index(time_R[order])
    for row in order[~is_on_R].tolist():
        fact = f"the time {rows.times[row]} is not on the grid of the others, one {describe_grid(grid.name)} apart"
        remedy = "Correct it, or name the distance of the times by dataset.frequency."
        problems.append(SeriesProblem(WRONG_TIME, row, fact, remedy))
    order, index_R = order[is_on_R], index_R[is_on_R]
    if not len(order):
        raise ValueError("no row has a time on the grid")
    ends = np.flatnonzero(np.diff(item_R[order])) + 1
    names = list(number_of)
    series = []
    for part, index_P in zip(np.split(order, ends), np.split(index_R, ends)):
        name = names[item_R[part[0]]]
        if settings.gaps == "refuse":
            problems += _gaps(rows, grid, name, part, index_P)
        problems += _changes(rows, name, part)
        if index_P[-1] - index_P[0] > MIN_STEPS + MAX_SPARSITY * len(part):
            fact = (
                f"the series '{name:.60}' has {len(part):,} rows from {rows.times[part[0]]} to {rows.times[part[-1]]}"
            )
            problems.append(SeriesProblem(TIME_GAP, int(part[-1]), fact, "Correct the time."))
            continue
        one = _series_of(rows, name, part, index_P, settings.gaps)
        if one is None:
            fact = f"the series '{name:.60}' has no value"
            problems.append(SeriesProblem(EMPTY_SERIES, int(part[0]), fact, "It is left out."))
        else:
            series.append(one)
    return SeriesSet(grid, series), problems


def _time_remedy(settings: GridSettings) -> str:
    return (
        f"Correct it, or name its form: dataset.time_format='{settings.time_format}'."
        if settings.time_format
        else "Correct it, or name the form of all times, such as dataset.time_format='%d.%m.%Y'."
    )


def _disorder(rows: SeriesRows, time_R: np.ndarray, item_R: np.ndarray, row_N: np.ndarray) -> List[SeriesProblem]:
    """Returns the problem of the first row that is before an earlier row of its series; none if rows are in order.

    Args:
        rows: the rows.
        time_R, item_R: time and number of the item of each row.
        row_N: indices of the rows with a time, ascending.
    """
    order = row_N[np.argsort(item_R[row_N], kind="stable")]
    is_back = (np.diff(item_R[order]) == 0) & (np.diff(time_R[order]) < 0)
    if not is_back.any():
        return []
    place = int(np.argmax(is_back))
    row, before = int(order[place + 1]), int(order[place])
    fact = (
        f"the time {rows.times[row]} is before {rows.times[before]} of {rows.location(before)}"
        f"{f', and so are {int(is_back.sum()) - 1:,} others' if is_back.sum() > 1 else ''}"
    )
    return [SeriesProblem(TIME_ORDER, row, fact, "The rows are sorted.")]


def _without_repeated(
    rows: SeriesRows, time_R: np.ndarray, item_R: np.ndarray, order: np.ndarray
) -> Tuple[np.ndarray, List[SeriesProblem]]:
    is_again = np.zeros(len(order), bool)
    is_again[1:] = (np.diff(item_R[order]) == 0) & (np.diff(time_R[order]) == 0)
    problems = []
    for place in np.flatnonzero(is_again).tolist():
        row, first = int(order[place]), int(order[place - 1])
        fact = f"the series '{rows.items[row]:.60}' has the time {rows.times[row]} again, as {rows.location(first)}"
        remedy = "Remove one of them, or name the column that tells the series apart by dataset.item."
        problems.append(SeriesProblem(DUPLICATE_TIME, row, fact, remedy))
    return order[~is_again], problems


def _gaps(rows: SeriesRows, grid: TimeGrid, name: str, part: np.ndarray, index_P: np.ndarray) -> List[SeriesProblem]:
    problems = []
    for place in np.flatnonzero(np.diff(index_P) > 1).tolist():
        row, count = int(part[place + 1]), int(index_P[place + 1] - index_P[place]) - 1
        first = grid.texts(index_P[place : place + 1] + 1)[0]
        fact = (
            f"the series '{name:.60}' lacks {count:,} row{'s' * (count > 1)} before it, "
            f"{'from ' if count > 1 else ''}{first}, with one row each {describe_grid(grid.name)}"
        )
        remedy = "Add them, or type dataset.gaps=missing, zero or previous for their values."
        problems.append(SeriesProblem(TIME_GAP, row, fact, remedy))
    return problems


def _changes(rows: SeriesRows, name: str, part: np.ndarray) -> List[SeriesProblem]:
    """Returns the problem of the first row whose facts of the item differ from the first ones."""
    static_PS, first_S = rows.static_RS[part], rows.static_RS[part[0]]
    # A missing number is a problem of its own.
    differs_P = ((static_PS != first_S) & ~np.isnan(static_PS) & ~np.isnan(first_S)).any(axis=1)
    for texts in rows.categories:
        differs_P |= np.array([texts[row] != texts[part[0]] for row in part.tolist()])
    if not differs_P.any():
        return []
    row = int(part[np.argmax(differs_P)])
    fact = f"a column of dataset.static changes within the series '{name:.60}'; compare {rows.location(int(part[0]))}"
    return [SeriesProblem(CHANGING_STATIC, row, fact, "Correct it, or name the column in dataset.known.")]


def _series_of(rows: SeriesRows, name: str, part: np.ndarray, index_P: np.ndarray, gaps: str) -> Optional[OneSeries]:
    length = int(index_P[-1] - index_P[0]) + 1
    place_P = index_P - index_P[0]
    target_N = np.full(length, np.nan)
    target_N[place_P] = rows.target_R[part]
    # The last row at or before each step: that of the step itself, but in a gap.
    source_N = np.searchsorted(place_P, np.arange(length), side="right") - 1
    is_gap_N = place_P[source_N] != np.arange(length)
    known_N = np.flatnonzero(~np.isnan(target_N))
    if not len(known_N):
        return None
    if gaps == "zero":
        target_N[is_gap_N] = 0.0
    elif gaps == "previous":
        is_gap_N[: known_N[0]] = False  # before the first value, there is no previous one
        before_N = known_N[np.searchsorted(known_N, np.flatnonzero(is_gap_N)) - 1]
        target_N[is_gap_N] = target_N[before_N]
    end = int(known_N[-1]) + 1
    return OneSeries(
        name,
        int(index_P[0]),
        target_N[:end],
        rows.known_RC[part][source_N].astype(np.float32),
        rows.static_RS[part[0]].astype(np.float32),
        [texts[part[0]] for texts in rows.categories],
        int(part[0]),
    )


@dataclass(frozen=True)
class WindowForm:
    """Settings of the conversion of a window to the inputs of a network.

    Attributes:
        past: P, steps before the cut.
        horizon: H, steps after it.
        known_mean, known_std: of each covariate.
        static_mean, static_std: of each number of the item.
        vocabularies: values of each category; others have the id 0.
        observed: number of covariates, the last ones, that are known before the cut alone.
    """

    past: int
    horizon: int
    known_mean: Sequence[float] = ()
    known_std: Sequence[float] = ()
    static_mean: Sequence[float] = ()
    static_std: Sequence[float] = ()
    vocabularies: Sequence[Sequence[str]] = ()
    observed: int = 0

    @property
    def num_future(self) -> int:
        """Returns the number of covariates, the first ones, that are known behind the cut, too."""
        return len(self.known_mean) - self.observed


class SeriesWindows:
    """Windows of series as inputs of a network.

    Args:
        series_set: the series.
        form: form of the inputs.

    Raises:
        ValueError: a number is too large for the network.
    """

    def __init__(self, series_set: SeriesSet, form: WindowForm) -> None:
        self._set, self._form = series_set, form
        self._calendars = [
            series_set.grid.features(
                np.arange(one.first - form.past, one.first + max(len(one.target_T), len(one.known_NC)) + form.horizon)
            )
            for one in series_set.series
        ]
        ids = [{value: number for number, value in enumerate(values, 1)} for values in form.vocabularies]
        self._categories = [
            [table.get(value, 0) for table, value in zip(ids, one.categories)] for one in series_set.series
        ]
        # A missing covariate counts as its mean, 0.
        self._known = [
            np.nan_to_num(self._scaled(one.known_NC, form.known_mean, form.known_std), copy=False)
            for one in series_set.series
        ]
        self._static = [self._scaled(one.static_S, form.static_mean, form.static_std) for one in series_set.series]

    @staticmethod
    def _scaled(values: np.ndarray, mean: Sequence[float], std: Sequence[float]) -> np.ndarray:
        if not len(mean):
            return values.astype(np.float32)
        return ((values - np.asarray(mean)) / np.asarray(std)).astype(np.float32)

    def inputs(self, series: int, cut: int) -> List[np.ndarray]:
        """Returns the inputs for the values from a cut on: values (P,), flags of known values (P,), facts of steps (P +
        H, K), and if there are such, numbers (S,) and ids (N,) of the item.

        Args:
            series: index of the series.
            cut: number of values of the series before the cut.
        """
        one, form = self._set.series[series], self._form
        past, horizon = form.past, form.horizon
        value_P = np.full(past, np.nan)
        given_P = one.target_T[max(cut - past, 0) : cut]
        value_P[past - len(given_P) :] = given_P
        observed_P = ~np.isnan(value_P)
        known_FK = self._calendars[series][cut : cut + past + horizon]
        if self._known[series].shape[1]:
            # Covariates before the first step are not known: their mean, 0, is used.
            known_FC = np.zeros((past + horizon, self._known[series].shape[1]), np.float32)
            first = max(cut - past, 0)
            given_FC = self._known[series][first : cut + horizon]
            known_FC[first - (cut - past) :][: len(given_FC)] = given_FC
            if form.observed:
                known_FC[past:, -form.observed :] = 0.0  # of the training data, the future is known
            known_FK = np.concatenate([known_FK, known_FC], axis=1)
        arrays = [np.where(observed_P, value_P, 0.0).astype(np.float32), observed_P.astype(np.float32), known_FK]
        if len(self._form.static_mean):
            arrays.append(self._static[series])
        if self._form.vocabularies:
            arrays.append(np.array(self._categories[series], np.int32))
        return arrays

    def future(self, series: int, cut: int) -> List[np.ndarray]:
        """Returns the values from a cut on, 0 where unknown, and flags of known ones, (H,) each."""
        value_H = np.full(self._form.horizon, np.nan)
        given_H = self._set.series[series].target_T[cut : cut + self._form.horizon]
        value_H[: len(given_H)] = given_H
        observed_H = ~np.isnan(value_H)
        return [np.where(observed_H, value_H, 0.0).astype(np.float32), observed_H.astype(np.float32)]


def missing_covariates(series_set: SeriesSet, names: Sequence[str], horizon: int) -> Optional[Tuple[int, str]]:
    """Returns index and reason of the first series whose covariates are not known for all steps to predict.

    Args:
        series_set: series to predict for, whose cut is behind their last value.
        names: names of the covariates.
        horizon: H.
    """
    if not names:
        return None
    for number, one in enumerate(series_set.series):
        lacking = len(one.target_T) + horizon - len(one.known_NC)
        if lacking > 0:
            first = series_set.grid.texts(np.array([one.first + len(one.known_NC)]))[0]
            return number, (
                f"the series '{one.name:.60}' needs {', '.join(names)} of {horizon} steps after its last value, and "
                f"{lacking} rows of them, from {first}, are missing: add rows with an empty value"
            )
    return None


def is_calendar(grid: TimeGrid) -> bool:
    """Returns True if the times of a grid are dates."""
    return grid.unit != STEP
