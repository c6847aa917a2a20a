"""Key points of real handwritten digits on photographs, both of which come with scikit-learn.

A sample is one digit of a scene of `dataset=digit_scenes`, cropped around its box; another digit may be beside or under
it. Its key points are the centres of the ink in the outer parts of its box: at the top, bottom, left and right; and the
centre of all ink. Single outermost pixels would be unstable: they would jump from one end of a bar to the other if the
digit is rotated a little.

Legend: B batch, H height, W width, J = 5 key points, P pixels of ink.
"""

from __future__ import annotations

import functools
from typing import ClassVar, Optional, Sequence, Tuple, Type

import numpy as np
import pydantic
from PIL import Image
from typing_extensions import Annotated

from mxtrain.data.signature import Signature
from mxtrain.data.spec import Splits
from mxtrain.types import BatchSize, OpenFraction, Positive
from mxtrain.types.kinds import Gives, Images
from mxtrain.vision.detection.digit_scenes import DigitScenes
from mxtrain.vision.detection.scenes import Scenes
from mxtrain.vision.images.fitting import fill_of
from mxtrain.vision.images.settings import Decoding
from mxtrain.vision.images.sizes import ImageSize, square
from mxtrain.vision.kinds import KeyPoints
from mxtrain.vision.pose.crop import Crop
from mxtrain.vision.pose.key_point_augment import KeyPointAugment
from mxtrain.vision.pose.key_point_dataset import KeyPointDataset
from mxtrain.vision.pose.key_points import KeyPointSet, Visibility, left_right_pairs, meta_row
from mxtrain.vision.pose.signature import KeyPointSplits

NAMES = ("top", "bottom", "left", "right", "centre")
OUTER = 0.25
"""Share of a digit's height or width in which the ink belongs to an outer key point."""
SIGMA = 0.05
"""Tolerance of each key point in OKS: between COCO's values for eyes and shoulders."""


# The order of the bases matters: KeyPointDataset reads samples.
class DigitKeyPoints(KeyPointDataset, DigitScenes):  # type: ignore[misc]
    """One handwritten digit of a scene, and five key points of its ink."""

    gives: ClassVar[Gives] = Gives(Images, KeyPoints)

    # No rotation: the outermost ink of a rotated digit is elsewhere.
    augment: KeyPointAugment = KeyPointAugment(rotate=0.0, rotate_share=0.0)
    # Repeated from `DigitScenes`: otherwise the defaults of the first base would apply.
    image_size: Annotated[ImageSize, pydantic.BeforeValidator(square)] = [64, 64]
    """[height, width] of a scene in pixels, and of the part around a digit that enters the network."""
    batch_size: BatchSize = 16
    eval_batch_size: Positive = 64
    val_fraction: OpenFraction = 0.2
    """Share of the digits held out for validation."""

    @property
    def kind(self) -> Type[Scenes]:
        """Returns the class of the splits, with the augmentation as its first argument."""
        return functools.partial(KeyPointScenes, self.augment)  # type: ignore[return-value]

    def make_splits(
        self, train: Scenes, val: Scenes, test: Optional[Scenes], mean: Sequence[float], std: Sequence[float]
    ) -> Splits:
        """Returns the splits with the names of the key points; arguments as in `DigitScenes.make_splits`."""
        for scenes in (train, val, test):
            if scenes is not None:
                assert isinstance(scenes, KeyPointScenes)
                scenes.fill_C = fill_of(mean, 3)
        shape = (3, *self.image_size)
        return KeyPointSplits(
            train, val, test, NAMES, shape, mean, std, Decoding(shape), category_ids=[1], key_points=KEY_POINTS
        )

    def remark(self, signature: Signature, splits: Splits) -> str:
        return ""


KEY_POINTS = KeyPointSet(left_right_pairs(NAMES), [(0, 4), (1, 4), (2, 4), (3, 4)], [SIGMA] * len(NAMES))


class KeyPointScenes(Scenes):
    """Digits cropped from generated scenes, as `Source`.

    Args:
        augment: augmentation of crops in training.
        arguments: arguments of `Scenes`.
    """

    samples_per_task = 16
    fill_C = np.zeros(3, np.uint8)
    """Colour outside of a scene; `make_splits` sets it to the mean."""

    def __init__(self, augment: KeyPointAugment, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self._augment = augment
        self._order_J = KEY_POINTS.order(len(NAMES))

    def fetch(
        self, index_B: np.ndarray, *, seed: int, epoch: int, train: bool
    ) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns crops, key points (B, J, 3) in pixels of the network's input, and rows of `KeypointMeta`; see
        `Source.fetch`."""
        scenes = self._make(index_B, seed=seed, epoch=epoch, train=train)
        image_BCHW, is_ink_BHW = scenes.image_BCHW, scenes.is_ink_BHW
        size, samples = self.shape[1:], []
        for index, image_CHW, is_ink_HW in zip(index_B.tolist(), image_BCHW, is_ink_BHW):
            box_4, point_J3 = ink_box(is_ink_HW), ink_points(is_ink_HW)
            crop = self._augment.crop(box_4, size, seed, epoch, index) if train else Crop.around(box_4, size)
            image = Image.fromarray(np.ascontiguousarray(image_CHW.transpose(1, 2, 0)))
            crop_CHW = crop.draw(functools.partial(_resized, image), image.size, self.fill_C)
            input_J3 = crop.points(point_J3, self._order_J)
            samples.append(
                (
                    crop_CHW,
                    input_J3.astype(np.float32),
                    meta_row(crop, image.size, box_4, float(is_ink_HW.sum()), index, 1.0, KEY_POINTS.sigmas),
                )
            )
        return tuple(map(np.stack, zip(*samples)))  # type: ignore[return-value]


def _resized(image: Image.Image, box: Tuple[float, float, float, float], size: Tuple[int, int]) -> np.ndarray:
    return np.asarray(image.resize(size, Image.Resampling.BILINEAR, box=box)).transpose(2, 0, 1)


def ink_box(is_ink_HW: np.ndarray) -> Tuple[float, float, float, float]:
    """Returns left, top, right and bottom of the smallest box around the ink."""
    rows, columns = np.flatnonzero(is_ink_HW.any(axis=1)), np.flatnonzero(is_ink_HW.any(axis=0))
    return float(columns[0]), float(rows[0]), float(columns[-1] + 1), float(rows[-1] + 1)


def ink_points(is_ink_HW: np.ndarray) -> np.ndarray:
    """Returns the key points of the ink in the order of `NAMES`, (J, 3): x, y, visibility."""
    left, top, right, bottom = ink_box(is_ink_HW)
    rows, columns = np.nonzero(is_ink_HW)
    x_P, y_P = columns + 0.5, rows + 0.5
    # The weight of each pixel in each key point. Rows and columns at the border of a part have a weight between 0 and
    # 1: otherwise a key point would jump by a pixel when the ink grows by one.
    weights = (
        np.clip(top + OUTER * (bottom - top) - rows, 0, 1),
        np.clip(rows + 1 - bottom + OUTER * (bottom - top), 0, 1),
        np.clip(left + OUTER * (right - left) - columns, 0, 1),
        np.clip(columns + 1 - right + OUTER * (right - left), 0, 1),
        np.ones(len(rows)),
    )
    return np.array(
        [(weight_P @ x_P / weight_P.sum(), weight_P @ y_P / weight_P.sum(), Visibility.VISIBLE) for weight_P in weights]
    )
