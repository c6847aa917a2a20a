"""Masks of single objects in the formats of datasets: polygons, or one value for each pixel of the image.

Pixel i extends from i to i + 1, and belongs to a polygon if its centre does.

Legend: K points of a polygon, E crossings of edges and lines, S cells along a side, h, w size of an image.
"""

from __future__ import annotations

from typing import Protocol, Sequence, Tuple

import numpy as np

from mxtrain.vision.images.view import Window

_MARGIN = 2.0
"""Width of the border around an image, in pixels, beyond which polygons are clipped."""


class Outline(Protocol):
    """A mask in any format."""

    def on_grid(self, window: Window, side: int) -> np.ndarray:
        """Returns a mask of the cells of a side x side grid over a part of the image that belong to the object.

        Args:
            window: part of the image, in pixels of the image.
            side: S.
        """

    def in_image(self, size: Tuple[int, int]) -> np.ndarray:
        """Returns the mask as large as its image, (h, w), 0 or 1.

        Args:
            size: (height, width).
        """


class Polygons:
    """Polygons: a pixel belongs to the object if at least one polygon contains it. Each polygon is filled by the
    even-odd rule."""

    def __init__(self, points: Sequence[np.ndarray]) -> None:
        """Stores the polygons.

        Args:
            points: (K, 2) each, x and y.
        """
        self._points = points

    @property
    def points(self) -> Sequence[np.ndarray]:
        """Returns the polygons."""
        return self._points

    def extent(self) -> Tuple[float, float, float, float]:
        """Returns left, top, right and bottom of the smallest box around all polygons."""
        point_K2 = np.concatenate(self._points)
        return (*point_K2.min(axis=0).tolist(), *point_K2.max(axis=0).tolist())

    def on_grid(self, window: Window, side: int) -> np.ndarray:
        """Returns a mask of the cells whose centre is in a polygon; see `Outline.on_grid`."""
        begin_2, end_2 = np.array(window[:2]), np.array(window[2:])
        scale_2 = side / np.maximum(end_2 - begin_2, 1e-9)
        is_inside_SS = np.zeros((side, side), bool)
        for point_K2 in self._points:
            is_inside_SS |= _filled((point_K2 - begin_2) * scale_2, side)
        return is_inside_SS

    def in_image(self, size: Tuple[int, int]) -> np.ndarray:
        """Returns the mask as large as its image, (h, w), drawn by COCO's own tool."""
        from pycocotools import mask as coco_mask

        height, width = size
        # OpenCV walks along every edge: clip edges that lead far away from the image.
        near = [point_K2.clip(-_MARGIN, [width + _MARGIN, height + _MARGIN]) for point_K2 in self._points]
        codes = coco_mask.frPyObjects([point_K2.ravel().tolist() for point_K2 in near], height, width)
        return coco_mask.decode(coco_mask.merge(codes))


class Bitmap:
    """Mask with one value for each pixel of the image."""

    def __init__(self, mask_hw: np.ndarray) -> None:
        """Stores the mask.

        Args:
            mask_hw: non-zero pixels belong to the object.
        """
        self._mask_hw = mask_hw

    def on_grid(self, window: Window, side: int) -> np.ndarray:
        """Returns a mask of the cells of a grid; see `Outline.on_grid`. A cell belongs to the object if at least half
        of its area inside the image does, or, if it is smaller than a pixel, if the pixel at its centre does."""
        from PIL import Image

        height, width = self._mask_hw.shape
        left, top, right, bottom = (
            min(max(edge, 0.0), float(limit)) for edge, limit in zip(window, (width, height, width, height))
        )
        # Pillow takes means of bytes, so the mask is 0 and 255, and half of a square is 128.
        image = Image.fromarray(self._mask_hw.astype(bool).astype(np.uint8) * 255)
        resized = image.resize((side, side), Image.Resampling.BOX, box=(left, top, right, bottom))
        return np.asarray(resized) >= 128

    def in_image(self, size: Tuple[int, int]) -> np.ndarray:
        """Returns the mask as large as its image, (h, w), 0 or 1."""
        return (self._mask_hw != 0).astype(np.uint8)

    def edges(self) -> Tuple[int, int, int, int]:
        """Returns left, top, right, bottom of the smallest box around the mask, which must not be empty."""
        rows, columns = (np.flatnonzero((self._mask_hw != 0).any(axis=axis)) for axis in (1, 0))
        return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1


def polygon_area(point_K2: np.ndarray) -> float:
    """Returns the area of a polygon in pixels, by the shoelace formula."""
    # Relative to a point of its own: products of large coordinates would cancel and lose digits.
    x_K, y_K = (point_K2 - point_K2[0]).T
    return abs(float(x_K @ np.roll(y_K, -1) - y_K @ np.roll(x_K, -1))) / 2


def _filled(point_K2: np.ndarray, side: int) -> np.ndarray:
    """Returns a mask of the cells of a side x side grid whose centre is in a polygon, (S, S)."""
    x_K, y_K = point_K2.T
    next_x_K, next_y_K = np.roll(x_K, -1), np.roll(y_K, -1)
    centre_S = np.arange(side) + 0.5
    # An edge includes only its upper end: a corner on a line then counts once where the outline crosses the line, and
    # twice or never where it only touches it.
    crosses_KS = (y_K[:, None] <= centre_S) != (next_y_K[:, None] <= centre_S)
    edge_E, line_E = np.nonzero(crosses_KS)
    fraction_E = (centre_S[line_E] - y_K[edge_E]) / (next_y_K[edge_E] - y_K[edge_E])
    x_E = x_K[edge_E] + fraction_E * (next_x_K[edge_E] - x_K[edge_E])
    # A cell is inside if an odd number of crossings is to the left of its centre.
    first_E = np.ceil(x_E - 0.5).clip(0, side).astype(np.int64)
    count_SS = np.zeros((side, side + 1), np.int64)
    np.add.at(count_SS, (line_E, first_E), 1)
    return count_SS[:, :side].cumsum(axis=1) % 2 > 0
