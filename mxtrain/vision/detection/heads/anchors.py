"""Anchors of SSDs: boxes of a few sizes and aspect ratios in each cell of several maps.

Source: Liu et al., "SSD: Single Shot MultiBox Detector" (2016), section 2.2, with GluonCV's sizes and aspect ratios.

Legend: N anchors of a map, A anchors of a cell.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import List, Sequence, Tuple

import numpy as np

from mxtrain.types import Shape


@dataclass(frozen=True)
class AnchorMap:
    """Anchors of one map of an SSD.

    Attributes:
        height, width: number of cells of the map along each side.
        step_y, step_x: distance of neighbouring cells in pixels.
        shapes: (width, height) in pixels of the anchors of each cell.
    """

    height: int
    width: int
    step_y: float
    step_x: float
    shapes: Sequence[Tuple[float, float]]

    def grid(self, height: int, width: int) -> np.ndarray:
        """Returns centre x and y, width and height in pixels of the anchors of a grid of cells, row by row: (height *
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
        size: side of square anchors in pixels.
        next_size: side of square anchors of the next map; an anchor of the geometric mean is added.
        ratios: aspect ratios, width to height; the first one is that of the square anchors.
        lite: see `SSDParts.lite`.
        is_first: True for the finest map.
    """
    between = math.sqrt(size * next_size)
    others = [(size * math.sqrt(ratio), size / math.sqrt(ratio)) for ratio in ratios[1:]]
    if lite:
        return [(size / 2, size / 2), *others, *([] if is_first else [(between, between)])]
    return [(size, size), (between, between), *others]


def anchor_maps(
    map_sizes: Sequence[Tuple[int, int]],
    input_shape: Shape,
    base_size: int,
    sizes: Sequence[float],
    ratios: Sequence[Sequence[float]],
    steps: Sequence[float],
    lite: bool = False,
) -> List[AnchorMap]:
    """Returns the anchors of a network for images of one size.

    Sizes of anchors are proportional to the square root of the area of the image. For square images of `base_size`,
    cells have the given distances; for other images, they are distributed evenly over the image.

    Args:
        map_sizes: (height, width) of each map.
        input_shape: (C, H, W) of the network's input.
        base_size: side in pixels of the images that sizes and steps are for.
        sizes: sizes of anchors in pixels, one more than there are maps.
        ratios: aspect ratios, width to height, of each map.
        steps: distance of neighbouring cells of each map in pixels; empty: distributed evenly.
        lite: see `SSDParts.lite`.
    """
    image_height, image_width = input_shape[1:]
    as_given = image_height == image_width == base_size and len(steps) == len(map_sizes)
    scale = 1.0 if as_given else math.sqrt(image_height * image_width) / base_size
    maps = []
    for number, (height, width) in enumerate(map_sizes):
        # GluonCV's steps are not scaled: a step is what the convolutions make of it, and half of it in an image of half
        # the side would leave three quarters of the image without boxes.
        step = (steps[number],) * 2 if as_given else (image_height / height, image_width / width)
        pair = (sizes[number] * scale, sizes[number + 1] * scale)
        shapes = shapes_of_map(*pair, ratios[number], lite, number == 0)
        maps.append(AnchorMap(height, width, *step, shapes))
    return maps
