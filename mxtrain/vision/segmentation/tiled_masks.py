"""Joins the class probabilities of the tiles of an image to its mask.

Legend: B batch, K classes, h, w height and width of a tile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Iterator, List, Tuple

import numpy as np

if TYPE_CHECKING:
    from mxnet.ndarray import NDArray

    from mxtrain.data.passes import Tile
    from mxtrain.types import Batch

GAUSSIAN, CONSTANT, CROP = "gaussian", "constant", "crop"
DEVIATION = 0.125
"""Standard deviation of Gaussian weights relative to the side of a tile. Source: nnU-Net and MONAI."""
LEAST_WEIGHT = 1e-3
"""Smallest Gaussian weight, relative to the largest, so that the corners of an image have one."""


class TiledMasks:
    """Averages the probabilities of overlapping tiles. In memory are the sums of one line of tiles only, because tiles
    arrive line by line.

    Args:
        num_classes: K.
        blend: weights of the pixels of a tile: "gaussian" falls towards its border; "constant" is 1; "crop" is 1 inside
            of the middle of each overlap and 0 outside, so that a pixel comes from the tile in which it is deepest.
    """

    def __init__(self, num_classes: int, blend: str) -> None:
        self._num_classes, self._blend = num_classes, blend

    def decode(self, outputs: Tuple[NDArray, ...], batch: Batch) -> List[np.ndarray]:
        """Returns the class probabilities of each tile, (K, h, w)."""
        from mxtrain.engine.backend import nd

        probability_BKHW = nd.softmax(outputs[0].astype("float32"), axis=1).asnumpy()
        assert batch.meta is not None
        sizes = batch.meta[:, :2].tolist()
        return [
            probability_KHW[:, :height, :width] for probability_KHW, (height, width) in zip(probability_BKHW, sizes)
        ]

    def merge(self, size: Tuple[int, int], parts: Iterator[Tuple[Tile, np.ndarray]]) -> np.ndarray:
        """Returns the most probable class of each pixel, (height, width) of the image."""
        height, width = size
        mask_HW = np.empty(size, np.int16 if self._num_classes < 2**15 else np.int32)
        sums = np.zeros((self._num_classes, 0, width), np.float32)  # of the lines from `done` on
        done = 0
        for tile, probability_Khw in parts:
            left, top, right, bottom = tile.box
            if top > done:  # the lines above are complete
                mask_HW[done:top] = sums[:, : top - done].argmax(axis=0)
                sums, done = sums[:, top - done :], top
            missing = bottom - done - sums.shape[1]
            if missing > 0:
                sums = np.concatenate([sums, np.zeros((self._num_classes, missing, width), np.float32)], axis=1)
            weight_hw = self._weights(tile)
            sums[:, top - done : bottom - done, left:right] += weight_hw * probability_Khw
        mask_HW[done:height] = sums.argmax(axis=0)
        return mask_HW

    def _weights(self, tile: Tile) -> np.ndarray:
        """Returns the weight of each pixel of a tile, (h, w)."""
        (left, top, right, bottom), inner = tile.box, tile.inner
        if self._blend == CROP:
            weight_hw = np.zeros((bottom - top, right - left), np.float32)
            weight_hw[inner[1] - top : inner[3] - top, inner[0] - left : inner[2] - left] = 1
            return weight_hw
        if self._blend == CONSTANT:
            return np.ones((bottom - top, right - left), np.float32)
        weight_hw = gaussian(bottom - top)[:, None] * gaussian(right - left)
        return np.maximum(weight_hw, LEAST_WEIGHT)


def gaussian(length: int) -> np.ndarray:
    """Returns the Gaussian weights of a side of that many pixels, 1 in the middle, float32."""
    distance_L = (np.arange(length) - (length - 1) / 2) / (DEVIATION * length)
    return np.exp(-0.5 * distance_L**2).astype(np.float32)
