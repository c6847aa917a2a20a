"""Boxes of many images in a few flat arrays: the 860,000 boxes of COCO need 24 MB, as lists they would need gigabytes.

Legend: P images, R boxes of all images, M boxes of an image, D columns of `boxes.Column`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

import numpy as np

from mxtrain.vision.detection.boxes import NUM_COLUMNS, Column

_LARGEST = 1e9
"""Limit of coordinates. Larger ones are outside of any image, and might exceed the range of float32."""


@dataclass(frozen=True)
class BoxTable:
    """Boxes of the images of a split.

    Attributes:
        row_RD: rows of all boxes, float32, image after image.
        begin_P1: index of the first row of each image, and the number of rows.
        size_P2: annotated width and height of each image, NaN if unknown.
        is_normalized: True if coordinates are relative to width and height.
    """

    row_RD: np.ndarray
    begin_P1: np.ndarray
    size_P2: np.ndarray
    is_normalized: bool = False

    @classmethod
    def grouped(
        cls,
        image_R: np.ndarray,
        row_RD: np.ndarray,
        num_images: int,
        size_P2: Optional[np.ndarray] = None,
        is_normalized: bool = False,
    ) -> BoxTable:
        """Groups boxes by image; boxes of an image keep their order.

        Args:
            image_R: index of the image of each box.
            row_RD: boxes, with the columns of `boxes.Column`.
            num_images: P.
            size_P2, is_normalized: see `BoxTable`.
        """
        order_R = np.argsort(image_R, kind="stable")
        begin_P1 = np.zeros(num_images + 1, np.int64)
        np.cumsum(np.bincount(image_R, minlength=num_images), out=begin_P1[1:])
        sizes = np.full((num_images, 2), np.nan) if size_P2 is None else size_P2
        kept_RD = np.clip(row_RD[order_R], -_LARGEST, _LARGEST).astype(np.float32).reshape(-1, NUM_COLUMNS)
        return cls(kept_RD, begin_P1, sizes, is_normalized)

    @classmethod
    def empty(cls, num_images: int) -> BoxTable:
        """Returns the table of images without boxes."""
        return cls.grouped(np.zeros(0, np.int64), np.zeros((0, NUM_COLUMNS)), num_images)

    def __len__(self) -> int:
        return len(self.begin_P1) - 1

    def __getitem__(self, index: int) -> np.ndarray:
        """Returns the boxes of an image, (M, D), float64."""
        return self.row_RD[self.begin_P1[index] : self.begin_P1[index + 1]].astype(np.float64)

    @property
    def capacity(self) -> int:
        """Returns the largest number of boxes of an image, at least 1."""
        return int(np.diff(self.begin_P1).max(initial=1))


def rows_in_pixels(row_MD: np.ndarray, width: float, height: float) -> np.ndarray:
    """Converts normalized boxes to pixels of an image of that width and height."""
    moved_MD = row_MD.copy()
    moved_MD[:, [Column.LEFT, Column.RIGHT]] *= width
    moved_MD[:, [Column.TOP, Column.BOTTOM]] *= height
    moved_MD[:, Column.AREA] *= width * height
    return moved_MD
