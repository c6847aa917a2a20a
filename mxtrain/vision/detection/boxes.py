"""Boxes of objects in images: their array format, and their transforms with the image.

A box is an interval [left, top, right, bottom] in pixels. Pixel i extends from i to i + 1, so a box of one pixel has
the width 1. Formats with other conventions (VOC: the first pixel is 1, the last is inside) are converted on reading.

Legend: B batch, M boxes of an image, D columns of `Column`: 7, or 8 if boxes have weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Sequence, Tuple

import numpy as np

from mxtrain.types import NamedFlags, NamedInt
from mxtrain.vision.images.affine import determinant, transform_points
from mxtrain.vision.images.fitting import fit_size
from mxtrain.vision.images.transforms.chain import Annotations
from mxtrain.vision.images.transforms.lazy_image import GeometryStep

NUM_COLUMNS = 7
"""Number of columns of boxes without weights."""


class Column(NamedInt):
    """Columns of the row of a box. Rows of -1 are padding."""

    LEFT = 0
    TOP = 1
    RIGHT = 2
    BOTTOM = 3
    CLASS = 4
    FLAGS = 5
    """A sum of `Flag`."""
    AREA = 6
    """Area of the object in pixels of the original image: of its mask if there is one, else of its box."""
    WEIGHT = 7
    """Weight in training. Rows have this column only if images are mixed; see `weights`."""


class Flag(NamedFlags):
    """Flags of a box, which benchmarks define."""

    DIFFICULT = 1
    """VOC's `difficult`: used in training, ignored in the evaluation."""
    CROWD = 2
    """COCO's `iscrowd`: one region of many objects. Not used in training; detections inside it are ignored."""


@dataclass(frozen=True)
class ResizeTransform:
    """Resizing of an image to the network's input size, placed at the top left.

    Attributes:
        height, width: size of the original image.
        fitted_height, fitted_width: size of the resized image.
    """

    height: int
    width: int
    fitted_height: int
    fitted_width: int

    @classmethod
    def into(cls, height: int, width: int, size: Sequence[int], fit: str) -> ResizeTransform:
        """Returns the resizing for a value of `Decoding.fit`.

        Args:
            height, width: size of the image.
            size: (height, width) of the network's input.
            fit: "stretch" or "pad".
        """
        return cls(height, width, *fit_size(height, width, size, fit))

    @classmethod
    def of_row(cls, row: Sequence[float]) -> ResizeTransform:
        """Restores a transform from the row that `row` returned."""
        return cls(*map(int, row))

    @property
    def scale_x(self) -> float:
        """Returns the horizontal scale, from the original to the resized image."""
        return self.fitted_width / self.width

    @property
    def scale_y(self) -> float:
        """Returns the vertical scale."""
        return self.fitted_height / self.height

    def row(self) -> Tuple[int, ...]:
        """Returns the transform as a row of `Batch.meta`. Images with masks have the same columns."""
        return (self.height, self.width, self.fitted_height, self.fitted_width)


def weights(box_BMD: np.ndarray) -> Optional[np.ndarray]:
    """Returns the weight of each box in training, (B, M); None if all are equal."""
    return box_BMD[..., Column.WEIGHT] if box_BMD.shape[-1] > Column.WEIGHT else None


def weighted(box_MD: np.ndarray, weight: float) -> np.ndarray:
    """Appends a column with the same weight for all rows."""
    return np.concatenate([box_MD[:, :NUM_COLUMNS], np.full((len(box_MD), 1), weight)], axis=1)


def padded(rows: Sequence[np.ndarray], capacity: int) -> np.ndarray:
    """Stacks the rows of some images, (M, D) each, into one array (B, capacity, D), float32, padded with -1."""
    width = max((row_MD.shape[1] for row_MD in rows), default=NUM_COLUMNS)
    array_BMD = np.full((len(rows), capacity, width), -1, np.float32)
    for index, row_MD in enumerate(rows):
        array_BMD[index, : len(row_MD)] = row_MD[:capacity]
    return array_BMD


def visible_parts(
    box_MD: np.ndarray, low_2: np.ndarray, high_2: np.ndarray, min_visible: float
) -> Tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Clips boxes to a window. Returns a mask of the visible boxes (M,), begin and end of the visible parts (M, 2), and
    the visible share of each box (M,).

    Args:
        box_MD: boxes.
        low_2: left and top of the window.
        high_2: right and bottom of the window.
        min_visible: smallest visible share of a box. The centre of the box must be visible too; of crowd regions any
            visible part is kept.
    """
    begin_M2, end_M2 = np.maximum(box_MD[:, :2], low_2), np.minimum(box_MD[:, 2:4], high_2)
    centre_M2 = (box_MD[:, :2] + box_MD[:, 2:4]) / 2
    side_M2 = end_M2 - begin_M2
    area_M = (box_MD[:, 2:4] - box_MD[:, :2]).prod(axis=1)
    visible_M = side_M2.clip(0).prod(axis=1) / np.maximum(area_M, 1e-12)
    is_seen_M = ((centre_M2 >= low_2) & (centre_M2 < high_2)).all(axis=1) & (visible_M >= min_visible)
    return (is_seen_M | is_crowd(box_MD)) & (side_M2 > 0).all(axis=1), begin_M2, end_M2, visible_M


class BoxAnnotations(Annotations):
    """Boxes, rows (M, D): a transformed box is the visible part of the box around its transformed corners."""

    def __init__(self, min_visible: float = 0.1) -> None:
        """Stores the settings.

        Args:
            min_visible: see `visible_parts`.
        """
        self._min_visible = min_visible

    def follow(self, label: np.ndarray, step: GeometryStep) -> np.ndarray:
        """Transforms the rows of a sample; see `Annotations.follow`. Rows of removed boxes become padding."""
        row_MD = label[is_box(label)].astype(np.float64)
        moved_MD = self.moved(row_MD, step)
        kept_M, begin_M2, end_M2, visible_M = visible_parts(
            moved_MD, np.zeros(2), np.array(step.size[::-1]), self._min_visible
        )
        moved_MD[:, :2], moved_MD[:, 2:4] = begin_M2, end_M2
        moved_MD[:, Column.AREA] *= visible_M * abs(determinant(step.matrix_23))
        visible_MD = self.cut(moved_MD[kept_M], row_MD[kept_M], step)
        result_MD = np.full_like(label, -1)
        result_MD[: len(visible_MD)] = visible_MD
        return result_MD

    def moved(self, row_MD: np.ndarray, step: GeometryStep) -> np.ndarray:
        """Returns the rows with the edges of the moved boxes, which may lie outside the image."""
        moved_MD = row_MD.copy()
        corner_M42 = transform_points(row_MD[:, :4][:, [[0, 1], [2, 1], [0, 3], [2, 3]]], step.matrix_23)
        moved_MD[:, :2], moved_MD[:, 2:4] = corner_M42.min(axis=1), corner_M42.max(axis=1)
        return moved_MD

    def cut(self, moved_MD: np.ndarray, row_MD: np.ndarray, step: GeometryStep) -> np.ndarray:
        """Updates values that depend on the edges, such as masks, after boxes were clipped to their visible parts. May
        remove rows. This class has no such values.

        Args:
            moved_MD: rows of the clipped boxes; may be written to.
            row_MD: rows before the transform.
            step: the transform.
        """
        return moved_MD


def is_box(box_BMD: np.ndarray) -> np.ndarray:
    """Returns a mask of the rows that are boxes, (B, M)."""
    return box_BMD[..., Column.CLASS] >= 0


def is_trained_on(box_BMD: np.ndarray) -> np.ndarray:
    """Returns a mask of the rows that are boxes of single objects, (B, M)."""
    return is_box(box_BMD) & ~_has_crowd_flag(box_BMD)


def is_crowd(box_BMD: np.ndarray) -> np.ndarray:
    """Returns a mask of the rows that are crowd regions, (B, M)."""
    return is_box(box_BMD) & _has_crowd_flag(box_BMD)


def _has_crowd_flag(box_BMD: np.ndarray) -> np.ndarray:
    return (box_BMD[..., Column.FLAGS].astype(np.int64) & Flag.CROWD) != 0


def has_area(box_BMD: np.ndarray) -> np.ndarray:
    """Returns a mask of the rows that are wider and higher than 0, (B, M)."""
    return (box_BMD[..., 2:4] > box_BMD[..., :2]).all(axis=-1)


def rows_of(edge_M4: np.ndarray, class_M: np.ndarray) -> np.ndarray:
    """Builds the rows (M, D) of boxes without flags.

    Args:
        edge_M4: left, top, right, bottom.
        class_M: class of each box.
    """
    edge_M4 = np.asarray(edge_M4, np.float64).reshape(-1, 4)
    area_M = (edge_M4[:, 2:] - edge_M4[:, :2]).prod(axis=1)
    return np.column_stack([edge_M4, class_M, np.zeros(len(edge_M4)), area_M])


def scaled(box_MD: np.ndarray, scale_x: float, scale_y: float) -> np.ndarray:
    """Scales boxes with their image."""
    moved_MD = np.array(box_MD, np.float64)
    moved_MD[:, [Column.LEFT, Column.RIGHT]] *= scale_x
    moved_MD[:, [Column.TOP, Column.BOTTOM]] *= scale_y
    return moved_MD
