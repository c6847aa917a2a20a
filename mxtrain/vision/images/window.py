"""Windows of radiology, which map the values of a grey image to the range from black to white. Exported folders have a
copy of this module.

Source: DICOM PS3.3, C.11.2.1.2 (LINEAR), C.11.2.1.3.1 (SIGMOID) and C.11.2.1.3.2 (LINEAR_EXACT).
Legend: H height, W width.
"""

from __future__ import annotations

import math
from typing import Callable, Dict, List, Sequence, Tuple, Union

import numpy as np

from mxtrain.errors import nearest

WHITE = 255.0
Window = Union[str, Tuple[float, float]]
"""Range of grey values: auto, full, percentile, or (centre, width) in the units of the file."""
PERCENTILE = "percentile"
PERCENTILES = (0.5, 99.5)
"""Percentiles of the values that become black and white with the window `percentile`. Source: F. Isensee et al.,
"nnU-Net", Nature Methods 18, 2021, which clips CT values there."""
NAMED: Dict[str, Tuple[float, float]] = {
    "abdomen": (50.0, 400.0),
    "bone": (400.0, 1800.0),
    "brain": (40.0, 80.0),
    "liver": (30.0, 150.0),
    "lung": (-600.0, 1500.0),
    "mediastinum": (50.0, 350.0),
}
"""Usual windows of CT, (centre, width) in Hounsfield units. Source: Radiopaedia, "Windowing (CT)"."""
_WORDS = ("auto", "full", PERCENTILE)
_UNLESS = ", unless dataset.window=[CENTRE,WIDTH] defines black and white"


def require_window(window: object) -> object:
    """Validates a window; numbers become floats, and a name of `NAMED` its numbers.

    Raises:
        ValueError: it is not a window.
    """
    if window in _WORDS:
        return window
    if isinstance(window, str) and window in NAMED:
        return list(NAMED[window])
    if isinstance(window, list) and len(window) == 2 and all(type(number) in (int, float) for number in window):
        centre, width = window
        if math.isfinite(centre) and 0 < width < math.inf:
            return [float(centre), float(width)]
    found = nearest(window, (*_WORDS, *NAMED)) if isinstance(window, str) else []
    hint = f"; the nearest one is {found[0]}" if found else ""
    raise ValueError(
        f"window is auto, full, percentile, [centre, width], e.g. [40,400], with a width above 0, or one of "
        f"{', '.join(NAMED)}, but {window} was given{hint}"
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
    if window not in ("auto", "full"):
        shown = window if isinstance(window, str) else list(window)
        raise ValueError(f"it is in colour ({kind}), and dataset.window={shown} is for grey: leave it out")


def percentile_range(value: np.ndarray) -> Tuple[float, float]:
    """Returns the values at `PERCENTILES`, which become black and white."""
    low, high = np.percentile(value, PERCENTILES)
    return float(low), float(high)


def stretch(value: np.ndarray, bounds: Sequence[float]) -> np.ndarray:
    """Maps values linearly from the lower bound, black, to the upper one, white. Values beyond are clipped; equal
    bounds make all of them black."""
    low, high = bounds
    return np.zeros(value.shape) if high <= low else np.clip((value - low) / (high - low), 0.0, 1.0) * WHITE


def scale_by_type(value_HW: np.ndarray, bits: int, is_signed: bool) -> np.ndarray:
    """Scales values by their type: integers by the largest one of so many bits; floats must lie between 0 and 1.

    Raises:
        ValueError: there are values that have no scale: floats beyond 0 to 1, negative numbers, or integers of more
            than 16 bits that would all be black.
    """
    if value_HW.dtype.kind == "f":
        low, high = float(value_HW.min()), float(value_HW.max())
        if not (0 <= low and high <= 1):
            raise ValueError(
                f"its pixels are floats from {low:g} to {high:g}; they must lie between 0 and 1, white{_UNLESS}"
            )
        return value_HW.astype(np.float64) * WHITE
    # The scale is that of the type: an image's own largest value would hide its brightness from the network.
    maximum = (1 << (bits - 1 if is_signed else bits)) - 1
    low, high = int(value_HW.min()), int(value_HW.max())
    if low < 0:
        raise ValueError(f"its pixels are whole numbers from {low} to {high}; none may be below 0, black{_UNLESS}")
    # 510 = 2 * 255: below half a step of 8 bits the whole image is black.
    if bits > 16 and 0 < high * 510 < maximum:
        raise ValueError(
            f"its pixels have {bits} bits, and the brightest is {high} of {maximum}, which is black. Save it with 16 "
            f"bits, or as floats from 0 to 1{_UNLESS}"
        )
    return value_HW.astype(np.float64) * (WHITE / maximum)


FUNCTIONS: Dict[str, Callable[[np.ndarray, float, float], np.ndarray]] = {
    "LINEAR": linear,
    "LINEAR_EXACT": linear_exact,
    "SIGMOID": sigmoid,
}
"""Functions by the names in DICOM files."""
