"""Reads pictures with the boxes of the things in them.

Legend: B batch, C channels, H height, W width, M boxes of a picture, D columns of `boxes.Column`.
"""

from __future__ import annotations

from typing import Optional, Sequence, Tuple

import numpy as np

from mxtrain.dataset.checking.checks import Checks
from mxtrain.dataset.checking.problems import BOX_OUTSIDE, DataPlace
from mxtrain.dataset.image.box_augment import BoxAugment, partners, tiles
from mxtrain.dataset.image.box_faults import REMEDY, cut, fault_text, find_faults
from mxtrain.dataset.image.box_table import BoxTable, rows_in_pixels
from mxtrain.dataset.image.boxes import NUM_COLUMNS, Column, Fitted, fit_size, is_trained_on, padded, scaled
from mxtrain.dataset.image.decoding import EncodedImages
from mxtrain.dataset.image.image_checks import BoxedChecks
from mxtrain.dataset.image.pixels import ImageReader, unreadable
from mxtrain.dataset.image.settings import Decoding
from mxtrain.dataset.image.view import Rectangle, View
from mxtrain.errors import LoaderError, MxtrainError


class BoxedPictures:
    """Pictures and the boxes in them, as `Source`: whole pictures, brought to one size; in training, parts of them.

    Beside images and boxes, in pixels of what enters the network, a batch has a row of `Fitted` for each sample.
    """

    samples_per_task = 4

    def __init__(
        self, encoded: EncodedImages, table: Optional[BoxTable], decoding: Decoding, mean: Sequence[float],
        augment: Optional[BoxAugment] = None, *, mends: bool = False, class_names: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """Describe what comes out; nothing is read yet.

        Args:
            encoded: The pictures.
            table: Their boxes; None = unknown.
            decoding: Has the size and how pictures are fitted into it.
            mean: Per channel, white is 1: what is left is filled up with it.
            augment: Random changes in training.
            mends: Whether boxes are cut off at the edges of pictures, however far they reach.
            class_names: For messages.
        """
        self._encoded, self._decoding, self._mean = encoded, decoding, mean
        self._table = BoxTable.empty(len(encoded)) if table is None else table
        self._number_N = np.arange(len(encoded))
        self.shape, self._fit = decoding.shape, decoding.fit
        self.capacity = self._table.capacity
        """The most boxes of a picture."""
        channels = self.shape[0]
        fill = list(mean) if len(mean) == channels else [sum(mean) / len(mean)] * channels
        self._fill_C11 = np.rint(255 * np.asarray(fill)).astype(np.uint8)[:, None, None]
        self._augment, self._mends, self._class_names = augment, mends, class_names

    def __len__(self) -> int:
        return len(self._number_N)

    def take(self, indices: Sequence[int]) -> BoxedPictures:
        """Some of these pictures, those that there are. A mosaic has none of the others in it."""
        taken = BoxedPictures(
            self._encoded, self._table, self._decoding, self._mean, self._augment, mends=self._mends,
            class_names=self._class_names,
        )  # fmt: skip
        taken._number_N = self._number_N[[index for index in indices if index < len(self)]]
        return taken

    def fetch(
        self, index_B: np.ndarray, *, seed: int, epoch: int, train: bool
    ) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:  # fmt: skip
        """See `Source.fetch`; boxes are (B, M, D) float32, and rows of `Fitted` (B, 4). In training these say that
        pictures are as they are: what was cut out of a larger one is not known there."""
        if train and self._augment is not None:
            found = [self._change(index, self._augment, seed, epoch) for index in index_B.tolist()]
            capacity = self.capacity * (4 if self._augment.mosaic else 1)
        else:
            found, capacity = [self._read_whole(index) for index in index_B.tolist()], self.capacity
        images = [image for image, _, _ in found]
        if len({image.dtype for image in images}) > 1:  # one with more than 8 bits: all become float32
            images = [image.astype(np.float32, copy=False) for image in images]
        box_BMD = padded([boxes for _, boxes, _ in found], capacity)
        return np.stack(images), box_BMD, np.array([fitted.row() for _, _, fitted in found])

    def blank(self) -> Tuple[np.ndarray, ...]:
        """A black picture, in the place of one that cannot be read."""
        image_1CHW = np.zeros((1, *self.shape), np.uint8)
        row_14 = np.array([[*self.shape[1:]] * 2])
        return image_1CHW, padded([np.zeros((0, NUM_COLUMNS))], self.capacity), row_14

    def checks(self) -> Checks:
        """What `data check` does with each sample."""
        return BoxedChecks(self)

    def place(self, index: int) -> DataPlace:
        """Where a picture stands."""
        return self._encoded.place(self._number_N[index])

    def name(self, index: int) -> str:
        """The name of a picture in messages."""
        return self._encoded.name(self._number_N[index])

    def class_name(self, number: float) -> str:
        """The name of a class in messages."""
        return f"'{self._class_names[int(number)]}'" if len(self._class_names) > number else f"class {number:g}"

    def picture(self, index: int) -> np.ndarray:
        """A picture as large as it is, (C, H, W)."""
        picture = self.open(index)
        return self.resize(index, picture, (0.0, 0.0, *picture.size), picture.size)

    def boxes(self, index: int) -> np.ndarray:
        """The boxes of a picture in its own pixels, (M, D)."""
        size = self.open(index).size
        return cut(self.rows(index, size), *size)

    def rows(self, index: int, size: Tuple[int, int]) -> np.ndarray:
        """The boxes of a picture of that (width, height) as they were given, (M, D)."""
        row_MD = self._table[self._number_N[index]]
        return rows_in_pixels(row_MD, *size) if self._table.is_normalized else row_MD

    def said_size(self, index: int) -> np.ndarray:
        """Width and height that a picture is said to have, NaN where nobody says."""
        return self._table.size_P2[self._number_N[index]]

    def read(self, index: int) -> bytes:
        """The content of a picture's file.

        Raises:
            LoaderError: It cannot be read.
        """
        try:
            return self._encoded.read(self._number_N[index])[0]
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
        """Likewise, from what `read` gave."""
        try:
            return ImageReader(content, self._decoding.window)
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

    def _checked_rows(self, index: int, size: Tuple[int, int]) -> np.ndarray:
        """The boxes of a picture, inside of it.

        Raises:
            LoaderError: One reaches beyond it. Where the size of a picture was known, that was said before training.
        """
        row_MD = self.rows(index, size)
        outside_M = self.is_outside(row_MD, size)
        if outside_M.any() and not self._mends:
            row_D = row_MD[outside_M][0]
            raise LoaderError(self.outside_fact(index, row_D, size), REMEDY, BOX_OUTSIDE)
        return cut(row_MD, *size)

    def is_outside(self, row_MD: np.ndarray, size: Tuple[int, int]) -> np.ndarray:
        """Which boxes reach too far beyond their picture of that (width, height), (M,). Shares of it were looked at
        before: they do not depend on it."""
        return find_faults(row_MD[:, :4], np.array([size]))[BOX_OUTSIDE] & (not self._table.is_normalized)

    def outside_fact(self, index: int, row_D: np.ndarray, size: Tuple[int, int]) -> str:
        """The sentence for a box that reaches beyond its picture of that (width, height)."""
        edges = ", ".join(f"{edge:.6g}" for edge in row_D[:4])
        wrong = fault_text(BOX_OUTSIDE, row_D[:4], np.array(size, float))
        said = self.said_size(index)
        is_turned = size[0] != size[1] and tuple(said) == tuple(size[::-1])
        turned = " The camera lay on its side: boxes are those of the picture as it is seen." if is_turned else ""
        what = self.class_name(row_D[Column.CLASS])
        return f"{self.name(index)}: the box {edges} (left, top, right, bottom) of {what} {wrong}.{turned}"

    def _read_whole(self, index: int) -> Tuple[np.ndarray, np.ndarray, Fitted]:
        picture = self.open(index)
        width, height = picture.size
        fitted = Fitted.into(height, width, self.shape[1:], self._fit)
        frame = Rectangle(0, 0, fitted.fitted_width, fitted.fitted_height)
        view = View.of((0.0, 0.0, width, height), picture.size, frame)
        image_CHW = self._join([(view, self._part(index, picture, view))])
        return image_CHW, scaled(self._checked_rows(index, picture.size), fitted.scale_x, fitted.scale_y), fitted

    def _change(
        self, index: int, augment: BoxAugment, seed: int, epoch: int
    ) -> Tuple[np.ndarray, np.ndarray, Fitted]:  # fmt: skip
        """A picture or a mosaic of four, changed at random."""
        share = augment.draws(seed, epoch, index)
        frames, indices = [Rectangle(0, 0, self.shape[2], self.shape[1])], [index]
        is_mosaic = augment.is_mosaic(share)
        if is_mosaic:
            frames, indices = tiles(share, *self.shape[1:]), [index, *partners(share, len(self))]
        parts, boxes = [], []
        for number, (frame, one) in enumerate(zip(frames, indices)):
            drawn = augment.draws(seed, epoch, index, number) if number else share
            picture = self.open(one)
            row_MD = self._checked_rows(one, picture.size)
            if is_mosaic:
                window = augment.tile_window(drawn, picture.size, frame.width / frame.height)
            else:
                window = augment.window(drawn, picture.size, row_MD[is_trained_on(row_MD)][:, :4])
                left, top, right, bottom = window
                frame = Rectangle(0, 0, *fit_size(bottom - top, right - left, self.shape[1:], self._fit)[::-1])
            view = View.of(window, picture.size, frame, augment.is_flipped(drawn))
            parts.append((view, augment.recoloured(drawn, self._part(one, picture, view))))
            boxes.append(view.boxes(row_MD, augment.min_visible))
        return self._join(parts), np.concatenate(boxes), Fitted(*self.shape[1:], *self.shape[1:])

    def _part(self, index: int, picture: ImageReader, view: View) -> np.ndarray:
        return self.resize(index, picture, view.source, (view.place.width, view.place.height))

    def _join(self, parts: Sequence[Tuple[View, np.ndarray]]) -> np.ndarray:
        """What enters the network: parts of pictures where they are placed, and the mean's colour elsewhere."""
        dtype = np.result_type(*(part_CHW.dtype for _, part_CHW in parts))
        image_CHW = np.empty(self.shape, dtype)
        image_CHW[:] = self._fill_C11
        for view, part_CHW in parts:
            view.put(part_CHW, image_CHW)
        return image_CHW
