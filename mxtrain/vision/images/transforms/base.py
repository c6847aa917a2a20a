"""Base classes of transforms of training images, and their random numbers."""

from __future__ import annotations

import abc
import math
from typing import ClassVar, Dict, List, Sequence, TypeVar

import numpy as np
import pydantic
from typing_extensions import Annotated

from mxtrain.data.loading.randomness import bits, uniform_number
from mxtrain.types import Fraction, Spec
from mxtrain.vision.draws import VisionDraw
from mxtrain.vision.images.transforms.lazy_image import LazyImage

T = TypeVar("T")
AreaShare = Annotated[float, pydantic.Field(gt=0, le=1)]
MAX_TRANSFORMS = 100
"""Largest number of transforms in a list. Each has its own random stream (`VisionDraw.TRANSFORM`)."""


class RandomStream:
    """Random numbers of one transform for one sample. The n-th number is a function of (seed, epoch, index of the
    sample, position of the transform in the list, n)."""

    def __init__(self, key: int) -> None:
        """Starts the stream.

        Args:
            key: 64 random bits; see `keys`.
        """
        self._key, self._taken = key, 0

    @staticmethod
    def keys(seed: int, epoch: int, index_B: np.ndarray, position: int) -> List[int]:
        """Returns the key of each sample for the transform at a position of the list, from 0."""
        keys: List[int] = bits(seed, epoch, index_B, VisionDraw.TRANSFORM + position).tolist()
        return keys

    def uniform(self, low: float = 0.0, high: float = 1.0) -> float:
        """Returns a number in [low, high)."""
        self._taken += 1
        return low + (high - low) * uniform_number(self._key, self._taken - 1)

    def integer(self, high: int, low: int = 0) -> int:
        """Returns a whole number in [low, high)."""
        return low + int(self.uniform() * (high - low))

    def chance(self, share: float) -> bool:
        """Returns True with this probability."""
        return self.uniform() < share

    def choice(self, values: Sequence[T]) -> T:
        """Returns one of the values, each with the same probability."""
        return values[self.integer(len(values))]

    def normal(self, deviation: float = 1.0) -> float:
        """Returns a normally distributed number around 0. Source: Box and Muller (1958)."""
        radius = math.sqrt(-2 * math.log1p(-self.uniform()))
        return deviation * radius * math.cos(2 * math.pi * self.uniform())


class Transform(Spec, abc.ABC):
    """Base class of random changes of a training image. A subclass has its settings as fields, and implements
    `__call__`."""

    name: ClassVar[str] = ""
    """Name in lists of transforms, for classes of this package; your own classes are given by `_target_`."""

    share: Fraction = 1.0
    """Share of the samples that are changed."""

    @abc.abstractmethod
    def __call__(self, image: LazyImage, draw: RandomStream) -> LazyImage:
        """Returns the changed image.

        Args:
            image: has `height`, `width`, `channels` and `pixels`. `image.with_pixels(array)` changes its colours, and
                `image.moved(matrix)` its geometry.
            draw: source of all random numbers.
        """


class DatasetTransform(Spec, abc.ABC):
    """A transform that the dataset applies itself: while it reads images, or when it mixes samples."""

    is_last: ClassVar[bool] = False
    """True if it is applied after all other transforms; otherwise before them."""

    @abc.abstractmethod
    def settings(self) -> Dict[str, object]:
        """Returns the equivalent settings of `dataset.augment`."""
