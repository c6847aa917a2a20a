"""Box coding of two-stage detectors: anchors become proposals (regions that may contain an object), and then each
region is classified and its box refined.

Source: Ren et al., "Faster R-CNN: Towards Real-Time Object Detection with Region Proposal Networks" (2015), with the
sizes of GluonCV's.

Legend: B batch, M true boxes of an image, N anchors of an image, A anchors of a cell, R regions, K classes. Edges
are left, top, right, bottom in pixels of the network's input.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, List, Optional, Sequence, Tuple

import numpy as np

from mxtrain.types import Shape
from mxtrain.vision.detection.box_arithmetic import (
    REGION_VARIANCES,
    apply_offsets,
    columns_of,
    max_positives,
)
from mxtrain.vision.detection.box_geometry import are_inside, intersections_over_unions, offsets_from
from mxtrain.vision.detection.boxes import has_area, is_crowd, is_trained_on
from mxtrain.vision.detection.heads.operators import log_odds, operators
from mxtrain.vision.detection.heads.suppression import Suppression

if TYPE_CHECKING:
    from mxnet.ndarray import NDArray

    from mxtrain.types.annotations import Array, OperatorModule

PROPOSAL_VARIANCES = (1.0, 1.0, 1.0, 1.0)
"""Divisors of the offsets from anchors to proposals: they are not scaled."""
POSITIVE_IOU, NEGATIVE_IOU = 0.7, 0.3
"""An anchor is positive (it has an object) if its intersection over union is at least the first value, negative
(background) if it is below the second, and otherwise ignored."""
IGNORED = -1.0
"""Label of an anchor that is not used in training."""
MIN_ROUNDED_STRIDE = 4
"""Smallest stride at which the sides of anchors are rounded to whole pixels, as GluonCV does. At smaller strides
rounded sides would differ too much from the configured sizes."""


@dataclass(frozen=True)
class ProposalSettings:
    """Selection of the proposals that become regions.

    Attributes:
        train_pre_nms, pre_nms: number of highest-scoring proposals of an image that enter non-maximum suppression
            (NMS), in training and in prediction.
        train_post_nms, post_nms: largest number of proposals of an image that are kept after it.
        nms_iou: threshold of NMS: intersection over union with a higher-scoring proposal.
        min_size: smallest side of a proposal, in pixels.
        max_log_scale: logarithm of the largest factor by which an offset may change a side.
        num_samples: number of regions of an image that are used in training.
        positive_fraction: largest share of them with an object.
    """

    train_pre_nms: int = 12000
    train_post_nms: int = 2000
    pre_nms: int = 6000
    post_nms: int = 300
    nms_iou: float = 0.7
    min_size: float = 16.0
    max_log_scale: float = 80.0  # its exponential is a finite float32
    num_samples: int = 128
    positive_fraction: float = 0.25

    def num_proposals(self, num_anchors: int) -> Tuple[int, int]:
        """Returns the number of proposals of an image that are kept, in training and in prediction."""
        in_training = min(self.train_post_nms, self.train_pre_nms, num_anchors)
        return in_training, min(self.post_nms, self.pre_nms, num_anchors)

    def sampled(self, num_anchors: int) -> Tuple[int, int]:
        """Returns the number of regions of an image that are used in training, and the largest number of them with an
        object."""
        num_samples = min(self.num_samples, self.num_proposals(num_anchors)[0])
        return num_samples, max_positives(num_samples, self.positive_fraction)


@dataclass(frozen=True)
class RegionAnchors:
    """Anchors of one map of a two-stage detector.

    Anchors of an SSD (`anchors.AnchorMap`) are centres and sizes; these are edges, rounded as in GluonCV.

    Attributes:
        height, width: number of cells of the map along each side.
        stride: distance of neighbouring cells in pixels.
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
        round_side = np.round if self.stride >= MIN_ROUNDED_STRIDE else np.asarray
        rows: List[np.ndarray] = []
        for ratio in self.ratios:
            width_at_stride = round_side(np.sqrt(self.stride**2 / ratio))
            for size in self.sizes:
                half = (np.array([width_at_stride, round_side(width_at_stride * ratio)]) * (size / self.stride) - 1) / 2
                rows.append(np.concatenate([-half, half]) + (self.stride - 1) / 2)
        x_W, y_H = np.arange(width) * self.stride, np.arange(height) * self.stride
        corner_HW2 = np.stack(np.meshgrid(x_W, y_H), axis=-1)
        return np.tile(corner_HW2, 2)[:, :, None] + np.array(rows)

    def boxes(self) -> np.ndarray:
        """Returns the edges of the anchors of this map, (height * width * A, 4)."""
        return self.grid(self.height, self.width).reshape(-1, 4)


class RegionCoding:
    """Box coding of two-stage detectors. Outputs of the network are

    - objectness logits of anchors (B, N), and offsets from anchors to objects (B, N, 4);
    - edges of regions, followed by 1, or by 0 for padding (B, R, 5);
    - logits of background and classes of each region (B, R, 1 + K), and offsets for each class (B, R, 4 K).

    Args:
        num_classes: K.
        input_shape: (C, H, W) of the network's input.
        maps: anchors of each map.
        settings: settings of the selection of proposals.
        suppression: non-maximum suppression of detections.
    """

    def __init__(
        self,
        num_classes: int,
        input_shape: Shape,
        maps: Sequence[RegionAnchors],
        settings: ProposalSettings,
        suppression: Suppression,
    ):
        self.edge_N4 = np.concatenate([anchors.boxes() for anchors in maps]).astype(np.float32)
        size_N2 = self.edge_N4[:, 2:] - self.edge_N4[:, :2]
        self._centred_N4 = np.concatenate([self.edge_N4[:, :2] + size_N2 * 0.5, size_N2], axis=1)
        height, width = input_shape[1:]
        self._is_inside_N = (self.edge_N4[:, :2] >= 0).all(axis=1) & (self.edge_N4[:, 2:] < (width, height)).all(axis=1)
        self._num_classes, self._settings, self._suppression = num_classes, settings, suppression
        num_anchors, (_, count) = len(self.edge_N4), settings.num_proposals(len(self.edge_N4))
        self._count = count
        self.output_shapes: Sequence[Shape] = (
            (num_anchors,),
            (num_anchors, 4),
            (count, 5),
            (count, 1 + num_classes),
            (count, 4 * num_classes),
        )

    def encode(self, box_BMD: np.ndarray) -> Tuple[np.ndarray, ...]:
        """Returns the label of each anchor (B, N), float32: 1 positive, 0 background, -1 ignored; and the offsets of
        positive ones to their object (B, N, 4), float32, 0 elsewhere.

        Anchors that exceed the image are ignored. The anchor with the highest intersection over union with an object is
        positive even if it is low, as in the paper; in GluonCV it is background below `NEGATIVE_IOU`.
        """
        count, num_anchors = len(box_BMD), len(self.edge_N4)
        label_BN = np.zeros((count, num_anchors), np.float32)
        offset_BN4 = np.zeros((count, num_anchors, 4), np.float32)
        trained_BM = is_trained_on(box_BMD) & has_area(box_BMD)
        crowd_BM = is_crowd(box_BMD)
        for row in range(count):
            label_BN[row, are_inside(self.edge_N4, box_BMD[row, crowd_BM[row], :4])] = IGNORED
            true_M4 = box_BMD[row, trained_BM[row], :4]
            if len(true_M4):
                iou_MN = intersections_over_unions(true_M4, self.edge_N4) * self._is_inside_N
                max_iou_N, max_iou_M1 = iou_MN.max(axis=0), iou_MN.max(axis=1, keepdims=True)
                # The best anchor of an object is its own however little it covers, as in the paper. GluonCV drops it
                # below 0.3, so that small objects may have none.
                is_best_N = ((iou_MN == max_iou_M1) & (max_iou_M1 > 0)).any(axis=0)
                label_BN[row, max_iou_N >= NEGATIVE_IOU] = IGNORED
                positive_P = np.flatnonzero((max_iou_N >= POSITIVE_IOU) | is_best_N)
                label_BN[row, positive_P] = 1
                matched_P4 = true_M4[iou_MN[:, positive_P].argmax(axis=0)]
                offset_BN4[row, positive_P] = offsets_from(self._centred_N4[positive_P], matched_P4)
        # As in the paper, anchors that cross an edge of the image are not trained on.
        label_BN[:, ~self._is_inside_N] = IGNORED
        return label_BN, offset_BN4

    def scores(self, outputs: Tuple[NDArray, ...]) -> NDArray:
        """Returns the logit of each class of each region, (B, K R); see `BoxCoding.scores`."""
        from mxtrain.engine.backend import nd

        log_p_BRK = nd.log_softmax(outputs[3].astype("float64"), axis=-1).slice_axis(axis=2, begin=1, end=None)
        return log_odds(log_p_BRK).transpose((0, 2, 1)).reshape((0, -1))

    def decode(self, outputs: Sequence[Array], F: Optional[OperatorModule] = None) -> Array:
        """Decodes outputs to detections (B, N, 6), see `BoxCoding.decode`."""
        sizes = (self._num_classes, self._count, self._settings.max_log_scale)
        return decode_regions(operators(F), outputs[2:5], *sizes, self._suppression)


def decode_regions(
    F: OperatorModule,
    regions: Sequence[Array],
    num_classes: int,
    count: int,
    max_log_scale: float,
    suppression: Suppression,
) -> Array:
    """Decodes regions to detections (B, N, 6), see `BoxCoding.decode`. Can be part of a network's graph.

    Args:
        F: MXNet's operators of symbols or of arrays.
        regions: edges, logits and offsets of regions: the last three outputs in `RegionCoding`.
        num_classes: K.
        count: R.
        max_log_scale: see `ProposalSettings`.
        suppression: non-maximum suppression of detections.
    """
    region_BR5, logit_BRK, offset_BRP = (F.cast(output, "float32") for output in regions)
    score_BRK = columns_of(F, F.softmax(logit_BRK, axis=-1), 1, None)
    # Padding has the edges of the whole image; a score of 0 keeps it out.
    score_BRK = F.broadcast_mul(score_BRK, columns_of(F, region_BR5, 4, 5))
    edge_BR14 = F.expand_dims(columns_of(F, region_BR5, 0, 4), axis=2)
    offset_BRK4 = F.reshape(offset_BRP, shape=(0, 0, num_classes, 4))
    edge_BRK4 = apply_offsets(F, edge_BR14, offset_BRK4, REGION_VARIANCES, max_log_scale)
    return suppression.by_class(
        F, F.transpose(score_BRK, axes=(0, 2, 1)), F.transpose(edge_BRK4, axes=(0, 2, 1, 3)), num_classes, count
    )
