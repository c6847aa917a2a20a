"""The masks in COCO's files: polygons, or lengths of runs (RLE), as numbers or as text.

Legend: K points of a polygon, h, w of an image.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, List, Optional, Sequence, Tuple, Union

import numpy as np

from mxtrain.data.checking.problems import (
    EMPTY_MASK,
    MASK_OUTSIDE,
    MASK_SIZE,
    NOT_A_NUMBER,
    SHORT_POLYGON,
    UNREADABLE_MASK,
    DataPlace,
    Problem,
)
from mxtrain.data.loading.opening import MAX_PIXELS
from mxtrain.errors import LoaderError
from mxtrain.files.json_text import JsonTextError
from mxtrain.vision.detection.box_faults import TOLERANCE
from mxtrain.vision.detection.coco_file import CocoContents
from mxtrain.vision.images.json_elements import JsonFile, number_array
from mxtrain.vision.images.view import Window
from mxtrain.vision.instance_segmentation.outlines import Bitmap, Outline, Polygons

REMEDY = (
    "Correct it, or type dataset.wrong_boxes=mend to leave out objects whose masks are wrong, and to have masks "
    "cut off at the edges of their images."
)


class BadMask(ValueError):
    """A mask of which nothing can be learned.

    Args:
        kind: kind of problem.
        fact: the end of a sentence.
    """

    def __init__(self, kind: str, fact: str) -> None:
        super().__init__(fact)
        self.kind, self.fact = kind, fact


class Runs:
    """A mask as lengths of runs, column by column, beginning with background."""

    def __init__(self, lengths: np.ndarray, size: Tuple[int, int]) -> None:
        """Stores the runs.

        Args:
            lengths: lengths of the runs, which add up to the number of pixels.
            size: (height, width).
        """
        self._lengths, self._size = lengths, size

    def extent(self) -> Tuple[float, float, float, float]:
        """See `Polygons.extent`."""
        height = self._size[0]
        end_R = np.cumsum(self._lengths)
        is_object_R = (np.arange(len(end_R)) % 2 == 1) & (self._lengths > 0)
        first_R, last_R = (end_R - self._lengths)[is_object_R], end_R[is_object_R] - 1
        left, right = int(first_R[0]) // height, int(last_R[-1]) // height + 1
        if (first_R // height < last_R // height).any():  # one goes on in the next column
            return left, 0, right, height
        return left, int((first_R % height).min()), right, int((last_R % height).max()) + 1

    def on_grid(self, window: Window, side: int) -> np.ndarray:
        """See `Outline`."""
        return Bitmap(self.in_image(self._size)).on_grid(window, side)

    def in_image(self, size: Tuple[int, int]) -> np.ndarray:
        """See `Outline`."""
        value_R = np.arange(len(self._lengths), dtype=np.uint8) & 1
        return np.repeat(value_R, self._lengths).reshape(self._size[::-1]).T


def read_mask(segmentation: Any, size: Optional[Tuple[int, int]]) -> Tuple[Union[Runs, Polygons], List[BadMask]]:
    """Returns the mask of an annotation, and tolerable problems of it.

    Args:
        segmentation: its `segmentation`.
        size: (height, width) of its image; None if unknown.

    Raises:
        BadMask: nothing is left of it.
    """
    if isinstance(segmentation, dict):
        return _read_runs(segmentation, size), []
    if not isinstance(segmentation, list) or not segmentation:
        raise BadMask(EMPTY_MASK, "has no segmentation: neither polygons nor lengths of runs")
    return _read_polygons(segmentation, size)


def _read_polygons(polygons: List[Any], size: Optional[Tuple[int, int]]) -> Tuple[Polygons, List[BadMask]]:
    points: List[np.ndarray] = []
    faults: List[BadMask] = []
    for numbers in polygons:
        try:
            number_K = number_array(numbers)
        except (TypeError, ValueError):
            number_K = np.array([np.nan])
        if number_K.ndim != 1 or not math.isfinite(number_K.sum()) or len(number_K) % 2:
            raise BadMask(NOT_A_NUMBER, "has a polygon that is no list of numbers, an x and a y for each point")
        if len(number_K) < 6:
            faults.append(BadMask(SHORT_POLYGON, f"has a polygon of {len(number_K) // 2} points, fewer than 3"))
        else:
            points.append(number_K.reshape(-1, 2))
    if not points:
        raise faults[0]
    if all(_area(point_K2) == 0 for point_K2 in points):
        raise BadMask(EMPTY_MASK, "has polygons of no area")
    if size is not None:
        height, width = size
        overhang = max(
            max(-float(one.min()), float((one - (width, height)).max())) for one in points
        )  # fmt: skip
        if overhang > TOLERANCE:
            fact = f"has a polygon that reaches {overhang:.4g} pixels beyond its image of {width} x {height}"
            faults.append(BadMask(MASK_OUTSIDE, fact))
    return Polygons(points), faults


def _area(point_K2: np.ndarray) -> float:
    x_K, y_K = (point_K2 - point_K2[0]).T
    return abs(float(x_K @ np.roll(y_K, -1) - y_K @ np.roll(x_K, -1)))


def _read_runs(segmentation: Any, size: Optional[Tuple[int, int]]) -> Runs:
    sides, counts = segmentation.get("size"), segmentation.get("counts")
    if not isinstance(sides, list) or len(sides) != 2 or not all(type(side) is int and side > 0 for side in sides):
        raise BadMask(UNREADABLE_MASK, "has lengths of runs without their size, [height, width]")
    height, width = sides
    if height * width > MAX_PIXELS:
        raise BadMask(UNREADABLE_MASK, f"has a mask of {width} x {height} pixels, and at most {MAX_PIXELS:,} are read")
    if size is not None and (height, width) != tuple(size):
        fact = f"has a mask of {width} x {height} pixels, and its image has {size[1]} x {size[0]}"
        raise BadMask(MASK_SIZE, fact)
    try:
        lengths = number_array(_numbers_of(counts) if isinstance(counts, str) else counts)
    except (TypeError, ValueError):
        lengths = np.array([np.nan])
    is_whole = lengths.ndim == 1 and bool((lengths == np.floor(lengths)).all() and (lengths >= 0).all())
    if not is_whole or lengths.sum() != height * width:
        fact = f"has lengths of runs that do not add up to a mask of {width} x {height} pixels"
        raise BadMask(UNREADABLE_MASK, fact)
    if lengths[1::2].sum() == 0:
        raise BadMask(EMPTY_MASK, "has a mask without any pixel")
    return Runs(lengths.astype(np.int64), (height, width))


def _numbers_of(text: str) -> List[int]:
    """Lengths of runs that are written as text: five bits a character, the lowest first, and whether more follow; from
    the fourth number on, what it is more than the last but one.

    Raises:
        ValueError: it is none such.
    """
    numbers: List[int] = []
    value = shift = 0
    for character in text:
        code = ord(character) - 48
        if not 0 <= code < 64 or shift > 60:
            raise ValueError
        value |= (code & 31) << shift
        shift += 5
        if code & 32:
            continue
        if code & 16:
            value -= 1 << shift
        numbers.append(value + (numbers[-2] if len(numbers) > 2 else 0))
        value = shift = 0
    if shift:
        raise ValueError
    return numbers


def _require_in_box(outline: Union[Runs, Polygons], edge_4: np.ndarray) -> None:
    """Checks that a mask and its box overlap. They do not if the mask is in shares, or has y before x.

    Raises:
        BadMask: they do not overlap.
    """
    extent_4 = np.array(outline.extent())
    if (np.minimum(extent_4[2:], edge_4[2:]) - np.maximum(extent_4[:2], edge_4[:2]) < -TOLERANCE).any():
        around, box = (", ".join(f"{edge:.6g}" for edge in edges) for edges in (extent_4, edge_4))
        fact = f"has a mask around which {around} (left, top, right, bottom) is the smallest box, and the bbox is {box}"
        raise BadMask(MASK_OUTSIDE, f"{fact}: nothing of the mask is in it")


def find_mask_problems(
    contents: CocoContents, numbers: np.ndarray, mends: bool
) -> Tuple[np.ndarray, List[Problem], List[Problem]]:  # fmt: skip
    """Looks at the masks of some annotations.

    Args:
        contents: contents of the file.
        numbers: numbers of the annotations.
        mends: whether wrong masks are left out or cut off.

    Returns:
        Which of the annotations can be learned from; problems with which nothing is trained; and those with which
        training goes on.
    """
    is_valid = np.ones(len(numbers), bool)
    refused: List[Problem] = []
    remarks: List[Problem] = []
    size_P2 = contents.size_P2.reshape(-1, 2)
    for index, (number, annotation) in enumerate(zip(numbers.tolist(), contents.annotations(numbers))):
        width, height = size_P2[contents.image_R[number]]
        size = (int(height), int(width)) if math.isfinite(width + height) else None
        try:
            outline, faults = read_mask(annotation.get("segmentation"), size)
            _require_in_box(outline, contents.edge_R4[number])
        except BadMask as error:
            faults, is_valid[index] = [error], False
        for fault in faults:
            place = contents.place(number)
            problem = Problem(fault.kind, place, f"annotations: {place} {fault.fact}.", REMEDY)
            is_refused = not mends and (not is_valid[index] or fault.kind == MASK_OUTSIDE)
            (refused if is_refused else remarks).append(problem)
    return is_valid, refused, remarks


@dataclass(frozen=True)
class CocoOutlines:
    """The masks of a split, read anew from its file whenever they are needed: COCO's polygons would take a gigabyte.

    Attributes:
        file: annotation file.
        span_R2: where each begins and ends, in the order of the table of boxes.
        record_R: which annotation each is.
        begin_P1: first index of each image, and the end of the last.
    """

    file: JsonFile
    span_R2: np.ndarray
    record_R: np.ndarray
    begin_P1: np.ndarray

    @property
    def are_in_areas(self) -> bool:
        """See `Outlines`: files say them."""
        return True

    def read(self, image: int, number_M: Sequence[int], size: Tuple[int, int]) -> List[Outline]:
        """See `Outlines`."""
        place_M = self.begin_P1[image] + np.asarray(number_M, np.int64)
        outlines: List[Outline] = []
        try:
            for row, annotation in zip(place_M.tolist(), self.file.elements_at(self.span_R2[place_M].tolist())):
                place = DataPlace(str(self.file.path), record=int(self.record_R[row]))
                outlines.append(read_mask(annotation["segmentation"], size)[0])
        except BadMask as error:
            raise LoaderError(f"annotations: {place} {error.fact}.", REMEDY, error.kind) from error
        except (OSError, JsonTextError, KeyError, TypeError) as error:
            raise LoaderError(
                f"'{self.file.path}' has changed since it was opened, or cannot be read any more: {error}.",
                "Begin again.", UNREADABLE_MASK,
            ) from error  # fmt: skip
        return outlines

    def problems(self, image: int, count: int, size: Tuple[int, int]) -> List[Problem]:
        """See `Outlines`: all that a file says by itself was looked at when it was opened."""
        return []
