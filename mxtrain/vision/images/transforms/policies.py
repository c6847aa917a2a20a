"""RandAugment and AutoAugment: a few operations of a fixed set, chosen at random for each sample.

Operations that replace each value (posterize, equalize, ...) are lookup tables of 256 values. For images with more than
8 bits per channel, they are interpolated.

Legend: C channels, H height, W width, V = 256 values.
"""

from __future__ import annotations

from typing import Callable, ClassVar, Dict, List, Mapping, Tuple

import numpy as np
import pydantic
from typing_extensions import Annotated, Literal

from mxtrain.types import Positive
from mxtrain.vision.images.transforms.base import RandomStream, Transform
from mxtrain.vision.images.transforms.colors import colour_matrix, mean_grey, recoloured
from mxtrain.vision.images.transforms.geometry import around_centre, rotation
from mxtrain.vision.images.transforms.lazy_image import LazyImage

Operation = Callable[[LazyImage, float], LazyImage]
"""Function of (image, strength from -1 to 1). Operations without a direction use the absolute value of the strength."""
_VALUE_V = np.arange(256.0)
"""Index of a lookup table."""


class RandAugment(Transform):
    """Some operations of one strength, chosen at random for each sample; one may be chosen twice.

    Source: Cubuk et al., "RandAugment: Practical Automated Data Augmentation with a Reduced Search Space" (2020), with
    the ranges of torchvision's.
    """

    name: ClassVar[str] = "rand_augment"

    num_ops: Positive = 2
    """Operations a sample."""
    magnitude: Annotated[int, pydantic.Field(ge=0, le=30)] = 9
    """Strength; 30 is the largest."""

    def __call__(self, image: LazyImage, draw: RandomStream) -> LazyImage:
        for _ in range(self.num_ops):
            name = draw.choice(RANDOM_OPERATIONS)
            sign = 1 if draw.chance(0.5) else -1
            image = OPERATIONS[name](image, sign * self.magnitude / 30)
        return image


class AutoAugment(Transform):
    """One of 25 pairs of operations, which were searched for on a dataset.

    Source: Cubuk et al., "AutoAugment: Learning Augmentation Policies from Data" (2019), tables 7 to 9, with the ranges
    of torchvision's.
    """

    name: ClassVar[str] = "auto_augment"

    policy: Literal["imagenet", "cifar10", "svhn"] = "imagenet"
    """The dataset on which they were found."""

    def __call__(self, image: LazyImage, draw: RandomStream) -> LazyImage:
        for name, share, level in draw.choice(POLICIES[self.policy]):
            is_done, sign = draw.chance(share), 1 if draw.chance(0.5) else -1
            if is_done:
                image = OPERATIONS[name](image, sign * level / 9)
        return image


def _sheared(axis: int) -> Operation:
    """Returns the operation that shears along x (0) or y (1)."""

    def shear(image: LazyImage, strength: float) -> LazyImage:
        matrix_23 = np.eye(2, 3)
        matrix_23[axis, 1 - axis] = 0.3 * strength
        return image.moved(matrix_23)

    return shear


def _shifted(axis: int) -> Operation:
    """Returns the operation that shifts along x (0) or y (1): at most by 150 of 331 pixels, as in the papers."""

    def shift(image: LazyImage, strength: float) -> LazyImage:
        matrix_23 = np.eye(2, 3)
        # 150 of 331 pixels, as in torchvision; other sizes in proportion.
        matrix_23[axis, 2] = int(150 / 331 * strength * (image.width, image.height)[axis])
        return image.moved(matrix_23)

    return shift


def _rotated(image: LazyImage, strength: float) -> LazyImage:
    return image.moved(around_centre(image, rotation(30 * strength)))


def _brighter(image: LazyImage, strength: float) -> LazyImage:
    return _blended(image, 1 + 0.9 * strength, np.eye(3), 0.0)


def _coloured(image: LazyImage, strength: float) -> LazyImage:
    return _blended(image, 1.0, colour_matrix(1 + 0.9 * strength, 0.0), 0.0)


def _contrasted(image: LazyImage, strength: float) -> LazyImage:
    factor = 1 + 0.9 * strength
    return _blended(image, factor, np.eye(3), (1 - factor) * mean_grey(image.pixels))


def _blended(image: LazyImage, factor: float, matrix_33: np.ndarray, added: float) -> LazyImage:
    """Maps colours by a matrix times a factor, and adds a constant to all channels."""
    return image.with_pixels(recoloured(image.pixels, np.column_stack([factor * matrix_33, np.full(3, added)])))


def _sharpened(image: LazyImage, strength: float) -> LazyImage:
    """Moves each pixel away from, or towards, the mean of its 3 x 3 neighbourhood, in which the pixel itself has a
    weight of 5. Border pixels are unchanged. Source: Pillow's `ImageEnhance.Sharpness`."""
    pixel_CHW = image.pixels.astype(np.float32)
    height, width = pixel_CHW.shape[1:]
    smooth_CHW = pixel_CHW.copy()
    if min(height, width) > 2:
        total = sum(
            pixel_CHW[:, y : height - 2 + y, x : width - 2 + x] * (5.0 if x == y == 1 else 1.0)
            for y in range(3)
            for x in range(3)
        )
        smooth_CHW[:, 1:-1, 1:-1] = total / 13
    return image.with_pixels(smooth_CHW + np.float32(1 + 0.9 * strength) * (pixel_CHW - smooth_CHW))


def _apply_tables(image: LazyImage, tables: List[np.ndarray]) -> LazyImage:
    """Maps each channel with a lookup table (V,) of its own."""
    channels = [
        np.rint(table_V).astype(np.uint8)[channel_HW]
        if channel_HW.dtype == np.uint8
        else np.interp(channel_HW, _VALUE_V, table_V).astype(np.float32)
        for channel_HW, table_V in zip(image.pixels, tables)
    ]
    return image.with_pixels(np.stack(channels))


def _posterized(image: LazyImage, strength: float) -> LazyImage:
    num_bits = round(4 * abs(strength))  # the lowest bits, which become 0
    return _apply_tables(image, [np.floor(_VALUE_V / 2**num_bits) * 2**num_bits] * image.channels)


def _solarized(image: LazyImage, strength: float) -> LazyImage:
    threshold = 255 * (1 - abs(strength))
    return _apply_tables(image, [np.where(_VALUE_V >= threshold, 255 - _VALUE_V, _VALUE_V)] * image.channels)


def _inverted(image: LazyImage, strength: float) -> LazyImage:
    return image.with_pixels(255 - image.pixels)


def _auto_contrasted(image: LazyImage, strength: float) -> LazyImage:
    tables = []
    for channel_HW in image.pixels:
        low, high = float(channel_HW.min()), float(channel_HW.max())
        scale = 255 / (high - low) if high > low else 0.0
        tables.append(np.floor((_VALUE_V * scale - low * scale).clip(0, 255)) if high > low else _VALUE_V)
    return _apply_tables(image, tables)


def _equalized(image: LazyImage, strength: float) -> LazyImage:
    """Equalizes the histogram of each channel. Source: Pillow's `ImageOps.equalize`."""
    tables = []
    for channel_HW in image.pixels:
        count_V = np.bincount(np.rint(channel_HW).astype(np.int64).ravel(), minlength=256)
        # As in Pillow, the brightest value that occurs is left out of the sum.
        step = int(count_V.sum() - count_V[np.flatnonzero(count_V)[-1]]) // 255
        before_V = np.cumsum(count_V) - count_V
        tables.append(np.minimum((step // 2 + before_V) // step, 255).astype(float) if step else _VALUE_V)
    return _apply_tables(image, tables)


OPERATIONS: Mapping[str, Operation] = {
    "identity": lambda image, strength: image,
    "shear_x": _sheared(0),
    "shear_y": _sheared(1),
    "translate_x": _shifted(0),
    "translate_y": _shifted(1),
    "rotate": _rotated,
    "brightness": _brighter,
    "color": _coloured,
    "contrast": _contrasted,
    "sharpness": _sharpened,
    "posterize": _posterized,
    "solarize": _solarized,
    "auto_contrast": _auto_contrasted,
    "equalize": _equalized,
    "invert": _inverted,
}
# The RandAugment of torchvision does not invert.
RANDOM_OPERATIONS = [name for name in OPERATIONS if name != "invert"]

_PAIRS = {
    "imagenet": """
        posterize .4 8, rotate .6 9; solarize .6 5, auto_contrast .6; equalize .8, equalize .6
        posterize .6 7, posterize .6 6; equalize .4, solarize .2 4; equalize .4, rotate .8 8
        solarize .6 3, equalize .6; posterize .8 5, equalize 1; rotate .2 3, solarize .6 8
        equalize .6, posterize .4 6; rotate .8 8, color .4 0; rotate .4 9, equalize .6
        equalize 0, equalize .8; invert .6, equalize 1; color .6 4, contrast 1 8
        rotate .8 8, color 1 2; color .8 8, solarize .8 7; sharpness .4 7, invert .6
        shear_x .6 5, equalize 1; color .4 0, equalize .6; equalize .4, solarize .2 4
        solarize .6 5, auto_contrast .6; invert .6, equalize 1; color .6 4, contrast 1 8
        equalize .8, equalize .6""",
    "cifar10": """
        invert .1, contrast .2 6; rotate .7 2, translate_x .3 9; sharpness .8 1, sharpness .9 3
        shear_y .5 8, translate_y .7 9; auto_contrast .5, equalize .9; shear_y .2 7, posterize .3 7
        color .4 3, brightness .6 7; sharpness .3 9, brightness .7 9; equalize .6, equalize .5
        contrast .6 7, sharpness .6 5; color .7 7, translate_x .5 8; equalize .3, auto_contrast .4
        translate_y .4 3, sharpness .2 6; brightness .9 6, color .2 8; solarize .5 2, invert 0
        equalize .2, auto_contrast .6; equalize .2, equalize .6; color .9 9, equalize .6
        auto_contrast .8, solarize .2 8; brightness .1 3, color .7 0; solarize .4 5, auto_contrast .9
        translate_y .9 9, translate_y .7 9; auto_contrast .9, solarize .8 3; equalize .8, invert .1
        translate_y .7 9, auto_contrast .9""",
    "svhn": """
        shear_x .9 4, invert .2; shear_y .9 8, invert .7; equalize .6, solarize .6 6
        invert .9, equalize .6; equalize .6, rotate .9 3; shear_x .9 4, auto_contrast .8
        shear_y .9 8, invert .4; shear_y .9 5, solarize .2 6; invert .9, auto_contrast .8
        equalize .6, rotate .9 3; shear_x .9 4, solarize .3 3; shear_y .8 8, invert .7
        equalize .9, translate_y .6 6; invert .9, equalize .6; contrast .3 3, rotate .8 4
        invert .8, translate_y 0 2; shear_y .7 6, solarize .4 8; invert .6, rotate .8 4
        shear_y .3 7, translate_x .9 3; shear_x .1 6, invert .6; solarize .7 2, translate_y .6 7
        shear_y .8 4, invert .8; shear_x .7 9, translate_y .8 3; shear_y .8 5, auto_contrast .7
        shear_x .7 2, invert .1""",
}
"""Operation, probability and strength from 0 to 9 (for operations with a strength)."""


def _read_pairs(text: str) -> List[List[Tuple[str, float, int]]]:
    """Parses a policy of `_PAIRS` to pairs of (operation, probability, strength from 0 to 9)."""
    pairs = []
    for pair in text.strip().replace("\n", ";").split(";"):
        words = [operation.split() for operation in pair.split(",")]
        pairs.append([(name, float(share), int(level[0]) if level else 0) for name, share, *level in words])
    return pairs


POLICIES: Dict[str, List[List[Tuple[str, float, int]]]] = {name: _read_pairs(text) for name, text in _PAIRS.items()}
