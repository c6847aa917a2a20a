"""Times of interactions: dates and numbers, mixtures, and what the log says."""

from __future__ import annotations

import datetime
import logging
from pathlib import Path
from typing import Any, List

import numpy as np
import pytest

from mxtrain.data.checking.dataset_check import CollectedFindings
from mxtrain.errors import DataError
from mxtrain.recommendation.interactions import InteractionTable
from mxtrain.recommendation.times import DATE, ZONED, describe_times, parse_date, unit_of

pytestmark = pytest.mark.usefixtures("own_cache")


def seconds(*parts: int) -> float:
    return datetime.datetime(*parts, tzinfo=datetime.timezone.utc).timestamp()  # type: ignore[arg-type,misc]


@pytest.mark.parametrize(
    "text, form, expected",
    [
        ("2024-02-29", DATE, seconds(2024, 2, 29)),
        ("2024/02/29", DATE, seconds(2024, 2, 29)),
        ("1969-12-31", DATE, -86400),
        ("2024-01-31 18:30", DATE, seconds(2024, 1, 31, 18, 30)),
        ("2024-01-31T18:30:05.25", DATE, seconds(2024, 1, 31, 18, 30, 5) + 0.25),
        ("2024-01-31T18:30:05Z", ZONED, seconds(2024, 1, 31, 18, 30, 5)),
        ("2024-01-31 18:30:05 UTC", ZONED, seconds(2024, 1, 31, 18, 30, 5)),
        ("2024-01-31T18:30:05+02:00", ZONED, seconds(2024, 1, 31, 16, 30, 5)),
        ("2024-01-31T18:30:05,5-0130", ZONED, seconds(2024, 1, 31, 20, 0, 5) + 0.5),
    ],
)
def test_dates_become_seconds(text: str, form: str, expected: float) -> None:
    assert parse_date(text) == (form, pytest.approx(expected, abs=1e-6))


@pytest.mark.parametrize(
    "text",
    ["2023-02-29", "31.01.2024", "01/31/2024", "2024-01/31", "2024-1-31", "2024-01-31T25:00", "20240131", "", "x"]
    + ["2024/01-31", "2024-01-31T18:30+99:00", "2024-01-31T18:30+01:60", "٢٠٢٤-01-31", "2024-01-31Z"],
)
def test_other_texts_are_no_dates(text: str) -> None:
    assert parse_date(text) is None


def dataset_of(path: Path, times: List[str]) -> InteractionTable:
    path.write_text("user,item,time\n" + "".join(f"u,i{row},{time}\n" for row, time in enumerate(times)))
    return InteractionTable(path=str(path), timestamp="time", sampled_negatives=1)


@pytest.mark.parametrize(
    "times, said",
    [
        (["2024-03-01", "2024-01-31 18:30", "2024-02-01"], "dates: from 2024-01-31 18:30 to 2024-03-01 00:00 (UTC)"),
        (["2024-03-01T00:00:00+01:00", "2024-01-31T18:30:00Z", "2024-02-01T00:00:00Z"], "to 2024-02-29 23:00 (UTC)"),
        (["893286638", "874724710", "881250949"], "seconds since 1970: from 1997-09-20 03:05 to 1998-04-22 23:10"),
        (["893286638000", "874724710000", "881250949000"], "milliseconds since 1970: from 1997-09-20 03:05 to 1998"),
        (["893286638000000", "874724710000000", "881250949000000"], "microseconds since 1970: from 1997-09-20"),
        (["893286638000000000", "874724710000000000", "881250949000000000"], "nanoseconds since 1970: from 1997"),
        (["3", "1", "2.5"], "numbers from 1 to 3, of which larger ones are later"),
        (["200000000", "1", "2"], "numbers from 1 to 200000000, of which"),
    ],
)
def test_order_follows_the_times_and_the_log_says_how(times: List[str], said: str, tmp_path: Path, caplog: Any) -> None:
    dataset = dataset_of(tmp_path / "x.csv", times)
    for _ in ("file", "cache"):
        caplog.clear()
        with caplog.at_level(logging.INFO):
            pairs = dataset.read(CollectedFindings())
            assert pairs.time_P is not None and np.argsort(pairs.time_P).tolist() == [1, 2, 0]
            with pytest.raises(DataError):  # all items belong to the user, so there is nothing to rank
                dataset.open()
        assert any(said in message for message in caplog.messages)


@pytest.mark.parametrize(
    "times, line, said",
    [
        (["2024-03-01", "893286638"], 3, "its timestamp 893286638 is a number, and the first one is a date."),
        (["5", "2024-03-01"], 3, "its timestamp 2024-03-01 is a date, and the first one is a number."),
        (["2024-03-01", "2024-03-01T00:00Z"], 3, "is a date with a time zone, and the first one is a date."),
        (["893286638", "893286638000"], 3, "like milliseconds since 1970, and earlier ones like seconds."),
        (["01.02.2024", "1"], 2, "'01.02.2024' is no number and no date such as 2024-01-31 or 2024-01-31T18:30:00Z."),
        (["", "1"], 2, "its timestamp '' is no number and no date"),
        (["2024-02-30", "1"], 2, "'2024-02-30' is no number and no date"),
    ],
)
def test_other_times_are_refused_with_the_line(times: List[str], line: int, said: str, tmp_path: Path) -> None:
    with pytest.raises(DataError) as error:
        dataset_of(tmp_path / "x.csv", times).open()
    assert f"x.csv, line {line}: " in str(error.value) and said in str(error.value)


def test_description_of_a_column_needs_one_unit() -> None:
    assert describe_times(np.array([99_999_999.0]), False).startswith("times are numbers from 99999999")
    assert describe_times(np.array([1e8]), False).startswith("times are seconds")
    assert [unit_of(number) for number in (9.9e10, 1e11, 9.9e19, 1e20, -1e9)] == [
        "seconds",
        "milliseconds",
        "nanoseconds",
        "",
        "",
    ]
    assert describe_times(np.array([2e8, 1e21]), False).startswith("times are numbers from 200000000 to 1e+21")
    parsed = parse_date("0001-01-01T00:00+01:00")
    assert parsed is not None and "-01-01 00:00 (UTC)" in describe_times(np.array(parsed[1:]), True)
    assert describe_times(np.array([-5.0]), True) == "times are dates: from 1969-12-31 23:59 to 1969-12-31 23:59 (UTC)"
