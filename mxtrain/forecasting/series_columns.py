"""Columns of tables of series in long and wide form, and series as JSON objects. Exported folders have a copy of this
module.

Legend: R rows, C covariates, S numbers of an item.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from mxtrain.data.table.missing_cells import MISSING_NUMBERS
from mxtrain.data.table.written_numbers import read_number
from mxtrain.forecasting.series_set import ONE_SERIES, OneSeries, SeriesRows, SeriesSet
from mxtrain.forecasting.time_grid import find_grid, parse_times

USUAL_NAMES: Dict[str, Tuple[str, ...]] = {
    "item": ("item_id", "item", "unique_id", "series", "series_id", "sku", "id"),
    "time": ("timestamp", "time", "datetime", "date", "ds", "start"),
    "target": ("target", "y", "value", "sales", "demand"),
}
"""Usual names of columns, in lower case, the most usual one first."""
OBSERVED = "past_feat_dynamic_real"
"""Key of GluonTS for covariates of the past alone."""
KEYS_OF_GLUONTS = {"feat_static_cat": "cat", "feat_dynamic_real": "dynamic_feat"}
"""Key in the JSON lines of GluonTS -> the same in those of SageMaker's DeepAR. Source: gluonts 0.17,
dataset/field_names.py."""
MAX_NUMBER = float(np.finfo(np.float32).max)
LONG, WIDE = "long", "wide"


@dataclass(frozen=True)
class SeriesColumns:
    """Columns of a table.

    Attributes:
        form: "long" = a row is one value of one series; "wide" = a row is one time, with a column for each series.
        time: column of times.
        item: column with the name of the series; None: the table has one series, or is wide.
        target: column of values; None in wide tables.
        series: columns that are series of a wide table.
        known: columns of covariates.
        observed: columns of covariates that are known for the past alone.
        static_numbers, static_texts: columns with numbers and texts of the item.
        missing: cells that mean a missing value.
        decimal: decimal sign of numbers.
    """

    form: str
    time: str
    item: Optional[str] = None
    target: Optional[str] = None
    series: Sequence[str] = ()
    known: Sequence[str] = ()
    observed: Sequence[str] = ()
    static_numbers: Sequence[str] = ()
    static_texts: Sequence[str] = ()
    missing: Sequence[str] = ()
    decimal: str = "."

    @property
    def names(self) -> List[str]:
        """Returns the columns that are read."""
        keys = [self.time, *(name for name in (self.item, self.target) if name is not None)]
        return [*keys, *self.series, *self.known, *self.observed, *self.static_numbers, *self.static_texts]

    def to_json(self) -> Dict[str, Any]:
        """Returns plain values."""
        return {
            name: list(value) if isinstance(value, (list, tuple)) else value for name, value in asdict(self).items()
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> SeriesColumns:
        """Returns the columns of what `to_json` returned."""
        return cls(**{each.name: values[each.name] for each in fields(cls) if each.name in values})


class CellProblem(NamedTuple):
    """A cell that is no number.

    Attributes:
        row: index of its row.
        fact: the problem, without the location of the row.
    """

    row: int
    fact: str


def usual_column(kind: str, names: Sequence[str]) -> Optional[str]:
    """Returns the column with the most usual name for "item", "time" or "target"; None if there is none."""
    lower = {name.strip().lower(): name for name in reversed(names)}
    return next((lower[usual] for usual in USUAL_NAMES[kind] if usual in lower), None)


class SeriesColumnSettings(NamedTuple):
    """Settings that say which columns of a table are read; None: found by their usual names.

    Attributes:
        form: "long", "wide", or "auto" = long if there is a column of values.
        item, time, target: names of columns.
        known, observed: covariates, and those of the past alone.
        static_numbers, static_texts: numbers and texts of the item.
        missing, decimal: as `SeriesColumns` has them.
    """

    form: str
    item: Optional[str]
    time: Optional[str]
    target: Optional[str]
    known: Sequence[str]
    static_numbers: Sequence[str]
    static_texts: Sequence[str]
    missing: Sequence[str]
    decimal: str
    observed: Sequence[str] = ()


def resolve_columns(names: Sequence[str], settings: SeriesColumnSettings) -> SeriesColumns:
    """Returns the columns of a table.

    Args:
        names: names of its columns.
        settings: which of them are read.

    Raises:
        ValueError: it is not clear which column is meant.
    """
    time = settings.time or _usual_or_refused("time", names)
    target = settings.target or (None if settings.form == WIDE else usual_column("target", names))
    common: Dict[str, Any] = {
        "time": time,
        "known": list(settings.known),
        "observed": list(settings.observed),
        "missing": list(settings.missing),
        "decimal": settings.decimal,
    }
    static = [*settings.static_numbers, *settings.static_texts]
    others = {"known": settings.known, "observed": settings.observed, "static": static}
    # As a covariate, the target would be known for the steps to predict.
    for kind, column in (("time", time), ("target", target)):
        setting = next((name for name, columns in others.items() if column in columns), "")
        if setting:
            raise ValueError(f"'{column}' is the column of dataset.{kind}, so it cannot be in dataset.{setting}")
    if time == target:
        raise ValueError(f"'{time}' is the column of dataset.time and of dataset.target. Name two columns")
    if target is None:
        # An unnamed column is the row number that pandas writes.
        covariates = (*settings.known, *settings.observed)
        series = [name for name in names if name.strip() and name != time and name not in covariates]
        if settings.form == LONG or settings.item or static or not series:
            _usual_or_refused("target", names)
        return SeriesColumns(WIDE, series=series, **common)
    item = settings.item or usual_column("item", [name for name in names if name not in (time, target)])
    item = None if any(item in columns for columns in others.values()) else item
    return SeriesColumns(
        LONG,
        item=item,
        target=target,
        static_numbers=list(settings.static_numbers),
        static_texts=list(settings.static_texts),
        **common,
    )


def _usual_or_refused(kind: str, names: Sequence[str]) -> str:
    found = usual_column(kind, names)
    if found is None:
        raise ValueError(
            f"no column is called {', '.join(USUAL_NAMES[kind])}. Name one by dataset.{kind}: "
            f"{', '.join(map(str, names[:20]))}"
        )
    return found


def rows_of_cells(
    cells: Sequence[Sequence[Optional[str]]], columns: SeriesColumns, location: Callable[[int], str]
) -> Tuple[SeriesRows, List[CellProblem]]:
    """Returns the rows of a table in long form, and cells that are no numbers, whose value is then missing.

    Args:
        cells: texts of `columns.names` of each row; None is a missing value.
        columns: columns of the table.
        location: function from the index of a row to where it is.
    """
    by_name = {name: [row[number] for row in cells] for number, name in enumerate(columns.names)}
    times = [(text or "").strip() for text in by_name[columns.time]]
    problems: List[CellProblem] = []

    def numbers(name: str, may_be_missing: Union[bool, np.ndarray] = False) -> np.ndarray:
        value_R, wrong = _numbers(name, by_name[name], columns, may_be_missing)
        problems.extend(wrong)
        return value_R

    value_columns = columns.series if columns.target is None else [columns.target]
    values = [_numbers(name, by_name[name], columns, True) for name in value_columns]
    has_no_value_R = np.all([np.isnan(value_R) for value_R, _ in values], axis=0)
    covariates = [numbers(name) for name in columns.known]
    covariates += [numbers(name, has_no_value_R) for name in columns.observed]
    known_RC = _side_by_side(covariates, len(cells))
    static_RS = _side_by_side([numbers(name) for name in columns.static_numbers], len(cells))
    categories = [[(text or "").strip() for text in by_name[name]] for name in columns.static_texts]
    items = [ONE_SERIES] * len(cells)
    if columns.item is not None:
        items = [(text or "").strip() for text in by_name[columns.item]]
        problems += [CellProblem(row, f"'{columns.item}' is empty") for row, item in enumerate(items) if not item]
    target_R = np.concatenate([value_R for value_R, _ in values])
    problems += [problem for _, wrong in values for problem in wrong]
    if columns.form == WIDE:
        count = len(columns.series)
        items = [name for name in columns.series for _ in times]
        rows = SeriesRows(
            items,
            times * count,
            target_R,
            np.tile(known_RC, (count, 1)),
            np.zeros((len(items), 0)),
            (),
            lambda row: location(row % max(len(times), 1)),
        )
        return rows, problems
    return SeriesRows(items, times, target_R, known_RC, static_RS, categories, location), problems


def _side_by_side(columns: Sequence[np.ndarray], length: int) -> np.ndarray:
    return np.stack(columns, axis=1) if columns else np.zeros((length, 0))


def _numbers(
    name: str, texts: Sequence[Optional[str]], columns: SeriesColumns, may_be_missing: Union[bool, np.ndarray]
) -> Tuple[np.ndarray, List[CellProblem]]:
    """Returns the numbers of a column, NaN where a cell is missing or is no number, and the problems of its cells.

    Args:
        name: name of the column.
        texts: its cells.
        columns: columns of the table.
        may_be_missing: whether cells may be missing, of all rows or of each, (R,).
    """
    value_R, may_be_missing_R = np.full(len(texts), math.nan), np.broadcast_to(may_be_missing, len(texts))
    problems = []
    missing = frozenset((*columns.missing, *MISSING_NUMBERS))
    for row, text in enumerate(texts):
        cell = (text or "").strip()
        number = None if text is None or cell in missing else read_number(cell, columns.decimal)
        if number is not None and abs(number.value) <= MAX_NUMBER:
            value_R[row] = number.value
        elif number is not None:
            problems.append(CellProblem(row, f"'{name}' is {cell:.40}, and numbers are at most {MAX_NUMBER:.1e}"))
        elif text is not None and cell not in missing:
            problems.append(CellProblem(row, f"'{name}' is '{cell:.40}', no number"))
        elif not may_be_missing_R[row]:
            problems.append(CellProblem(row, f"'{name}' is '{cell:.40}', a missing number"))
    return value_R, problems


def series_of_objects(
    objects: Sequence[Tuple[str, Any]],
    frequency: str,
    time_format: Optional[str],
    num_categories: Optional[int] = None,
    num_known: Optional[int] = None,
    num_observed: Optional[int] = None,
) -> SeriesSet:
    """Returns series of JSON objects in the form of SageMaker's DeepAR: start, target with null or "NaN" for missing
    values, and perhaps cat, dynamic_feat and item_id; or with GluonTS's names of cat and dynamic_feat. Values of
    dynamic_feat may go on behind those of the target; past_feat_dynamic_real has covariates of the past alone, one
    value for each of the target. Other keys are ignored, except covariates of GluonTS that this form does not have,
    which are errors.

    Args:
        objects: location and value of each object.
        frequency: distance of the values.
        time_format: form of the start; None: ISO 8601 or a whole number.
        num_categories, num_known, num_observed: numbers of cat, of dynamic_feat and of past_feat_dynamic_real; None:
            those of the first object.

    Raises:
        ValueError: an object has another form; the message has its location.
    """
    parts = []
    for location, value in objects:
        part = _parsed_object(location, value)
        num_categories = len(part["cat"]) if num_categories is None else num_categories
        num_known = len(part["dynamic_feat"]) if num_known is None else num_known
        num_observed = len(part[OBSERVED]) if num_observed is None else num_observed
        for key, count in (("cat", num_categories), ("dynamic_feat", num_known), (OBSERVED, num_observed)):
            if len(part[key]) != count:
                raise ValueError(f"{location}: {key} has {len(part[key])} values, and {count} are needed")
        parts.append(part)
    if not parts:
        raise ValueError("there is no series")
    time_N, has_calendar, wrong = parse_times([part["start"] for part in parts], time_format)
    for row, reason in wrong.items():
        raise ValueError(f"{objects[row][0]}: start is '{parts[row]['start']:.40}', {reason}")
    try:
        grid = find_grid(time_N, np.arange(len(time_N)), has_calendar, frequency)
    except ValueError as error:
        raise ValueError(f"{objects[0][0]}: {error}") from error
    index_N, is_on_N = grid.index(time_N)
    if not is_on_N.all():
        row = int(np.argmin(is_on_N))
        raise ValueError(
            f"{objects[row][0]}: start {parts[row]['start']} is not on the grid of the others, one {grid.name} apart "
            f"from {grid.texts(np.zeros(1))[0]}"
        )
    series, names = [], set()
    for row, part in enumerate(parts):
        name = part["item_id"] or f"series {row}"
        if name in names:
            raise ValueError(f"{objects[row][0]}: there is a series '{name:.60}' before it")
        names.add(name)
        target_T = part["target"]
        known_N = np.flatnonzero(~np.isnan(target_T))
        end = int(known_N[-1]) + 1 if len(known_N) else 0
        if not end:
            raise ValueError(f"{objects[row][0]}: target has no number")
        known_NC = np.array(part["dynamic_feat"], np.float32).T if num_known else np.zeros((end, 0), np.float32)
        if num_known and len(known_NC) < end:
            raise ValueError(f"{objects[row][0]}: dynamic_feat is shorter than target")
        if num_observed:
            observed_NC = np.full((len(known_NC), num_observed), np.nan, np.float32)
            observed_NC[:end] = np.array(part[OBSERVED], np.float32).T[:end]
            known_NC = np.concatenate([known_NC, observed_NC], axis=1)
        series.append(
            OneSeries(name, int(index_N[row]), target_T[:end], known_NC, np.zeros(0, np.float32), part["cat"], row)
        )
    return SeriesSet(grid, series)


def _parsed_object(location: str, value: Any) -> Dict[str, Any]:
    """Returns start, target, cat, dynamic_feat and item_id of an object."""
    if not isinstance(value, dict) or not {"start", "target"} <= set(value):
        raise ValueError(f'{location} is no object such as {{"start": "2024-01-01", "target": [1.5, null, 2]}}')
    value = _with_keys_of_deepar(location, value)
    start, target = value["start"], value["target"]
    if not isinstance(start, (str, int)) or isinstance(start, bool):
        raise ValueError(f"{location}: start must be a text")
    categories = [] if value.get("cat") is None else value["cat"]  # 0 is a category
    categories = categories if isinstance(categories, list) else [categories]
    if not all(isinstance(one, (int, str)) and not isinstance(one, bool) for one in categories):
        raise ValueError(f"{location}: cat must be a list of whole numbers")
    known_CN, observed_CN = (_covariates(location, key, value.get(key)) for key in ("dynamic_feat", OBSERVED))
    if observed_CN and isinstance(target, list) and len(observed_CN[0]) != len(target):
        raise ValueError(
            f"{location}: the lists of {OBSERVED} have {len(observed_CN[0])} values, and target has {len(target)}"
        )
    item = value.get("item_id", "")
    if not isinstance(item, (str, int)) or isinstance(item, bool):
        raise ValueError(f"{location}: item_id must be a text")
    return {
        "start": str(start),
        "target": _number_list(location, "target", target, True),
        "cat": [str(one) for one in categories],
        "dynamic_feat": known_CN,
        OBSERVED: observed_CN,
        "item_id": str(item),
    }


def _covariates(location: str, key: str, lists: Any) -> List[np.ndarray]:
    lists = [] if lists is None else lists
    if not isinstance(lists, list) or not all(isinstance(one, list) for one in lists):
        raise ValueError(f"{location}: {key} must be a list of lists")
    values = [_number_list(location, key, one, False) for one in lists]
    if len({len(one) for one in values}) > 1:
        raise ValueError(f"{location}: the lists of {key} have different lengths")
    return values


def _with_keys_of_deepar(location: str, value: Mapping[str, Any]) -> Mapping[str, Any]:
    for theirs, ours in KEYS_OF_GLUONTS.items():
        if ours in value and theirs in value:
            raise ValueError(f"{location} has both {ours} and {theirs}, which are the same")
    renamed = {KEYS_OF_GLUONTS.get(key, key): content for key, content in value.items()}
    for key, content in renamed.items():
        if content not in (None, []) and key.startswith(("feat_", "past_feat_")) and key != OBSERVED:
            raise ValueError(
                f"{location}: {key} is not read from lines of JSON; {', '.join(KEYS_OF_GLUONTS)} and {OBSERVED} are. "
                "dataset=time_series reads numbers of an item (dataset.static) from a table. Or remove the key"
            )
    return renamed


def _number_list(location: str, key: str, values: Any, may_be_missing: bool) -> np.ndarray:
    if not isinstance(values, list):
        raise ValueError(f"{location}: {key} must be a list of numbers")
    numbers = []
    for number, value in enumerate(values):
        is_missing = value is None or value == "NaN" or isinstance(value, float) and math.isnan(value)
        if not (is_missing and may_be_missing) and (
            isinstance(value, (bool, str)) or not isinstance(value, (int, float)) or not abs(value) <= MAX_NUMBER
        ):
            raise ValueError(f"{location}: value {number} of {key} is {value!r:.40}, no number below {MAX_NUMBER:.1e}")
        numbers.append(math.nan if is_missing else float(value))
    return np.array(numbers, np.float64)
