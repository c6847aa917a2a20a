"""Computes the crop and the size of images for the input of a network. Exported folders have a copy of this module.

Legend: C channels.
"""

from __future__ import annotations

from typing import Sequence, Tuple

import numpy as np


def central_box(size: Sequence[int], target: Sequence[int], central_crop: float) -> Tuple[float, float, float, float]:
    """Returns left, top, right and bottom of the largest central part with the aspect ratio of the input.

    Args:
        size: (width, height) of the image.
        target: (height, width) of the input.
        central_crop: factor of the length of the part.
    """
    full_width, full_height = size
    height, width = target
    scale = min(full_width / width, full_height / height) * central_crop
    left, top = 0.5 * (full_width - scale * width), 0.5 * (full_height - scale * height)
    return left, top, min(left + scale * width, full_width), min(top + scale * height, full_height)


def fit_size(height: float, width: float, size: Sequence[int], fit: str) -> Tuple[int, int]:
    """Returns the (height, width) of a resized image, or of a part of it, in object detection.

    Args:
        height, width: size of the image.
        size: (height, width) of the network's input.
        fit: "stretch" or "pad".
    """
    if fit == "stretch":
        return size[0], size[1]
    scale = min(size[0] / height, size[1] / width)
    return max(1, round(height * scale)), max(1, round(width * scale))


def fit_into_frame(height: int, width: int, frame: Sequence[int]) -> Tuple[int, int]:
    """Returns the height and width of an image in a frame of that (height, width). Only larger images are scaled."""
    scale = min(1.0, frame[0] / height, frame[1] / width)
    return max(1, round(height * scale)), max(1, round(width * scale))


def fill_of(mean: Sequence[float], channels: int) -> np.ndarray:
    """Returns the mean as a colour (C,), uint8. If the numbers of channels differ, it is a grey of the same
    brightness."""
    fill = list(mean) if len(mean) == channels else [sum(mean) / len(mean)] * channels
    return np.rint(255 * np.asarray(fill)).astype(np.uint8)
