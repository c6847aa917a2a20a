"""Tiles of images in their original size, so that large images are predicted without being resized.

Legend: B batch, C channels, H height, W width of the network's input; h, w of a tile.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any, List, Sequence, Tuple

import numpy as np

from mxtrain.data.passes import Tile
from mxtrain.errors import LoaderError
from mxtrain.types import Shape
from mxtrain.vision.images.encoded_image_source import EncodedImageSource, batch_of
from mxtrain.vision.images.figure import origin_of
from mxtrain.vision.images.files import BlankForUnreadable

_SAMPLES_PER_TASK = 4
_CACHED_IMAGES = 2
"""Decoded images that are kept: threads read the last tiles of one image and the first of the next."""


def tile_starts(length: int, tile: int, overlap: float) -> List[int]:
    """Returns the first pixel of each tile along a side. Tiles are as far apart as `overlap` says; the last one is
    moved back so that it ends with the image.

    Args:
        length: side of the image in pixels.
        tile: side of a tile in pixels.
        overlap: share of a tile that overlaps the next one.
    """
    step = tile - int(overlap * tile)
    starts = [0]
    while starts[-1] + tile < length:
        starts.append(min(starts[-1] + step, length - tile))
    return starts


def tiles_of(sample: int, size: Tuple[int, int], tile_size: Sequence[int], overlap: float) -> List[Tile]:
    """Returns the tiles of an image, line by line.

    Args:
        sample: index of the image.
        size: (height, width) of the image.
        tile_size: (height, width) of a tile; tiles of smaller images are as large as the image.
        overlap: see `tile_starts`.
    """
    rows, columns = (_spans(length, tile, overlap) for length, tile in zip(size, tile_size))
    boxes = [
        [(left, top, right, bottom) for (left, right), (top, bottom) in zip(column, row)]
        for row in rows
        for column in columns
    ]
    return [Tile(sample, box, inner, size, number == len(boxes) - 1) for number, (box, inner) in enumerate(boxes)]


def _spans(length: int, tile: int, overlap: float) -> List[Tuple[Tuple[int, int], Tuple[int, int]]]:
    """Returns (begin, end) of each tile along a side, and that of its inner part, see `Tile`."""
    starts = tile_starts(length, tile, overlap)
    ends = [min(start + tile, length) for start in starts]
    cuts = [0, *((start + end) // 2 for start, end in zip(starts[1:], ends)), length]
    return list(zip(zip(starts, ends), zip(cuts, cuts[1:])))


class TiledImages:
    """Source of the tiles of another source's images. Labels are not read.

    Attributes:
        tiles: all tiles, in the order of the images.
        tile_size: largest (height, width) of a tile.
        shape: (C, H, W) of the network's input.
    """

    samples_per_task = _SAMPLES_PER_TASK

    def __init__(
        self,
        source: Any,
        tile_size: Tuple[int, int],
        overlap: float,
        frame: Tuple[int, int],
        content: Tuple[int, int],
        fill_C: np.ndarray,
    ) -> None:
        """Reads the sizes of all images.

        Args:
            source: source of images, possibly in wrappers.
            tile_size: (height, width) of a tile.
            overlap: see `tile_starts`.
            frame: (H, W) of the network's input.
            content: (height, width) of a whole tile in the network's input, at its top left; at least those of the
                tile.
            fill_C: colour of the rest.

        Raises:
            LoaderError: an image cannot be read.
        """
        self._source, self._fill_C, self.tile_size = source, fill_C, tile_size
        self.shape: Shape = (len(fill_C), *frame)
        self._scale_2 = (content[0] / tile_size[0], content[1] / tile_size[1])
        self.tiles: Sequence[Tile] = [
            tile for sample in range(len(source)) for tile in tiles_of(sample, self._size(sample), tile_size, overlap)
        ]
        self._images: OrderedDict[int, np.ndarray] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self.tiles)

    def fetch(
        self, index_B: np.ndarray, *, seed: int, epoch: int, train: bool
    ) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns tiles in the network's input, labels -1, and the height and width of each tile in its image and in
        the input, (B, 4); see `Source.fetch`."""
        images, rows = [], []
        for tile in (self.tiles[index] for index in index_B.tolist()):
            left, top, right, bottom = tile.box
            part_Chw = self._image(tile.sample)[:, top:bottom, left:right]
            fitted = self._fitted(bottom - top, right - left)
            image_CHW = np.empty(self.shape, part_Chw.dtype)
            image_CHW[:] = self._fill_C[:, None, None]
            image_CHW[:, : fitted[0], : fitted[1]] = resized(part_Chw, fitted)
            images.append(image_CHW)
            rows.append((bottom - top, right - left, *fitted))
        return batch_of(images), np.full(len(rows), -1, np.int32), np.array(rows)

    def _fitted(self, height: int, width: int) -> Tuple[int, int]:
        """Returns the (height, width) of a tile in the network's input. All tiles have the scale of a whole one, so
        that objects at the border of an image have the size of the others."""
        return round(height * self._scale_2[0]), round(width * self._scale_2[1])

    def _size(self, sample: int) -> Tuple[int, int]:
        """Returns the (height, width) of an image; (1, 1) for an unreadable one that is skipped."""
        origin, number = origin_of(self._source, sample)
        if not isinstance(origin, EncodedImageSource):  # images in memory, all of one size
            return origin.shape[1], origin.shape[2]
        try:
            width, height = origin.open(number).size
        except LoaderError as error:
            self._skip(sample, error)
            return 1, 1
        return height, width

    def _skip(self, sample: int, error: LoaderError) -> None:
        """Records that an image cannot be read; raises the error if such images are not skipped."""
        if not isinstance(self._source, BlankForUnreadable):
            raise error
        self._source.unreadable[sample] = error.fact

    def _image(self, sample: int) -> np.ndarray:
        """Returns an image in its original size, (C, height, width); decodes it once for its tiles."""
        with self._lock:
            if sample not in self._images:
                while len(self._images) >= _CACHED_IMAGES:
                    self._images.popitem(last=False)
                self._images[sample] = self._read(sample)
            self._images.move_to_end(sample)
            return self._images[sample]

    def _read(self, sample: int) -> np.ndarray:
        origin, number = origin_of(self._source, sample)
        if not isinstance(origin, EncodedImageSource):
            image_BCHW, *_ = origin.fetch(np.array([number]), seed=0, epoch=0, train=False)
            return image_BCHW[0]
        try:
            return origin.image(number)
        except LoaderError as error:
            self._skip(sample, error)
            height, width = next(tile.size for tile in self.tiles if tile.sample == sample)
            return np.zeros((self.shape[0], height, width), np.uint8)


def resized(part_Chw: np.ndarray, size: Tuple[int, int]) -> np.ndarray:
    """Returns a part of an image in another (height, width), as image files are resized."""
    from PIL import Image

    if part_Chw.shape[1:] == tuple(size):
        return part_Chw
    planes = [Image.fromarray(np.ascontiguousarray(plane)) for plane in part_Chw]
    return np.stack([np.asarray(plane.resize(size[::-1], Image.Resampling.BILINEAR)) for plane in planes])
