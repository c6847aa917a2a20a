"""Boxes in two stages: regions that may hold a thing are proposed, then each is looked at by itself.

Source: Ren et al., "Faster R-CNN: Towards Real-Time Object Detection with Region Proposal Networks" (2015), with the
sizes of GluonCV's.

Legend: B batch, M true boxes of a picture, N boxes that the network begins with, R regions, K classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, List, Sequence, Tuple

import numpy as np

from mxtrain.dataset.image.box_arithmetic import INSIDE_CROWD, REGION_VARIANCES, moved_by
from mxtrain.dataset.image.box_geometry import common_areas, intersections_over_unions, offsets_from
from mxtrain.dataset.image.boxes import has_area, is_crowd, is_trained_on
from mxtrain.model.detection.scores import log_odds
from mxtrain.model.detection.suppression import Suppression
from mxtrain.types import Shape

if TYPE_CHECKING:
    from mxnet.ndarray import NDArray

PLAIN = (1.0, 1.0, 1.0, 1.0)
"""What offsets of proposals are divided by."""
FOUND, MISSED = 0.7, 0.3
"""A box that the network begins with holds a thing from this intersection over union on, and background below that."""
IGNORED = -1.0
"""Of a box that is neither."""
LEAST_ROUNDED = 4
"""GluonCV rounds sides of boxes to whole pixels of the finest map's, which needs some."""


@dataclass(frozen=True)
class ProposalSettings:
    """Which regions are looked at.

    Attributes:
        train_candidates, candidates: boxes with the highest scores of a picture that are compared with each other, in
            training and in prediction.
        train_count, count: how many are left at most.
        iou: intersection over union with a higher one from which on a box is left out.
        least_size: sides are this long at least, in pixels.
        most_stretch: logarithm of the most that a side may grow by.
        samples: regions of a picture that are trained on.
        share_of_things: the most of these that may hold a thing.
    """

    train_candidates: int = 12000
    train_count: int = 2000
    candidates: int = 6000
    count: int = 300
    iou: float = 0.7
    least_size: float = 16.0
    most_stretch: float = 80.0  # of which the exponential is still a float
    samples: int = 128
    share_of_things: float = 0.25

    def counts(self, num_boxes: int) -> Tuple[int, int]:
        """Regions that are proposed in training and in prediction, where the network begins with so many boxes."""
        return min(self.train_count, self.train_candidates, num_boxes), min(self.count, self.candidates, num_boxes)


@dataclass(frozen=True)
class BeginningMap:
    """The boxes of one map.

    Attributes:
        height, width: how many places there are.
        stride: pixels from each to the next.
        sizes: sides in pixels of squares of the same area.
        ratios: of height to width.
    """

    height: int
    width: int
    stride: int
    sizes: Sequence[float]
    ratios: Sequence[float]

    @property
    def num_shapes(self) -> int:
        """Boxes at each place."""
        return len(self.sizes) * len(self.ratios)

    def grid(self, height: int, width: int) -> np.ndarray:
        """Edges of the boxes of so many places, (height, width, A, 4)."""
        whole = np.round if self.stride >= LEAST_ROUNDED else np.asarray
        rows: List[np.ndarray] = []
        for ratio in self.ratios:
            wide = whole(np.sqrt(self.stride**2 / ratio))
            for size in self.sizes:
                half = (np.array([wide, whole(wide * ratio)]) * (size / self.stride) - 1) / 2
                rows.append(np.concatenate([-half, half]) + (self.stride - 1) / 2)
        x_W, y_H = np.arange(width) * self.stride, np.arange(height) * self.stride
        corner_HW2 = np.stack(np.meshgrid(x_W, y_H), axis=-1)
        return np.tile(corner_HW2, 2)[:, :, None] + np.array(rows)

    def boxes(self) -> np.ndarray:
        """Those of the map, (N, 4)."""
        return self.grid(self.height, self.width).reshape(-1, 4)


class RegionCoding:
    """Outputs: of each box that the network begins with, whether it holds a thing, before the sigmoid (B, N), and
    offsets (B, N, 4); regions, and 1 for those that count (B, R, 5); and of each region scores of background and
    classes before the softmax (B, R, 1 + K), and offsets of each class (B, R, 4 K).

    Args:
        num_classes: K.
        input_shape: (C, H, W) of what enters the network.
        maps: the boxes that the network begins with.
        settings: which regions are looked at.
        suppression: which detections are left.
    """

    def __init__(
        self, num_classes: int, input_shape: Shape, maps: Sequence[BeginningMap], settings: ProposalSettings,
        suppression: Suppression,
    ):  # fmt: skip
        self.edge_N4 = np.concatenate([one.boxes() for one in maps]).astype(np.float32)
        size_N2 = self.edge_N4[:, 2:] - self.edge_N4[:, :2]
        self._area_N = size_N2.prod(axis=1)
        self._centred_N4 = np.concatenate([self.edge_N4[:, :2] + size_N2 * 0.5, size_N2], axis=1)
        height, width = input_shape[1:]
        self._is_inside_N = (self.edge_N4[:, :2] >= 0).all(axis=1) & (self.edge_N4[:, 2:] < (width, height)).all(axis=1)
        self._num_classes, self._settings, self._suppression = num_classes, settings, suppression
        num_boxes, (_, count) = len(self.edge_N4), settings.counts(len(self.edge_N4))
        self.output_shapes: Sequence[Shape] = (
            (num_boxes,), (num_boxes, 4), (count, 5), (count, 1 + num_classes), (count, 4 * num_classes),
        )  # fmt: skip

    def encode(self, box_BMD: np.ndarray) -> Tuple[np.ndarray, ...]:
        """Whether each box that the network begins with holds a thing (B, N): 1, 0, or -1 for neither; and its
        offsets to the thing (B, N, 4).

        Boxes that reach beyond the picture are neither. The box that covers a thing best holds it, however little that
        is: as in the paper; GluonCV makes background of it below `MISSED`.
        """
        count, num_boxes = len(box_BMD), len(self.edge_N4)
        kind_BN = np.zeros((count, num_boxes), np.float32)
        offset_BN4 = np.zeros((count, num_boxes, 4), np.float32)
        trained_BM = is_trained_on(box_BMD) & has_area(box_BMD)
        crowd_BM = is_crowd(box_BMD)
        for row in range(count):
            for region_D in box_BMD[row, crowd_BM[row]]:
                common_N = common_areas(region_D[None, :4], self.edge_N4)[0]
                kind_BN[row, common_N > INSIDE_CROWD * self._area_N] = IGNORED
            true_M4 = box_BMD[row, trained_BM[row], :4]
            if len(true_M4):
                iou_MN = intersections_over_unions(true_M4, self.edge_N4) * self._is_inside_N
                most_N, most_M1 = iou_MN.max(axis=0), iou_MN.max(axis=1, keepdims=True)
                is_best_N = ((iou_MN == most_M1) & (most_M1 > 0)).any(axis=0)
                kind_BN[row, most_N >= MISSED] = IGNORED
                place_P = np.flatnonzero((most_N >= FOUND) | is_best_N)
                kind_BN[row, place_P] = 1
                found_P4 = true_M4[iou_MN[:, place_P].argmax(axis=0)]
                offset_BN4[row, place_P] = offsets_from(self._centred_N4[place_P], found_P4)
        kind_BN[:, ~self._is_inside_N] = IGNORED
        return kind_BN, offset_BN4

    def scores(self, outputs: Tuple[NDArray, ...]) -> NDArray:
        """See `BoxCoding.scores`."""
        from mxtrain.engine.backend import nd

        log_p_BRK = nd.log_softmax(outputs[3].astype("float64"), axis=-1).slice_axis(axis=2, begin=1, end=None)
        return log_odds(log_p_BRK).transpose((0, 2, 1)).reshape((0, -1))

    def decode(self, outputs: Tuple[NDArray, ...]) -> NDArray:
        """Detections (B, N, 6), see `BoxCoding.decode`."""
        from mxtrain.engine.backend import nd

        region_BR5, logit_BRK, offset_BRP = (output.astype("float32") for output in outputs[2:5])
        score_BRK = nd.softmax(logit_BRK, axis=-1).slice_axis(axis=2, begin=1, end=None)
        score_BRK = nd.broadcast_mul(score_BRK, region_BR5.slice_axis(axis=2, begin=4, end=5))
        edge_BR14 = region_BR5.slice_axis(axis=2, begin=0, end=4).expand_dims(2)
        offset_BRK4 = offset_BRP.reshape((0, 0, self._num_classes, 4))
        edge_BRK4 = moved_by(nd, edge_BR14, offset_BRK4, REGION_VARIANCES, self._settings.most_stretch)
        return self._suppression.by_class(score_BRK.transpose((0, 2, 1)), edge_BRK4.transpose((0, 2, 1, 3)))
