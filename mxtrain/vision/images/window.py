"""Windows of radiology, which map the values of a grey image to the range from black to white. Exported folders have a
copy of this module.

Source: DICOM PS3.3, C.11.2.1.2 (LINEAR), C.11.2.1.3.1 (SIGMOID) and C.11.2.1.3.2 (LINEAR_EXACT).
Legend: H height, W width.
"""

from __future__ import annotations

import math
from typing import Callable, Dict, List, Tuple, Union

import numpy as np

WHITE = 255.0
Window = Union[str, Tuple[float, float]]
"""Range of grey values: auto, full, or (centre, width) in the units of the file."""


def require_window(window: object) -> object:
    """Validates a window; numbers become floats.

    Raises:
        ValueError: it is not a window.
    """
    if window in ("auto", "full"):
        return window
    if isinstance(window, list) and len(window) == 2 and all(type(number) in (int, float) for number in window):
        centre, width = window
        if math.isfinite(centre) and 0 < width < math.inf:
            return [float(centre), float(width)]
    raise ValueError(
        f"window is auto, full or [centre, width], e.g. [40,400], and a width is above 0, but {window} was given"
    )


def as_window(value: Union[str, List[str], List[float]]) -> Window:
    """Converts the value of a setting, or of a checkpoint, to a window.

    Raises:
        ValueError: the value is not a window.
    """
    single = value[0] if isinstance(value, list) and len(value) == 1 else value
    window = require_window(single)
    # The types that `require_window` has checked:
    return str(window) if isinstance(window, str) else tuple(window)  # type: ignore[arg-type,return-value]


def linear(value_HW: np.ndarray, centre: float, width: float) -> np.ndarray:
    """Maps values with the function LINEAR, DICOM's default: `width` integers around `centre` - 0.5, from 0 to 255."""
    if width < 1:
        raise ValueError("a window with the function LINEAR is at least 1 wide")
    if width == 1:  # the formula's limit: a threshold
        return np.where(value_HW > centre - 0.5, WHITE, 0.0)
    return _ramp((value_HW - (centre - 0.5)) / (width - 1))


def linear_exact(value_HW: np.ndarray, centre: float, width: float) -> np.ndarray:
    """Maps values linearly, from `centre` - `width` / 2, black, to `centre` + `width` / 2, white."""
    return _ramp((value_HW - centre) / width)


def sigmoid(value_HW: np.ndarray, centre: float, width: float) -> np.ndarray:
    """Maps values with an S-shaped curve that has the slope of the linear window at its centre."""
    # 1 / (1 + exp(-4 x)), as a function that overflows for no x.
    return (np.tanh(2.0 * (value_HW - centre) / width) + 1.0) * (WHITE / 2)


def _ramp(share_HW: np.ndarray) -> np.ndarray:
    """Maps -0.5 and less to black, and 0.5 and more to white."""
    return np.clip(share_HW + 0.5, 0.0, 1.0) * WHITE


def require_grey(kind: str, window: Window) -> None:
    """Rejects a window for an image in colour.

    Raises:
        ValueError: the image is not grey, e.g. of the kind RGB.
    """
    if not isinstance(window, str):
        raise ValueError(f"it is in colour ({kind}), and dataset.window={list(window)} is for grey: leave it out")


FUNCTIONS: Dict[str, Callable[[np.ndarray, float, float], np.ndarray]] = {
    "LINEAR": linear,
    "LINEAR_EXACT": linear_exact,
    "SIGMOID": sigmoid,
}
"""Functions by the names in DICOM files."""
