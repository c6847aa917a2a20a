"""Reading dates and times in ISO 8601: complete ones, and forms such as 2024-05 of monthly series."""

from __future__ import annotations

import datetime

import pytest

from mxtrain.data.table.written_dates import WrittenDate, read_date

DAY = datetime.datetime(2024, 2, 29)


@pytest.mark.parametrize(
    "text, expected",
    [
        ("2024-02-29", WrittenDate(DAY, False, "", None)),
        ("2024-02-29 00:00", WrittenDate(DAY, True, "", None)),
        ("2024-02-29T00:00:07.050", WrittenDate(DAY.replace(second=7), True, "050", None)),
        ("2024-02-29 00:00:07,5-0130", WrittenDate(DAY.replace(second=7), True, "5", -90)),
        ("2024-02-29 00:00 UTC", WrittenDate(DAY, True, "", 0)),
        ("2024-02-29 00:00+15:59", WrittenDate(DAY, True, "", 959)),
    ],
)
def test_complete_dates(text: str, expected: WrittenDate) -> None:
    assert read_date(text) == expected == read_date(text, partial=True)


@pytest.mark.parametrize(
    "text, expected",
    [
        ("2024-02", WrittenDate(DAY.replace(day=1), False, "", None)),
        ("2024-02-29 13", WrittenDate(DAY.replace(hour=13), True, "", None)),
        ("2024-02-29Z", WrittenDate(DAY, False, "", 0)),
    ],
)
def test_partial_dates_are_read_if_asked_for(text: str, expected: WrittenDate) -> None:
    assert read_date(text, partial=True) == expected and read_date(text) is None


@pytest.mark.parametrize("text", ["", "2024", "2024-2-29", "29.02.2024", "2024/02/29", "2024-02-29 00:00:00.", "13:00"])
def test_other_forms_are_no_dates(text: str) -> None:
    assert read_date(text) is None and read_date(text, partial=True) is None


@pytest.mark.parametrize(
    "text",
    ["2023-02-29", "2024-13-01", "0000-01-01", "2024-02-29 24:00", "2024-02-29 00:00+16:00", "2024-02-29 00:00+01:60"],
)
def test_dates_that_do_not_exist_are_errors(text: str) -> None:
    with pytest.raises(ValueError):
        read_date(text)
