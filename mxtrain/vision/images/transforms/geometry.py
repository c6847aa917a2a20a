"""Geometric transforms of images. Boxes, masks and key points follow.

A map is a matrix (2, 3), see `images.affine`.
"""

from __future__ import annotations

import math
from typing import ClassVar, List, Optional, Sequence, Tuple

import numpy as np
import pydantic
from typing_extensions import Annotated

from mxtrain.types import Fraction, NonNegative, PositiveFloat, Range
from mxtrain.vision.images.sizes import ImageSize, square
from mxtrain.vision.images.transforms.base import AreaShare, RandomStream, Transform
from mxtrain.vision.images.transforms.lazy_image import LazyImage

Degrees = Annotated[float, pydantic.Field(ge=0, le=180)]
ShearDegrees = Annotated[float, pydantic.Field(ge=0, le=60)]
Size = Annotated[ImageSize, pydantic.BeforeValidator(square)]
_MIN_ASPECT, _MAX_ASPECT = 3 / 4, 4 / 3
"""Range of the change of the aspect ratio in `choose_part`."""


class Flip(Transform):
    """Mirrors the image."""

    name: ClassVar[str] = "flip"

    horizontal: Fraction = 0.5
    """Share of the samples that are mirrored left-right. Left and right key points change places."""
    vertical: Fraction = 0.0
    """Share of the samples that are turned upside down."""

    def __call__(self, image: LazyImage, draw: RandomStream) -> LazyImage:
        matrix_23 = np.eye(2, 3)
        for axis, (share, length) in enumerate(((self.horizontal, image.width), (self.vertical, image.height))):
            if draw.chance(share):
                matrix_23[axis] *= -1
                matrix_23[axis, 2] = length
        return image if (matrix_23 == np.eye(2, 3)).all() else image.moved(matrix_23)


class PaddedCrop(Transform):
    """Crops a part of a fixed size at a random position of the padded image."""

    name: ClassVar[str] = "crop"

    padding: NonNegative = 4
    """Pixels of the mean colour that are added on each side first."""
    size: Optional[Size] = None
    """[height, width] of the part in pixels; null = that of the image."""

    def __call__(self, image: LazyImage, draw: RandomStream) -> LazyImage:
        height, width = self.size or (image.height, image.width)
        shift_2 = []
        for length, part_length in ((image.width, width), (image.height, height)):
            low, high = sorted((-self.padding, length + self.padding - part_length))
            shift_2.append(-draw.integer(high + 1, low))
        return image.moved(np.column_stack([np.eye(2), shift_2]), (height, width))


class ResizedCrop(Transform):
    """Crops a part of random area and aspect ratio, and resizes it to the size of the image.

    Source: the random crop of Szegedy et al., "Going Deeper with Convolutions" (2014); a crop that does not fit is
    clipped instead of drawn again, so that each sample takes four numbers. The aspect changes by 3/4 to 4/3.
    """

    name: ClassVar[str] = "resized_crop"

    scale: Range[AreaShare] = [0.25, 1.0]
    """Smallest and largest share of the area."""

    def __call__(self, image: LazyImage, draw: RandomStream) -> LazyImage:
        size = (image.height, image.width)
        left, top, right, bottom = choose_part(size, size, self.scale, [draw.uniform() for _ in range(4)])
        x, y = image.width / (right - left), image.height / (bottom - top)
        return image.moved(np.array([[x, 0.0, -left * x], [0.0, y, -top * y]]))


class Resize(Transform):
    """Resizes the image. At the end of a list, images are resized to their original size."""

    name: ClassVar[str] = "resize"

    size: Size
    """[height, width] in pixels; one number = both."""

    def __call__(self, image: LazyImage, draw: RandomStream) -> LazyImage:
        return resized(image, (self.size[0], self.size[1]))


class Rotation(Transform):
    """Rotates the image around its centre."""

    name: ClassVar[str] = "rotation"

    degrees: Degrees = 10.0
    """The largest angle, in both directions."""

    def __call__(self, image: LazyImage, draw: RandomStream) -> LazyImage:
        return image.moved(around_centre(image, rotation(draw.uniform(-self.degrees, self.degrees))))


class Affine(Transform):
    """Shears, rotates, scales and shifts the image, around its centre."""

    name: ClassVar[str] = "affine"

    degrees: Degrees = 0.0
    """The largest angle, in both directions."""
    translate: Annotated[List[Fraction], pydantic.Field(min_length=2, max_length=2)] = [0.0, 0.0]
    """Largest shift along x and y, as a share of width and height."""
    scale: Range[PositiveFloat] = [1.0, 1.0]
    """Smallest and largest factor."""
    shear: Annotated[List[ShearDegrees], pydantic.Field(min_length=2, max_length=2)] = [0.0, 0.0]
    """Largest angle in degrees along x and y."""

    def __call__(self, image: LazyImage, draw: RandomStream) -> LazyImage:
        rotation_22 = rotation(draw.uniform(-self.degrees, self.degrees))
        x, y = (math.tan(math.radians(draw.uniform(-limit, limit))) for limit in self.shear)
        linear_22 = draw.uniform(*self.scale) * rotation_22 @ np.array([[1.0, x], [y, 1.0 + x * y]])
        sides = (image.width, image.height)
        shift_2 = [draw.uniform(-limit, limit) * side for limit, side in zip(self.translate, sides)]
        return image.moved(around_centre(image, linear_22, shift_2))


def rotation(degrees: float) -> np.ndarray:
    """Returns the matrix (2, 2) that rotates an image clockwise, as seen on the screen."""
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    return np.array([[cos, -sin], [sin, cos]])


def around_centre(image: LazyImage, linear_22: np.ndarray, shift_2: Sequence[float] = (0.0, 0.0)) -> np.ndarray:
    """Returns the map (2, 3) that applies a linear map around the centre of an image, and then a shift in pixels."""
    centre_2 = np.array([image.width, image.height]) / 2
    return np.column_stack([linear_22, centre_2 - linear_22 @ centre_2 + shift_2])


def resized(image: LazyImage, size: Tuple[int, int]) -> LazyImage:
    """Returns an image in another (height, width)."""
    if (image.height, image.width) == size:
        return image
    return image.moved(np.diag([size[1] / image.width, size[0] / image.height, 1.0])[:2], size)


def choose_part(
    size: Sequence[float], part_size: Sequence[float], scale: Sequence[float], draws_4: Sequence[float]
) -> Tuple[float, float, float, float]:
    """Returns left, top, right and bottom of the part that `ResizedCrop` cuts out.

    Args:
        size: (height, width) of the image.
        part_size: (height, width) to which the part is resized.
        scale: smallest and largest share of the area.
        draws_4: random numbers from 0 to 1 for area, aspect, vertical and horizontal position.
    """
    (full_height, full_width), (height, width) = size, part_size
    area, aspect, down, right = draws_4
    low, high = scale
    area = (low + (high - low) * area) * full_width * full_height
    aspect = math.exp(math.log(_MIN_ASPECT) + aspect * math.log(_MAX_ASPECT / _MIN_ASPECT)) * width / height
    box_width = min(math.sqrt(area * aspect), full_width)
    box_height = min(math.sqrt(area / aspect), full_height)
    left, top = right * (full_width - box_width), down * (full_height - box_height)
    return left, top, min(left + box_width, full_width), min(top + box_height, full_height)
