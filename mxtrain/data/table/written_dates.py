"""Reads dates and times as ISO 8601 writes them. Exported folders have a copy of this module."""

from __future__ import annotations

import datetime
import re
from typing import NamedTuple, Optional

_ISO = re.compile(
    r"([0-9]{4})-([0-9]{2})(?:-([0-9]{2})(?:[T ]([0-9]{2})(?::([0-9]{2})(?::([0-9]{2})(?:[.,]([0-9]{1,9}))?)?)?)?)?"
    r"(?: ?(Z|UTC|[+-][0-9]{2}:?[0-9]{2}))?",
    re.ASCII,
)
_LARGEST_OFFSET_HOURS = 15


class WrittenDate(NamedTuple):
    """A date, perhaps with a time and an offset from UTC.

    Attributes:
        clock: date and time as they are written, without a part of a second.
        has_time: True if a time is written.
        fraction: digits of the part of a second; often empty.
        offset: difference to UTC in minutes; None: none is written.
    """

    clock: datetime.datetime
    has_time: bool
    fraction: str
    offset: Optional[int]


def read_date(text: str, partial: bool = False) -> Optional[WrittenDate]:
    """Reads a date such as 2024-01-31, perhaps with a time; returns None if the text has another form.

    Args:
        text: the text.
        partial: True to also read a month, an hour without minutes, and a date with an offset from UTC but no time.

    Raises:
        ValueError: there is no such date, time or offset.
    """
    match = _ISO.fullmatch(text)
    if match is None:
        return None
    year, month, day, hour, minute, second, fraction, zone = match.groups()
    if not partial and (day is None or (hour is None) != (minute is None) or (zone is not None and hour is None)):
        return None
    clock = datetime.datetime(int(year), int(month), int(day or 1), int(hour or 0), int(minute or 0), int(second or 0))
    return WrittenDate(clock, hour is not None, fraction or "", None if zone is None else _minutes_of(zone))


def _minutes_of(zone: str) -> int:
    if zone in ("Z", "UTC"):
        return 0
    hours, minutes = int(zone[1:3]), int(zone[-2:])
    if hours > _LARGEST_OFFSET_HOURS or minutes > 59:
        raise ValueError(f"the offset {zone} from UTC is none of a time zone")
    return (60 * hours + minutes) * (-1 if zone[0] == "-" else 1)
