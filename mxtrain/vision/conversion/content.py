"""Annotated images of any format, in the neutral form in which they are converted.

Coordinates are edges in pixels: pixel i extends from i to i + 1.

Legend: J key points.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, List, Mapping, NamedTuple, Optional, Protocol, Sequence, Tuple

import numpy as np

from mxtrain.data.checking.problems import EMPTY_BOX, Findings, Problem
from mxtrain.vision.images.decoding import EncodedImages
from mxtrain.vision.objects.objects import PointNames, Shape

SPLITS = ("train", "val", "test")


class ConvertedObject(NamedTuple):
    """An object in an image."""

    class_index: int
    edges: Tuple[float, float, float, float]
    """Left, top, right, bottom."""
    shape: Optional[Shape] = None
    """Polygons, or a mask of the image; None: only the box is known."""
    points: Optional[np.ndarray] = None
    """Key points (J, 3): x, y, visibility as in `Visibility`; None: none is marked."""
    flags: int = 0
    """A sum of `Flag`."""
    area: Optional[float] = None
    """Area in pixels that the source states; None: it states none."""


class ConvertedImages(Protocol):
    """Images of a split.

    Attributes:
        encoded: the image files or records.
    """

    @property
    def encoded(self) -> EncodedImages:
        """Returns the image files or records."""

    def declared_size(self, index: int) -> Tuple[float, float]:
        """Returns the annotated (width, height) of an image; NaN if unknown."""

    def objects(self, index: int, size: Tuple[int, int]) -> List[ConvertedObject]:
        """Returns the objects of an image of that (width, height).

        Raises:
            DataError: an annotation is wrong.
        """

    def label(self, index: int) -> int:
        """Returns the class of an image; -1 if its objects have classes."""


@dataclass(frozen=True)
class Content:
    """Everything of a dataset that can be converted.

    Attributes:
        option: option of the dataset, e.g. "dataset=cvat".
        class_names: name of each class.
        splits: images of each split that exists, in the order of `SPLITS`.
        has_objects: True if objects in the images have classes, False if each image has one class.
        category_ids: number of each class in the files.
        points: key points of objects; None if there are none.
        mends: True if boxes that exceed their images are to be clipped.
    """

    option: str
    class_names: Sequence[str]
    splits: Mapping[str, ConvertedImages]
    has_objects: bool = True
    category_ids: Sequence[int] = ()
    points: Optional[PointNames] = None
    mends: bool = False

    @property
    def num_images(self) -> int:
        """Returns the number of images of all splits."""
        return sum(len(split.encoded) for split in self.splits.values())


@dataclass
class LeftOut(Findings):
    """Counts annotations that are not read, by the reason in words. All other problems raise, as in training."""

    counts: Dict[str, int] = field(default_factory=dict)

    def leave_out(self, option: str, reasons: Mapping[str, int]) -> None:
        """Counts annotations that no dataset reads; see `Findings.leave_out`."""
        for reason, count in reasons.items():
            self.add(reason, count)

    def remark(self, problem: Problem) -> None:
        """Counts boxes without an area, which are left out."""
        if problem.kind == EMPTY_BOX:
            self.add("boxes without width or height")

    def add(self, reason: str, count: int = 1) -> None:
        """Adds to a count."""
        if count:
            self.counts[reason] = self.counts.get(reason, 0) + count
