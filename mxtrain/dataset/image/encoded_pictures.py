"""Opens the pictures of sources that see them as they are, in any size.

Legend: C channels, H height, W width.
"""

from __future__ import annotations

from typing import Sequence, Tuple

import numpy as np

from mxtrain.dataset.checking.problems import DataPlace
from mxtrain.dataset.image.decoding import EncodedImages
from mxtrain.dataset.image.pixels import ImageReader, unreadable
from mxtrain.dataset.image.settings import Decoding
from mxtrain.errors import LoaderError, MxtrainError


class EncodedPictures:
    """Base of sources of encoded pictures: reads, opens and resizes the picture of a sample.

    Attributes:
        shape: (C, H, W) of what enters the network.
    """

    def __init__(self, encoded: EncodedImages, decoding: Decoding, mean: Sequence[float]) -> None:
        """Keep how pictures are read; nothing is read yet.

        Args:
            encoded: The pictures.
            decoding: Has the shape of what comes out, and the window of grey files.
            mean: Per channel, white is 1: what is left is filled up with it.
        """
        self._encoded, self._window = encoded, decoding.window
        self.shape = decoding.shape
        self._fill_C = fill_of(mean, self.shape[0])

    def number(self, index: int) -> int:
        """The number of a sample's picture among those that are encoded; each sample is one, unless a subclass says
        otherwise."""
        return index

    def place(self, index: int) -> DataPlace:
        """Where a picture stands."""
        return self._encoded.place(self.number(index))

    def name(self, index: int) -> str:
        """The name of a picture in messages."""
        return self._encoded.name(self.number(index))

    def read(self, index: int) -> bytes:
        """The content of a picture's file.

        Raises:
            LoaderError: It cannot be read.
        """
        try:
            return self._encoded.read(self.number(index))[0]
        except LoaderError:
            raise
        except MxtrainError as error:
            raise LoaderError(str(error)) from error

    def open(self, index: int) -> ImageReader:
        """A picture of which only the header is decoded, where that is enough.

        Raises:
            LoaderError: It cannot be read, or is no image.
        """
        return self.decode(index, self.read(index))

    def decode(self, index: int, content: bytes) -> ImageReader:
        """Decodes what `read` gave."""
        try:
            return ImageReader(content, self._window)
        except Exception as error:  # Pillow raises OSError, SyntaxError, ValueError, struct.error and its own
            raise unreadable(self.name(index), error) from error

    def resize(
        self, index: int, picture: ImageReader, box: Tuple[float, float, float, float], size: Tuple[int, int]
    ) -> np.ndarray:
        """A part of a picture in another (width, height), (C, H, W).

        Raises:
            LoaderError: It cannot be decoded.
        """
        try:
            return picture.resized(box, size, self.shape[0])
        except Exception as error:  # decoding begins here: as above
            raise unreadable(self.name(index), error) from error

    def picture(self, index: int) -> np.ndarray:
        """A picture as large as it is, (C, H, W)."""
        picture = self.open(index)
        return self.resize(index, picture, (0.0, 0.0, *picture.size), picture.size)


def fill_of(mean: Sequence[float], channels: int) -> np.ndarray:
    """The mean as a colour (C,), white is 255."""
    fill = list(mean) if len(mean) == channels else [sum(mean) / len(mean)] * channels
    return np.rint(255 * np.asarray(fill)).astype(np.uint8)


def batch_of(images: Sequence[np.ndarray]) -> np.ndarray:
    """Images of one size as one array; with one of more than 8 bits all of them become float32."""
    if len({image.dtype for image in images}) > 1:
        images = [image.astype(np.float32, copy=False) for image in images]
    return np.stack(images)
