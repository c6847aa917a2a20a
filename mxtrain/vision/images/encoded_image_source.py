"""Base class of sources that open encoded images in their original size.

Legend: C channels, H height, W width.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, List, Sequence, Tuple

import numpy as np

from mxtrain.data.checking.problems import DataLocation
from mxtrain.data.loading.samples import prefetch
from mxtrain.errors import LoaderError, MxtrainError
from mxtrain.vision.images.decoding import EncodedImages
from mxtrain.vision.images.fitting import fill_of
from mxtrain.vision.images.pixels import ImageReader, unreadable
from mxtrain.vision.images.settings import Decoding

if TYPE_CHECKING:
    from mxtrain.vision.images.decoding import ImageContent

log = logging.getLogger(__name__)
SIZE_REMEDY = "Boxes are in pixels of the image as it is seen, upright. Correct the size, and the boxes."


class EncodedImageSource:
    """Base class of sources of encoded images: reads, opens and resizes the image of a sample.

    Attributes:
        encoded: the images.
        shape: (C, H, W) of the network's input.
    """

    def __init__(self, encoded: EncodedImages, decoding: Decoding, mean: Sequence[float]) -> None:
        """Stores the settings; no image is read yet.

        Args:
            encoded: the images.
            decoding: output shape, and window of grey files.
            mean: per channel, white is 1; the padding colour.
        """
        self.encoded, self._window = encoded, decoding.window
        self.shape = decoding.shape
        self._fill_C = fill_of(mean, self.shape[0])
        self._warned_of: List[int] = []
        """Index of the sample for which the size warning was logged, if any. A list, which subsets of a source
        share."""

    def number(self, index: int) -> int:
        """Returns the index of a sample's image among the encoded images; by default that of the sample."""
        return index

    def prefetch(self, index_N: np.ndarray) -> None:
        """Announces images that will be read soon."""
        prefetch(self.encoded, np.array([self.number(index) for index in index_N.tolist()], np.int64))

    def location(self, index: int) -> DataLocation:
        """Returns the source location of an image."""
        return self.encoded.location(self.number(index))

    def name(self, index: int) -> str:
        """Returns the name of an image for messages."""
        return self.encoded.name(self.number(index))

    def read(self, index: int) -> ImageContent:
        """Returns the content of an image file, or a decoded image.

        Raises:
            LoaderError: It cannot be read.
        """
        try:
            return self.encoded.read(self.number(index))[0]
        except LoaderError:
            raise
        except MxtrainError as error:
            raise LoaderError(str(error)) from error

    def open(self, index: int) -> ImageReader:
        """Opens an image, and decodes only its header if that suffices.

        Raises:
            LoaderError: It cannot be read, or is no image.
        """
        return self.decode(index, self.read(index))

    def decode(self, index: int, content: ImageContent) -> ImageReader:
        """Decodes the result of `read`."""
        try:
            return ImageReader(content, self._window)
        except Exception as error:  # Pillow raises OSError, SyntaxError, ValueError, struct.error and its own
            raise unreadable(self.name(index), error) from error

    def warn_of_size(self, index: int, size: Tuple[int, int], annotated_2: np.ndarray) -> None:
        """Logs a warning if an image has another size than its annotation says: its boxes probably refer to the image
        before it was resized or rotated. Only the first such image is logged.

        Args:
            index: index of the sample.
            size: (width, height).
            annotated_2: width and height in the annotation; NaN if unknown.
        """
        fact = "" if self._warned_of else size_fact(self.location(index), size, annotated_2)
        if fact:
            self._warned_of.append(index)
            log.warning("%s %s `data check` lists all such images.", fact, SIZE_REMEDY)

    def resize(
        self, index: int, image: ImageReader, box: Tuple[float, float, float, float], size: Tuple[int, int]
    ) -> np.ndarray:
        """Returns a part of an image, resized to (width, height), as (C, H, W).

        Raises:
            LoaderError: It cannot be decoded.
        """
        try:
            return image.resized(box, size, self.shape[0])
        except Exception as error:  # formats other than TIFF are decoded only here
            raise unreadable(self.name(index), error) from error

    def image(self, index: int) -> np.ndarray:
        """Returns an image in its original size, (C, H, W)."""
        image = self.open(index)
        return self.resize(index, image, (0.0, 0.0, *image.size), image.size)


def batch_of(images: Sequence[np.ndarray]) -> np.ndarray:
    """Stacks images of one size, (B, C, H, W). If one is float32 (more than 8 bits), all become float32."""
    if len({image.dtype for image in images}) > 1:
        images = [image.astype(np.float32, copy=False) for image in images]
    return np.stack(images)


def size_fact(location: DataLocation, size: Tuple[int, int], annotated_2: np.ndarray) -> str:
    """Returns a message if an image of that (width, height) has another size in its annotation; otherwise ""."""
    if not np.isfinite(annotated_2).all() or tuple(annotated_2) == tuple(size):
        return ""
    annotated = " x ".join(f"{side:g}" for side in annotated_2)
    return f"{location} has {size[0]} x {size[1]} pixels, but its annotation says {annotated}."
