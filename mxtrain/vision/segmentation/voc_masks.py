"""Reads instance masks of PASCAL VOC: images in which the value of a pixel is the number of its object.

Legend: P images, R boxes, M boxes of an image, h, w size of an image.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import List, NamedTuple, Sequence, Tuple

import numpy as np

from mxtrain.data.checking.problems import (
    EMPTY_MASK,
    MASK_SIZE,
    STRAY_MASK_VALUE,
    UNREADABLE_MASK,
    DataLocation,
    Problem,
    problem_of,
)
from mxtrain.data.loading.dataset_files import read_bytes
from mxtrain.errors import DataError, LoaderError
from mxtrain.vision.detection.voc_layout import OUTLINE_VALUE
from mxtrain.vision.instance_segmentation.outlines import Bitmap, Outline
from mxtrain.vision.segmentation.mask_file import read_mask

_REMEDY = "Save it as a PNG in which a pixel has the number of its object in the annotation, from 1; 0 = of none."


class VocBoxSources(NamedTuple):
    """Annotations that the boxes of a split were read from.

    Attributes:
        annotations: annotation file of each image.
        count_P: number of objects in each annotation, including objects of classes that are not learned.
        object_R: index of the object of each box in its annotation, from 0.
    """

    annotations: Sequence[Path]
    count_P: np.ndarray
    object_R: np.ndarray


@dataclass(frozen=True)
class VocOutlines:
    """Masks of a split. They are read from their files whenever they are needed.

    Attributes:
        masks: mask file of each image.
        count_P, object_R: see `VocBoxSources`.
        begin_P1: index of the first box of each image in the table, and the number of boxes.
    """

    masks: Sequence[str]
    count_P: np.ndarray
    object_R: np.ndarray
    begin_P1: np.ndarray

    @property
    def are_in_areas(self) -> bool:
        """Returns False: annotations only have boxes."""
        return False

    def read(self, image: int, number_M: Sequence[int], size: Tuple[int, int]) -> List[Outline]:
        """Reads the masks of some objects of an image; see `Outlines.read`."""
        if not len(number_M):
            return []
        value_hw = self._values(image, size)
        object_M = self.object_R[self.begin_P1[image] + np.asarray(number_M, np.int64)]
        return [Bitmap(value_hw == number + 1) for number in object_M.tolist()]

    def _values(self, image: int, size: Tuple[int, int]) -> np.ndarray:
        """Reads the mask file of an image, (h, w).

        Raises:
            LoaderError: the file cannot be read, or has another (height, width) than `size`.
        """
        path = self.masks[image]
        try:
            value_hw = np.asarray(read_mask(read_bytes(path)))
        except DataError as error:
            raise LoaderError(str(error), kind=UNREADABLE_MASK) from error
        except Exception as error:  # Pillow raises OSError, SyntaxError, ValueError, struct.error and its own
            raise LoaderError(f"'{path}' cannot be read as a mask: {error}.", _REMEDY, UNREADABLE_MASK) from error
        if value_hw.shape != tuple(size):
            fact = (
                f"'{path}' has {value_hw.shape[1]} x {value_hw.shape[0]} pixels, and its image has {size[1]} x "
                f"{size[0]}."
            )
            raise LoaderError(fact, "Make the mask as large as its image.", MASK_SIZE)
        return value_hw

    def problems(self, image: int, count: int, size: Tuple[int, int]) -> List[Problem]:
        """Returns the problems of the mask file of an image; see `Outlines.problems`."""
        location = DataLocation(self.masks[image])
        try:
            values = set(np.unique(self._values(image, size)).tolist())
        except LoaderError as error:
            return [problem_of(error, location)]
        num_objects = int(self.count_P[image])
        problems = [
            Problem(
                STRAY_MASK_VALUE,
                location,
                f"{location} holds the value {value}; its annotation has {num_objects} objects.",
                _REMEDY,
            )
            for value in sorted(values - {0, OUTLINE_VALUE})
            if value > num_objects
        ]
        begin = int(self.begin_P1[image])
        for number in self.object_R[begin : begin + count].tolist():
            if number + 1 not in values:
                fact = f"{location} has no pixel of object {number + 1} of its annotation."
                problems.append(Problem(EMPTY_MASK, location, fact, "Draw it, or remove it from the annotation."))
        return problems
