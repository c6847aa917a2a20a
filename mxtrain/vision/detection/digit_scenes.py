"""Scenes of real handwritten digits on photographs, both of which are part of scikit-learn. A sample has a mask of the
scene, or the boxes of its digits, or both, as the task needs.

Training has new scenes in each epoch. Digits and photographs of training and validation differ: `val_fraction` of the
1,797 digits and the right halves of both photographs are held out. With `test_fraction`, there is a test split of the
same size with further digits.

Legend: N digits, B batch, D digits in a scene, H height, W width, G = 8 height and width of a digit,
R = 7 columns of a box.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, List, Literal, Mapping, Optional, Sequence, Type, Union

import numpy as np
import pydantic
from typing_extensions import Annotated

from mxtrain.data.digits import read_digits
from mxtrain.data.loading.official import sklearn_datasets
from mxtrain.data.loading.splitting import refuse_empty, split_indices
from mxtrain.data.signature import Signature
from mxtrain.data.spec import BaseDataset, Splits
from mxtrain.errors import DataError
from mxtrain.types import BatchSize, OpenFraction, Positive, Range
from mxtrain.types.kinds import Gives, Images, TargetKind
from mxtrain.vision.detection.boxed import BoxedDataset
from mxtrain.vision.detection.boxes import BoxAnnotations
from mxtrain.vision.detection.scenes import BoxedScenes, InstanceScenes, Scenes
from mxtrain.vision.detection.signature import BoxSplits
from mxtrain.vision.images.decoding import known_statistics
from mxtrain.vision.images.pixels import ImageReader
from mxtrain.vision.images.settings import Decoding
from mxtrain.vision.images.sizes import ImageSize, square
from mxtrain.vision.instance_segmentation.mask_rows import InstanceAnnotations
from mxtrain.vision.kinds import Boxes, ClassMap, Masks
from mxtrain.vision.segmentation.masked import MaskedDataset
from mxtrain.vision.segmentation.signature import MaskSplits

if TYPE_CHECKING:
    from mxtrain.loss.spec import Loss
    from mxtrain.model.spec import Model


class DigitScenes(MaskedDataset):
    """Photographs with a few coloured handwritten digits, and the digit of each pixel."""

    gives: ClassVar[Gives] = Gives(Images, ClassMap, Boxes, Masks)
    usual_num_train: ClassVar[int] = 3000
    """Number of training scenes for `num_train=auto`."""
    pixel_weights: ClassVar[Mapping[str, float]] = {"background": 0.4}  # nine of ten pixels

    image_size: Annotated[ImageSize, pydantic.BeforeValidator(square)] = [64, 64]
    """[height, width] of a scene in pixels."""
    digits: Range[Positive] = [1, 2]
    """Minimum and maximum number of digits in a scene."""
    digit_size: Range[Positive] = [24, 40]
    """Smallest and largest height of a digit in pixels."""
    num_train: Union[Literal["auto"], Positive] = "auto"
    """Training scenes in an epoch; another epoch has others; auto = 3000, and 2500 with task=instance_segmentation."""
    num_val: Positive = 300
    """Validation scenes, always the same."""
    batch_size: BatchSize = 16
    eval_batch_size: Positive = 64
    val_fraction: OpenFraction = 0.2
    """Share of the digits held out for validation."""

    @property
    def kind(self) -> Type[Scenes]:
        """Returns the class of the splits."""
        return Scenes

    @pydantic.model_validator(mode="after")
    def _check_scene(self) -> DigitScenes:
        if self.digits[1] > 8:
            raise ValueError(f"digits can be 8 at most, got {self.digits}")
        if self.digit_size[1] > min(self.image_size):
            raise ValueError(f"digit_size={self.digit_size} is more than a scene of {self.image_size} can hold")
        return self

    def for_run(
        self, target: Type[TargetKind], model: Optional[Model] = None, loss: Optional[Loss] = None
    ) -> BaseDataset:
        dataset = super().for_run(target, model, loss)
        assert isinstance(dataset, DigitScenes)
        if issubclass(target, Masks):
            return dataset.as_class(InstanceDigitScenes)
        return dataset.as_class(BoxedDigitScenes) if issubclass(target, Boxes) else dataset

    def open(self) -> Splits:
        """Finds, checks and splits the data."""
        image_N1GG, label_N = read_digits()
        in_train, in_val, in_test = split_indices(label_N, self.val_fraction, self.test_fraction, self.split_seed)
        refuse_empty("dataset=digit_scenes", len(in_train), len(in_val), self.val_fraction)
        photos = read_photos()
        left, right = ([_half(photo, is_right, self.image_size) for photo in photos] for is_right in (False, True))

        def scenes(part: np.ndarray, halves: Sequence[np.ndarray], length: int) -> Scenes:
            return self.kind(
                image_N1GG[part, 0] / 255.0,
                label_N[part],
                halves,
                length,
                self.image_size,
                self.digits,
                self.digit_size,
                self.split_seed,
            )

        mean, std = known_statistics(3)
        return self.make_splits(
            scenes(in_train, left, self.usual_num_train if self.num_train == "auto" else self.num_train),
            scenes(in_val, right, self.num_val),
            scenes(in_test, right, self.num_val) if len(in_test) else None,
            mean if self.mean == "auto" else self.mean,
            std if self.std == "auto" else self.std,
        )

    def make_splits(
        self, train: Scenes, val: Scenes, test: Optional[Scenes], mean: Sequence[float], std: Sequence[float]
    ) -> Splits:
        """Returns the splits with the class names."""
        shape, names = (3, *self.image_size), ["background", *map(str, range(10))]
        decoding = Decoding(shape, frame=(shape[1], shape[2]))
        return MaskSplits(train, val, test, names, shape, mean, std, decoding, mask_values=range(11))


class BoxedDigitScenes(BoxedDataset, DigitScenes):  # type: ignore[misc]  # BoxedDataset reads samples
    """The scenes of `DigitScenes` with the box of each digit, around all of its ink, including hidden parts."""

    @property
    def kind(self) -> Type[Scenes]:
        """Returns the class of the splits."""
        return BoxedScenes

    def remark(self, signature: Signature, splits: Splits) -> str:
        return ""

    def make_splits(
        self, train: Scenes, val: Scenes, test: Optional[Scenes], mean: Sequence[float], std: Sequence[float]
    ) -> Splits:
        """Returns the splits with the class names; arguments as in `DigitScenes.make_splits`."""
        shape, names = (3, *self.image_size), [str(digit) for digit in range(10)]
        return BoxSplits(
            train, val, test, names, shape, mean, std, Decoding(shape, fit=self.fit), category_ids=range(10)
        )


class InstanceDigitScenes(BoxedDigitScenes):
    """The scenes of `DigitScenes` with the mask of the visible part of each digit, and the box around it."""

    gives: ClassVar[Gives] = Gives(Images, Masks)
    annotation_class: ClassVar[Type[BoxAnnotations]] = InstanceAnnotations
    usual_num_train: ClassVar[int] = 2500

    @property
    def kind(self) -> Type[Scenes]:
        """Returns the class of the splits."""
        return InstanceScenes


def _half(photo_CHW: np.ndarray, is_right: bool, size: Sequence[int]) -> np.ndarray:
    """Returns the left or right half of a photograph.

    Args:
        photo_CHW: the photograph.
        is_right: True for the right half.
        size: (height, width) of a scene.

    Raises:
        DataError: the half is smaller than a scene.
    """
    middle = photo_CHW.shape[2] // 2
    half_CHW = photo_CHW[:, :, middle:] if is_right else photo_CHW[:, :, :middle]
    if half_CHW.shape[1] < size[0] or half_CHW.shape[2] < size[1]:
        size_text = "x".join(map(str, half_CHW.shape[1:]))
        raise DataError(f"dataset.image_size={list(size)}: scenes are parts of photographs of {size_text}. Type less.")
    return half_CHW


def read_photos() -> List[np.ndarray]:
    """Reads scikit-learn's two photographs, (3, 427, 640) uint8 each.

    Raises:
        DataError: scikit-learn is not installed, or has no photographs.
    """
    folder = sklearn_datasets("digit_scenes") / "images"
    if not folder.is_dir():
        raise DataError(f"dataset=digit_scenes reads photographs of scikit-learn, and there is no folder '{folder}'.")
    images = [
        ImageReader((folder / name).read_bytes())  # lint: a file of an installed package
        for name in ("china.jpg", "flower.jpg")
    ]
    return [image.resized((0, 0, *image.size), image.size, 3) for image in images]
