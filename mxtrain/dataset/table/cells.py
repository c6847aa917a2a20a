"""Numbers in cells of tables."""

from __future__ import annotations

import math
from typing import Any, List

import numpy as np
import pydantic
from typing_extensions import Annotated

LARGEST_NUMBER = float(np.finfo(np.float32).max)


def _as_written(cells: Any) -> Any:
    """Makes texts of numbers, and of false and true, before a list is validated."""
    return [_as_text(cell) for cell in cells] if isinstance(cells, list) else cells


def _as_text(cell: Any) -> Any:
    if isinstance(cell, bool):
        return str(cell).lower()
    return str(cell) if isinstance(cell, (int, float)) and math.isfinite(cell) else cell


CellTexts = Annotated[List[str], pydantic.BeforeValidator(_as_written)]
"""Cells as they are written in a file; [0, 1] in a description means ["0", "1"]."""


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
