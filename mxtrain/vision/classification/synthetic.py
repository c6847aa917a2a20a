"""Synthetic images of any shape with classes that can be learned, for tests and speed measurements."""

from __future__ import annotations

import math
from typing import ClassVar, List, Literal

import numpy as np
import pydantic
from typing_extensions import Annotated

from mxtrain.data.spec import Splits
from mxtrain.errors import DataError
from mxtrain.types import Fraction, OpenFraction, Positive, Shape
from mxtrain.vision.images.dataset import Dataset
from mxtrain.vision.images.memory import split_in_memory

_MAX_GIB = 16
"""Largest allowed size of all images, in GiB."""


class Synthetic(Dataset):
    """A random pattern per class, under noise."""

    folds_by: ClassVar[Literal["", "samples", "columns"]] = "samples"

    shape: Annotated[List[Positive], pydantic.Field(min_length=3, max_length=3)] = [3, 32, 32]
    """[channels, height, width]."""
    num_classes: Annotated[int, pydantic.Field(ge=2)] = 10
    """Number of classes, at least 2."""
    num_samples: Positive = 2048
    """Number of samples in all splits together."""
    noise: Fraction = 0.5
    """Share of noise in a pixel: 0 = the bare pattern, 1 = nothing to learn."""
    data_seed: int = 0
    """Seed of the patterns and the noise."""
    test_fraction: OpenFraction = 0.1
    """Share of all samples held out for testing."""

    def open(self) -> Splits:
        """Finds, checks and splits the data."""
        gib = self.num_samples * math.prod(self.shape) / 2**30
        if gib > _MAX_GIB:
            raise DataError(
                f"dataset=synthetic with num_samples={self.num_samples} and shape={self.shape} would take {gib:.0f} "
                f"GiB of memory; at most {_MAX_GIB} are allowed. Choose fewer dataset.num_samples or a smaller shape."
            )
        label_N = (np.arange(self.num_samples) % self.num_classes).astype(np.int32)
        noise_weight = int(round(self.noise * 256))
        pattern_KCHW = _random_bytes(self.data_seed, (self.num_classes, *self.shape))
        image_NCHW = _random_bytes(self.data_seed + 1, (self.num_samples, *self.shape))
        for label in range(self.num_classes):  # in place, class by class: 16-bit copies of all images would not fit
            members = image_NCHW[label :: self.num_classes]
            blend = members.astype(np.uint16) * np.uint16(noise_weight)
            blend += pattern_KCHW[label].astype(np.uint16) * np.uint16(256 - noise_weight)
            members[...] = blend >> 8
        return split_in_memory(self, image_NCHW, label_N, [f"class {k}" for k in range(self.num_classes)])


def _random_bytes(seed: int, shape: Shape) -> np.ndarray:
    """Returns random bytes of a shape, which are the same for all versions of NumPy."""
    size = int(np.prod(shape))
    words = np.random.Philox(key=seed % 2**64).random_raw(-(-size // 8))
    return words.astype("<u8", copy=False).view(np.uint8)[:size].reshape(shape)
