"""An image that transforms change lazily.

Consecutive geometric transforms are composed and rendered once. The annotations of the sample follow the same maps.

Legend: C channels, H height, W width.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Optional, Tuple

import numpy as np

from mxtrain.vision.images.affine import IDENTITY_23, compose, determinant, warp


@dataclass(frozen=True)
class GeometryStep:
    """A rendered map. Annotations of the image are transformed by the same step.

    Attributes:
        matrix_23: from the image before to the image after it; see `images.affine`.
        size: (height, width) of the image after it.
    """

    matrix_23: np.ndarray
    size: Tuple[int, int]

    @property
    def is_mirrored(self) -> bool:
        """Returns True if the map mirrors the image."""
        return determinant(self.matrix_23) < 0


class LazyImage:
    """An image that is rendered when its pixels are read. Its methods return a new image.

    Attributes:
        fill_C: colour outside of the image, white is 255.
        steps: the maps that were rendered so far.
    """

    def __init__(self, image_CHW: np.ndarray, fill_C: np.ndarray) -> None:
        """Wraps an image.

        Args:
            image_CHW: uint8, or float32 from 0 to 255.
            fill_C: colour outside of the image.
        """
        self._rendered_CHW, self.fill_C = image_CHW, fill_C
        self._pending_23 = IDENTITY_23
        self._size: Tuple[int, int] = (image_CHW.shape[1], image_CHW.shape[2])
        self.steps: Tuple[GeometryStep, ...] = ()

    @property
    def channels(self) -> int:
        """Returns the number of channels: 1 grey, 3 colour, otherwise bands."""
        return len(self._rendered_CHW)

    @property
    def height(self) -> int:
        """Returns the height in pixels."""
        return self._size[0]

    @property
    def width(self) -> int:
        """Returns the width in pixels."""
        return self._size[1]

    @property
    def pixels(self) -> np.ndarray:
        """Returns the pixels (C, H, W), uint8, or float32 from 0 to 255. Do not write to them."""
        return self.rendered()._rendered_CHW

    def rendered(self) -> LazyImage:
        """Returns the same image with all pending maps rendered."""
        if self._pending_23 is IDENTITY_23:
            return self
        result = copy.copy(self)
        result._rendered_CHW = warp(self._rendered_CHW, self._pending_23, self._size, self.fill_C)
        result._pending_23 = IDENTITY_23
        result.steps = (*self.steps, GeometryStep(self._pending_23, self._size))
        return result

    def moved(self, matrix_23: np.ndarray, size: Optional[Tuple[int, int]] = None) -> LazyImage:
        """Returns the image after an affine map; boxes, masks and key points follow.

        Args:
            matrix_23: maps (x, y) of this image to (x, y) of the result; pixel i extends from i to i + 1.
            size: (height, width) of the result; None: that of this image.

        Raises:
            ValueError: the matrix has another shape, is not finite, or maps the image to a line or a point.
        """
        result = copy.copy(self)
        result._pending_23 = compose(_checked_matrix(matrix_23), self._pending_23)
        result._size = self._size if size is None else (int(size[0]), int(size[1]))
        return result

    def with_pixels(self, image_CHW: np.ndarray) -> LazyImage:
        """Returns the image with other pixels; annotations are unchanged.

        Args:
            image_CHW: pixels from 0 to 255 in the size of this image; clipped, and converted to the type of this image.

        Raises:
            ValueError: it has another shape, or holds NaN or infinite values.
        """
        result = copy.copy(self.rendered())
        before_CHW = result._rendered_CHW
        if image_CHW.shape != before_CHW.shape:
            raise ValueError(
                f"with_pixels was given an array of {image_CHW.shape}, and the image has {before_CHW.shape} (channels, "
                "height, width). `moved` changes its size"
            )
        if image_CHW.dtype != np.uint8 or before_CHW.dtype != np.uint8:
            if not np.isfinite(image_CHW).all():  # a cast to uint8 would turn NaN into black silently
                raise ValueError("with_pixels was given NaN or infinite values: pixels are numbers from 0 to 255")
            image_CHW = np.clip(image_CHW, 0, 255)
            image_CHW = np.rint(image_CHW) if before_CHW.dtype == np.uint8 else image_CHW
        result._rendered_CHW = image_CHW.astype(before_CHW.dtype, copy=False)
        return result


def _checked_matrix(matrix: np.ndarray) -> np.ndarray:
    """Returns a user's affine map as (2, 3); the last row of a (3, 3) matrix must be [0, 0, 1]. Raises: ValueError."""
    matrix_23 = np.asarray(matrix, np.float64)
    if matrix_23.shape == (3, 3) and matrix_23[2].tolist() == [0, 0, 1]:
        matrix_23 = matrix_23[:2]
    if matrix_23.shape != (2, 3):
        raise ValueError(
            f"moved was given a matrix of {matrix_23.shape}: write an affine map as (2, 3), or as (3, 3) with the last "
            "row [0, 0, 1]"
        )
    if not np.isfinite(matrix_23).all():
        raise ValueError(f"moved was given a matrix with NaN or infinite values: {matrix_23.tolist()}")
    if determinant(matrix_23) == 0:
        raise ValueError(f"moved was given a matrix that maps the image to a line or a point: {matrix_23.tolist()}")
    return matrix_23
