"""Generates scenes of handwritten digits on photographs, with masks, boxes or both.

Legend: N digits, B batch, D digits in a scene, H height, W width, G = 8 height and width of a digit,
P positions that are tried for a digit, R columns of a box, or of a box and its mask, b rows of a part of the batch.
"""

from __future__ import annotations

from typing import List, NamedTuple, Sequence, Tuple

import numpy as np

from mxtrain.data.loading.randomness import bits, integers, uniform
from mxtrain.vision.detection.boxes import NUM_COLUMNS, Column, rows_of
from mxtrain.vision.draws import VisionDraw
from mxtrain.vision.instance_segmentation.mask_rows import (
    TRUE_COLUMNS,
    TRUE_SIDE,
    append_masks,
    build_meta,
    encode_masks,
)
from mxtrain.vision.instance_segmentation.outlines import Bitmap

BACKGROUND = 0.6
"""Brightness of photographs, low so that digits are visible."""
INK_THRESHOLD = 0.4
"""Ink above which a pixel belongs to a digit."""
OPACITY = 1.6
"""Factor of ink to opacity; a product above 1 hides the photograph."""
_DRAWS_PER_DIGIT = 20
"""Number of random streams that are reserved for each digit."""
_NUM_POSITIONS = 8
"""Number of random positions that are tried for each digit; the one that covers other digits least is used."""


class GeneratedScenes(NamedTuple):
    """A batch of generated scenes.

    Attributes:
        image_BCHW: images.
        mask_BHW: 0 for the background, otherwise the digit's value plus 1.
        box_BDR: box of the ink of each digit, including hidden parts, with the columns of `boxes.Column`.
        owner_BHW: 0 for the background, otherwise the index of the digit in its scene plus 1.
        is_ink_BHW: mask of the last digit, which no other one hides.
    """

    image_BCHW: np.ndarray
    mask_BHW: np.ndarray
    box_BDR: np.ndarray
    owner_BHW: np.ndarray
    is_ink_BHW: np.ndarray


class Scenes:
    """Generated scenes of digits, as `Source`; masks (B, H, W) hold 0 for the background and a digit's value plus 1."""

    samples_per_task = 16

    def __init__(
        self,
        ink_NGG: np.ndarray,
        label_N: np.ndarray,
        photos: Sequence[np.ndarray],
        length: int,
        size: Sequence[int],
        digits: Sequence[int],
        digit_size: Sequence[int],
        split_seed: int,
    ) -> None:
        """Stores the digits, the photographs and the settings of the scenes.

        Args:
            ink_NGG: images of digits, from 0 to 1.
            label_N: values of the digits.
            photos: photographs (C, height, width) uint8.
            length: number of scenes in an epoch.
            size: (H, W) of a scene.
            digits: smallest and largest number of digits in a scene.
            digit_size: smallest and largest side of a digit in pixels.
            split_seed: seed of scenes that are the same in all epochs.
        """
        self._ink_NGG, self._label_N, self._photos = ink_NGG.astype(np.float32), label_N, photos
        self._length, (self._height, self._width) = length, size
        self._digits, self._digit_size, self._split_seed = digits, digit_size, split_seed
        self.shape = (3, self._height, self._width)

    def __len__(self) -> int:
        return self._length

    def fetch(
        self, index_B: np.ndarray, *, seed: int, epoch: int, train: bool
    ) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns images, masks (B, H, W) int16, and sizes (B, 4), which are constant; see `Source.fetch`."""
        scenes = self._make(index_B, seed=seed, epoch=epoch, train=train)
        return scenes.image_BCHW, scenes.mask_BHW, np.tile([self._height, self._width] * 2, (len(index_B), 1))

    def _make(self, index_B: np.ndarray, *, seed: int, epoch: int, train: bool) -> GeneratedScenes:
        """Generates scenes; arguments as in `Source.fetch`."""
        stream = (seed, epoch) if train else (self._split_seed, 0)
        image_BCHW = self._photo_parts(index_B, stream)
        mask_BHW = np.zeros((len(index_B), self._height, self._width), np.int16)
        low, high = self._digits
        count_B = low + integers(*stream, index_B, VisionDraw.SCENE, high - low + 1)
        square_BD4 = np.zeros((len(index_B), high, 4))
        box_BDR = np.full((len(index_B), high, NUM_COLUMNS), -1, np.float32)
        owner_BHW, is_ink_BHW = np.zeros(mask_BHW.shape, np.int16), np.zeros(mask_BHW.shape, bool)
        for number in range(high):
            rows = np.flatnonzero(count_B > number)
            if len(rows):
                box_BDR[rows, number], is_ink_BHW[rows] = self._add_digit(
                    image_BCHW, mask_BHW, square_BD4, rows, index_B[rows], stream, number
                )
                owner_BHW[rows] = np.where(is_ink_BHW[rows], number + 1, owner_BHW[rows])
        return GeneratedScenes(np.rint(image_BCHW).astype(np.uint8), mask_BHW, box_BDR, owner_BHW, is_ink_BHW)

    def _photo_parts(self, index_B: np.ndarray, stream: Tuple[int, int]) -> np.ndarray:
        """Crops random parts of the photographs, (B, C, H, W) float32."""
        photo_B = integers(*stream, index_B, VisionDraw.SCENE + 1, len(self._photos))
        down_B, right_B = (uniform(*stream, index_B, VisionDraw.SCENE + draw) for draw in (2, 3))
        parts = []
        for photo, down, right in zip(photo_B, down_B, right_B):
            photo_CHW = self._photos[photo]
            top = int(down * (photo_CHW.shape[1] - self._height + 1))
            left = int(right * (photo_CHW.shape[2] - self._width + 1))
            parts.append(photo_CHW[:, top : top + self._height, left : left + self._width])
        return np.stack(parts).astype(np.float32) * np.float32(BACKGROUND)

    def _add_digit(
        self,
        image_BCHW: np.ndarray,
        mask_BHW: np.ndarray,
        square_BD4: np.ndarray,
        row_b: np.ndarray,
        index_b: np.ndarray,
        stream: Tuple[int, int],
        number: int,
    ) -> Tuple[np.ndarray, np.ndarray]:
        """Draws one more digit into some of the scenes. Returns its boxes (b, R), and masks of its ink (b, H, W).

        Args:
            image_BCHW, mask_BHW: images and masks of the scenes, which are written to.
            square_BD4: top, left, bottom, right of the squares of all digits, written to.
            row_b: rows of the scenes that get the digit.
            index_b: indices of these samples.
            stream: seed and epoch of the random numbers.
            number: index of the digit in its scene.
        """
        first = VisionDraw.SCENE + 8 + _DRAWS_PER_DIGIT * number
        chosen_b = integers(*stream, index_b, first, len(self._ink_NGG))
        low, high = self._digit_size
        size_b = low + integers(*stream, index_b, first + 1, high - low + 1)
        draw_b2P = np.stack(
            [
                [uniform(*stream, index_b, first + 3 + 2 * draw + axis) for draw in range(_NUM_POSITIONS)]
                for axis in (0, 1)
            ]
        ).transpose(2, 0, 1)
        largest_b21 = np.array([self._height, self._width])[None, :, None] - size_b[:, None, None]
        begin_b2P = np.floor(draw_b2P * (largest_b21 + 1))
        box_bP4 = np.concatenate([begin_b2P, begin_b2P + size_b[:, None, None]], axis=1).transpose(0, 2, 1)
        covered_bP = _shared_area(box_bP4[:, :, None], square_BD4[row_b][:, None, :number]).sum(axis=-1)
        box_b4 = box_bP4[np.arange(len(row_b)), covered_bP.argmin(axis=1)]
        square_BD4[row_b, number] = box_b4
        weight_bHG, weight_bWG = (
            interpolation_weights(box_b4[:, axis], size_b, length)
            for axis, length in enumerate((self._height, self._width))
        )
        ink_bHW = weight_bHG @ self._ink_NGG[chosen_b] @ weight_bWG.transpose(0, 2, 1)
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
    """Generated scenes with boxes, as `Source`."""

    def fetch(
        self, index_B: np.ndarray, *, seed: int, epoch: int, train: bool
    ) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns images, boxes (B, D, R) float32, and rows of `ResizeTransform` (B, 4), which are constant; see
        `Source.fetch`."""
        scenes = self._make(index_B, seed=seed, epoch=epoch, train=train)
        return scenes.image_BCHW, scenes.box_BDR, np.tile([self._height, self._width] * 2, (len(index_B), 1))


class InstanceScenes(Scenes):
    """Generated scenes with boxes and masks, as `Source`."""

    def fetch(
        self, index_B: np.ndarray, *, seed: int, epoch: int, train: bool
    ) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns images, objects with masks (B, D, R) float32, see `mask_rows`, and metadata of
        `mask_rows.build_meta`; see `Source.fetch`."""
        scenes = self._make(index_B, seed=seed, epoch=epoch, train=train)
        row_BDR = np.full((*scenes.box_BDR.shape[:2], TRUE_COLUMNS), -1, np.float32)
        codes: List[List[bytes]] = [[] for _ in index_B]
        for index, owner_HW in enumerate(scenes.owner_BHW):
            masks = [owner_HW == number + 1 for number in range(scenes.box_BDR.shape[1])]
            visible = [number for number, mask_HW in enumerate(masks) if mask_HW.any()]
            for row, number in enumerate(visible):
                outline = Bitmap(masks[number])
                edges = outline.edges()
                box_1R = rows_of(np.array([edges]), scenes.box_BDR[index, number, Column.CLASS : Column.CLASS + 1])
                box_1R[0, Column.AREA] = masks[number].sum()
                row_BDR[index, row] = append_masks(box_1R, outline.on_grid(edges, TRUE_SIDE)[None])[0]
            codes[index] = [] if train else encode_masks([masks[number] for number in visible])
        size_B4 = np.tile([self._height, self._width] * 2, (len(index_B), 1))
        return scenes.image_BCHW, row_BDR, build_meta(size_B4, codes)


def _extent(is_there_bL: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
    """Returns the index of the first True element, and the index behind the last one, (b,) each."""
    return is_there_bL.argmax(axis=1), is_there_bL.shape[1] - is_there_bL[:, ::-1].argmax(axis=1)


def _shared_area(box: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Computes the area of the intersection of boxes (..., 4), as top, left, bottom, right, with other boxes, in
    pixels."""
    side = np.minimum(box[..., 2:], other[..., 2:]) - np.maximum(box[..., :2], other[..., :2])
    return np.maximum(side, 0).prod(axis=-1)


def interpolation_weights(begin_b: np.ndarray, size_b: np.ndarray, length: int) -> np.ndarray:
    """Returns the weights of the 8 rows of a digit in each row of a scene, (b, length, 8), for linear interpolation.

    Args:
        begin_b: row of the scene in which the digit begins.
        size_b: height of the digit in pixels.
        length: number of rows of the scene.
    """
    # The centre of each row of the scene, in rows of the digit.
    position_bL = (np.arange(length) + 0.5 - begin_b[:, None]) * (8 / size_b)[:, None] - 0.5
    return np.maximum(0, 1 - np.abs(position_bL[:, :, None] - np.arange(8))).astype(np.float32)


def _colours(random_b: np.ndarray) -> np.ndarray:
    """Samples colours (b, 3) from 0 to 255, with at least 200 in one channel."""
    channels = [(random_b >> np.uint64(8 * number)) & np.uint64(255) for number in range(3)]
    channel_b3 = np.stack(channels, axis=1).astype(np.float32)
    brightest_b1 = channel_b3.max(axis=1, keepdims=True)
    return channel_b3 * np.maximum(1, 200 / np.maximum(brightest_b1, 1))
