"""Reads masks of COCO's files: polygons, or run-length codes (RLE), as numbers or compressed as text.

Legend: K points of a polygon, R runs of a mask, or annotations of a file, h, w size of an image.
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
    DataLocation,
    Problem,
)
from mxtrain.data.loading.opening import MAX_PIXELS
from mxtrain.errors import LoaderError
from mxtrain.files.json_text import JsonTextError
from mxtrain.vision.detection.box_faults import TOLERANCE
from mxtrain.vision.detection.coco_file import CocoContents
from mxtrain.vision.images.json_elements import JsonFile, number_array
from mxtrain.vision.images.view import Window
from mxtrain.vision.instance_segmentation.outlines import Bitmap, Outline, Polygons, polygon_area

REMEDY = (
    "Correct it, or type dataset.wrong_boxes=mend to leave out objects whose masks are wrong, and to have masks "
    "cut off at the edges of their images."
)


class BadMask(ValueError):
    """A mask is invalid, or has a tolerable problem.

    Args:
        kind: kind of problem.
        fact: the problem, as the end of a sentence.
    """

    def __init__(self, kind: str, fact: str) -> None:
        super().__init__(fact)
        self.kind, self.fact = kind, fact


class Runs:
    """A mask as run lengths, column by column, beginning with background."""

    def __init__(self, lengths: np.ndarray, size: Tuple[int, int]) -> None:
        """Stores the runs.

        Args:
            lengths: lengths of the runs, which add up to the number of pixels.
            size: (height, width).
        """
        self._lengths, self._size = lengths, size

    @property
    def size(self) -> Tuple[int, int]:
        """Returns (height, width)."""
        return self._size

    @property
    def lengths(self) -> np.ndarray:
        """Returns the lengths of the runs."""
        return self._lengths

    def extent(self) -> Tuple[float, float, float, float]:
        """Returns left, top, right and bottom of the smallest box around the mask, which must not be empty."""
        height = self._size[0]
        end_R = np.cumsum(self._lengths)
        is_object_R = (np.arange(len(end_R)) % 2 == 1) & (self._lengths > 0)
        first_R, last_R = (end_R - self._lengths)[is_object_R], end_R[is_object_R] - 1
        left, right = int(first_R[0]) // height, int(last_R[-1]) // height + 1
        if (first_R // height < last_R // height).any():  # a run continues in the next column
            return left, 0, right, height
        return left, int((first_R % height).min()), right, int((last_R % height).max()) + 1

    def on_grid(self, window: Window, side: int) -> np.ndarray:
        """Returns a mask of the cells of a grid; see `Outline.on_grid`."""
        return Bitmap(self.in_image(self._size)).on_grid(window, side)

    def in_image(self, size: Tuple[int, int]) -> np.ndarray:
        """Returns the mask as large as its image, (h, w)."""
        value_R = np.arange(len(self._lengths), dtype=np.uint8) & 1
        return np.repeat(value_R, self._lengths).reshape(self._size[::-1]).T


def read_mask(segmentation: Any, size: Optional[Tuple[int, int]]) -> Tuple[Union[Runs, Polygons], List[BadMask]]:
    """Returns the mask of an annotation, and its tolerable problems.

    Args:
        segmentation: `segmentation` of the annotation.
        size: (height, width) of the image; None if unknown.

    Raises:
        BadMask: the mask is invalid or empty.
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
    if all(polygon_area(point_K2) == 0 for point_K2 in points):
        raise BadMask(EMPTY_MASK, "has polygons of no area")
    if size is not None:
        height, width = size
        overhang = max(max(-float(point_K2.min()), float((point_K2 - (width, height)).max())) for point_K2 in points)
        if overhang > TOLERANCE:
            fact = f"has a polygon that reaches {overhang:.4g} pixels beyond its image of {width} x {height}"
            faults.append(BadMask(MASK_OUTSIDE, fact))
    return Polygons(points), faults


def _read_runs(segmentation: Any, size: Optional[Tuple[int, int]]) -> Runs:
    sides, counts = segmentation.get("size"), segmentation.get("counts")
    if not isinstance(sides, list) or len(sides) != 2 or not all(type(side) is int and side > 0 for side in sides):
        raise BadMask(UNREADABLE_MASK, "has lengths of runs without their size, [height, width]")
    height, width = sides
    # A few bytes of runs can stand for any number of pixels, so the size is judged first.
    if height * width > MAX_PIXELS:
        raise BadMask(UNREADABLE_MASK, f"has a mask of {width} x {height} pixels, and at most {MAX_PIXELS:,} are read")
    if size is not None and (height, width) != tuple(size):
        fact = f"has a mask of {width} x {height} pixels, and its image has {size[1]} x {size[0]}"
        raise BadMask(MASK_SIZE, fact)
    try:
        lengths = number_array(_decompress(counts) if isinstance(counts, str) else counts)
    except (TypeError, ValueError):
        lengths = np.array([np.nan])
    is_whole = lengths.ndim == 1 and bool((lengths == np.floor(lengths)).all() and (lengths >= 0).all())
    if not is_whole or lengths.sum() != height * width:
        fact = f"has lengths of runs that do not add up to a mask of {width} x {height} pixels"
        raise BadMask(UNREADABLE_MASK, fact)
    if lengths[1::2].sum() == 0:
        raise BadMask(EMPTY_MASK, "has a mask without any pixel")
    return Runs(lengths.astype(np.int64), (height, width))


def _decompress(text: str) -> List[int]:
    """Decodes run lengths that are compressed as text.

    A character has five bits of a number, the lowest first, and a flag for continuation. From the fourth number on, the
    difference from the last but one is written. Source: cocoapi, common/maskApi.c.

    Raises:
        ValueError: the text is not such a code.
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
        # From the fourth run on COCO stores the difference to the run before the last.
        numbers.append(value + (numbers[-2] if len(numbers) > 2 else 0))
        value = shift = 0
    if shift:
        raise ValueError
    return numbers


def _require_in_box(outline: Union[Runs, Polygons], edge_4: np.ndarray) -> None:
    """Checks that a mask and its box overlap. They do not if the mask is normalized, or has y before x.

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
) -> Tuple[np.ndarray, List[Problem], List[Problem]]:
    """Checks the masks of some annotations.

    Args:
        contents: contents of the file.
        numbers: indices of the annotations.
        mends: if True, invalid masks are left out, and masks that exceed their image are clipped.

    Returns:
        A mask of the annotations with a valid mask; problems that prevent training; and problems that do not.
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
            location = contents.location(number)
            problem = Problem(fault.kind, location, f"annotations: {location} {fault.fact}.", REMEDY)
            is_refused = not mends and (not is_valid[index] or fault.kind == MASK_OUTSIDE)
            (refused if is_refused else remarks).append(problem)
    return is_valid, refused, remarks


@dataclass(frozen=True)
class CocoOutlines:
    """Masks of a split. They are read from the annotation file whenever they are needed: all of COCO's polygons would
    need a gigabyte of memory.

    Attributes:
        file: annotation file.
        span_R2: begin and end of each annotation in the file, in bytes, in the order of the table of boxes.
        record_R: index of each annotation in the list of the file.
        begin_P1: index of the first annotation of each image, and the number of annotations.
    """

    file: JsonFile
    span_R2: np.ndarray
    record_R: np.ndarray
    begin_P1: np.ndarray

    @property
    def are_in_areas(self) -> bool:
        """Returns True: annotations contain the areas of masks."""
        return True

    def read(self, image: int, number_M: Sequence[int], size: Tuple[int, int]) -> List[Outline]:
        """Reads the masks of some objects of an image; see `Outlines.read`."""
        row_M = self.begin_P1[image] + np.asarray(number_M, np.int64)
        outlines: List[Outline] = []
        try:
            for row, annotation in zip(row_M.tolist(), self.file.elements_at(self.span_R2[row_M].tolist())):
                location = DataLocation(str(self.file.path), record=int(self.record_R[row]))
                outlines.append(read_mask(annotation["segmentation"], size)[0])
        except BadMask as error:
            raise LoaderError(f"annotations: {location} {error.fact}.", REMEDY, error.kind) from error
        except (OSError, JsonTextError, KeyError, TypeError) as error:
            raise LoaderError(
                f"'{self.file.path}' has changed since it was opened, or cannot be read any more: {error}.",
                "Begin again.",
                UNREADABLE_MASK,
            ) from error
        return outlines

    def problems(self, image: int, count: int, size: Tuple[int, int]) -> List[Problem]:
        """Returns no problems: masks were checked when the file was opened."""
        return []
