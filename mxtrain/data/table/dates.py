"""Dates and times in the cells of a table as numbers. Exported folders have a copy of this module.

A column of dates becomes several columns of numbers, whose names have the name of the column and a part: the trend in
years, and sine and cosine of the place in the year, in the week and in the day, so that December is near January.
"""

from __future__ import annotations

import datetime
import math
from typing import Dict, List, Optional, Sequence, Tuple

from mxtrain.data.table.written_dates import read_date

PARTS = ("trend", "month", "weekday", "hour")
"""Parts of a date that are features: all but the trend are cyclic, with two numbers."""
FORM = "dates as 2026-01-31, with a time as 2026-01-31 18:30, and an offset as 2026-01-31T18:30:00+01:00"
_SEPARATOR = "\0date "
"""Between column and part in the name of a feature; no column can have such a name."""
_ORIGIN = datetime.datetime(2000, 1, 1)
_DAYS_PER_YEAR = 365.25


def features_of(column: str, parts: Sequence[str]) -> List[str]:
    """Returns the names of the features of a column of dates."""
    suffixes: List[str] = []
    for part in PARTS:
        if part in parts:
            suffixes += ["trend"] if part == "trend" else [f"{part} sine", f"{part} cosine"]
    return [f"{column}{_SEPARATOR}{suffix}" for suffix in suffixes]


def split_feature(name: str) -> Tuple[str, str]:
    """Returns column and part of a feature; an empty part if it is no part of a date."""
    column, _, part = name.partition(_SEPARATOR)
    return column, part


def shown_feature(name: str) -> str:
    """Returns the name of a feature for messages."""
    column, part = split_feature(name)
    return f"{part} of {column}" if part else name


def columns_read(names: Sequence[str]) -> List[str]:
    """Returns the columns of a file that features are read from, each once."""
    return list(dict.fromkeys(split_feature(name)[0] for name in names))


class Moment:
    """A date, perhaps with a time and an offset from UTC.

    Args:
        clock: date and time as they are written.
        offset: difference to UTC in minutes; None = none is written.
        has_time: True if a time is written.
    """

    def __init__(self, clock: datetime.datetime, offset: Optional[int], has_time: bool) -> None:
        self.clock, self.offset, self.has_time = clock, offset, has_time

    def part(self, part: str) -> float:
        """Returns a feature: the trend in years since 2000 in UTC, or a cyclic part by the clock as it is written."""
        clock = self.clock
        if part == "trend":
            passed = clock - _ORIGIN - datetime.timedelta(minutes=self.offset or 0)
            return passed.total_seconds() / 86400 / _DAYS_PER_YEAR
        hours = clock.hour + clock.minute / 60 + clock.second / 3600
        days_of_year = 366 if clock.year % 4 == 0 and (clock.year % 100 != 0 or clock.year % 400 == 0) else 365
        share = {
            "month": (clock.timetuple().tm_yday - 1) / days_of_year,
            "weekday": clock.weekday() / 7,
            "hour": hours / 24,
        }[part.split(" ")[0]]
        angle = 2 * math.pi * share
        return math.sin(angle) if part.endswith("sine") and not part.endswith("cosine") else math.cos(angle)


def read_moment(text: str) -> Optional[Moment]:
    """Returns the date and time in a cell in ISO 8601; None if it has another form or is no date of the calendar."""
    try:
        date = read_date(text)
    except ValueError:
        return None
    return None if date is None else Moment(date.clock, date.offset, date.has_time)


def missing_part(part: str) -> float:
    """Returns a feature of a missing date: an unknown trend, and no place in the cycles."""
    return math.nan if part == "trend" else 0.0


def guessed_parts(texts: Sequence[str]) -> List[str]:
    """Returns the parts that dates vary in: the hour only if a cell has a time."""
    moments = [read_moment(text) for text in texts[:1000]]
    has_time = any(moment is not None and moment.has_time for moment in moments)
    return [part for part in PARTS if part != "hour" or has_time]


class DateColumn:
    """Reads the cells of a column of dates, of which either all have an offset from UTC or none.

    Args:
        name: name of the column.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._has_offset: Optional[bool] = None
        self._known: Dict[str, Tuple[Optional[Moment], str]] = {}

    def read(self, text: str) -> Tuple[Optional[Moment], str]:
        """Returns the moment in a cell, or the reason why there is none, as a sentence."""
        found = self._known.get(text)
        if found is None:
            found = self._read(text)
            if len(self._known) < 100_000:
                self._known[text] = found
        return found

    def _read(self, text: str) -> Tuple[Optional[Moment], str]:
        moment = read_moment(text)
        if moment is None:
            return None, f"'{self._name}' is '{text:.60}', no date; allowed are {FORM}."
        has_offset = moment.offset is not None
        if moment.has_time and self._has_offset is None:
            self._has_offset = has_offset
        if moment.has_time and has_offset != self._has_offset:
            has = (
                "an offset from UTC, which cells before lack"
                if has_offset
                else "no offset from UTC, as cells before have"
            )
            return None, f"'{self._name}' is '{text:.60}', with {has}."
        return moment, ""
