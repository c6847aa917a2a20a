"""Images of several handwritten digits each, of scikit-learn's digits: nothing is downloaded. The classes of an image
are the digits in it.

Legend: N images, D digits, G = 8 height and width of a digit, P places, K = 10 classes.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from mxtrain.data.checking.checks import Checked, Checks, FetchedChecks
from mxtrain.data.digits import read_digits
from mxtrain.data.loading.sources import MemorySource
from mxtrain.data.loading.splitting import choose_statistics, refuse_empty, split_indices
from mxtrain.data.spec import Splits
from mxtrain.types import BatchSize, OpenFraction, Positive
from mxtrain.types.kinds import ClassSet, Gives, Images
from mxtrain.vision.images.dataset import Dataset
from mxtrain.vision.images.settings import Augment

_SIDE = 2
"""Places along a side of an image; each holds a digit or nothing."""
_MOST_DIGITS = 4


class DigitSets(Dataset):
    """Images of 1 x 16 x 16 with up to four handwritten digits, and the set of digits in each.

    The 1,797 digits are divided before images are made of them, so that no digit is in two splits.
    """

    gives: ClassVar[Gives] = Gives(Images, ClassSet)

    num_train: Positive = 4000
    """Number of training images."""
    num_val: Positive = 800
    """Number of validation images, and of test images."""
    batch_size: BatchSize = 64
    augment: Augment = Augment(crop_padding=1)
    val_fraction: OpenFraction = 0.15
    """Share of the digits held out for validation."""
    test_fraction: OpenFraction = 0.15
    """Share of the digits held out for testing."""

    def open(self) -> Splits:
        """Finds, checks and splits the data."""
        image_D1GG, label_D = read_digits()
        parts = split_indices(label_D, self.val_fraction, self.test_fraction, self.split_seed)
        refuse_empty("dataset=digit_sets", len(parts[0]), len(parts[1]), self.val_fraction)
        sizes = (self.num_train, self.num_val, self.num_val)
        train, val, test = (
            compose_digits(image_D1GG[part, 0], label_D[part], size, 3 * self.split_seed + number)
            if len(part)
            else None
            for number, (part, size) in enumerate(zip(parts, sizes))
        )
        assert train is not None and val is not None
        mean, std = choose_statistics(self.mean, self.std, train.image_NCHW)
        return Splits(train, val, test, [str(digit) for digit in range(10)], train.shape, mean, std)


def compose_digits(image_DGG: np.ndarray, label_D: np.ndarray, count: int, seed: int) -> MemorySource:
    """Makes images of digits.

    Args:
        image_DGG: digits.
        label_D: class of each digit.
        count: number of images.
        seed: seed of the choices.
    """
    size, num_places = image_DGG.shape[1], _SIDE * _SIDE
    num_words = 1 + num_places + _MOST_DIGITS
    # Raw words are the same for all versions of NumPy.
    words = np.random.Philox(key=seed % 2**64).random_raw(count * num_words).reshape(count, num_words)
    image_NHW = np.zeros((count, _SIDE * size, _SIDE * size), np.uint8)
    target_NK = np.zeros((count, 10), np.int32)
    num_digits_N = words[:, 0] % (_MOST_DIGITS + 1)
    place_NP = np.argsort(words[:, 1 : 1 + num_places], axis=1, kind="stable")
    digit_ND = words[:, 1 + num_places :] % len(label_D)
    for number in range(_MOST_DIGITS):
        for row in np.flatnonzero(num_digits_N > number).tolist():
            top, left = np.array(divmod(int(place_NP[row, number]), _SIDE)) * size
            digit = int(digit_ND[row, number])
            image_NHW[row, top : top + size, left : left + size] = image_DGG[digit]
            target_NK[row, label_D[digit]] = 1
    return MemorySets(image_NHW[:, None], target_NK)


class MemorySets(MemorySource):
    """Images in memory with any number of classes each: labels are (N, K) of 0 and 1."""

    def checks(self) -> Checks:
        """Returns the checks that `data check` runs on each sample."""
        return MemorySetChecks(self)


class MemorySetChecks(FetchedChecks):
    """Checks of `MemorySets`."""

    def check(self, index: int) -> Checked:
        """See `Checks`."""
        checked = super().check(index)
        return Checked(checked.problems, checked.digest, np.flatnonzero(self._source.label_N[index]).tolist())
