"""1,797 real handwritten digits of 8 x 8 pixels, which are part of scikit-learn: nothing is downloaded."""

from __future__ import annotations

from typing import ClassVar, Literal

from mxtrain.data.digits import read_digits
from mxtrain.data.spec import Splits
from mxtrain.types import BatchSize, OpenFraction
from mxtrain.vision.images.dataset import Dataset
from mxtrain.vision.images.memory import split_in_memory
from mxtrain.vision.images.settings import Augment


class Digits(Dataset):
    """The UCI handwritten digits, 1 x 8 x 8, 10 classes."""

    folds_by: ClassVar[Literal["", "samples", "columns"]] = "samples"

    batch_size: BatchSize = 64
    augment: Augment = Augment(crop_padding=1)
    val_fraction: OpenFraction = 0.15
    """Share of all samples held out for validation."""
    test_fraction: OpenFraction = 0.15
    """Share of all samples held out for testing."""

    def open(self) -> Splits:
        """Finds, checks and splits the data."""
        image_N1HW, label_N = read_digits()
        return split_in_memory(self, image_N1HW, label_N, [str(digit) for digit in range(10)])
