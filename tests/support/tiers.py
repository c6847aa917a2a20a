"""Tests that `scripts/test --all` leaves to `scripts/test --zoo`."""

from typing import Any, Iterable, List

import pytest

_ZOO = pytest.mark.zoo


def rest_in_zoo(values: Iterable[Any], *kept: Any) -> List[Any]:
    """Parameters of a test, of which `--all` tries the kept ones and `--zoo` the others. A tuple has the values of
    several arguments."""
    return [
        value if value in kept else pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=_ZOO)
        for value in values
    ]
