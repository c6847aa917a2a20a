"""The box coding of two-stage detectors: anchors become proposals (regions that may hold an object), and each region is
then classified and moved by itself.

Source: Ren et al., "Faster R-CNN: Towards Real-Time Object Detection with Region Proposal Networks" (2015), with the
sizes of GluonCV's.

Legend: B batch, M true boxes of an image, N anchors of an image, A anchors of a place, R regions, K classes. Edges
are left, top, right, bottom in pixels of the network's input.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, List, Optional, Sequence, Tuple

import numpy as np

from mxtrain.types import Shape
from mxtrain.vision.detection.box_arithmetic import (
    INSIDE_CROWD,
    REGION_VARIANCES,
    apply_offsets,
    columns_of,
    max_positives,
)
from mxtrain.vision.detection.box_geometry import common_areas, intersections_over_unions, offsets_from
from mxtrain.vision.detection.boxes import has_area, is_crowd, is_trained_on
from mxtrain.vision.detection.heads.operators import operators
from mxtrain.vision.detection.heads.scores import log_odds
from mxtrain.vision.detection.heads.suppression import Suppression

if TYPE_CHECKING:
    from mxnet.ndarray import NDArray

    from mxtrain.annotations import Array, OperatorModule

PROPOSAL_VARIANCES = (1.0, 1.0, 1.0, 1.0)
"""Offsets from anchors to proposals are divided by these: by nothing."""
POSITIVE_IOU, NEGATIVE_IOU = 0.7, 0.3
"""An anchor is positive (it holds an object) from the first intersection over union on, negative (background) below the
second, and ignored between them."""
IGNORED = -1.0
"""The label of an anchor that is not trained on."""
LEAST_ROUNDED = 4
"""GluonCV rounds the sides of an anchor at the map's stride to whole pixels. From this stride on we do, too; below it
they would differ too much from what was asked for."""


@dataclass(frozen=True)
class ProposalSettings:
    """Selection of the proposals that become regions.

    Attributes:
        train_pre_nms, pre_nms: proposals of an image with the highest scores that enter non-maximum suppression (NMS),
            in training and in prediction.
        train_post_nms, post_nms: proposals of an image that are kept after it, at most.
        nms_iou: intersection over union with a proposal of a higher score from which on one is suppressed.
        min_size: proposals with a shorter side are dropped, in pixels.
        max_log_scale: logarithm of the largest factor by which an offset may change a side.
        num_samples: regions of an image that are trained on.
        positive_fraction: the largest share of these that may hold an object.
    """

    train_pre_nms: int = 12000
    train_post_nms: int = 2000
    pre_nms: int = 6000
    post_nms: int = 300
    nms_iou: float = 0.7
    min_size: float = 16.0
    max_log_scale: float = 80.0  # of which the exponential is still a float
    num_samples: int = 128
    positive_fraction: float = 0.25

    def num_proposals(self, num_anchors: int) -> Tuple[int, int]:
        """Proposals of an image that are kept: (in training, in prediction)."""
        trained = min(self.train_post_nms, self.train_pre_nms, num_anchors)
        return trained, min(self.post_nms, self.pre_nms, num_anchors)

    def sampled(self, num_anchors: int) -> Tuple[int, int]:
        """Regions of an image that are trained on, and how many of these may hold an object."""
        num_samples = min(self.num_samples, self.num_proposals(num_anchors)[0])
        return num_samples, max_positives(num_samples, self.positive_fraction)


@dataclass(frozen=True)
class RegionAnchors:
    """The anchors of one map of a two-stage detector.

    Anchors of an SSD (`anchors.AnchorMap`) are centres and sizes; these are edges, rounded as in GluonCV.

    Attributes:
        height, width: places of the map.
        stride: pixels from one place to the next.
        sizes: sides in pixels of the squares that have the anchors' areas.
        ratios: ratios of height to width.
    """

    height: int
    width: int
    stride: int
    sizes: Sequence[float]
    ratios: Sequence[float]

    @property
    def num_shapes(self) -> int:
        """Returns A, the number of anchors of each cell."""
        return len(self.sizes) * len(self.ratios)

    def grid(self, height: int, width: int) -> np.ndarray:
        """Returns the edges of the anchors of a grid of cells, (height, width, A, 4)."""
        round_side = np.round if self.stride >= LEAST_ROUNDED else np.asarray
        rows: List[np.ndarray] = []
        for ratio in self.ratios:
            wide = round_side(np.sqrt(self.stride**2 / ratio))
            for size in self.sizes:
                half = (np.array([wide, round_side(wide * ratio)]) * (size / self.stride) - 1) / 2
                rows.append(np.concatenate([-half, half]) + (self.stride - 1) / 2)
        x_W, y_H = np.arange(width) * self.stride, np.arange(height) * self.stride
        corner_HW2 = np.stack(np.meshgrid(x_W, y_H), axis=-1)
        return np.tile(corner_HW2, 2)[:, :, None] + np.array(rows)

    def boxes(self) -> np.ndarray:
        """Returns the edges of the anchors of this map, (height * width * A, 4)."""
        return self.grid(self.height, self.width).reshape(-1, 4)


class RegionCoding:
    """Outputs of the network:

    - of each anchor whether it holds an object, before the sigmoid (B, N), and offsets to it (B, N, 4);
    - the edges of regions, followed by 1, or 0 for padding (B, R, 5);
    - of each region scores of background and classes before the softmax (B, R, 1 + K), and offsets of each class
      (B, R, 4 K).

    Args:
        num_classes: K.
        input_shape: (C, H, W) of the network's input.
        maps: the anchors of each map.
        settings: which proposals become regions.
        suppression: which detections are kept.
    """

    def __init__(
        self, num_classes: int, input_shape: Shape, maps: Sequence[RegionAnchors], settings: ProposalSettings,
        suppression: Suppression,
    ):  # fmt: skip
        self.edge_N4 = np.concatenate([one.boxes() for one in maps]).astype(np.float32)
        size_N2 = self.edge_N4[:, 2:] - self.edge_N4[:, :2]
        self._area_N = size_N2.prod(axis=1)
        self._centred_N4 = np.concatenate([self.edge_N4[:, :2] + size_N2 * 0.5, size_N2], axis=1)
        height, width = input_shape[1:]
        self._is_inside_N = (self.edge_N4[:, :2] >= 0).all(axis=1) & (self.edge_N4[:, 2:] < (width, height)).all(axis=1)
        self._num_classes, self._settings, self._suppression = num_classes, settings, suppression
        num_anchors, (_, count) = len(self.edge_N4), settings.num_proposals(len(self.edge_N4))
        self._count = count
        self.output_shapes: Sequence[Shape] = (
            (num_anchors,), (num_anchors, 4), (count, 5), (count, 1 + num_classes), (count, 4 * num_classes),
        )  # fmt: skip

    def encode(self, box_BMD: np.ndarray) -> Tuple[np.ndarray, ...]:
        """Returns the label of each anchor (B, N), float32: 1 positive, 0 background, -1 ignored; and the offsets of
        positive ones to their object (B, N, 4), float32, 0 elsewhere.

        Anchors that reach beyond the image are ignored. The anchor that covers an object best is positive however
        little it covers, as in the paper; GluonCV makes background of it below `NEGATIVE_IOU`.
        """
        count, num_anchors = len(box_BMD), len(self.edge_N4)
        label_BN = np.zeros((count, num_anchors), np.float32)
        offset_BN4 = np.zeros((count, num_anchors, 4), np.float32)
        trained_BM = is_trained_on(box_BMD) & has_area(box_BMD)
        crowd_BM = is_crowd(box_BMD)
        for row in range(count):
            for region_D in box_BMD[row, crowd_BM[row]]:
                common_N = common_areas(region_D[None, :4], self.edge_N4)[0]
                label_BN[row, common_N > INSIDE_CROWD * self._area_N] = IGNORED
            true_M4 = box_BMD[row, trained_BM[row], :4]
            if len(true_M4):
                iou_MN = intersections_over_unions(true_M4, self.edge_N4) * self._is_inside_N
                most_N, most_M1 = iou_MN.max(axis=0), iou_MN.max(axis=1, keepdims=True)
                is_best_N = ((iou_MN == most_M1) & (most_M1 > 0)).any(axis=0)
                label_BN[row, most_N >= NEGATIVE_IOU] = IGNORED
                place_P = np.flatnonzero((most_N >= POSITIVE_IOU) | is_best_N)
                label_BN[row, place_P] = 1
                matched_P4 = true_M4[iou_MN[:, place_P].argmax(axis=0)]
                offset_BN4[row, place_P] = offsets_from(self._centred_N4[place_P], matched_P4)
        label_BN[:, ~self._is_inside_N] = IGNORED
        return label_BN, offset_BN4

    def scores(self, outputs: Tuple[NDArray, ...]) -> NDArray:
        """See `BoxCoding.scores`."""
        from mxtrain.engine.backend import nd

        log_p_BRK = nd.log_softmax(outputs[3].astype("float64"), axis=-1).slice_axis(axis=2, begin=1, end=None)
        return log_odds(log_p_BRK).transpose((0, 2, 1)).reshape((0, -1))

    def decode(self, outputs: Sequence[Array], F: Optional[OperatorModule] = None) -> Array:
        """Decodes outputs to detections (B, N, 6), see `BoxCoding.decode`."""
        sizes = (self._num_classes, self._count, self._settings.max_log_scale)
        return detections(operators(F), outputs[2:5], *sizes, self._suppression)


def detections(
    F: OperatorModule, judged: Sequence[Array], num_classes: int, count: int, max_log_scale: float,
    suppression: Suppression,
) -> Array:  # fmt: skip
    """Returns the detections (B, N, 6), see `BoxCoding.decode`; can be part of a network's graph.

    Args:
        F: MXNet's operators of symbols or of arrays.
        judged: regions, their scores and their offsets, as `RegionCoding` says.
        num_classes: K.
        count: R.
        max_log_scale: see `ProposalSettings`.
        suppression: which detections are kept.
    """
    region_BR5, logit_BRK, offset_BRP = (F.cast(output, "float32") for output in judged)
    score_BRK = columns_of(F, F.softmax(logit_BRK, axis=-1), 1, None)
    score_BRK = F.broadcast_mul(score_BRK, columns_of(F, region_BR5, 4, 5))
    edge_BR14 = F.expand_dims(columns_of(F, region_BR5, 0, 4), axis=2)
    offset_BRK4 = F.reshape(offset_BRP, shape=(0, 0, num_classes, 4))
    edge_BRK4 = apply_offsets(F, edge_BR14, offset_BRK4, REGION_VARIANCES, max_log_scale)
    return suppression.by_class(
        F, F.transpose(score_BRK, axes=(0, 2, 1)), F.transpose(edge_BRK4, axes=(0, 2, 1, 3)), num_classes, count
    )
