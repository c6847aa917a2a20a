"""Reads interactions (user, item, rating, time and line number) and titles of items from rows of files.

Legend: P interactions.
"""

from __future__ import annotations

import math
from array import array
from pathlib import Path
from typing import Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from mxtrain.data.checking.problems import (
    NOT_A_NUMBER,
    SHORT_ROW,
    UNREADABLE_ROW,
    DataLocation,
    DataLocations,
    Findings,
    Problem,
)
from mxtrain.data.loading.text_stream import open_text
from mxtrain.data.table.cells import MISSING_CELLS, number_of
from mxtrain.data.table.columns import PARQUET, location_of
from mxtrain.errors import DataError
from mxtrain.files.text_numbers import parse_number
from mxtrain.recommendation.catalog import Catalog
from mxtrain.recommendation.source import InteractionRows
from mxtrain.recommendation.times import DATE, NUMBER, ZONED, parse_date, unit_of

NumberedRows = Iterable[Tuple[int, Sequence[str]]]
"""Line or record number and cells of each row: user, item, then rating and time if present."""


class Columns(NamedTuple):
    """Optional columns of a row, after user and item.

    Attributes:
        has_rating, has_time: True if ratings and times follow, in this order.
        least: lowest rating that counts as an interaction; None = any.
        missing: cells that mean a missing id.
    """

    has_rating: bool
    has_time: bool
    least: Optional[float] = None
    missing: Tuple[str, ...] = MISSING_CELLS

    @property
    def names(self) -> List[str]:
        """Returns the names of all cells, for messages."""
        return ["user", "item", *(["rating"] if self.has_rating else []), *(["timestamp"] if self.has_time else [])]


def read_pairs(path: Path, rows: NumberedRows, columns: Columns, findings: Findings) -> InteractionRows:
    """Converts the rows of a file to interactions. Users and items are numbered in the order of first occurrence.

    Args:
        path: path of the file.
        rows: rows of the file.
        columns: columns of the rows.
        findings: collects unusable rows.

    Raises:
        DataError: there are no interactions.
    """
    users: Dict[str, int] = {}
    items: Dict[str, int] = {}
    # Arrays of C numbers: lists of Python's would take gigabytes for 20 million ratings.
    user_P, item_P, rating_P, time_P, number_P = array("l"), array("l"), array("f"), array("d"), array("l")
    times = TimeCells()
    for number, cells in rows:
        user, item, *numbers = (cell.strip() for cell in cells)
        date = parse_date(numbers[-1]) if columns.has_time else None
        problem = _what_is_wrong(user, item, numbers[: len(numbers) - (date is not None)], columns)
        if not problem and columns.has_time:
            problem = times.unlike(numbers[-1], date)
        if problem:
            kind, reason = problem
            location = location_of(path, number)
            findings.refuse(Problem(kind, location, f"{location}: {reason}", "Correct or remove the row."))
            continue
        values = [number_of(text) for text in numbers[: len(numbers) - (date is not None)]]
        if date is not None:
            values.append(date[1])
        if columns.least is not None and values[0] < columns.least:
            continue
        user_P.append(users.setdefault(user, len(users)))
        item_P.append(items.setdefault(item, len(items)))
        rating_P.append(values[0] if columns.has_rating else 1.0)
        if columns.has_time:
            time_P.append(values[-1])
        number_P.append(number)
    if not user_P:
        raise DataError(f"{path}: there is no interaction in it.")
    return InteractionRows(
        Catalog(tuple(users), tuple(items)),
        np.array(user_P, np.int32),
        np.array(item_P, np.int32),
        np.array(rating_P, np.float32),
        np.array(time_P, np.float64) if columns.has_time else None,
        DataLocations([str(path)], number_P, None, path.suffix == PARQUET),
        times.are_dates,
    )


def read_titles(path: Union[str, Path], rows: NumberedRows) -> Dict[str, str]:
    """Returns the titles of items by id.

    Args:
        path: path of the file.
        rows: line or record number of each row, and its cells: id and title. Rows without an id are ignored.

    Raises:
        DataError: an item has two titles.
    """
    title_of: Dict[str, str] = {}
    for number, cells in rows:
        id_, title = (cell.strip() for cell in cells)
        if id_ and title_of.setdefault(id_, title) != title:
            raise DataError(
                f"{location_of(path, number)}: item {id_} has the title '{title:.100}', and '{title_of[id_]:.100}' in "
                "a row before. Correct or remove one of them."
            )
    return title_of


class TimeCells:
    """Checks that all times of a file have one form, which the first one decides."""

    def __init__(self) -> None:
        self._form = self._unit = ""

    @property
    def are_dates(self) -> bool:
        """Returns True if the times are dates."""
        return self._form in (DATE, ZONED)

    def unlike(self, text: str, date: Optional[Tuple[str, float]]) -> Optional[Tuple[str, str]]:
        """Returns kind and reason if a time has another form than the first one; None if it has the same.

        Args:
            text: the cell, which is a number or a date.
            date: result of `parse_date`.
        """
        form = date[0] if date else NUMBER
        unit = "" if date else unit_of(number_of(text))
        self._form, self._unit = self._form or form, self._unit or unit
        if form != self._form:
            return NOT_A_NUMBER, f"its timestamp {text} is {form}, and the first one is {self._form}."
        if unit and unit != self._unit:
            return NOT_A_NUMBER, f"its timestamp {text} is like {unit} since 1970, and earlier ones like {self._unit}."
        return None


def _what_is_wrong(user: str, item: str, numbers: Sequence[str], columns: Columns) -> Optional[Tuple[str, str]]:
    for side, id_ in (("user", user), ("item", item)):
        if id_ in columns.missing or not id_:
            return UNREADABLE_ROW, f"its {side} is {repr(id_) + ', a missing value' if id_ else 'empty'}."
    for name, text in zip(columns.names[2:], numbers):
        value = parse_number(text, allow_special=True)
        if value is None:
            date = " and no date such as 2024-01-31 or 2024-01-31T18:30:00Z" if name == "timestamp" else ""
            return NOT_A_NUMBER, f"its {name} '{text}' is no number{date}."
        if not math.isfinite(value) or abs(value) > 1e38:
            return NOT_A_NUMBER, f"its {name} {text} is no finite number that a 32-bit float can be."
    return None


def separated_rows(path: Path, separator: str, count: int, findings: Findings) -> Iterator[Tuple[int, List[str]]]:
    """Yields the line number of each row, from 1, and its first cells, for a file without header and with a separator.

    Args:
        path: path of the file.
        separator: "::" or a tab.
        count: number of cells that are read; further ones are ignored.
        findings: collects rows that are too short.
    """
    separator_name = {"\t": "tabs", "::": "'::'"}[separator]
    with open_text(path, "\n", findings) as lines:
        for number, line in enumerate(lines, start=1):
            cells = line.rstrip("\r\n").split(separator)
            if cells == [""]:
                continue
            if len(cells) < count:
                location = DataLocation(str(path), number)
                fact = f"{location}: it has {len(cells)} columns between {separator_name}, and {count} are needed."
                findings.refuse(Problem(SHORT_ROW, location, fact, "Complete or remove it."))
                continue
            yield number, cells[:count]
