"""Times of interactions: numbers, of which larger ones are later, or dates as in ISO 8601."""

from __future__ import annotations

import datetime
from typing import Optional, Tuple

import numpy as np

from mxtrain.data.table.written_dates import read_date

_EPOCH = datetime.datetime(1970, 1, 1)
_FIRST, _LAST = ((limit - _EPOCH).total_seconds() for limit in (datetime.datetime.min, datetime.datetime(9999, 12, 31)))
_UNITS = {"seconds": 1.0, "milliseconds": 1e3, "microseconds": 1e6, "nanoseconds": 1e9}
"""Units of numbers since 1970, and how many are in a second."""
_EARLIEST, _LATEST = 1e8, 1e11
"""Range of the seconds that a unit is recognised by: from 1973 to 5138."""
NUMBER, DATE, ZONED = "a number", "a date", "a date with a time zone"
"""Forms of a cell. All cells of a column have one."""


def parse_date(text: str) -> Optional[Tuple[str, float]]:
    """Returns the form of a date and the seconds since 1970; None if the text is no date.

    Dates are year, month and day, with - or / between, perhaps with a time of day and a time zone. Dates without a zone
    count as UTC.
    """
    if text[4:5] == text[7:8] == "/":
        text = f"{text[:4]}-{text[5:7]}-{text[8:]}"
    try:
        date = read_date(text)
    except ValueError:
        return None
    if date is None:
        return None
    seconds = (date.clock - _EPOCH).total_seconds() + float(f"0.{date.fraction or 0}")
    return (DATE, seconds) if date.offset is None else (ZONED, seconds - 60 * date.offset)


def unit_of(number: float) -> str:
    """Returns the unit in which a number is a time since 1970; empty if it is none."""
    return next((unit for unit, scale in _UNITS.items() if _EARLIEST <= number / scale < _LATEST), "")


def describe_times(time_P: np.ndarray, are_dates: bool) -> str:
    """Returns a sentence on how the times of a file were read.

    Args:
        time_P: the times.
        are_dates: True for dates, in seconds since 1970.
    """
    low, high = float(time_P.min()), float(time_P.max())
    unit = "seconds" if are_dates else unit_of(low)
    if not unit or (not are_dates and unit_of(high) != unit):
        return f"times are numbers from {low:.15g} to {high:.15g}, of which larger ones are later"
    # A time zone can move a date out of the years that Python knows.
    numbers = (min(max(value / _UNITS[unit], _FIRST), _LAST) for value in (low, high))
    first, last = (_EPOCH + datetime.timedelta(seconds=number) for number in numbers)
    form = "dates" if are_dates else f"{unit} since 1970"
    return f"times are {form}: from {first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M} (UTC)"
