"""Scenes of real handwritten digits on photographs, both of which come with scikit-learn: a mask of each scene, or the
boxes of its digits, whatever the task needs.

Training shows new scenes in each epoch. Digits and photographs of training are not those of validation: of 1,797 digits
`val_fraction` are held out, and of both photographs the right halves. With `test_fraction` there are as many scenes
to test with, of digits that neither of both shows.

Legend: N digits, B batch, D digits in a scene, H height, W width, G = 8 height and width of a digit,
R = 7 columns of a box.
"""

from __future__ import annotations

from typing import ClassVar, List, Mapping, Optional, Sequence, Tuple, Type

import numpy as np
import pydantic
from typing_extensions import Annotated

from mxtrain.dataset.base import BaseDataset, ImageSize, Splits, square
from mxtrain.dataset.digits import read_digits
from mxtrain.dataset.image.boxed import BoxedDataset
from mxtrain.dataset.image.boxes import NUM_COLUMNS, rows_of
from mxtrain.dataset.image.decoding import known_statistics
from mxtrain.dataset.image.masked import MaskedDataset
from mxtrain.dataset.image.pixels import ImageReader
from mxtrain.dataset.image.settings import Decoding, Range
from mxtrain.dataset.loading.official import sklearn_datasets
from mxtrain.dataset.loading.randomness import Draw, bits, integers, uniform
from mxtrain.dataset.loading.splitting import refuse_empty, split_indices
from mxtrain.dataset.signature import Signature
from mxtrain.errors import DataError
from mxtrain.types import OpenFraction, Positive

BACKGROUND = 0.6
"""Photographs are darkened to this, so that digits stand out."""
INK_THRESHOLD = 0.4
"""A pixel is part of a digit where its ink is more."""
OPACITY = 1.6
"""Ink of more than the inverse of this hides the photograph."""
_DRAWS_PER_DIGIT = 20
_PLACES = 8
"""Tried for each digit; the one that covers the least of the others is taken."""


class DigitScenes(MaskedDataset):
    """Photographs with a few handwritten digits in other colours, and which pixel is of which digit."""

    serves: ClassVar[Tuple[str, ...]] = ("segmentation", "detection")
    pixel_weights: ClassVar[Mapping[str, float]] = {"background": 0.4}  # nine of ten pixels

    image_size: Annotated[ImageSize, pydantic.BeforeValidator(square)] = [64, 64]
    """[height, width] of a scene in pixels."""
    digits: Range[Positive] = [1, 2]
    """Fewest and most digits in a scene."""
    digit_size: Range[Positive] = [24, 40]
    """Smallest and largest height of a digit in pixels."""
    num_train: Positive = 3000
    """Training scenes in an epoch; another epoch has others."""
    num_val: Positive = 300
    """Validation scenes, always the same."""
    batch_size: Positive = 16
    eval_batch_size: Positive = 64
    val_fraction: OpenFraction = 0.2

    @property
    def kind(self) -> Type[Scenes]:
        """The class of the splits."""
        return Scenes

    @pydantic.model_validator(mode="after")
    def _check_scene(self) -> DigitScenes:
        if self.digits[1] > 8:
            raise ValueError(f"digits can be 8 at most, got {self.digits}")
        if self.digit_size[1] > min(self.image_size):
            raise ValueError(f"digit_size={self.digit_size} is more than a scene of {self.image_size} can hold")
        return self

    def for_task(self, name: str) -> BaseDataset:
        """See `BaseDataset.for_task`."""
        if name != "detection":
            return self
        return BoxedDigitScenes(**{field: getattr(self, field) for field in type(self).model_fields})

    def open(self) -> Splits:
        """See `Dataset.open`."""
        image_N1GG, label_N = read_digits()
        in_train, in_val, in_test = split_indices(label_N, self.val_fraction, self.test_fraction, self.split_seed)
        refuse_empty("dataset=digit_scenes", len(in_train), len(in_val), self.val_fraction)
        photos = read_photos()
        left, right = ([_half(photo, is_right, self.image_size) for photo in photos] for is_right in (False, True))

        def scenes(part: np.ndarray, halves: Sequence[np.ndarray], length: int) -> Scenes:
            return self.kind(
                image_N1GG[part, 0] / 255.0, label_N[part], halves, length, self.image_size, self.digits,
                self.digit_size, self.split_seed,
            )  # fmt: skip

        mean, std = known_statistics(3)
        return self.make_splits(
            scenes(in_train, left, self.num_train), scenes(in_val, right, self.num_val),
            scenes(in_test, right, self.num_val) if len(in_test) else None,
            mean if self.mean == "auto" else self.mean, std if self.std == "auto" else self.std,
        )  # fmt: skip

    def make_splits(
        self, train: Scenes, val: Scenes, test: Optional[Scenes], mean: Sequence[float], std: Sequence[float]
    ) -> Splits:
        """The splits with the names of what is in them."""
        shape, names = (3, *self.image_size), ["background", *map(str, range(10))]
        decoding = Decoding(shape, frame=(shape[1], shape[2]))
        return Splits(train, val, test, names, shape, mean, std, decoding, mask_values=range(11))


class BoxedDigitScenes(BoxedDataset, DigitScenes):  # type: ignore[misc]  # the first says how samples are read
    """The same scenes with the box of each digit, around all of its ink, also where another digit hides some."""

    @property
    def kind(self) -> Type[Scenes]:
        """See `DigitScenes.kind`."""
        return BoxedScenes

    def remark(self, signature: Signature, splits: Splits) -> str:
        return ""

    def make_splits(
        self, train: Scenes, val: Scenes, test: Optional[Scenes], mean: Sequence[float], std: Sequence[float]
    ) -> Splits:
        """See `DigitScenes.make_splits`."""
        shape, names = (3, *self.image_size), [str(digit) for digit in range(10)]
        return Splits(
            train, val, test, names, shape, mean, std, Decoding(shape, fit=self.fit), category_ids=range(10)
        )


class Scenes:
    """Made scenes, as `Source`; masks (B, H, W) hold 0 for the background and a digit's value plus 1."""

    samples_per_task = 16

    def __init__(
        self, ink_NGG: np.ndarray, label_N: np.ndarray, photos: Sequence[np.ndarray], length: int,
        size: Sequence[int], digits: Sequence[int], digit_size: Sequence[int], split_seed: int,
    ) -> None:  # fmt: skip
        """Keep what scenes are made of.

        Args:
            ink_NGG: Digits, from 0 to 1.
            label_N: Their values.
            photos: (C, height, width) uint8 each.
            length: Scenes in an epoch.
            size: (H, W) of a scene.
            digits: Fewest and most in a scene.
            digit_size: Smallest and largest in pixels.
            split_seed: Of scenes that stay the same.
        """
        self._ink_NGG, self._label_N, self._photos = ink_NGG.astype(np.float32), label_N, photos
        self._length, (self._height, self._width) = length, size
        self._digits, self._digit_size, self._split_seed = digits, digit_size, split_seed
        self.shape = (3, self._height, self._width)

    def __len__(self) -> int:
        return self._length

    def fetch(
        self, index_B: np.ndarray, *, seed: int, epoch: int, train: bool
    ) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:  # fmt: skip
        """See `Source.fetch`; masks are (B, H, W) int16, and sizes (B, 4) all those of a scene."""
        image_BCHW, mask_BHW, _, _ = self._make(index_B, seed=seed, epoch=epoch, train=train)
        return image_BCHW, mask_BHW, np.tile([self._height, self._width] * 2, (len(index_B), 1))

    def _make(
        self, index_B: np.ndarray, *, seed: int, epoch: int, train: bool
    ) -> Tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:  # fmt: skip
        """Pictures, masks, the boxes of the ink, (B, D, R) as `boxes.Column` says, and which pixels are ink of the last
        digit, of which nothing is hidden, (B, H, W)."""
        stream = (seed, epoch) if train else (self._split_seed, 0)
        image_BCHW = self._photo_parts(index_B, stream)
        mask_BHW = np.zeros((len(index_B), self._height, self._width), np.int16)
        low, high = self._digits
        count_B = low + integers(*stream, index_B, Draw.SCENE, high - low + 1)
        square_BD4 = np.zeros((len(index_B), high, 4))
        box_BDR = np.full((len(index_B), high, NUM_COLUMNS), -1, np.float32)
        is_ink_BHW = np.zeros(mask_BHW.shape, bool)
        for number in range(high):
            rows = np.flatnonzero(count_B > number)
            if len(rows):
                box_BDR[rows, number], is_ink_BHW[rows] = self._add_digit(
                    image_BCHW, mask_BHW, square_BD4, rows, index_B[rows], stream, number
                )  # fmt: skip
        return np.rint(image_BCHW).astype(np.uint8), mask_BHW, box_BDR, is_ink_BHW

    def _photo_parts(self, index_B: np.ndarray, stream: Tuple[int, int]) -> np.ndarray:
        """Parts of the photographs, (B, C, H, W), float32."""
        photo_B = integers(*stream, index_B, Draw.SCENE + 1, len(self._photos))
        down_B, right_B = (uniform(*stream, index_B, Draw.SCENE + draw) for draw in (2, 3))
        parts = []
        for photo, down, right in zip(photo_B, down_B, right_B):
            photo_CHW = self._photos[photo]
            top = int(down * (photo_CHW.shape[1] - self._height + 1))
            left = int(right * (photo_CHW.shape[2] - self._width + 1))
            parts.append(photo_CHW[:, top : top + self._height, left : left + self._width])
        return np.stack(parts).astype(np.float32) * np.float32(BACKGROUND)

    def _add_digit(
        self, image_BCHW: np.ndarray, mask_BHW: np.ndarray, square_BD4: np.ndarray, row_b: np.ndarray,
        index_b: np.ndarray, stream: Tuple[int, int], number: int,
    ) -> Tuple[np.ndarray, np.ndarray]:  # fmt: skip
        """Draws one more digit into the scenes of some rows, whose samples are `index_b`; returns its boxes (b, R), and
        which pixels are its ink (b, H, W)."""
        first = Draw.SCENE + 8 + _DRAWS_PER_DIGIT * number
        chosen_b = integers(*stream, index_b, first, len(self._ink_NGG))
        low, high = self._digit_size
        size_b = low + integers(*stream, index_b, first + 1, high - low + 1)
        share_b2P = np.stack(
            [[uniform(*stream, index_b, first + 3 + 2 * place + axis) for place in range(_PLACES)] for axis in (0, 1)]
        ).transpose(2, 0, 1)
        room_b21 = np.array([self._height, self._width])[None, :, None] - size_b[:, None, None]
        begin_b2P = np.floor(share_b2P * (room_b21 + 1))
        box_bP4 = np.concatenate([begin_b2P, begin_b2P + size_b[:, None, None]], axis=1).transpose(0, 2, 1)
        covered_bP = _shared_area(box_bP4[:, :, None], square_BD4[row_b][:, None, :number]).sum(axis=-1)
        box_b4 = box_bP4[np.arange(len(row_b)), covered_bP.argmin(axis=1)]
        square_BD4[row_b, number] = box_b4
        rows_bHG, columns_bWG = (
            _spread(box_b4[:, axis], size_b, length) for axis, length in enumerate((self._height, self._width))
        )
        ink_bHW = rows_bHG @ self._ink_NGG[chosen_b] @ columns_bWG.transpose(0, 2, 1)
        colour_b3 = _colours(bits(*stream, index_b, first + 2))
        ink_b1HW = np.minimum(1, OPACITY * ink_bHW)[:, None]
        image_BCHW[row_b] = image_BCHW[row_b] * (1 - ink_b1HW) + colour_b3[:, :, None, None] * ink_b1HW
        value_b11 = (self._label_N[chosen_b] + 1).astype(np.int16)[:, None, None]
        is_ink_bHW = ink_bHW > INK_THRESHOLD
        mask_BHW[row_b] = np.where(is_ink_bHW, value_b11, mask_BHW[row_b])
        edges = [edge_b for axis in (1, 2) for edge_b in _extent(is_ink_bHW.any(axis=axis))]
        left_b, right_b, top_b, bottom_b = edges
        return rows_of(np.stack([left_b, top_b, right_b, bottom_b], axis=1), self._label_N[chosen_b]), is_ink_bHW


class BoxedScenes(Scenes):
    """Made scenes with boxes, as `Source`."""

    def fetch(
        self, index_B: np.ndarray, *, seed: int, epoch: int, train: bool
    ) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:  # fmt: skip
        """See `Source.fetch`; boxes are (B, D, R) float32, and rows of `Fitted` (B, 4) those of a scene."""
        image_BCHW, _, box_BDR, _ = self._make(index_B, seed=seed, epoch=epoch, train=train)
        return image_BCHW, box_BDR, np.tile([self._height, self._width] * 2, (len(index_B), 1))


def _extent(is_there_bL: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
    """Where the first begins and the last ends of those that are there, both (b,)."""
    return is_there_bL.argmax(axis=1), is_there_bL.shape[1] - is_there_bL[:, ::-1].argmax(axis=1)


def _shared_area(box: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Pixels that boxes (..., 4) of (top, left, bottom, right) have in common with others."""
    side = np.minimum(box[..., 2:], other[..., 2:]) - np.maximum(box[..., :2], other[..., :2])
    return np.maximum(side, 0).prod(axis=-1)


def _spread(begin_b: np.ndarray, size_b: np.ndarray, length: int) -> np.ndarray:
    """How much of each of a digit's 8 rows is in each of a scene's, (b, length, 8), for linear interpolation.

    Args:
        begin_b: The scene's row in which the digit begins.
        size_b: Its height in pixels.
        length: Rows of the scene.
    """
    # The middle of each of the scene's pixels, in pixels of the digit.
    at_bL = (np.arange(length) + 0.5 - begin_b[:, None]) * (8 / size_b)[:, None] - 0.5
    return np.maximum(0, 1 - np.abs(at_bL[:, :, None] - np.arange(8))).astype(np.float32)


def _colours(random_b: np.ndarray) -> np.ndarray:
    """(b, 3) from 0 to 255, one channel of each at least 200."""
    channels = [(random_b >> np.uint64(8 * number)) & np.uint64(255) for number in range(3)]
    channel_b3 = np.stack(channels, axis=1).astype(np.float32)
    brightest_b1 = channel_b3.max(axis=1, keepdims=True)
    return channel_b3 * np.maximum(1, 200 / np.maximum(brightest_b1, 1))


def _half(photo_CHW: np.ndarray, is_right: bool, size: Sequence[int]) -> np.ndarray:
    """The left or right half of a photograph.

    Raises:
        DataError: A scene is larger.
    """
    middle = photo_CHW.shape[2] // 2
    half_CHW = photo_CHW[:, :, middle:] if is_right else photo_CHW[:, :, :middle]
    if half_CHW.shape[1] < size[0] or half_CHW.shape[2] < size[1]:
        shown = "x".join(map(str, half_CHW.shape[1:]))
        raise DataError(f"dataset.image_size={list(size)}: scenes are parts of photographs of {shown}. Type less.")
    return half_CHW


def read_photos() -> List[np.ndarray]:
    """scikit-learn's two photographs, each (3, 427, 640) uint8.

    Raises:
        DataError: scikit-learn is not installed, or has none.
    """
    folder = sklearn_datasets("digit_scenes") / "images"
    if not folder.is_dir():
        raise DataError(f"dataset=digit_scenes reads photographs of scikit-learn, and there is no folder '{folder}'.")
    pictures = [ImageReader((folder / name).read_bytes()) for name in ("china.jpg", "flower.jpg")]
    return [picture.resized((0, 0, *picture.size), picture.size, 3) for picture in pictures]
