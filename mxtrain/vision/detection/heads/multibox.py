"""Box coding of SSDs: class scores of each anchor, and its offsets to the matched object.

Source: Liu et al., "SSD: Single Shot MultiBox Detector" (2016), section 2.2.

Legend: B batch, M true boxes of an image, N anchors, P matched anchors, R crowd regions, K classes. Edges are left,
top, right, bottom in pixels of the network's input.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, List, Optional, Sequence, Tuple

import numpy as np

from mxtrain.types import Shape
from mxtrain.vision.detection.box_geometry import are_inside, intersections_over_unions, offsets_from
from mxtrain.vision.detection.boxes import Column, has_area, is_crowd, is_trained_on, weights
from mxtrain.vision.detection.heads.operators import constant, log_odds, operators
from mxtrain.vision.detection.heads.suppression import Suppression

if TYPE_CHECKING:
    from mxnet.ndarray import NDArray

    from mxtrain.types.annotations import Array, OperatorModule

VARIANCES = (0.1, 0.1, 0.2, 0.2)
"""Divisors of offsets (x, y, width, height), which make them about equally large. Source: GluonCV."""
MIN_IOU = 0.5
"""Smallest intersection over union at which an anchor is matched to an object."""
MIN_OVERLAP = 1e-12
"""Intersection over union up to which an anchor and an object are regarded as disjoint."""
IGNORED = -1.0
"""Class of an anchor that is not used in training."""


class MultiBoxCoding:
    """Box coding of SSDs.

    Outputs are logits of background and classes (B, N, 1 + K), and offsets of the centre and of the logarithm of width
    and height (B, N, 4).

    Args:
        num_classes: K.
        anchor_N4: centre x and y, width and height of the anchors, in pixels.
        suppression: non-maximum suppression of detections.
        variances: factors of the network's offsets x, y, width and height.
        image_size: (width, height) in pixels to which boxes are clipped before they are suppressed; None = they are
            not clipped.
        one_class: True if a box is a detection of its highest-scoring class only.
    """

    def __init__(
        self,
        num_classes: int,
        anchor_N4: np.ndarray,
        suppression: Suppression,
        variances: Sequence[float] = VARIANCES,
        image_size: Optional[Tuple[int, int]] = None,
        one_class: bool = False,
    ):
        self._variance_4 = np.array(variances, np.float32)
        self._image_size, self._one_class = image_size, one_class
        self.anchor_N4 = anchor_N4.astype(np.float32)
        half_N2 = self.anchor_N4[:, 2:] * 0.5
        self._edge_N4 = np.concatenate([self.anchor_N4[:, :2] - half_N2, self.anchor_N4[:, :2] + half_N2], axis=1)
        self._suppression = suppression
        self.output_shapes: Sequence[Shape] = ((len(anchor_N4), 1 + num_classes), (len(anchor_N4), 4))

    def encode(self, box_BMD: np.ndarray) -> Tuple[np.ndarray, ...]:
        """Returns the class of each anchor (B, N): 0 background, 1 the first class, -1 ignored; and the offsets to its
        matched object (B, N, 4). If true boxes have weights, also the weight of each anchor (B, N)."""
        count, num_boxes = len(box_BMD), len(self.anchor_N4)
        class_BN = np.zeros((count, num_boxes), np.float32)
        offset_BN4 = np.zeros((count, num_boxes, 4), np.float32)
        true_weight_BM = weights(box_BMD)
        weight_BN = np.ones_like(class_BN)
        trained_BM = is_trained_on(box_BMD) & has_area(box_BMD)
        crowd_BM = is_crowd(box_BMD)
        for row in range(count):
            region_R4 = box_BMD[row, crowd_BM[row], :4]
            class_BN[row, are_inside(self._edge_N4, region_R4)] = IGNORED
            true_MD = box_BMD[row, trained_BM[row]]
            if len(true_MD):
                match_N = self.match(true_MD[:, :4])
                matched_P = np.flatnonzero(match_N >= 0)
                matched_PD = true_MD[match_N[matched_P]]
                class_BN[row, matched_P] = matched_PD[:, Column.CLASS] + 1
                offset_P4 = offsets_from(self.anchor_N4[matched_P], matched_PD[:, :4])
                offset_BN4[row, matched_P] = offset_P4 / self._variance_4
                if true_weight_BM is not None:
                    weight_BN[row, matched_P] = matched_PD[:, Column.WEIGHT]
        return (class_BN, offset_BN4) if true_weight_BM is None else (class_BN, offset_BN4, weight_BN)

    def match(self, edge_M4: np.ndarray) -> np.ndarray:
        """Returns the index of the true box that each anchor is matched to, (N,); -1 for none.

        Each true box, in decreasing order of its best IoU, gets the free anchor with the highest IoU; then anchors with
        the same IoU, unless their IoU with another box is higher; then anchors with an IoU of at least `MIN_IOU`.

        Args:
            edge_M4: edges of the true boxes of one image.
        """
        iou_MN = intersections_over_unions(edge_M4, self._edge_N4)
        best_N = iou_MN.argmax(axis=0)
        max_iou_N = iou_MN[best_N, np.arange(iou_MN.shape[1])]
        max_iou_M = iou_MN.max(axis=1)
        is_best_N = (max_iou_N >= MIN_IOU) | ((max_iou_N == max_iou_M[best_N]) & (max_iou_N > MIN_OVERLAP))
        match_N = np.where(is_best_N, best_N, -1)
        for true, anchor in self._pairs(iou_MN):
            match_N[anchor] = true
        return match_N

    def _pairs(self, iou_MN: np.ndarray) -> List[Tuple[int, int]]:
        """Returns (true box, anchor) pairs with the highest intersection over union, each box and each anchor once."""
        best_anchor_M = iou_MN.argmax(axis=1)
        best_iou_M = iou_MN[np.arange(len(iou_MN)), best_anchor_M]
        pairs: List[Tuple[int, int]] = []
        used: List[int] = []
        while True:
            true = int(best_iou_M.argmax())
            if best_iou_M[true] <= MIN_OVERLAP:
                return pairs
            anchor = int(best_anchor_M[true])
            if anchor not in used:
                pairs.append((true, anchor))
                used.append(anchor)
                best_iou_M[true] = -1.0
            else:
                rest_N = iou_MN[true].copy()
                rest_N[used] = -1.0
                best_anchor_M[true] = rest_N.argmax()
                best_iou_M[true] = rest_N[best_anchor_M[true]]

    def scores(self, outputs: Tuple[NDArray, ...]) -> NDArray:
        """Returns the logit of each class of each anchor, (B, K N); see `BoxCoding.scores`."""
        from mxtrain.engine.backend import nd

        # The odds of a probability near 1 need float64: float32 has no number between 1 - 6e-8 and 1.
        log_p_BNK = nd.log_softmax(outputs[0].astype("float64"), axis=-1).slice_axis(axis=2, begin=1, end=None)
        return log_odds(log_p_BNK).transpose((0, 2, 1)).reshape((0, -1))

    def decode(self, outputs: Sequence[Array], F: Optional[OperatorModule] = None) -> Array:
        """Decodes outputs to detections (B, N, 6), see `BoxCoding.decode`."""
        F = operators(F)
        logit_BNK, offset_BN4 = (F.cast(output, dtype="float32") for output in outputs[:2])
        num_boxes, num_scores = self.output_shapes[0]
        score_BNK = F.slice_axis(F.softmax(logit_BNK, axis=-1), axis=2, begin=1, end=None)
        if self._one_class:
            score_BNK = score_BNK * F.one_hot(F.argmax(score_BNK, axis=2), num_scores - 1)
        # The anchors follow from the description; nothing reads those in GluonCV's files.
        anchor_1N4 = constant(F, self.anchor_N4[None], logit_BNK)
        centre_1N2, size_1N2 = F.split(anchor_1N4, num_outputs=2, axis=2)
        offset_BN4 = F.broadcast_mul(offset_BN4, constant(F, self._variance_4[None, None], logit_BNK))
        shift_BN2, log_scale_BN2 = F.split(offset_BN4, num_outputs=2, axis=2)
        centre_BN2 = F.broadcast_add(F.broadcast_mul(shift_BN2, size_1N2), centre_1N2)
        half_BN2 = F.broadcast_mul(F.exp(log_scale_BN2), size_1N2) * 0.5
        box_BN4 = F.concat(centre_BN2 - half_BN2, centre_BN2 + half_BN2, dim=2)
        if self._image_size is not None:
            limit_4 = np.array(self._image_size * 2, np.float32)
            box_BN4 = F.broadcast_minimum(F.relu(box_BN4), constant(F, limit_4[None, None], logit_BNK))
        return self._suppression(F, F.transpose(score_BNK, axes=(0, 2, 1)), box_BN4, num_scores - 1, num_boxes)
