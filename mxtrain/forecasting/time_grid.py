"""Regular grids of time: hours, days, months and so on. Exported folders have a copy of this module.

Times are seconds since 1970 without a time zone, or whole numbers of steps without a calendar.

Legend: N times, K features of a time.
"""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from mxtrain.data.table.written_dates import read_date

DAY = 86400
SECONDS = {"s": 1, "min": 60, "h": 3600, "D": DAY, "W": 7 * DAY}
"""Length of the units that always have the same length."""
MONTHS = {"M": 1, "Q": 3, "Y": 12}
BUSINESS, STEP = "B", "step"
UNITS = (*SECONDS, BUSINESS, *MONTHS, STEP)
WORDS = {
    "s": "second",
    "min": "minute",
    "h": "hour",
    "D": "day",
    "W": "week",
    "B": "business day",
    "M": "month",
    "Q": "quarter",
    "Y": "year",
    "step": "step",
}
_PANDAS = {"H": "h", "T": "min", "S": "s", "A": "Y", "MS": "M", "ME": "M", "QS": "Q", "QE": "Q", "YS": "Y", "YE": "Y"}
"""Names of pandas for the same units."""
_NAME = re.compile(r"([0-9]{0,6})([A-Za-z]+)(?:-[A-Z]{3})?")
_EPOCH = datetime.datetime(1970, 1, 1)


@dataclass(frozen=True)
class TimeGrid:
    """Equally spaced times.

    Attributes:
        unit: one of `UNITS`.
        count: units between two times.
        origin: time with index 0.
    """

    unit: str
    count: int
    origin: int

    @property
    def name(self) -> str:
        """Returns the distance of two times, e.g. "h" or "15min"."""
        return f"{self.count if self.count > 1 else ''}{self.unit}"

    @property
    def season(self) -> int:
        """Returns the usual number of steps after which values repeat: a day, a week or a year; 1 if there is none."""
        if self.unit in ("s", "min", "h", "D"):
            seconds = SECONDS[self.unit] * self.count
            return _whole(DAY if seconds < DAY else 7 * DAY, seconds)
        whole = {BUSINESS: 5, "W": 52, "M": 12, "Q": 4}.get(self.unit, 1)
        return _whole(whole, self.count)

    def index(self, time_N: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
        """Returns the index of each time, and whether the time is on the grid."""
        if self.unit == STEP or self.unit in SECONDS:
            step = self.count * SECONDS.get(self.unit, 1)
            index_N, rest_N = np.divmod(time_N - self.origin, step)
            return index_N, rest_N == 0
        day_N, second_N = np.divmod(time_N, DAY)
        origin_day, origin_second = divmod(self.origin, DAY)
        if self.unit == BUSINESS:
            is_fit_N = np.is_busday(day_N.astype("datetime64[D]"))
            count_N = np.busday_count(np.datetime64(origin_day, "D"), day_N.astype("datetime64[D]"))
        else:
            month_N = day_N.astype("datetime64[D]").astype("datetime64[M]")
            count_N = month_N.astype(np.int64) - int(np.datetime64(origin_day, "D").astype("datetime64[M]").astype(int))
            is_fit_N = day_N == self._day_in(month_N)
        index_N, rest_N = np.divmod(count_N, self.count * MONTHS.get(self.unit, 1))
        return index_N, is_fit_N & (rest_N == 0) & (second_N == origin_second)

    def times(self, index_N: np.ndarray) -> np.ndarray:
        """Returns the time of each index."""
        if self.unit == STEP or self.unit in SECONDS:
            return self.origin + index_N * (self.count * SECONDS.get(self.unit, 1))
        origin_day, origin_second = divmod(self.origin, DAY)
        if self.unit == BUSINESS:
            first = np.datetime64(origin_day, "D")
            day_N = np.busday_offset(first, index_N * self.count, roll="forward").astype(np.int64)
        else:
            first_month = np.datetime64(origin_day, "D").astype("datetime64[M]")
            day_N = self._day_in(first_month + index_N * (self.count * MONTHS[self.unit]))
        return day_N * DAY + origin_second

    def _day_in(self, month_N: np.ndarray) -> np.ndarray:
        """Returns the day since 1970 of the grid in each month: the last one if the origin is one."""
        origin = np.datetime64(self.origin // DAY, "D")
        month = origin.astype("datetime64[M]")
        number = int((origin - month.astype("datetime64[D]")).astype(int))
        is_last = (origin + 1).astype("datetime64[M]") != month
        first_N = month_N.astype("datetime64[D]").astype(np.int64)
        last_N = (month_N + 1).astype("datetime64[D]").astype(np.int64) - 1
        return last_N if is_last else np.minimum(first_N + number, last_N)

    def texts(self, index_N: np.ndarray) -> List[str]:
        """Returns the times as they are written: a date alone where the time of day is midnight on the whole grid."""
        time_N = self.times(np.asarray(index_N, np.int64))
        if self.unit == STEP:
            return [str(time) for time in time_N.tolist()]
        is_date = self.unit not in ("s", "min", "h") and self.origin % DAY == 0
        texts = np.datetime_as_string(time_N.astype("datetime64[s]"), unit="D" if is_date else "s")
        return [text.replace("T", " ") for text in texts.tolist()]

    def features(self, index_N: np.ndarray) -> np.ndarray:
        """Returns the calendar of each time, (N, K): sine and cosine of its place in the day, week and year, and
        whether it is a weekend, as far as they differ on the grid; a constant if nothing does."""
        if self.unit in (STEP, "Y"):
            return np.ones((len(index_N), 1), np.float32)
        time_N = self.times(index_N)
        day_N = time_N // DAY
        date_N = day_N.astype("datetime64[D]")
        year_N = date_N.astype("datetime64[Y]")
        place_N = (date_N - year_N.astype("datetime64[D]")).astype(np.int64) / 365.25
        angles = [place_N]
        further = []
        if self.unit not in ("M", "Q", "W"):
            weekday_N = (day_N + 3) % 7  # 1970 began with a Thursday
            angles.append(weekday_N / 7)
            further.append(weekday_N >= 5)
        if self.unit in ("s", "min", "h"):
            angles += [(time_N % DAY) / DAY, 2 * (time_N % DAY) / DAY]
        waves = [wave(2 * np.pi * angle_N) for angle_N in angles for wave in (np.sin, np.cos)]
        return np.stack([*waves, *further], axis=1).astype(np.float32)

    @property
    def num_features(self) -> int:
        """Returns K of `features`."""
        return self.features(np.zeros(1, np.int64)).shape[1]


def _whole(length: int, step: int) -> int:
    """Returns the number of steps in a season; 1 if it is no whole number."""
    return length // step if length % step == 0 else 1


def describe_grid(name: str) -> str:
    """Returns the distance of two times in words, e.g. "15 minutes"."""
    count, unit = parse_frequency(name)
    return WORDS[unit] if count == 1 else f"{count} {WORDS[unit]}s"


def parse_frequency(name: str) -> Tuple[int, str]:
    """Returns count and unit of a frequency such as "h", "15min" or "MS"; names of pandas are read, too.

    Raises:
        ValueError: it is no frequency; says what is.
    """
    match = _NAME.fullmatch(name)
    unit = match and (match[2] if match[2] in UNITS else _PANDAS.get(match[2]))
    count = int(match[1] or 1) if match else 0
    if not unit or not count:
        known = ", ".join(f"{one} ({WORDS[one]})" for one in UNITS)
        raise ValueError(f"'{name:.40}' is no frequency. Allowed are {known}, with a number in front, such as 15min")
    return count, unit


def find_grid(time_N: np.ndarray, series_N: np.ndarray, has_calendar: bool, name: Optional[str] = None) -> TimeGrid:
    """Finds the grid of the times of one or more series: the most frequent distance of neighbours decides.

    Args:
        time_N: times, ascending within each series.
        series_N: number of the series of each time, ascending.
        has_calendar: True if the times are seconds since 1970, not steps.
        name: frequency that is known; None: it is found.

    Raises:
        ValueError: no series has two different times.
    """
    if name is not None:
        count, unit = parse_frequency(name)
        if (unit == STEP) == has_calendar:
            kind = "dates and times" if has_calendar else "whole numbers"
            raise ValueError(f"the frequency {name} does not fit: the times are {kind}")
        return TimeGrid(unit, count, _origin(unit, count, time_N))
    is_next_N = (series_N[1:] == series_N[:-1]) & (time_N[1:] > time_N[:-1])
    if not is_next_N.any():
        raise ValueError("no series has two different times, so their distance is not known")
    if not has_calendar:
        count = _most_frequent((time_N[1:] - time_N[:-1])[is_next_N])
        return TimeGrid(STEP, count, _origin(STEP, count, time_N))
    monthly = _monthly_grid(time_N, is_next_N)
    if monthly is not None:
        return monthly
    step = _most_frequent((time_N[1:] - time_N[:-1])[is_next_N])
    if step % DAY:
        unit = next(unit for unit in ("h", "min", "s") if step % SECONDS[unit] == 0)
        return TimeGrid(unit, step // SECONDS[unit], _origin(unit, step // SECONDS[unit], time_N))
    days = step // DAY
    has_weekends = ((time_N // DAY + 3) % 7 >= 5).any()
    covers_weekends = ((time_N[1:] - time_N[:-1])[is_next_N] >= 3 * DAY).any()
    if days == 1 and not has_weekends and covers_weekends:
        return TimeGrid(BUSINESS, 1, _origin(BUSINESS, 1, time_N))
    unit, count = ("W", days // 7) if days % 7 == 0 else ("D", days)
    return TimeGrid(unit, count, _origin(unit, count, time_N))


def _origin(unit: str, count: int, time_N: np.ndarray) -> int:
    """Returns the time with index 0, whose grid has most of the times.

    For months, the most frequent and the largest day of the month are tried, because the grid of January 30 has
    February 28 as well; both as the last day of a month and as another one, because February 28 may be either.
    """
    if unit in SECONDS or unit == STEP:
        rest_N = time_N % (count * SECONDS.get(unit, 1))
        return int(time_N[rest_N == _most_frequent(rest_N)].min())
    if unit == BUSINESS:
        return int(time_N.min())
    day_N = (time_N // DAY).astype("datetime64[D]")
    month_N = day_N.astype("datetime64[M]")
    number_N = (day_N - month_N.astype("datetime64[D]")).astype(np.int64)
    is_last_N = (day_N + 1).astype("datetime64[M]") != month_N
    candidates = [
        time_N[(number_N == number) & (is_last_N == is_last)]
        for number in (_most_frequent(number_N), int(number_N.max()))
        for is_last in (True, False)
    ]
    origins = [int(time_C.min()) for time_C in candidates if len(time_C)]
    return max(origins, key=lambda origin: int(TimeGrid("M", 1, origin).index(time_N)[1].sum()))


def _monthly_grid(time_N: np.ndarray, is_next_N: np.ndarray) -> Optional[TimeGrid]:
    """Returns the grid of times that are on one day of the month, or on its last; None if most of them are not."""
    month_N = (time_N // DAY).astype("datetime64[D]").astype("datetime64[M]").astype(np.int64)
    months_N = (month_N[1:] - month_N[:-1])[is_next_N]
    months = _most_frequent(months_N)
    if months < 1:
        return None
    grid = TimeGrid("M", months, _origin("M", months, time_N))
    # Steps of 28 to 31 days are as common among weeks as among months, so all times must be on the grid of months.
    if not grid.index(time_N)[1].all() and not TimeGrid("M", 1, grid.origin).index(time_N)[1].mean() > 0.9:
        return None
    unit = next(unit for unit in ("Y", "Q", "M") if months % MONTHS[unit] == 0)
    return TimeGrid(unit, months // MONTHS[unit], grid.origin)


def _most_frequent(step_N: np.ndarray) -> int:
    """Returns the most frequent of some numbers; the smallest of several."""
    steps, counts = np.unique(step_N, return_counts=True)
    return int(steps[np.argmax(counts)])


def parse_times(texts: Sequence[str], time_format: Optional[str] = None) -> Tuple[np.ndarray, bool, Dict[int, str]]:
    """Parses times of one column.

    Args:
        texts: dates and times as ISO 8601 writes them, or whole numbers of steps.
        time_format: form of other dates and times, as `datetime.strptime` takes it; None: ISO 8601.

    Returns:
        Times (N,) int64, 0 for a text that is no time; whether they are seconds since 1970; and by index the reason why
        a text is no time.
    """
    unique, place_N = np.unique(np.asarray(texts, object).astype(str), return_inverse=True)
    wrong: Dict[str, str] = {}
    steps = [_step_of(text) for text in unique.tolist()]
    has_calendar = time_format is not None or not any(step is not None for step in steps)
    values: List[int] = []
    zones: Dict[str, str] = {}
    for text, step in zip(unique.tolist(), steps):
        value: Any = step if not has_calendar else _seconds_of(text, time_format, zones)
        if isinstance(value, str) or value is None:
            wrong[text] = value or "no whole number, as other times of the column are"
            value = 0
        values.append(value)
    if len(zones) > 1:
        (first, _), (second, text) = list(zones.items())[:2]
        wrong.setdefault(text, f"at the offset {second or 'of no zone'}, and others are at {first or 'none'}")
    reasons = {index: wrong[text] for index, text in enumerate(texts) if text in wrong} if wrong else {}
    return np.array(values, np.int64)[place_N], has_calendar, reasons


def _step_of(text: str) -> Optional[int]:
    match = re.fullmatch(r"\s*([+-]?[0-9]{1,15})(\.0*)?\s*", text, re.ASCII)
    return int(match[1]) if match else None


def _seconds_of(text: str, time_format: Optional[str], zones: Dict[str, str]) -> Any:
    """Returns seconds since 1970, or the reason why a text is no time; adds its offset of a zone to `zones`."""
    try:
        if time_format is not None:
            clock = datetime.datetime.strptime(text.strip(), time_format)
            if clock.tzinfo is not None:
                zones.setdefault(str(clock.utcoffset()), text)
            clock, has_part = clock.replace(tzinfo=None), clock.microsecond > 0
        else:
            date = read_date(text.strip(), partial=True)
            if date is None:
                return "no time such as 2024-01-31 or 2024-01-31 13:00:00"
            zones.setdefault(_offset_text(date.offset), text)
            clock, has_part = date.clock, date.fraction.strip("0") != ""
    except (ValueError, OverflowError) as error:
        return f"no time: {error}"
    if has_part:
        return "a part of a second, and the smallest unit is a second"
    return int((clock - _EPOCH).total_seconds())


def _offset_text(minutes: Optional[int]) -> str:
    """Returns an offset from UTC as ISO 8601 writes it; empty if there is none."""
    if not minutes:
        return "" if minutes is None else "Z"
    return f"{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02}:{abs(minutes) % 60:02}"
