"""Key points of real handwritten digits on photographs, both of which come with scikit-learn.

A sample is one digit of a scene of `dataset=digit_scenes`, cut out by its box; another may be beside or under it. Its
key points are where its ink reaches furthest. Single outermost pixels would jump from one end of a bar to the other
when it is turned a little, so a key point is the centre of all ink in the outer part of the digit's box.

Legend: B batch, H height, W width, J = 5 key points.
"""

from __future__ import annotations

import functools
from typing import ClassVar, Optional, Sequence, Tuple, Type

import numpy as np
import pydantic
from PIL import Image
from typing_extensions import Annotated

from mxtrain.data.base import BaseDataset, Splits
from mxtrain.data.signature import Signature
from mxtrain.types import BatchSize, OpenFraction, Positive
from mxtrain.vision.detection.digit_scenes import DigitScenes
from mxtrain.vision.detection.scenes import Scenes
from mxtrain.vision.images.encoded_image_source import fill_of
from mxtrain.vision.images.settings import Decoding
from mxtrain.vision.images.sizes import ImageSize, square
from mxtrain.vision.pose.crop import Crop
from mxtrain.vision.pose.key_point_augment import KeyPointAugment
from mxtrain.vision.pose.key_point_dataset import KeyPointDataset
from mxtrain.vision.pose.key_points import KeyPointSet, Visibility, facts, left_right_pairs
from mxtrain.vision.pose.signature import KeyPointSplits

NAMES = ("top", "bottom", "left", "right", "centre")
OUTER = 0.25
"""Share of a digit's height or width in which the ink belongs to an outer key point."""
SIGMA = 0.05
"""Tolerance of each key point in OKS: between COCO's values for eyes and shoulders."""


class DigitKeyPoints(KeyPointDataset, DigitScenes):  # type: ignore[misc]  # the first says how samples are read
    """One handwritten digit of a scene, and five key points of its ink."""

    tasks: ClassVar[Tuple[str, ...]] = ("pose_estimation",)

    # A digit that is turned reaches furthest elsewhere.
    augment: KeyPointAugment = KeyPointAugment(rotate=0.0, rotate_share=0.0)
    # The first base would list the settings of all datasets.
    image_size: Annotated[ImageSize, pydantic.BeforeValidator(square)] = [64, 64]
    """[height, width] of a scene in pixels, and of the part around a digit that enters the network."""
    batch_size: BatchSize = 16
    eval_batch_size: Positive = 64
    val_fraction: OpenFraction = 0.2
    """Share of the digits held out for validation."""

    @property
    def kind(self) -> Type[Scenes]:
        """See `DigitScenes.kind`."""
        return functools.partial(KeyPointScenes, self.augment)  # type: ignore[return-value]

    def for_task(self, name: str) -> BaseDataset:
        """See `BaseDataset.for_task`."""
        return self

    def make_splits(
        self, train: Scenes, val: Scenes, test: Optional[Scenes], mean: Sequence[float], std: Sequence[float]
    ) -> Splits:
        """See `DigitScenes.make_splits`."""
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
    """Digits cut out of made scenes, as `Source`.

    Args:
        augment: how they are cut out in training.
        arguments: as of `Scenes`.
    """

    samples_per_task = 16
    fill_C = np.zeros(3, np.uint8)
    """End of a scene."""

    def __init__(self, augment: KeyPointAugment, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self._augment = augment
        self._order_J = KEY_POINTS.order(len(NAMES))

    def fetch(
        self, index_B: np.ndarray, *, seed: int, epoch: int, train: bool
    ) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:  # fmt: skip
        """See `Source.fetch`; key points (B, J, 3) are in pixels of the network's input; metadata is `KeypointMeta`."""
        scenes = self._make(index_B, seed=seed, epoch=epoch, train=train)
        image_BCHW, is_ink_BHW = scenes.image_BCHW, scenes.is_ink_BHW
        size, samples = self.shape[1:], []
        for index, image_CHW, is_ink_HW in zip(index_B.tolist(), image_BCHW, is_ink_BHW):
            box_4, point_J3 = ink_box(is_ink_HW), ink_points(is_ink_HW)
            crop = self._augment.crop(box_4, size, seed, epoch, index) if train else Crop.around(box_4, size)
            image = Image.fromarray(np.ascontiguousarray(image_CHW.transpose(1, 2, 0)))
            cut_CHW = crop.draw(functools.partial(_resized, image), image.size, self.fill_C)
            points_J3 = crop.points(point_J3, self._order_J)
            samples.append((
                cut_CHW, points_J3.astype(np.float32),
                facts(crop, image.size, box_4, float(is_ink_HW.sum()), index, 1.0, KEY_POINTS.sigmas),
            ))  # fmt: skip
        return tuple(map(np.stack, zip(*samples)))  # type: ignore[return-value]


def _resized(image: Image.Image, box: Tuple[float, float, float, float], size: Tuple[int, int]) -> np.ndarray:
    return np.asarray(image.resize(size, Image.Resampling.BILINEAR, box=box)).transpose(2, 0, 1)


def ink_box(is_ink_HW: np.ndarray) -> Tuple[float, float, float, float]:
    """Returns left, top, right and bottom of the ink."""
    rows, columns = np.flatnonzero(is_ink_HW.any(axis=1)), np.flatnonzero(is_ink_HW.any(axis=0))
    return float(columns[0]), float(rows[0]), float(columns[-1] + 1), float(rows[-1] + 1)


def ink_points(is_ink_HW: np.ndarray) -> np.ndarray:
    """Returns the key points of the ink, (J, 3), as `NAMES` says."""
    left, top, right, bottom = ink_box(is_ink_HW)
    rows, columns = np.nonzero(is_ink_HW)
    x_P, y_P = columns + 0.5, rows + 0.5
    # Whole rows and columns would make a key point jump by one when the ink grows by one.
    parts = (
        np.clip(top + OUTER * (bottom - top) - rows, 0, 1), np.clip(rows + 1 - bottom + OUTER * (bottom - top), 0, 1),
        np.clip(left + OUTER * (right - left) - columns, 0, 1),
        np.clip(columns + 1 - right + OUTER * (right - left), 0, 1), np.ones(len(rows)),
    )  # fmt: skip
    return np.array([
        (part_P @ x_P / part_P.sum(), part_P @ y_P / part_P.sum(), Visibility.VISIBLE) for part_P in parts
    ])  # fmt: skip
