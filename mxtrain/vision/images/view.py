"""View of an image: the visible part, its placement in the network's input, and mirroring.

Pixels, boxes and masks of an image are converted by the same `View`.

Legend: C channels, H height, W width, M boxes of an image, D columns of `boxes.Column`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence, Tuple

import numpy as np

from mxtrain.vision.detection.boxes import Column, visible_parts

Window = Tuple[float, float, float, float]
"""Left, top, right, bottom in pixels of an image; may exceed the image."""


@dataclass(frozen=True)
class Rectangle:
    """Rectangle in whole pixels of the network's input."""

    left: int
    top: int
    width: int
    height: int


@dataclass(frozen=True)
class View:
    """A part of an image and its placement in the network's input.

    Attributes:
        source: visible rectangle inside of the image.
        place: rectangle of the input that it fills.
        is_flipped: mirrored left-right, within `place`.
    """

    source: Window
    place: Rectangle
    is_flipped: bool = False

    @classmethod
    def from_window(cls, window: Window, size: Sequence[float], frame: Rectangle, is_flipped: bool = False) -> View:
        """Returns the view of a window that fills a frame. Where the window exceeds the image, the frame stays empty.

        Args:
            window: part of the image; at least one pixel must lie inside the image.
            size: (width, height) of the image.
            frame: rectangle of the input that the window fills.
            is_flipped: if True, the frame is mirrored left-right.
        """
        begins, ends, positions, lengths = [], [], [], []
        for low, high, image_length, start, frame_length in (
            (window[0], window[2], size[0], frame.left, frame.width),
            (window[1], window[3], size[1], frame.top, frame.height),
        ):
            begin, end = max(low, 0.0), min(high, float(image_length))
            scale = frame_length / (high - low)
            # Whole pixels of the frame, at least one.
            first = min(max(round((begin - low) * scale), 0), frame_length - 1)
            last = min(max(round((end - low) * scale), first + 1), frame_length)
            begins.append(begin)
            ends.append(end)
            positions.append(start + first)
            lengths.append(last - first)
        if is_flipped:
            positions[0] = 2 * frame.left + frame.width - positions[0] - lengths[0]
        return cls((begins[0], begins[1], ends[0], ends[1]), Rectangle(*positions, *lengths), is_flipped)

    @property
    def scale(self) -> Tuple[float, float]:
        """Returns the scale from the image to the network's input, x and y."""
        left, top, right, bottom = self.source
        return self.place.width / (right - left), self.place.height / (bottom - top)

    def boxes(self, box_MD: np.ndarray, min_visible: float) -> np.ndarray:
        """Returns the visible parts of boxes, in pixels of the network's input.

        Args:
            box_MD: boxes of the image.
            min_visible: smallest visible share of a box. The centre of the box must be visible too; of crowd regions
                any visible part is kept.
        """
        low_2, high_2 = np.array(self.source[:2]), np.array(self.source[2:])
        kept_M, begin_M2, end_M2, visible_M = visible_parts(box_MD, low_2, high_2, min_visible)
        moved_MD = box_MD[kept_M].copy()
        # Boxes follow the whole pixels that the part is resized to, not the ideal window, so they stay exact.
        scale_2, offset_2 = np.array(self.scale), np.array([self.place.left, self.place.top])
        begin_M2, end_M2 = (offset_2 + (edge_M2[kept_M] - low_2) * scale_2 for edge_M2 in (begin_M2, end_M2))
        if self.is_flipped:
            mirror = 2 * self.place.left + self.place.width
            begin_M2[:, 0], end_M2[:, 0] = mirror - end_M2[:, 0], mirror - begin_M2[:, 0]
        moved_MD[:, :2], moved_MD[:, 2:4] = begin_M2, end_M2
        moved_MD[:, Column.AREA] *= visible_M[kept_M] * scale_2.prod()
        return moved_MD

    def boxes_in_image(self, edge_M4: np.ndarray) -> np.ndarray:
        """Converts boxes from pixels of the network's input to pixels of the image: the inverse of `boxes`."""
        begin_M2, end_M2 = edge_M4[:, :2].copy(), edge_M4[:, 2:].copy()
        if self.is_flipped:
            mirror = 2 * self.place.left + self.place.width
            begin_M2[:, 0], end_M2[:, 0] = mirror - edge_M4[:, 2], mirror - edge_M4[:, 0]
        low_2, offset_2 = np.array(self.source[:2]), np.array([self.place.left, self.place.top])
        corners = ((corner_M2 - offset_2) / np.array(self.scale) + low_2 for corner_M2 in (begin_M2, end_M2))
        return np.concatenate(list(corners), axis=1)

    def paste(self, part_CHW: np.ndarray, image_CHW: np.ndarray) -> None:
        """Copies the visible part into the network's input, mirrored if the view is.

        Args:
            part_CHW: the part, resized to `place`.
            image_CHW: network's input, which is written to.
        """
        rows = slice(self.place.top, self.place.top + self.place.height)
        columns = slice(self.place.left, self.place.left + self.place.width)
        image_CHW[:, rows, columns] = part_CHW[..., ::-1] if self.is_flipped else part_CHW
