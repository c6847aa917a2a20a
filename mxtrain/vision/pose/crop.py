"""The crop of an object, as the input of a network. Exported folders have a copy of this module.

Legend: H height, W width, C channels, J key points.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Callable, Optional, Sequence, Tuple

import numpy as np

from mxtrain.vision.images.affine import inverse, transform_points, warp

PADDING = 1.25
"""Factor by which the crop is longer than the box of the object. Source: Xiao et al., "Simple Baselines for Human
Pose Estimation and Tracking" (2018), as their code has it."""
Resize = Callable[[Tuple[float, float, float, float], Tuple[int, int]], np.ndarray]
"""Function of (left, top, right, bottom) of a part and its new (width, height) that returns the part, (C, H, W)."""


@dataclass(frozen=True)
class Crop:
    """Affine map from a part of an image to the network's input: translation, scaling, rotation and optional mirroring.

    Attributes:
        centre: x and y of the image at the centre of the crop.
        scale: scale from the image to the network's input.
        size: (H, W) of the network's input.
        degrees: angle by which the image is rotated clockwise.
        is_flipped: if True, the crop is mirrored left-right after the rotation.
    """

    centre: Tuple[float, float]
    scale: float
    size: Tuple[int, int]
    degrees: float = 0.0
    is_flipped: bool = False

    @classmethod
    def around(
        cls,
        box_4: Sequence[float],
        size: Sequence[int],
        factor: float = 1.0,
        degrees: float = 0.0,
        is_flipped: bool = False,
    ) -> Crop:
        """Returns the crop around a box with the aspect ratio of the network's input.

        Args:
            box_4: left, top, right, bottom.
            size: (H, W) of the network's input.
            factor: additional factor of the length of the crop, for augmentation.
            degrees, is_flipped: see `Crop`.
        """
        left, top, right, bottom = box_4
        scale = min(size[0] / max(bottom - top, 1e-3), size[1] / max(right - left, 1e-3)) / (PADDING * factor)
        return cls(((left + right) / 2, (top + bottom) / 2), scale, (size[0], size[1]), degrees, is_flipped)

    @property
    def matrix_23(self) -> np.ndarray:
        """Returns the map from the image to the network's input."""
        cos, sin = math.cos(math.radians(self.degrees)), math.sin(math.radians(self.degrees))
        linear_22 = self.scale * np.array([[cos, -sin], [sin, cos]])
        if self.is_flipped:
            linear_22[0] *= -1
        shift_2 = np.array(self.size[::-1]) / 2 - linear_22 @ np.array(self.centre)
        return np.concatenate([linear_22, shift_2[:, None]], axis=1)

    @property
    def back_23(self) -> np.ndarray:
        """Returns the map from the network's input to the image."""
        return inverse(self.matrix_23)

    def points(self, point_J3: np.ndarray, order_J: np.ndarray) -> np.ndarray:
        """Converts key points of the image to pixels of the network's input, (J, 3).

        Args:
            point_J3: x, y, visibility.
            order_J: see `KeyPointSet.order`; used if the crop is mirrored.
        """
        return moved_points(point_J3, self.matrix_23, order_J if self.is_flipped else None)

    def draw(self, resize: Resize, image_size: Tuple[int, int], fill_C: np.ndarray) -> np.ndarray:
        """Returns the network's input, (C, H, W).

        Args:
            resize: function that resizes a part of the image.
            image_size: (width, height) of the image.
            fill_C: colour outside of the image.
        """
        height, width = self.size
        if not self.degrees:
            image_CHW = self._upright(resize, image_size, (width, height), fill_C)
            return image_CHW[..., ::-1] if self.is_flipped else image_CHW
        # First resize an upright part that contains the rotated one to the final scale, which smooths it correctly.
        cos, sin = abs(math.cos(math.radians(self.degrees))), abs(math.sin(math.radians(self.degrees)))
        size = (math.ceil(width * cos + height * sin) + 2, math.ceil(width * sin + height * cos) + 2)
        part_CHW = self._upright(resize, image_size, size, fill_C)
        rotation_23 = Crop((size[0] / 2, size[1] / 2), 1.0, self.size, self.degrees, self.is_flipped).matrix_23
        return warp(part_CHW, rotation_23, (height, width), fill_C)

    def _upright(
        self, resize: Resize, image_size: Tuple[int, int], size: Tuple[int, int], fill_C: np.ndarray
    ) -> np.ndarray:
        """Returns the part of that (width, height) around the centre of the crop, at the scale of the crop, but neither
        rotated nor mirrored."""
        begins, ends, windows = [], [], []
        for centre, length, part_length in zip(self.centre, image_size, size):
            start = centre - part_length / 2 / self.scale  # start of the part in the image
            # Only whole pixels inside of the image, so that the resized part lies exactly where the matrix maps it.
            first = max(0, math.ceil(-start * self.scale - 1e-9))
            last = min(part_length, math.floor((length - start) * self.scale + 1e-9))
            begins.append(first)
            ends.append(last)
            windows.append((max(start + first / self.scale, 0.0), min(start + last / self.scale, float(length))))
        if ends[0] <= begins[0] or ends[1] <= begins[1]:
            return np.broadcast_to(fill_C[:, None, None], (len(fill_C), size[1], size[0])).copy()
        (left, right), (top, bottom) = windows
        part_CHW = resize((left, top, right, bottom), (ends[0] - begins[0], ends[1] - begins[1]))
        image_CHW = np.empty((len(fill_C), size[1], size[0]), part_CHW.dtype)
        image_CHW[:] = fill_C[:, None, None]
        image_CHW[:, begins[1] : ends[1], begins[0] : ends[0]] = part_CHW
        return image_CHW


def known(point_BJ3: np.ndarray) -> np.ndarray:
    """Returns a mask of key points with a known position, (B, J), including hidden ones."""
    return point_BJ3[..., 2] > 0  # `Visibility.UNKNOWN`


def moved_points(point_J3: np.ndarray, matrix_23: np.ndarray, order_J: Optional[np.ndarray]) -> np.ndarray:
    """Applies a map to key points (J, 3); those of unknown position become 0.

    Args:
        point_J3: x, y, visibility.
        matrix_23: the map.
        order_J: see `KeyPointSet.order`, if the map mirrors; else None.
    """
    moved_J3 = np.column_stack([transform_points(point_J3[:, :2], matrix_23), point_J3[:, 2]])
    moved_J3[~known(point_J3)] = 0
    return moved_J3 if order_J is None else moved_J3[order_J]
