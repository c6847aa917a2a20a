"""Encodes predicted masks as PNG files, and counts their classes. Exported folders have a copy of this module.

Legend: h, w height and width of an image, K classes.
"""

from __future__ import annotations

import io
from typing import Dict, Sequence

import numpy as np


def mask_png(class_hw: np.ndarray, values: Sequence[int]) -> bytes:
    """Encodes a mask as a PNG file in the format of the dataset: pixels have the dataset's values of classes. Values
    below 256 get a colour palette.

    Args:
        class_hw: class of each pixel, integers.
        values: value of each class in a file.
    """
    from PIL import Image

    is_byte = max(values) < 256
    # A PNG of 16 bits cannot have a palette, so values above 255 are shown in grey.
    image = Image.fromarray(np.asarray(values, np.uint8 if is_byte else np.uint16)[class_hw])
    if is_byte:
        image.putpalette(palette(256).ravel().tolist())  # converts the grey image to one with palette indices
    content = io.BytesIO()
    image.save(content, "PNG")
    return content.getvalue()


def class_shares(class_hw: np.ndarray, class_names: Sequence[str]) -> Dict[str, float]:
    """Returns the share of the pixels of each class that occurs, largest first.

    Args:
        class_hw: class of each pixel, non-negative integers.
        class_names: name of each class.
    """
    count_K = np.bincount(class_hw.ravel(), minlength=len(class_names))
    order = [int(k) for k in np.argsort(-count_K, kind="stable") if count_K[k]]
    return {class_names[k]: round(float(count_K[k] / class_hw.size), 6) for k in order}


def palette(count: int) -> np.ndarray:
    """Returns colours (count, 3) uint8 that differ most for neighbouring numbers.

    Source: the colour map of the PASCAL VOC development kit: bits of the number, three at a time, from the highest bit
    of red, green and blue down.
    """
    number_K = np.arange(count)
    colour_K3 = np.zeros((count, 3), np.uint8)
    for bit in range(8):
        for channel in range(3):
            bit_K = (number_K >> (3 * bit + channel)) & 1
            colour_K3[:, channel] |= (bit_K << (7 - bit)).astype(np.uint8)
    return colour_K3
