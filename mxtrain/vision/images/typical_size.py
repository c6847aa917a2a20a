"""Chooses the image size of a network by the sizes of image files, for `image_size=auto`."""

from __future__ import annotations

import logging
import statistics
from typing import TYPE_CHECKING, Callable

import numpy as np

from mxtrain.vision.images.decoding import EncodedImages, evenly_spaced
from mxtrain.vision.images.pixels import ImageReader

if TYPE_CHECKING:
    from mxtrain.types import Shape

log = logging.getLogger(__name__)

MULTIPLE = 32
"""Sides are multiples of this: most networks halve an image five times."""


def typical_side(encoded: EncodedImages, largest: int, side_of: Callable[[Shape], int]) -> int:
    """Returns the median side in pixels of evenly spaced images, rounded up to a multiple of `MULTIPLE`.

    Args:
        encoded: training images. Unreadable ones are skipped here; reading them later raises the error.
        largest: upper limit of the result, which is also returned if no image can be read.
        side_of: chooses a side of (height, width): `min` or `max`.
    """
    sides = []
    for index in evenly_spaced(np.arange(len(encoded))).tolist() if len(encoded) else ():
        try:
            width, height = ImageReader(encoded.read(index)[0]).size
        except Exception:  # Pillow raises OSError, SyntaxError, ValueError, struct.error and its own
            continue
        sides.append(side_of((height, width)))
    if not sides:
        return largest
    # median_high is a side that occurs, never the half between two.
    median = statistics.median_high(sides)
    side = min(-(-median // MULTIPLE) * MULTIPLE, largest)
    kind = "shorter" if side_of is min else "longer"
    log.info("dataset.image_size=%d: %d px is the median %s side of %d images (auto)", side, median, kind, len(sides))
    return side
