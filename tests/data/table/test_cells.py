"""Numbers in cells: what is read, and what is none."""

from __future__ import annotations

import math

import pytest

from mxtrain.data.table.cells import MISSING_CELLS, mixed_unit, read_number, read_numbers


@pytest.mark.parametrize(
    "text, decimal, value",
    [
        ("12", ".", 12.0),
        ("-1.5e3", ".", -1500.0),
        ("1,234,567.8", ".", 1234567.8),
        ("1.234", ".", 1.234),
        ("$ 5", ".", 5.0),
        ("5 EUR", ".", 5.0),
        ("1.234", ",", 1234.0),
        ("1.234.567,8", ",", 1234567.8),
        ("12,5", ",", 12.5),
        ("1 234,5", ",", 1234.5),
        ("0,5", ",", 0.5),
        ("(5)", ".", -5.0),
        ("\uff0d3", ".", -3.0),
        ("12 %", ".", 12.0),
    ],
)
def test_numbers_are_read(text: str, decimal: str, value: float) -> None:
    found = read_number(text, decimal)
    assert found is not None and found.value == pytest.approx(value)


@pytest.mark.parametrize(
    "text, decimal",
    [
        ("1,23", "."),
        ("12,3456", "."),
        ("1,234,56", "."),
        ("0,123", "."),
        ("1 234", "."),
        ("1.5", ","),
        ("1.23,4", ","),
        ("--1", "."),
        ("$5%", "."),
        ("(5", "."),
        ("5)", "."),
        ("1,234'567", "."),
        ("1_0", "."),
        ("5 kg", "."),
        ("", "."),
        ("\u0661", "."),
        ("1" * 500, "."),
    ],
)
def test_other_texts_are_not_numeric(text: str, decimal: str) -> None:
    assert read_number(text, decimal) is None


def test_cells_of_a_column() -> None:
    found = read_numbers(["1", "", "-", "2.5", "x", "$3"], MISSING_CELLS)
    assert found.is_missing_R.tolist() == [False, True, True, False, False, False]
    assert found.value_R.tolist()[3] == 2.5 and math.isnan(found.value_R[4]) and list(found.written) == [5]
    assert read_numbers(["1", "2e3", "-"], ()).value_R.tolist()[:2] == [1.0, 2000.0]
    assert math.isnan(read_numbers(["1-2", "1"], ()).value_R[0])


def test_units_that_differ_do_not_mix() -> None:
    assert not mixed_unit(["", "$"]) and not mixed_unit(["%"]) and "percent" in mixed_unit(["", "%"])
    assert "$ and €" in mixed_unit(["€", "$"])
