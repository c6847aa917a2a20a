"""Rotated handwritten digits of scikit-learn, and the angle of each: nothing is downloaded.

Legend: N images, D digits, G = 8 height and width of a digit, S side of an image.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from mxtrain.data.digits import read_digits
from mxtrain.data.loading.number_targets import NumberTargets
from mxtrain.data.loading.sources import MemorySource
from mxtrain.data.loading.splitting import choose_statistics, refuse_empty, split_indices
from mxtrain.data.spec import Splits
from mxtrain.types import BatchSize, OpenFraction, Positive, PositiveFloat
from mxtrain.types.kinds import Gives, Images, Number
from mxtrain.vision.images.dataset import Dataset

_SIDE = 24
"""Side of an image in pixels; that of a digit is two thirds of it, so that no corner is cut off."""


class DigitAngles(NumberTargets, Dataset):
    """Images of 1 x 24 x 24 with a handwritten digit that is rotated, and its angle in degrees, counter-clockwise.

    The 1,797 digits are divided before images are made of them, so that no digit is in two splits.
    """

    gives: ClassVar[Gives] = Gives(Images, Number, usual_model="lenet")

    num_train: Positive = 4000
    """Number of training images."""
    num_val: Positive = 800
    """Number of validation images, and of test images."""
    max_angle: PositiveFloat = 45.0
    """Largest angle in degrees, to either side."""
    batch_size: BatchSize = 64
    val_fraction: OpenFraction = 0.15
    """Share of the digits held out for validation."""
    test_fraction: OpenFraction = 0.15
    """Share of the digits held out for testing."""

    def open(self) -> Splits:
        """Finds, checks and splits the data."""
        image_D1GG, label_D = read_digits()
        parts = split_indices(label_D, self.val_fraction, self.test_fraction, self.split_seed)
        refuse_empty("dataset=digit_angles", len(parts[0]), len(parts[1]), self.val_fraction)
        sizes = (self.num_train, self.num_val, self.num_val)
        train, val, test = (
            rotate_digits(image_D1GG[part, 0], size, self.max_angle, 3 * self.split_seed + number)
            if len(part)
            else None
            for number, (part, size) in enumerate(zip(parts, sizes))
        )
        assert train is not None and val is not None
        mean, std = choose_statistics(self.mean, self.std, train.image_NCHW)
        return Splits(train, val, test, [], train.shape, mean, std)


def rotate_digits(image_DGG: np.ndarray, count: int, max_angle: float, seed: int) -> MemorySource:
    """Makes images of rotated digits.

    Args:
        image_DGG: digits, upright.
        count: number of images.
        max_angle: largest angle in degrees, to either side.
        seed: seed of the choices.

    Returns:
        The images with their angles, counter-clockwise.
    """
    from PIL import Image

    # Raw words are the same for all versions of NumPy.
    words_N2 = np.random.Philox(key=seed % 2**64).random_raw(2 * count).reshape(count, 2)
    digit_N = words_N2[:, 0] % len(image_DGG)
    angle_N = max_angle * (2.0 * (words_N2[:, 1] >> np.uint64(11)) / 2.0**53 - 1.0)
    image_NSS = np.zeros((count, _SIDE, _SIDE), np.uint8)
    size, bilinear = 2 * _SIDE // 3, Image.Resampling.BILINEAR
    begin = (_SIDE - size) // 2
    for number, (digit, angle) in enumerate(zip(digit_N.tolist(), angle_N.tolist())):
        canvas = Image.new("L", (_SIDE, _SIDE))
        canvas.paste(Image.fromarray(image_DGG[digit]).resize((size, size), bilinear), (begin, begin))
        image_NSS[number] = np.asarray(canvas.rotate(angle, bilinear))
    return MemorySource(image_NSS[:, None], angle_N)
