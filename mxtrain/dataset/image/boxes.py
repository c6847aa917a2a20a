"""Boxes of things in pictures: their rows, and how they move with a picture.

A box is an exact interval, [left, top, right, bottom] in pixels: pixel i reaches from i to i + 1, so a box of one pixel
is 1 wide. Formats that count otherwise (VOC's, whose first pixel is 1 and whose last is inside) are converted where
they are read.

Legend: B batch, M boxes of a picture, D columns of `Column`: 7, or 8 where boxes have weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Sequence, Tuple

import numpy as np

from mxtrain.types import NamedFlags, NamedInt

NUM_COLUMNS = 7
"""Of boxes without weights."""


class Column(NamedInt):
    """The columns of a row about a box. A row of -1 is none."""

    LEFT = 0
    TOP = 1
    RIGHT = 2
    BOTTOM = 3
    CLASS = 4
    FLAGS = 5
    """A sum of `Flag`."""
    AREA = 6
    """Pixels of the thing in the picture as it is: those of its mask where there is one, else of its box."""
    WEIGHT = 7
    """How much it counts in training. Rows have it only where pictures are mixed, see `weights`."""


class Flag(NamedFlags):
    """Marks of a box in a benchmark."""

    DIFFICULT = 1
    """VOC's: whether it is found does not count; it is trained on."""
    CROWD = 2
    """COCO's `iscrowd`: many things as one region. What lies in it does not count; it is not trained on."""


@dataclass(frozen=True)
class Fitted:
    """How a whole picture was brought to the size that enters the network: resized, and placed at the top left.

    Attributes:
        height, width: of the picture as it is.
        fitted_height, fitted_width: of what became of it.
    """

    height: int
    width: int
    fitted_height: int
    fitted_width: int

    @classmethod
    def into(cls, height: int, width: int, size: Sequence[int], fit: str) -> Fitted:
        """What `Decoding.fit` asks for.

        Args:
            height, width: of the picture.
            size: (height, width) that enter the network.
            fit: "stretch" or "pad".
        """
        return cls(height, width, *fit_size(height, width, size, fit))

    @classmethod
    def of_row(cls, row: Sequence[float]) -> Fitted:
        """The inverse of `row`."""
        return cls(*map(int, row))

    @property
    def scale_x(self) -> float:
        """Pixels that enter the network, of one of the picture's."""
        return self.fitted_width / self.width

    @property
    def scale_y(self) -> float:
        """The same, downwards."""
        return self.fitted_height / self.height

    def row(self) -> Tuple[int, ...]:
        """A row of `Batch.meta`: as of pictures with masks."""
        return (self.height, self.width, self.fitted_height, self.fitted_width)


def fit_size(height: float, width: float, size: Sequence[int], fit: str) -> Tuple[int, int]:
    """The (height, width) of a picture, or of a part of it, in what enters the network; see `Fitted.into`."""
    if fit == "stretch":
        return size[0], size[1]
    scale = min(size[0] / height, size[1] / width)
    return max(1, round(height * scale)), max(1, round(width * scale))


def weights(box_BMD: np.ndarray) -> Optional[np.ndarray]:
    """Weight of each box in training, (B, M); None if all are equal."""
    return box_BMD[..., Column.WEIGHT] if box_BMD.shape[-1] > Column.WEIGHT else None


def weighted(box_MD: np.ndarray, weight: float) -> np.ndarray:
    """Rows with a weight."""
    return np.concatenate([box_MD[:, :NUM_COLUMNS], np.full((len(box_MD), 1), weight)], axis=1)


def padded(rows: Sequence[np.ndarray], capacity: int) -> np.ndarray:
    """Rows of some pictures, (M, D) each, as one array (B, capacity, D), float32; what is left is -1."""
    width = max((row_MD.shape[1] for row_MD in rows), default=NUM_COLUMNS)
    array_BMD = np.full((len(rows), capacity, width), -1, np.float32)
    for place, row_MD in enumerate(rows):
        array_BMD[place, : len(row_MD)] = row_MD[:capacity]
    return array_BMD


def is_box(box_BMD: np.ndarray) -> np.ndarray:
    """Mask of the rows that are boxes, (B, M)."""
    return box_BMD[..., Column.CLASS] >= 0


def is_trained_on(box_BMD: np.ndarray) -> np.ndarray:
    """Mask of the rows that are boxes of single objects, (B, M)."""
    return is_box(box_BMD) & ~_has_crowd_flag(box_BMD)


def is_crowd(box_BMD: np.ndarray) -> np.ndarray:
    """Mask of the rows that are crowd regions, (B, M)."""
    return is_box(box_BMD) & _has_crowd_flag(box_BMD)


def _has_crowd_flag(box_BMD: np.ndarray) -> np.ndarray:
    return (box_BMD[..., Column.FLAGS].astype(np.int64) & Flag.CROWD) != 0


def has_area(box_BMD: np.ndarray) -> np.ndarray:
    """Mask of the rows that are wider and higher than 0, (B, M)."""
    return (box_BMD[..., 2:4] > box_BMD[..., :2]).all(axis=-1)


def rows_of(edge_M4: np.ndarray, class_M: np.ndarray) -> np.ndarray:
    """Rows (M, D) of plain boxes.

    Args:
        edge_M4: left, top, right, bottom.
        class_M: class of each.
    """
    edge_M4 = np.asarray(edge_M4, np.float64).reshape(-1, 4)
    area_M = (edge_M4[:, 2:] - edge_M4[:, :2]).prod(axis=1)
    return np.column_stack([edge_M4, class_M, np.zeros(len(edge_M4)), area_M])


def scaled(box_MD: np.ndarray, scale_x: float, scale_y: float) -> np.ndarray:
    """Boxes of a picture that is resized."""
    moved_MD = np.array(box_MD, np.float64)
    moved_MD[:, [Column.LEFT, Column.RIGHT]] *= scale_x
    moved_MD[:, [Column.TOP, Column.BOTTOM]] *= scale_y
    return moved_MD
