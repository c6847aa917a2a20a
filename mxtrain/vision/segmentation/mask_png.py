"""Masks as PNG files. Exported folders have a copy of this module.

Legend: h, w height and width of an image, K classes.
"""

from __future__ import annotations

import io
from typing import Sequence

import numpy as np


def mask_png(class_hw: np.ndarray, values: Sequence[int]) -> bytes:
    """Returns a mask in the format of the dataset: pixels have the dataset's values of classes, with a colour palette.

    Args:
        class_hw: class of each pixel, integers.
        values: value of each class in a file.
    """
    from PIL import Image

    is_byte = max(values) < 256
    image = Image.fromarray(np.asarray(values, np.uint8 if is_byte else np.uint16)[class_hw])
    if is_byte:
        image.putpalette(palette(256).ravel().tolist())  # it makes indices of grey values
    content = io.BytesIO()
    image.save(content, "PNG")
    return content.getvalue()


def palette(count: int) -> np.ndarray:
    """Returns colours (count, 3) uint8 that differ most for neighbouring numbers.

    Source: the colour map of the PASCAL VOC development kit: bits of the number, three at a time, from the highest bit
    of red, green and blue down.
    """
    number_K = np.arange(count)
    colour_K3 = np.zeros((count, 3), np.uint8)
    for place in range(8):
        for channel in range(3):
            bit_K = (number_K >> (3 * place + channel)) & 1
            colour_K3[:, channel] |= (bit_K << (7 - place)).astype(np.uint8)
    return colour_K3
