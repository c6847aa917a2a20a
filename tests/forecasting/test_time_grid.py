"""Times of series: frequencies that are found, their calendars, and texts that are no times."""

from __future__ import annotations

from typing import List, Optional

import numpy as np
import pytest

from mxtrain.forecasting.time_grid import TimeGrid, describe_grid, find_grid, parse_frequency, parse_times

DAYS = ["2024-01-01", "2024-01-02", "2024-01-03", "2024-01-04", "2024-01-05"]


@pytest.mark.parametrize(
    "texts, name, season, index",
    [
        (["2024-01-31", "2024-02-29", "2024-03-31"], "M", 12, [0, 1, 2]),
        (["2024-01-30", "2024-02-29", "2024-03-30"], "M", 12, [0, 1, 2]),
        (["2024-01-01", "2024-04-01", "2024-10-01"], "Q", 4, [0, 1, 3]),
        # The first day is the last one of its month, and not because the others are.
        (["2023-02-28", "2023-03-28", "2023-04-28"], "M", 12, [-1, 0, 1]),
        (["2023-04-30", "2023-05-30", "2023-06-30", "2023-07-30"], "M", 12, [-1, 0, 1, 2]),
        (["2023-02-28", "2024-02-28", "2025-02-28"], "Y", 1, [-1, 0, 1]),
        (["2020-05", "2021-05", "2023-05", "2024-05"], "Y", 1, [0, 1, 3, 4]),
        ([*DAYS, "2024-01-08"], "B", 5, [0, 1, 2, 3, 4, 5]),
        ([*DAYS, "2024-01-06"], "D", 7, [0, 1, 2, 3, 4, 5]),
        (DAYS, "D", 7, [0, 1, 2, 3, 4]),
        (["2024-01-07", "2024-01-14", "2024-01-28", "2024-02-04"], "W", 52, [0, 1, 3, 4]),
        (["2024-01-01", "2024-01-04", "2024-01-07"], "3D", 1, [0, 1, 2]),
        (["2024-01-01T00:15", "2024-01-01 00:30:00", "2024-01-01 01:00:00.000"], "15min", 96, [0, 1, 3]),
        (["2024-01-01 00", "2024-01-01 06", "2024-01-01 12"], "6h", 4, [0, 1, 2]),
        (["2024-01-01 00", "2024-01-01 05", "2024-01-01 10"], "5h", 1, [0, 1, 2]),
        (["2024-01-01T00:00:00Z", "2024-01-01T00:00:01+00:00"], "s", 86400, [0, 1]),
        (["5", "7.0", "9", "13"], "2step", 1, [0, 1, 2, 4]),
    ],
)
def test_the_frequency_is_found(texts: List[str], name: str, season: int, index: List[int]) -> None:
    time_N, has_calendar, wrong = parse_times(texts)
    grid = find_grid(time_N, np.zeros(len(texts), int), has_calendar)
    found_N, is_on_N = grid.index(time_N)
    assert (grid.name, grid.season, found_N.tolist()) == (name, season, index)
    assert is_on_N.all() and wrong == {} and has_calendar == (name != "2step")
    np.testing.assert_array_equal(grid.times(found_N), time_N)
    assert grid.features(np.arange(-3, 9)).shape == (12, grid.num_features)


def test_one_odd_time_does_not_decide_the_frequency() -> None:
    time_N, _, _ = parse_times([*DAYS, "2024-01-06 07:00:00"])
    grid = find_grid(time_N, np.zeros(6, int), True)
    assert grid.name == "D" and grid.index(time_N)[1].tolist() == [True] * 5 + [False]


@pytest.mark.parametrize(
    "texts, known",
    [
        (["2023-12-31 07:00:00", *DAYS], None),
        (["2023-12-31 07:00:00", *DAYS], "D"),
        (["2024-01-01 00:10", *(f"2024-01-01 0{hour}" for hour in range(1, 6))], None),
        (["1", "4", "6", "8", "10", "12"], None),
    ],
)
def test_an_odd_first_time_is_the_one_off_the_grid(texts: List[str], known: Optional[str]) -> None:
    time_N, has_calendar, _ = parse_times(texts)
    grid = find_grid(time_N, np.zeros(6, int), has_calendar, known)
    assert grid.index(time_N)[1].tolist() == [False] + [True] * 5
    assert grid.index(time_N)[0].tolist()[1:] == [0, 1, 2, 3, 4]


def test_one_odd_day_does_not_make_months_days() -> None:
    texts = [f"20{year}-{month:02}-01" for year in (20, 21) for month in range(1, 13)]
    time_N, _, _ = parse_times([*texts[:12], "2021-01-02", *texts[13:]])
    grid = find_grid(time_N, np.zeros(24, int), True)
    assert grid.name == "M" and np.flatnonzero(~grid.index(time_N)[1]).tolist() == [12]


def test_series_are_not_neighbours_of_each_other() -> None:
    time_N, _, _ = parse_times(["2024-01-01", "2024-01-08", "2024-01-09", "2024-01-16"])
    assert find_grid(time_N, np.array([0, 0, 1, 1]), True).name == "W"
    with pytest.raises(ValueError, match="no series has two different times"):
        find_grid(time_N, np.arange(4), True)


def test_a_known_frequency_is_taken() -> None:
    time_N, _, _ = parse_times(["2024-01-31", "2024-03-31", "2024-04-30"])
    grid = find_grid(time_N, np.zeros(3, int), True, "ME")
    assert grid.index(time_N)[0].tolist() == [0, 2, 3] and grid.texts(np.arange(3)) == [
        "2024-01-31",
        "2024-02-29",
        "2024-03-31",
    ]
    with pytest.raises(ValueError, match="does not fit: the times are dates and times"):
        find_grid(time_N, np.zeros(3, int), True, "step")
    with pytest.raises(ValueError, match="does not fit: the times are whole numbers"):
        find_grid(np.arange(3), np.zeros(3, int), False, "h")


@pytest.mark.parametrize(
    "name, parsed", [("h", (1, "h")), ("15T", (15, "min")), ("MS", (1, "M")), ("W-SUN", (1, "W")), ("2B", (2, "B"))]
)
def test_names_of_pandas_are_frequencies(name: str, parsed: object) -> None:
    assert parse_frequency(name) == parsed


@pytest.mark.parametrize("name", ["", "0h", "hour", "h2", "1.5h", "-1D"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"is no frequency. Allowed are s \(second\), min"):
        parse_frequency(name)


def test_features_follow_the_calendar() -> None:
    hours = TimeGrid("h", 1, 0)  # from Thursday, 1970-01-01
    first, noon, saturday = hours.features(np.array([0, 12, 48]))
    np.testing.assert_allclose(first[2:4], [np.sin(6 * np.pi / 7), np.cos(6 * np.pi / 7)], atol=1e-6)
    assert (first[8], saturday[8]) == (0, 1), "Saturday is a weekend"
    np.testing.assert_allclose(noon[4:8], [0, -1, 0, 1], atol=1e-5)
    np.testing.assert_allclose(first[4:8], [0, 1, 0, 1], atol=1e-5)
    assert TimeGrid("Y", 1, 0).features(np.arange(2)).tolist() == [[1], [1]]
    months = TimeGrid("M", 1, 0).features(np.arange(12))
    assert months.shape == (12, 2) and len(np.unique(months, axis=0)) == 12


@pytest.mark.parametrize(
    "text, reason",
    [
        ("31/12/2024", "no time such as 2024-01-31"),
        ("2024-02-30", "no time:"),
        ("2024-01-01 00:00:00.5", "a part of a second, and the smallest unit is a second"),
        ("2024-01-01 00:00:60", "no time: second must be"),
        ("2024-01-01 00:00:00+16:00", "no time: the offset +16:00 from UTC is none of a time zone"),
        ("2024-01-01T00:00:00+02:00", "at the offset +02:00, and others are at none"),
        ("", "no time such as"),
    ],
)
def test_a_wrong_time_is_named(text: str, reason: str) -> None:
    time_N, has_calendar, wrong = parse_times(["2024-01-01", text, "2024-01-03"])
    assert has_calendar and list(wrong) == [1] and reason in wrong[1]
    assert time_N[[0, 2]].tolist() == [1704067200, 1704240000]


def test_offsets_are_the_same_in_all_forms() -> None:
    texts = ["2024-01-01 00:30+0100", "2024-01-01T01:30:00+01:00", "2024-01-01 02+0100", "2024-01-02+01:00"]
    time_N, _, wrong = parse_times(texts)
    assert np.diff(time_N).tolist() == [3600, 1800, 79200] and not wrong, "times are those of the clock"
    utc = ["2024-01-01T00:00Z", "2024-01-01 01:00 UTC", "2024-01-01 02:00-00:00"]
    assert not parse_times(utc)[2]
    _, _, wrong = parse_times(["2024-01-01 00:00+0100", "2024-01-01 00:00-0130"])
    assert list(wrong.values()) == ["at the offset -01:30, and others are at +01:00"]


def test_numbers_and_dates_do_not_mix() -> None:
    time_N, has_calendar, wrong = parse_times(["1", "2024-01-01"])
    assert time_N.tolist() == [1, 0], "0 where there is no time"
    assert not has_calendar and wrong == {1: "no whole number, as other times of the column are"}


def test_a_form_of_times_is_read() -> None:
    time_N, has_calendar, wrong = parse_times(["31.12.2024 10:00", "01.01.2025 10:00"], "%d.%m.%Y %H:%M")
    assert has_calendar and np.diff(time_N).tolist() == [86400] and not wrong
    assert "does not match" in parse_times(["2024-01-01"], "%d.%m.%Y")[2][0]
    assert parse_times(["20240131"], "%Y%m%d")[0].tolist() == parse_times(["2024-01-31"])[0].tolist()


@pytest.mark.parametrize(
    "unit, count, season", [("h", 24, 7), ("min", 1440, 7), ("h", 23, 1), ("h", 48, 1), ("D", 7, 1)]
)
def test_days_have_weeks_in_any_unit(unit: str, count: int, season: int) -> None:
    assert TimeGrid(unit, count, 0).season == season


def test_frequencies_have_words() -> None:
    assert [describe_grid(name) for name in ("h", "15min", "B")] == ["hour", "15 minutes", "business day"]
