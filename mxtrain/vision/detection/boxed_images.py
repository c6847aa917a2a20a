"""Reads images with the boxes of the objects in them.

Expanding, cropping and resizing map one rectangle of the image to one rectangle of the input, so the part inside of the
image is resized once, and boxes are mapped with the resized pixels. The size of a multi-scale batch is drawn per batch
number, because all workers must agree on it.

Legend: B batch, C channels, H height, W width, M boxes of an image, D columns of `boxes.Column`,
U random numbers of a sample (`BoxAugment.draws`).
"""

from __future__ import annotations

import copy
from typing import List, Optional, Sequence, Tuple

import numpy as np

from mxtrain.data.checking.checks import Checked, Checks
from mxtrain.data.checking.problems import BOX_OUTSIDE, SIZE_MISMATCH, Problem
from mxtrain.errors import LoaderError
from mxtrain.vision.detection.box_augment import BoxAugment, mix_partner, partners, tiles
from mxtrain.vision.detection.box_faults import REMEDY, clip_boxes, fault_text, find_faults
from mxtrain.vision.detection.box_table import BoxTable, rows_in_pixels
from mxtrain.vision.detection.boxes import (
    NUM_COLUMNS,
    Column,
    ResizeTransform,
    is_trained_on,
    padded,
    scaled,
    weighted,
)
from mxtrain.vision.images.decoding import EncodedImages
from mxtrain.vision.images.encoded_image_source import SIZE_REMEDY, EncodedImageSource, batch_of, size_fact
from mxtrain.vision.images.fitting import fit_size
from mxtrain.vision.images.image_checks import AnnotatedImageChecks
from mxtrain.vision.images.pixels import ImageReader
from mxtrain.vision.images.settings import Decoding
from mxtrain.vision.images.view import Rectangle, View, Window


class BoxedImages(EncodedImageSource):
    """Source of images and the boxes in them, in pixels of the network's input: whole images, resized to one size; in
    training, augmented parts of images. A batch also has a row of `ResizeTransform` for each sample.
    """

    samples_per_task = 4

    def __init__(
        self,
        encoded: EncodedImages,
        table: Optional[BoxTable],
        decoding: Decoding,
        mean: Sequence[float],
        augment: Optional[BoxAugment] = None,
        *,
        mends: bool = False,
        class_names: Sequence[str] = (),
    ) -> None:
        """Stores the settings; no image is read yet.

        Args:
            encoded: the images.
            table: boxes of the images; None: unknown.
            decoding: decoding, with the size of the input and `fit`.
            mean: padding colour per channel, from 0 to 1.
            augment: random augmentation in training.
            mends: if True, boxes that exceed their image are clipped; otherwise they are errors.
            class_names: names of the classes, for messages.
        """
        super().__init__(encoded, decoding, mean)
        self._table = BoxTable.empty(len(encoded)) if table is None else table
        self._number_N = np.arange(len(encoded))
        self._fit = decoding.fit
        self.capacity = self._table.capacity
        """Largest number of boxes of an image."""
        self._augment, self._mends, self._class_names = augment, mends, class_names

    def __len__(self) -> int:
        return len(self._number_N)

    @property
    def num_boxes(self) -> int:
        """Returns the number of boxes of all images."""
        return int(np.diff(self._table.begin_P1)[self._number_N].sum())

    def take(self, indices: Sequence[int]) -> BoxedImages:
        """Returns a source of the images at these indices, from which mosaics are also made. Indices beyond the end are
        ignored."""
        subset = copy.copy(self)
        subset._number_N = self._number_N[[index for index in indices if index < len(self)]]
        return subset

    def resized_to(self, size: Sequence[int]) -> BoxedImages:
        """Returns the same images in another (height, width)."""
        resized = copy.copy(self)
        resized.shape = (self.shape[0], *size)
        return resized

    def fetch(
        self, index_B: np.ndarray, *, seed: int, epoch: int, train: bool
    ) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns images, boxes (B, M, D) float32, and rows of `ResizeTransform` (B, 4); see `Source.fetch`. In
        training, the rows are identity transforms, because predictions are not mapped back to the files."""
        if train and self._augment is not None:
            samples = [self._change(index, self._augment, seed, epoch) for index in index_B.tolist()]
            capacity = self.capacity * self._augment.capacity
        else:
            samples, capacity = [self._read_whole(index) for index in index_B.tolist()], self.capacity
        box_BMD = padded([boxes for _, boxes, _ in samples], capacity)
        image_BCHW = batch_of([image for image, _, _ in samples])
        return image_BCHW, box_BMD, np.array([fitted.row() for _, _, fitted in samples])

    def blank(self) -> Tuple[np.ndarray, ...]:
        """Returns a black image without boxes, which replaces one that cannot be read."""
        image_1CHW = np.zeros((1, *self.shape), np.uint8)
        row_14 = np.array([[*self.shape[1:]] * 2])
        return image_1CHW, padded([np.zeros((0, NUM_COLUMNS))], self.capacity), row_14

    def checks(self) -> Checks:
        """Returns the checks that `data check` runs on each sample."""
        return BoxedChecks(self)

    def number(self, index: int) -> int:
        """Returns the index of a sample's image among the encoded images; see `take`."""
        return int(self._number_N[index])

    def class_name(self, number: float) -> str:
        """Returns the name of a class in messages."""
        return f"'{self._class_names[int(number)]}'" if len(self._class_names) > number else f"class {number:g}"

    def boxes(self, index: int) -> np.ndarray:
        """Returns the boxes of an image in its own pixels, (M, D)."""
        size = self.open(index).size
        return clip_boxes(self.rows(index, size), *size)

    def rows(self, index: int, size: Tuple[int, int]) -> np.ndarray:
        """Returns the boxes of an image of that (width, height) in its own pixels, neither clipped nor checked, (M,
        D)."""
        row_MD = self._table[self._number_N[index]]
        return rows_in_pixels(row_MD, *size) if self._table.is_normalized else row_MD

    def declared_size(self, index: int) -> np.ndarray:
        """Returns the annotated width and height of an image, NaN if unknown."""
        return self._table.size_P2[self._number_N[index]]

    def _checked_rows(self, index: int, size: Tuple[int, int]) -> np.ndarray:
        """Returns the boxes of an image, clipped to it.

        Raises:
            LoaderError: a box exceeds the image by too much. If the annotation has the size of the image, this was
                reported before training.
        """
        self.warn_of_size(index, size, self.declared_size(index))
        row_MD = self.rows(index, size)
        outside_M = self.is_outside(row_MD, size)
        if outside_M.any() and not self._mends:
            row_D = row_MD[outside_M][0]
            raise LoaderError(self.outside_fact(index, row_D, size), REMEDY, BOX_OUTSIDE)
        return clip_boxes(row_MD, *size)

    def masks(self, index: int) -> Sequence[np.ndarray]:
        """Returns the masks of an image in its own pixels, (h, w) each, in the order of `boxes`. This class has
        none."""
        return ()

    def is_outside(self, row_MD: np.ndarray, size: Tuple[int, int]) -> np.ndarray:
        """Returns a mask of boxes that exceed their image of that (width, height) by too much, (M,). Relative
        coordinates were checked before, because they do not depend on the size."""
        return find_faults(row_MD[:, :4], np.array([size]))[BOX_OUTSIDE] & (not self._table.is_normalized)

    def outside_fact(self, index: int, row_D: np.ndarray, size: Tuple[int, int]) -> str:
        """Returns the sentence for a box that reaches beyond its image of that (width, height)."""
        edges = ", ".join(f"{edge:.6g}" for edge in row_D[:4])
        fault = fault_text(BOX_OUTSIDE, row_D[:4], np.array(size, float))
        declared = self.declared_size(index)
        is_rotated = size[0] != size[1] and tuple(declared) == tuple(size[::-1])
        hint = " EXIF rotates the image: boxes must be in pixels of the rotated image." if is_rotated else ""
        class_name = self.class_name(row_D[Column.CLASS])
        return f"{self.name(index)}: the box {edges} (left, top, right, bottom) of {class_name} {fault}.{hint}"

    def _read_whole(self, index: int) -> Tuple[np.ndarray, np.ndarray, ResizeTransform]:
        image = self.open(index)
        width, height = image.size
        fitted = ResizeTransform.into(height, width, self.shape[1:], self._fit)
        frame = Rectangle(0, 0, fitted.fitted_width, fitted.fitted_height)
        view = View.from_window((0.0, 0.0, width, height), image.size, frame)
        image_CHW = self._join([(view, self._part(index, image, view))])
        moved_MD = scaled(self._checked_rows(index, image.size), fitted.scale_x, fitted.scale_y)
        return image_CHW, self.objects(index, image.size, view, moved_MD, is_whole=True), fitted

    def objects(
        self, index: int, size: Tuple[int, int], view: View, moved_MD: np.ndarray, *, is_whole: bool
    ) -> np.ndarray:
        """Returns the rows of a batch for the visible part of an image: its boxes. Subclasses add masks.

        Args:
            index: index of the image.
            size: (width, height) of the image.
            view: visible part of the image.
            moved_MD: visible boxes, in pixels of the network's input.
            is_whole: True if the whole image is visible; then no object may be left out.
        """
        return moved_MD

    def _change(
        self, index: int, augment: BoxAugment, seed: int, epoch: int
    ) -> Tuple[np.ndarray, np.ndarray, ResizeTransform]:
        """Returns an augmented sample: a part of an image, or of two blended images, or a mosaic of four."""
        draw_U, mixes = augment.draws(seed, epoch, index), augment.mixes_images(epoch)
        if mixes and augment.is_mosaic(draw_U):
            image_CHW, row_MD = self._mosaic(index, augment, draw_U, seed, epoch)
        else:
            images = [(index, 1.0)]
            if mixes and augment.mixup:
                weight = augment.mix_share(seed, epoch, index)
                images = [(index, weight), (mix_partner(draw_U, index, len(self)), 1.0 - weight)]
            image_CHW, row_MD = self._crop(images, augment, draw_U)
        if augment.mixup and row_MD.shape[1] == NUM_COLUMNS:
            row_MD = weighted(row_MD, 1.0)  # all samples of a batch need the same columns
        return image_CHW, row_MD, ResizeTransform(*self.shape[1:], *self.shape[1:])

    def _mosaic(
        self, index: int, augment: BoxAugment, draw_U: np.ndarray, seed: int, epoch: int
    ) -> Tuple[np.ndarray, np.ndarray]:
        """Returns a mosaic of parts of four images."""
        parts, boxes = [], []
        # len(self) counts this split alone, so that no held-out image is drawn.
        indices = [index, *partners(draw_U, len(self))]
        for tile, (frame, part_index) in enumerate(zip(tiles(draw_U, *self.shape[1:]), indices)):
            tile_draw_U = augment.draws(seed, epoch, index, tile) if tile else draw_U
            image = self.open(part_index)
            row_MD = self._checked_rows(part_index, image.size)
            window = augment.tile_window(tile_draw_U, image.size, frame.width / frame.height)
            view = View.from_window(window, image.size, frame, augment.is_flipped(tile_draw_U))
            parts.append((view, augment.recoloured(tile_draw_U, self._part(part_index, image, view))))
            moved_MD = view.boxes(row_MD, augment.min_visible)
            boxes.append(self.objects(part_index, image.size, view, moved_MD, is_whole=False))
        return self._join(parts), np.concatenate(boxes)

    def _crop(
        self, images: Sequence[Tuple[int, float]], augment: BoxAugment, draw_U: np.ndarray
    ) -> Tuple[np.ndarray, np.ndarray]:
        """Returns a part of an image, or of several blended images whose left top corners coincide.

        Args:
            images: index and weight of each image.
            augment: settings of the augmentation.
            draw_U: random numbers of the sample.
        """
        opened = [self.open(index) for index, _ in images]
        row_MD = np.concatenate(
            [
                self._checked_rows(index, image.size)
                if len(images) == 1
                else weighted(self._checked_rows(index, image.size), weight)
                for (index, weight), image in zip(images, opened)
            ]
        )
        width, height = (max(image.size[side] for image in opened) for side in (0, 1))
        window = augment.window(draw_U, (width, height), row_MD[is_trained_on(row_MD)][:, :4])
        left, top, right, bottom = window
        frame = Rectangle(0, 0, *fit_size(bottom - top, right - left, self.shape[1:], self._fit)[::-1])
        # Expanding, cropping and resizing are one rectangle and one resampling: 1.9 ms an image, in GluonCV 12.2 ms.
        view = View.from_window(window, (width, height), frame, augment.is_flipped(draw_U))
        if len(images) == 1:
            part_CHW = self._part(images[0][0], opened[0], view)
        else:
            part_CHW = self._blended(images, opened, window, frame, view)
        moved_MD = view.boxes(row_MD, augment.min_visible)
        if len(images) == 1:
            moved_MD = self.objects(images[0][0], opened[0].size, view, moved_MD, is_whole=False)
        return self._join([(view, augment.recoloured(draw_U, part_CHW))]), moved_MD

    def _blended(
        self,
        images: Sequence[Tuple[int, float]],
        opened: Sequence[ImageReader],
        window: Window,
        frame: Rectangle,
        view: View,
    ) -> np.ndarray:
        """Returns the visible part of blended images, which are black outside of their borders."""
        total_CHW = np.zeros((self.shape[0], view.place.height, view.place.width), np.float32)
        is_bytes = True
        for (index, weight), image in zip(images, opened):
            if window[0] >= image.size[0] or window[1] >= image.size[1]:
                continue  # the image is smaller than the others, and outside of the window
            part_CHW = self._part(index, image, View.from_window(window, image.size, frame))
            is_bytes = is_bytes and part_CHW.dtype == np.uint8
            total_CHW[:, : part_CHW.shape[1], : part_CHW.shape[2]] += np.float32(weight) * part_CHW
        return np.rint(total_CHW).astype(np.uint8) if is_bytes else total_CHW

    def _part(self, index: int, image: ImageReader, view: View) -> np.ndarray:
        return self.resize(index, image, view.source, (view.place.width, view.place.height))

    def _join(self, parts: Sequence[Tuple[View, np.ndarray]]) -> np.ndarray:
        """Returns the network's input: parts of images at their places, and the padding colour elsewhere."""
        dtype = np.result_type(*(part_CHW.dtype for _, part_CHW in parts))
        image_CHW = np.empty(self.shape, dtype)
        image_CHW[:] = self._fill_C[:, None, None]
        for view, part_CHW in parts:
            view.paste(part_CHW, image_CHW)
        return image_CHW


class BoxedChecks(AnnotatedImageChecks):
    """Checks of images and their boxes. Errors of the annotation file alone were found when it was opened."""

    _source: BoxedImages

    def check(self, index: int) -> Checked:
        """Decodes an image, and compares its size and its boxes with the annotation."""
        problems: List[Problem] = []
        source = self._source
        digest, size = self._check_image(index, problems)
        if size is None:
            return Checked(problems, digest)
        location, annotated_2 = self.location(index), source.declared_size(index)
        fact = size_fact(location, size, annotated_2)
        if fact:
            problems.append(Problem(SIZE_MISMATCH, location, fact, SIZE_REMEDY))
        row_MD = source.rows(index, size)
        for row_D in row_MD[source.is_outside(row_MD, size)]:
            problems.append(Problem(BOX_OUTSIDE, location, source.outside_fact(index, row_D, size), REMEDY))
        return Checked(problems, digest, np.unique(row_MD[:, Column.CLASS]).astype(int).tolist())
