"""Numbers in cells of tables."""

from __future__ import annotations

import math

import numpy as np

LARGEST_NUMBER = float(np.finfo(np.float32).max)


def number_of(text: str) -> float:
    """The number in a cell; NaN where there is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def why_no_number(text: str) -> str:
    """What a cell is that holds no finite number that a 32-bit float can be."""
    try:
        value = float(text)
    except ValueError:
        return f"'{text}', no number"
    if not math.isfinite(value):
        return f"{value}, no finite number"
    return f"{value}, and the largest number that is read is {LARGEST_NUMBER:.1e}"
