"""A loss of exactly `max_loss` is allowed, whatever its rounding in floating point."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from mxtrain.errors import WorseThanAllowed
from mxtrain.exporting.compression import FLOAT32, _compare_metric


@pytest.mark.parametrize(
    "before, after, direction, is_allowed",
    [
        (0.80, 0.79, "max", True),
        (0.94, 0.93, "max", True),
        (0.80, 0.7899, "max", False),
        (0.80, 0.81, "max", True),
        (0.79, 0.80, "min", True),
        (0.79, 0.8001, "min", False),
        (30.0, 29.7, "max", True),
        (30.0, 29.69, "max", False),
        (0.5, math.nan, "max", False),
        (math.nan, math.nan, "max", True),
        (1.0, 0.99, "max", True),
    ],
)
def test_bound(before: float, after: float, direction: str, is_allowed: bool) -> None:
    values = {FLOAT32: before, "int8": after}
    description = SimpleNamespace(trainer=SimpleNamespace(monitor="val/metric"))
    trained = SimpleNamespace(description=description, evaluator=SimpleNamespace(direction=lambda name: direction))
    subject: Any = SimpleNamespace(trained=trained, evaluate=lambda form: {"metric": values[form]})
    settings: Any = SimpleNamespace(form="int8", max_loss=0.01)
    sessions: Any = {form: form for form in values}
    if is_allowed:
        assert _compare_metric(subject, settings, sessions)["name"] == "metric"
    else:
        with pytest.raises(WorseThanAllowed, match="max_loss=0.01 allows"):
            _compare_metric(subject, settings, sessions)
