"""Reads pictures with the boxes of the things in them.

Legend: B batch, C channels, H height, W width, M boxes of a picture.
"""

from __future__ import annotations

from typing import Optional, Sequence, Tuple

import numpy as np

from mxtrain.dataset.image.boxes import NUM_COLUMNS, Fitted, padded, scaled
from mxtrain.dataset.image.files import MAX_BYTES
from mxtrain.dataset.image.pixels import REPLACE, ImageReader, read_error
from mxtrain.dataset.image.settings import Decoding
from mxtrain.dataset.loading.regular_files import read_bytes
from mxtrain.errors import LoaderError, MxtrainError


class BoxedPictures:
    """Pictures in files and the boxes in them, as `Source`: whole pictures, brought to one size.

    Beside images and boxes, in pixels of what enters the network, a batch has a row of `Fitted` for each sample.
    """

    samples_per_task = 4

    def __init__(
        self, pictures: Sequence[str], boxes: Optional[Sequence[np.ndarray]], decoding: Decoding,
        mean: Sequence[float],
    ) -> None:  # fmt: skip
        """Describe what comes out; nothing is read yet.

        Args:
            pictures: Image files.
            boxes: Of each picture, (M, D) as `Column` says, in its own pixels; None = unknown.
            decoding: Has the size and how pictures are fitted into it.
            mean: Per channel, white is 1: what is left is filled up with it.
        """
        self.pictures = list(pictures)
        self._boxes = [np.zeros((0, NUM_COLUMNS))] * len(self.pictures) if boxes is None else list(boxes)
        self.shape, self._fit = decoding.shape, decoding.fit
        self.capacity = max([1, *map(len, self._boxes)])
        """The most boxes of a picture."""
        channels = self.shape[0]
        fill = list(mean) if len(mean) == channels else [sum(mean) / len(mean)] * channels
        self._fill_C11 = np.rint(255 * np.asarray(fill)).astype(np.uint8)[:, None, None]

    def __len__(self) -> int:
        return len(self.pictures)

    def fetch(
        self, index_B: np.ndarray, *, seed: int, epoch: int, train: bool
    ) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:  # fmt: skip
        """See `Source.fetch`; boxes are (B, M, D) float32, and rows of `Fitted` (B, 4)."""
        found = [self._read(index) for index in index_B.tolist()]
        images = [image for image, _, _ in found]
        if len({image.dtype for image in images}) > 1:  # one with more than 8 bits: all become float32
            images = [image.astype(np.float32, copy=False) for image in images]
        box_BMD = padded([boxes for _, boxes, _ in found], self.capacity)
        return np.stack(images), box_BMD, np.array([fitted.row() for _, _, fitted in found])

    def blank(self) -> Tuple[np.ndarray, ...]:
        """A black picture, in the place of one that cannot be read."""
        image_1CHW = np.zeros((1, *self.shape), np.uint8)
        return image_1CHW, padded([np.zeros((0, NUM_COLUMNS))], self.capacity), np.array([[*self.shape[1:]] * 2])

    def picture(self, index: int) -> np.ndarray:
        """A picture as large as it is, (C, H, W)."""
        picture = self._open(index)
        return picture.resized((0, 0, *picture.size), picture.size, self.shape[0])

    def boxes(self, index: int) -> np.ndarray:
        """The boxes of a picture in its own pixels, (M, D)."""
        return self._boxes[index]

    def _open(self, index: int) -> ImageReader:
        path = self.pictures[index]
        try:
            return ImageReader(read_bytes(path, MAX_BYTES))
        except MxtrainError as error:
            raise LoaderError(str(error)) from error
        except Exception as error:  # Pillow raises OSError, SyntaxError, ValueError, struct.error and its own
            raise LoaderError(read_error(f"'{path}'", error), REPLACE) from error

    def _read(self, index: int) -> Tuple[np.ndarray, np.ndarray, Fitted]:
        picture = self._open(index)
        width, height = picture.size
        fitted = Fitted.into(height, width, self.shape[1:], self._fit)
        fitted_height, fitted_width = fitted.fitted_height, fitted.fitted_width
        try:
            part_CHW = picture.resized((0, 0, width, height), (fitted_width, fitted_height), self.shape[0])
        except Exception as error:  # decoding begins here: as above
            raise LoaderError(read_error(f"'{self.pictures[index]}'", error), REPLACE) from error
        image_CHW = np.empty(self.shape, part_CHW.dtype)
        image_CHW[:] = self._fill_C11
        image_CHW[:, :fitted_height, :fitted_width] = part_CHW
        return image_CHW, scaled(self._boxes[index], fitted.scale_x, fitted.scale_y), fitted
