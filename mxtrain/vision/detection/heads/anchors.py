"""The anchors of SSDs: boxes of a few sizes and shapes at each place of several maps.

Source: Liu et al., "SSD: Single Shot MultiBox Detector" (2016), section 2.2, with the sizes and shapes of GluonCV's.

Legend: N anchors of a map, A at each place of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import List, Sequence, Tuple

import numpy as np

from mxtrain.types import Shape


@dataclass(frozen=True)
class AnchorMap:
    """The anchors of one map of an SSD.

    Attributes:
        height, width: how many places there are.
        step_y, step_x: pixels from one place to the next.
        shapes: (width, height) in pixels of the anchors at each place.
    """

    height: int
    width: int
    step_y: float
    step_x: float
    shapes: Sequence[Tuple[float, float]]

    def grid(self, height: int, width: int) -> np.ndarray:
        """Returns centre x and y, width and height in pixels of the anchors of a grid of cells, row by row, (height *
        width * A, 4)."""
        shape_A2 = np.array(self.shapes, np.float64)
        grid = np.empty((height, width, len(shape_A2), 4))
        grid[..., 0] = ((np.arange(width) + 0.5) * self.step_x)[None, :, None]
        grid[..., 1] = ((np.arange(height) + 0.5) * self.step_y)[:, None, None]
        grid[..., 2:] = shape_A2
        return grid.reshape(-1, 4)

    def boxes(self) -> np.ndarray:
        """Returns centre x and y, width and height of the anchors of this map, (N, 4)."""
        return self.grid(self.height, self.width)


def shapes_of_map(
    size: float, next_size: float, ratios: Sequence[float], lite: bool, is_first: bool
) -> List[Tuple[float, float]]:
    """Returns (width, height) in pixels of the anchors of each cell.

    Args:
        size: side of the square, in pixels.
        next_size: that of the next map; a square between both is added.
        ratios: ratios of width to height; the first is the square.
        lite: as `SSDParts.lite`.
        is_first: whether this is the finest map.
    """
    between = math.sqrt(size * next_size)
    others = [(size * math.sqrt(ratio), size / math.sqrt(ratio)) for ratio in ratios[1:]]
    if lite:
        return [(size / 2, size / 2), *others, *([] if is_first else [(between, between)])]
    return [(size, size), (between, between), *others]


def anchor_maps(
    map_sizes: Sequence[Tuple[int, int]], input_shape: Shape, base_size: int, sizes: Sequence[float],
    ratios: Sequence[Sequence[float]], steps: Sequence[float], lite: bool = False,
) -> List[AnchorMap]:  # fmt: skip
    """Returns the anchors of a network for images of one size.

    Their sizes grow with the square root of the image's area. Steps are as given for square images of `base_size`;
    in others the places of a map are spread evenly over the image.

    Args:
        map_sizes: (height, width) of each map.
        input_shape: (C, H, W).
        base_size: side in pixels of the images that sizes and steps are for.
        sizes: sizes of anchors in pixels, one more than maps.
        ratios: ratios of width to height, for each map.
        steps: pixels from one place of each map to the next; empty: spread evenly.
        lite: as `SSDParts.lite`.
    """
    image_height, image_width = input_shape[1:]
    as_given = image_height == image_width == base_size and len(steps) == len(map_sizes)
    scale = 1.0 if as_given else math.sqrt(image_height * image_width) / base_size
    maps = []
    for number, (height, width) in enumerate(map_sizes):
        step = (steps[number],) * 2 if as_given else (image_height / height, image_width / width)
        pair = (sizes[number] * scale, sizes[number + 1] * scale)
        shapes = shapes_of_map(*pair, ratios[number], lite, number == 0)
        maps.append(AnchorMap(height, width, *step, shapes))
    return maps
