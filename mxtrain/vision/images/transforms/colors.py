"""Transforms of the colours of an image. Annotations are unchanged.

Legend: C channels, H height, W width.
"""

from __future__ import annotations

import math
from typing import Callable, ClassVar

import numpy as np
import pydantic
from typing_extensions import Annotated

from mxtrain.types import Fraction, NonNegativeFloat, PositiveFloat, Range
from mxtrain.vision.images.transforms.base import AreaShare, RandomStream, Transform
from mxtrain.vision.images.transforms.lazy_image import LazyImage

LUMA = np.array([0.299, 0.587, 0.114])
"""Weights of red, green and blue in grey. Source: ITU-R BT.601."""
_YIQ = np.array([LUMA, [0.596, -0.274, -0.322], [0.211, -0.523, 0.312]])
"""Matrix from RGB to NTSC's YIQ: luma, and two axes of chroma, in which a change of hue is a rotation."""
_RGB = np.linalg.inv(_YIQ)
_EIGENVALUES = np.array([0.2175, 0.0188, 0.0045])
_EIGENVECTORS = np.array([[-0.5675, 0.7192, 0.4009], [-0.5808, -0.0045, -0.8140], [-0.5836, -0.6948, 0.4203]])
"""Eigenvectors of the colours of ImageNet's pixels, where white is 1; one in each column."""


class ColorJitter(Transform):
    """Changes brightness, contrast, saturation and hue, in this order. Values are cut off at black and white once."""

    name: ClassVar[str] = "color_jitter"

    brightness: NonNegativeFloat = 0.4
    """Values are multiplied by a factor from 1 - this (at least 0) to 1 + this."""
    contrast: NonNegativeFloat = 0.4
    """The distance from the mean grey of the image is multiplied by a factor from 1 - this (at least 0) to 1 + this."""
    saturation: NonNegativeFloat = 0.4
    """The distance from the grey of the pixel is multiplied by a factor from 1 - this (at least 0) to 1 + this."""
    hue: Annotated[float, pydantic.Field(ge=0, le=0.5)] = 0.1
    """Maximum rotation of the hue, as a share of the colour circle."""

    def __call__(self, image: LazyImage, draw: RandomStream) -> LazyImage:
        brightness, contrast, saturation = (
            draw.uniform(max(0.0, 1 - strength), 1 + strength)
            for strength in (self.brightness, self.contrast, self.saturation)
        )
        matrix_33 = brightness * contrast * colour_matrix(saturation, draw.uniform(-self.hue, self.hue))
        grey = (1 - contrast) * brightness * mean_grey(image.pixels)
        return image.with_pixels(recoloured(image.pixels, np.column_stack([matrix_33, np.full(3, grey)])))


class Grayscale(Transform):
    """Converts the image to grey, in all of its channels."""

    name: ClassVar[str] = "grayscale"

    share: Fraction = 0.1

    def __call__(self, image: LazyImage, draw: RandomStream) -> LazyImage:
        return image.with_pixels(recoloured(image.pixels, np.column_stack([colour_matrix(0.0, 0.0), np.zeros(3)])))


class Lighting(Transform):
    """Adds a random multiple of the main colours of ImageNet.

    Source: Krizhevsky et al., "ImageNet Classification with Deep Convolutional Neural Networks" (2012), section 4.1.
    """

    name: ClassVar[str] = "lighting"

    std: NonNegativeFloat = 0.1
    """Standard deviation of the multiples."""

    def __call__(self, image: LazyImage, draw: RandomStream) -> LazyImage:
        amount_3 = np.array([draw.normal(self.std) for _ in range(3)])
        added_C = 255 * (_EIGENVECTORS @ (amount_3 * _EIGENVALUES))
        if image.channels != 3:
            added_C = added_C.mean(keepdims=True)
        return image.with_pixels(image.pixels + added_C.astype(np.float32)[:, None, None])


class Blur(Transform):
    """Blurs an image with a Gaussian, which is cut off at three deviations."""

    name: ClassVar[str] = "blur"

    share: Fraction = 0.5
    sigma: Range[PositiveFloat] = [0.1, 2.0]
    """Smallest and largest standard deviation in pixels."""

    def __call__(self, image: LazyImage, draw: RandomStream) -> LazyImage:
        import cv2

        sigma = draw.uniform(*self.sigma)
        # Three deviations to each side hold 99.7 % of a Gaussian.
        side = 2 * math.ceil(3 * sigma) + 1
        return image.with_pixels(_in_cv2(lambda array: cv2.GaussianBlur(array, (side, side), sigma), image.pixels))


class Erasing(Transform):
    """Fills a rectangle with the mean's colour. Boxes, masks and key points in it stay.

    Source: Zhong et al., "Random Erasing Data Augmentation" (2017); a rectangle that does not fit is clipped.
    """

    name: ClassVar[str] = "erasing"

    share: Fraction = 0.5
    scale: Range[AreaShare] = [0.02, 0.33]
    """Smallest and largest share of the area."""
    aspect: Range[PositiveFloat] = [0.3, 3.3]
    """Smallest and largest ratio of width to height."""

    def __call__(self, image: LazyImage, draw: RandomStream) -> LazyImage:
        area = draw.uniform(*self.scale) * image.height * image.width
        aspect = math.exp(draw.uniform(*map(math.log, self.aspect)))
        height = min(max(round(math.sqrt(area / aspect)), 1), image.height)
        width = min(max(round(math.sqrt(area * aspect)), 1), image.width)
        top, left = draw.integer(image.height - height + 1), draw.integer(image.width - width + 1)
        erased_CHW = image.pixels.copy()
        erased_CHW[:, top : top + height, left : left + width] = image.fill_C[:, None, None]
        return image.with_pixels(erased_CHW)


def colour_matrix(saturation: float, hue: float) -> np.ndarray:
    """Returns the matrix (3, 3) that changes the saturation and the hue of red, green and blue. Grey is unchanged.

    Args:
        saturation: factor of the distance from grey.
        hue: rotation of the hue, as a share of the colour circle.
    """
    angle = 2 * math.pi * hue
    rotation_33 = np.array([[1, 0, 0], [0, math.cos(angle), -math.sin(angle)], [0, math.sin(angle), math.cos(angle)]])
    return saturation * (_RGB @ rotation_33 @ _YIQ) + (1 - saturation) * np.tile(LUMA, (3, 1))


def mean_grey(image_CHW: np.ndarray) -> float:
    """Returns the mean grey of an image, in the range of its pixels."""
    mean_C = image_CHW.reshape(len(image_CHW), -1).mean(axis=1, dtype=np.float64)
    return float(LUMA @ mean_C if len(mean_C) == 3 else mean_C.mean())


def recoloured(image_CHW: np.ndarray, colour_34: np.ndarray) -> np.ndarray:
    """Applies an affine map to the colours of an image, and clips the result to 0 to 255. Hue and saturation have no
    effect on images that are not in colour, whose channels are mapped alike.

    Args:
        image_CHW: uint8, or float32 from 0 to 255.
        colour_34: the map: a matrix of red, green and blue, and a last column that is added.
    """
    import cv2

    if len(image_CHW) not in (1, 3):
        return np.concatenate([recoloured(band_1HW, colour_34) for band_1HW in image_CHW[:, None]])
    if len(image_CHW) == 1:  # grey: hue and saturation have no effect
        colour_34 = np.array([[colour_34[0, :3].sum(), colour_34[0, 3]]])
    changed_CHW = _in_cv2(lambda array_HWC: cv2.transform(array_HWC, colour_34), image_CHW)
    # OpenCV clips bytes itself.
    return changed_CHW if image_CHW.dtype == np.uint8 else changed_CHW.clip(0, 255)


def _in_cv2(change: Callable[[np.ndarray], np.ndarray], image_CHW: np.ndarray) -> np.ndarray:
    """Applies a function of OpenCV, which expects channels last, and drops the axis of a single channel."""
    array_HWC = np.ascontiguousarray(image_CHW.transpose(1, 2, 0))
    # OpenCV drops the axis of a single channel.
    return change(array_HWC).reshape(array_HWC.shape).transpose(2, 0, 1)
