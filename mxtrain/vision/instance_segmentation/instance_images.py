"""Reads images with the boxes and masks of the objects in them.

Legend: B batch, M objects of an image, D columns of `boxes.Column`, R columns of a box and its mask, S cells along a
side of a mask, h, w size of an image.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, List, Protocol, Sequence, Tuple

import numpy as np

from mxtrain.data.checking.checks import Checked, Checks
from mxtrain.data.checking.problems import Problem, problem_of
from mxtrain.errors import LoaderError
from mxtrain.vision.detection.box_augment import BoxAugment
from mxtrain.vision.detection.box_faults import clip_boxes
from mxtrain.vision.detection.boxed_files import BoxedSplit
from mxtrain.vision.detection.boxed_images import BoxedChecks, BoxedImages
from mxtrain.vision.detection.boxes import NUM_COLUMNS, Column, is_trained_on
from mxtrain.vision.images.settings import Decoding
from mxtrain.vision.images.view import View
from mxtrain.vision.instance_segmentation.mask_rows import TRUE_SIDE, append_masks, build_meta, encode_masks
from mxtrain.vision.instance_segmentation.outlines import Outline


class Outlines(Protocol):
    """Masks of all objects of a split, in any file format."""

    @property
    def are_in_areas(self) -> bool:
        """Returns True if the areas in the table of boxes are areas of masks."""

    def read(self, image: int, number_M: Sequence[int], size: Tuple[int, int]) -> List[Outline]:
        """Returns the masks of some objects of an image.

        Args:
            image: index of the image in the split.
            number_M: indices of the objects among the rows of the image.
            size: (height, width) of the image.

        Raises:
            LoaderError: a mask cannot be read, or does not fit the image.
        """

    def problems(self, image: int, count: int, size: Tuple[int, int]) -> List[Problem]:
        """Returns the problems of the masks of an image with `count` objects that were not reported before."""


@dataclass(frozen=True)
class InstanceSplit(BoxedSplit):
    """Images of a split with their boxes and masks.

    Attributes:
        outlines: masks of the boxes in the table.
    """

    outlines: Outlines

    def open(
        self, decoding: Decoding, mean: Sequence[float], augment: BoxAugment, mends: bool, class_names: Sequence[str]
    ) -> BoxedImages:
        """Returns the source of the split; arguments as in `BoxedSplit.open`."""
        return InstanceImages(
            self.outlines, self.encoded, self.table, decoding, mean, augment, mends=mends, class_names=class_names
        )


class InstanceImages(BoxedImages):
    """Source of images, boxes and masks. Objects are rows with masks, see `mask_rows`; metadata is that of
    `mask_rows.build_meta`.

    The mask of an object is rendered for the visible part of its box from its source: it follows the image as exactly
    as the box does, and needs no memory before it is used.
    """

    def __init__(self, outlines: Outlines, *arguments: Any, **options: Any) -> None:
        """Stores the masks and the settings; no image is read yet.

        Args:
            outlines: the masks.
            arguments, options: arguments of `BoxedImages`.
        """
        super().__init__(*arguments, **options)
        self._outlines = outlines

    def fetch(
        self, index_B: np.ndarray, *, seed: int, epoch: int, train: bool
    ) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns images, objects with masks (B, M, R) float32, and metadata; see `BoxedImages.fetch`."""
        image_BCHW, row_BMR, fitted_B4 = super().fetch(index_B, seed=seed, epoch=epoch, train=train)
        codes: List[Sequence[bytes]] = [()] * len(index_B)
        for row, (index, (height, width, *_)) in enumerate(zip(index_B.tolist(), fitted_B4.tolist())):
            if train:
                continue
            # Squares of 56 x 56 are enough to learn from, and too coarse to measure by.
            masks = self._whole_masks(index, height, width)
            codes[row] = encode_masks(masks)
            if not self._outlines.are_in_areas:
                row_BMR[row, : len(masks), Column.AREA] = [np.count_nonzero(mask_hw) for mask_hw in masks]
        return image_BCHW, row_BMR, build_meta(fitted_B4, codes)

    def blank(self) -> Tuple[np.ndarray, ...]:
        """Returns a black image without objects."""
        *arrays, fitted_14 = super().blank()
        return (*arrays, build_meta(fitted_14, [()]))

    def checks(self) -> Checks:
        """Returns the checks that `data check` runs on each sample."""
        return InstanceChecks(self)

    def rows(self, index: int, size: Tuple[int, int]) -> np.ndarray:
        """Returns the boxes of an image, followed by the index of each among them, (M, D + 1). The index survives
        clipping and filtering, and identifies the mask of a box."""
        row_MD = super().rows(index, size)
        return np.column_stack([row_MD, np.arange(len(row_MD))])

    def masks(self, index: int) -> List[np.ndarray]:
        """Returns the masks of an image in its own pixels, (h, w) each, in the order of `boxes`."""
        width, height = self.open(index).size
        return self._whole_masks(index, height, width)

    def _whole_masks(self, index: int, height: int, width: int) -> List[np.ndarray]:
        row_MD = clip_boxes(self.rows(index, (width, height)), width, height)
        size = (height, width)
        return [outline.in_image(size) for outline in self._read(index, row_MD, size)]

    def _read(self, index: int, row_MD: np.ndarray, size: Tuple[int, int]) -> List[Outline]:
        return self._outlines.read(int(self._number_N[index]), row_MD[:, -1].astype(int).tolist(), size)

    def objects(
        self, index: int, size: Tuple[int, int], view: View, moved_MD: np.ndarray, *, is_whole: bool
    ) -> np.ndarray:
        """Returns the boxes with the masks of their visible parts, (M, R); arguments as in `BoxedImages.objects`. An
        object without a visible pixel is left out. Masks of crowd regions stay empty: these are not trained on."""
        mask_MSS = np.zeros((len(moved_MD), TRUE_SIDE, TRUE_SIDE), bool)
        is_object_M = is_trained_on(moved_MD)
        outlines = self._read(index, moved_MD[is_object_M], size[::-1])
        # The boxes in the image that correspond to the visible parts: masks are rendered for these.
        edge_M4 = view.boxes_in_image(moved_MD[is_object_M, :4])
        for row, outline, edges in zip(np.flatnonzero(is_object_M), outlines, edge_M4):
            mask_SS = outline.on_grid(tuple(edges.tolist()), TRUE_SIDE)
            mask_MSS[row] = mask_SS[:, ::-1] if view.is_flipped else mask_SS
        is_kept_M = is_whole | ~is_object_M | mask_MSS.any(axis=(1, 2))
        return append_masks(moved_MD[is_kept_M, :NUM_COLUMNS], mask_MSS[is_kept_M])

    def mask_problems(self, index: int, size: Tuple[int, int]) -> List[Problem]:
        """Returns the problems of the masks of an image of that (width, height)."""
        number, count = int(self._number_N[index]), len(self.rows(index, size))
        problems = self._outlines.problems(number, count, size[::-1])
        if not problems:
            try:
                self._outlines.read(number, range(count), size[::-1])
            except LoaderError as error:
                problems = [problem_of(error, self.location(index))]
        return problems


class InstanceChecks(BoxedChecks):
    """Checks of images, boxes and masks."""

    _source: InstanceImages

    def check(self, index: int) -> Checked:
        """Runs the checks of `BoxedChecks`, and checks the masks."""
        checked = super().check(index)
        try:
            size = self._source.open(index).size
        except LoaderError:
            return checked  # `BoxedChecks` has reported it
        problems = [*checked.problems, *self._source.mask_problems(index, size)]
        return Checked(problems, checked.digest, checked.classes)
