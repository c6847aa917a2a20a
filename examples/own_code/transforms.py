"""Two image transforms of your own: one of colours, and one of geometry, which boxes, masks and key points follow."""

from __future__ import annotations

import numpy as np

from mxtrain.types import NonNegative, PositiveFloat, Range
from mxtrain.vision.images.transforms.base import RandomStream, Transform
from mxtrain.vision.images.transforms.lazy_image import LazyImage


class Solarized(Transform):
    """Inverts bright pixels."""

    threshold: NonNegative = 128
    """Values from this on are inverted; white is 255."""

    def __call__(self, image: LazyImage, draw: RandomStream) -> LazyImage:
        return image.with_pixels(np.where(image.pixels >= self.threshold, 255 - image.pixels, image.pixels))


class Stretched(Transform):
    """Makes an image wider or narrower around its middle."""

    factor: Range[PositiveFloat] = [0.8, 1.25]
    """Smallest and largest."""

    def __call__(self, image: LazyImage, draw: RandomStream) -> LazyImage:
        factor = draw.uniform(*self.factor)
        return image.moved(np.array([[factor, 0.0, image.width / 2 * (1 - factor)], [0.0, 1.0, 0.0]]))
