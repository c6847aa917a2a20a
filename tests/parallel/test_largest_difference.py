"""The largest difference of two arrays, by which runs, layers and placements are compared."""

from __future__ import annotations

import numpy as np
import pytest

from mxtrain.parallel.differences import differences_of, largest_difference

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    "first, second, expected",
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([1.0, 2.0], [1.5, -2.0], 4.0),
        ([NAN, INF], [NAN, INF], 0.0),
        ([NAN, 2.0], [NAN, 2.5], 0.5),
        ([NAN, 2.0], [1.0, 2.0], INF),
        ([INF], [-INF], INF),
        ([], [], 0.0),
    ],
)
def test_largest_difference(first: list, second: list, expected: float) -> None:
    assert largest_difference(np.array(first, "float32"), np.array(second, "float32")) == expected


def test_small_float16_numbers_are_subtracted_exactly() -> None:
    one, two = (np.array([value], "float16") for value in (60000.0, -60000.0))
    assert largest_difference(one, two) == 120000.0 - 2 * (60000.0 - float(one[0]))
    assert largest_difference(np.array([3]), np.array([5])) == 2.0


def test_differences_are_relative_to_the_largest_value() -> None:
    found = list(
        differences_of({"a": np.array([4.0, 1.0]), "b": np.zeros(2)}, {"a": np.array([4.0, 2.0]), "b": np.zeros(2)})
    )
    assert found == [("a", 1.0, 0.25), ("b", 0.0, 0.0)]
