"""Each line of docs/reference/mxnet-and-pytorch.md: MXNet against NumPy, and against PyTorch if that is installed.

    PYTHONPATH=. python tests/reference/test_mxnet_and_pytorch.py --accept

measures all lines and writes their tables into the page.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Type

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).resolve().parents[2])]

import numpy as np
import pytest
from framework_lines import (
    NONE,
    PAGE,
    ROUNDING,
    Line,
    all_lines,
    difference,
    figure,
    figures_of,
    installed,
    measured,
    page_figures,
    page_versions,
    tables,
    with_tables,
)

from mxtrain.exporting.converters import CONVERTERS

LINES = all_lines()
DIGITS = 0.06
"""Relative difference of two numbers that have the same two digits."""


def named(line: Type[Line]) -> str:
    return line.__name__


@pytest.mark.parametrize("line", LINES, ids=named)
def test_mxnet_computes_the_formula_of_its_line(line: Type[Line]) -> None:
    one = line()
    assert difference(one, one.mxnet(), one.numpy()) <= max(line.rounding, ROUNDING)


@pytest.mark.slow
@pytest.mark.parametrize("line", LINES, ids=named)
def test_pytorch_differs_as_the_line_says_and_agrees_after_the_conversion(line: Type[Line]) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("timm")
    raised, copied, converted = measured(line)
    agrees = line.mxtrain.startswith("same") and converted is None
    assert raised == line.raises
    if not raised:
        assert copied is not None and (copied <= line.rounding) == agrees
    if converted is not None:
        assert converted <= line.rounding


@pytest.mark.slow
@pytest.mark.parametrize("line", LINES, ids=named)
def test_the_page_shows_what_is_measured(line: Type[Line]) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("timm")
    shown, found = page_figures()[line], figures_of(line)
    for one, other in zip(shown, found):
        assert one == other or is_close(one, other, line.rounding), f"{shown} on the page, {found} measured"


def is_close(one: str, other: str, rounding: float) -> bool:
    """Returns True for differences of equal digits, and for two that are rounding errors."""
    try:
        a, b = float(one), float(other)
    except ValueError:
        return False
    return max(a, b) <= rounding or abs(a - b) <= DIGITS * max(a, b)


def test_the_page_has_every_line_as_it_is_written_here() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == with_tables(page, tables(page_figures(), page_versions()))
    assert all(one and other for one, other in page_figures().values())


@pytest.mark.slow
def test_the_page_names_the_versions_with_which_it_was_measured() -> None:
    for package in ("torch", "torchvision", "timm"):
        pytest.importorskip(package)
    assert page_versions() == installed()


def test_lines_are_complete_and_their_converters_exist() -> None:
    assert len({line.title for line in LINES}) == len(LINES)
    for line in LINES:
        assert line.mxtrain.split()[0].rstrip(":;,") in ("same", "converted", "said", "refused", "corrected")
        assert line.title and line.in_mxnet and line.in_pytorch
        assert set(line.converters) <= set(CONVERTERS)
        assert line.converters or not line.mxtrain.startswith("converted"), line
        assert not set(line.refused) & set(CONVERTERS)


@pytest.mark.parametrize(
    "number, text", [(None, NONE), (0, "0"), (np.inf, "other shape or NaN"), (0.0123, "0.012"), (3.44e-7, "3.4e-7")]
)
def test_figures_have_two_digits(number: float, text: str) -> None:
    assert figure(number) == text


@pytest.mark.parametrize(
    "one, other, expected",
    [
        ([1, np.nan, np.inf], [3, np.nan, np.inf], 2),
        ([1, 2], [1, np.nan], np.inf),
        ([1, 2], [[1, 2]], np.inf),
        ([[1], [2]], [[1.5], [2]], 0.5),
    ],
)
def test_differences_are_the_largest_and_infinite_for_other_shapes(one: object, other: object, expected: float) -> None:
    arrays = [np.array(one), np.array(other)]
    assert difference(Line(), *arrays) == difference(Line(), *arrays[::-1]) == expected


def test_relative_differences_are_those_of_the_largest_value() -> None:
    line = Line()
    line.relative = True  # type: ignore[misc]
    assert difference(line, np.array([0, 4]), np.array([1, 4])) == 0.25
    assert difference(line, np.array([0, 0]), np.array([1, 4])) == 4


@pytest.mark.parametrize(
    "one, other, expected",
    [
        ("1.2e-7", "9.0e-6", True),
        ("0.012", "0.0125", True),
        ("0.012", "0.014", False),
        ("9.0e-6", "0.014", False),
        ("0.1", "-", False),
    ],
)
def test_figures_are_close_if_both_are_rounding_errors_or_have_the_same_digits(
    one: str, other: str, expected: bool
) -> None:
    assert is_close(one, other, ROUNDING) is expected


if __name__ == "__main__":
    if sys.argv[1:] != ["--accept"]:
        sys.exit("Type: python tests/reference/test_mxnet_and_pytorch.py --accept")
    written = tables({line: figures_of(line) for line in LINES}, installed())
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8"), written), encoding="utf-8")
