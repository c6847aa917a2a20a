"""Rows of forecasts with quantiles. Exported folders have a copy of this module.

Legend: Q quantiles.
"""

from __future__ import annotations

from typing import Any, Dict, List, Sequence

import numpy as np

DIGITS = 6


def forecast_columns(levels: Sequence[float]) -> List[str]:
    """Returns the names of the numbers of a step: mean, then each level."""
    return ["mean", *(f"{level:g}" for level in levels)]


def forecast_row(name: str, time: str, value_C: np.ndarray, levels: Sequence[float]) -> Dict[str, Any]:
    """Returns the row of one step of a series.

    Args:
        name: name of the item.
        time: the time.
        value_C: mean and quantiles, (1 + Q,).
        levels: levels of the quantiles.
    """
    numbers = [round(float(value), DIGITS) for value in value_C]
    return {"item": name, "time": time, **dict(zip(forecast_columns(levels), numbers))}


def mean_weights(levels: Sequence[float]) -> np.ndarray:
    """Returns the weight of each quantile in the mean, (Q,): the share of probabilities nearest to its level."""
    edges = np.array([0.0, *((one + other) / 2 for one, other in zip(levels, levels[1:])), 1.0])
    return np.diff(edges).astype(np.float32)
