"""Losses of two-stage detectors as Gluon blocks. Imports MXNet.

Legend: B batch, M true boxes of an image, D columns of `boxes.Column`, N anchors of an image, A sampled
anchors, R regions, Q regions with masks, S cells along a side of a mask, K classes, T = B Q.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mxtrain.engine.backend import gluon
from mxtrain.vision.detection.box_arithmetic import (
    REGION_IOU,
    REGION_VARIANCES,
    columns_of,
    match_boxes,
    offsets_to,
    sampling_keys,
    take_rows,
)
from mxtrain.vision.detection.boxes import NUM_COLUMNS, Column
from mxtrain.vision.detection.detection_blocks import binary_cross_entropy, huber
from mxtrain.vision.instance_segmentation.mask_arithmetic import resample_masks
from mxtrain.vision.instance_segmentation.mask_rows import TRUE_SIDE

if TYPE_CHECKING:
    from mxtrain.types.annotations import Array, OperatorModule

POSITIVE_FRACTION = 0.5
"""Largest share of positives among the sampled anchors. Source: GluonCV."""


class TwoStageLoss(gluon.HybridBlock):
    """Loss of two-stage detectors.

    Inputs are the five outputs of `RegionCoding`, true boxes (B, M, D), the two arrays of its `encode`, and random
    numbers from 0 to 1 (B, N). Returns the loss (B,). Each image has the weight 1: losses are means over its own
    anchors and regions, so they do not depend on the division of the batch.

    Source: Ren et al., "Faster R-CNN" (2015), equation 1.

    Args:
        num_classes: K.
        num_samples: A.
        proposal_rho, rho: difference of offsets up to which Huber's loss is quadratic, of anchors and of regions.
        box_weight: weight of Huber's loss.
    """

    def __init__(self, num_classes: int, num_samples: int, proposal_rho: float, rho: float, box_weight: float):
        super().__init__()
        self._num_classes, self._num_samples = num_classes, num_samples
        self._proposal_rho, self._rho, self._box_weight = proposal_rho, rho, box_weight

    def hybrid_forward(
        self,
        F: OperatorModule,
        score_BN: Array,
        offset_BN4: Array,
        region_BR5: Array,
        logit_BRK: Array,
        offset_BRP: Array,
        box_BMD: Array,
        *targets: Array,
    ) -> Array:
        label_BN, true_BN4, noise_BN = targets
        proposal_loss_B = self._proposal_loss(F, score_BN, offset_BN4, label_BN, true_BN4, noise_BN)
        return proposal_loss_B + self._region_loss(F, region_BR5, logit_BRK, offset_BRP, box_BMD)

    def _proposal_loss(
        self, F: OperatorModule, score_BN: Array, offset_BN4: Array, label_BN: Array, true_BN4: Array, noise_BN: Array
    ) -> Array:
        """Returns the mean loss of a sample of the anchors, (B,)."""
        key_BN = sampling_keys(
            F, label_BN > 0, F.relu(1 - F.abs(label_BN)), noise_BN, self._num_samples, POSITIVE_FRACTION
        )
        # Positives beyond their quota (keys below 2) are not used.
        key_BN = key_BN * (key_BN >= 2)
        index_BA = F.topk(key_BN, k=self._num_samples, ret_typ="indices", axis=1, dtype="int32")
        row_BN6 = F.concat(*(F.expand_dims(column, axis=2) for column in (key_BN, label_BN)), true_BN4, dim=2)
        row_BA6 = take_rows(F, F.BlockGrad(row_BN6), index_BA)
        is_used_BA, label_BA = (F.squeeze(columns_of(F, row_BA6, column, column + 1), axis=2) for column in (0, 1))
        is_used_BA = is_used_BA > 0
        sampled_BA5 = take_rows(F, F.concat(F.expand_dims(score_BN, axis=2), offset_BN4, dim=2), index_BA)
        score_BA = F.squeeze(columns_of(F, sampled_BA5, 0, 1), axis=2)
        loss_BA = binary_cross_entropy(F, score_BA, F.relu(label_BA))
        box_BA = F.sum(
            huber(F, columns_of(F, sampled_BA5, 1, 5) - columns_of(F, row_BA6, 2, 6), self._proposal_rho), axis=2
        )
        return _mean(F, loss_BA + self._box_weight * box_BA * (label_BA > 0), is_used_BA)

    def _region_loss(
        self, F: OperatorModule, region_BR5: Array, logit_BRK: Array, offset_BRP: Array, box_BMD: Array
    ) -> Array:
        """Returns the mean loss of the regions, without padding and background inside crowd regions, (B,)."""
        edge_BR4 = columns_of(F, F.BlockGrad(region_BR5), 0, 4)
        matches = match_boxes(F, edge_BR4, box_BMD)
        is_object_BR = matches.iou_BN >= REGION_IOU
        true_BRD = take_rows(F, box_BMD, matches.index_BN)
        class_BR = F.squeeze(columns_of(F, true_BRD, Column.CLASS, Column.CLASS + 1), axis=2)
        class_BR = F.where(is_object_BR, class_BR + 1, F.zeros_like(class_BR))
        is_used_BR = F.squeeze(columns_of(F, region_BR5, 4, 5), axis=2)
        is_used_BR = F.BlockGrad(is_used_BR * F.broadcast_maximum(is_object_BR, 1 - matches.in_crowd_BN))
        loss_BR = -F.pick(F.log_softmax(logit_BRK, axis=-1), class_BR, axis=-1)
        # Offsets for the class of the region. For background, those of the first class, whose loss is set to 0 below.
        offset_BRK4 = F.reshape(offset_BRP, shape=(0, 0, self._num_classes, 4))
        index_BR4 = F.broadcast_axis(F.expand_dims(F.relu(class_BR - 1), axis=2), axis=2, size=4)
        offset_BR4 = F.pick(offset_BRK4, index_BR4, axis=2)
        target_BR4 = offsets_to(F, edge_BR4, columns_of(F, true_BRD, 0, 4), REGION_VARIANCES)
        box_BR = F.sum(huber(F, offset_BR4 - target_BR4, self._rho), axis=2)
        # `where`, because 0 times a loss that is not finite would be NaN.
        box_BR = F.where(is_object_BR, box_BR, F.zeros_like(box_BR))
        return _mean(F, loss_BR + self._box_weight * box_BR, is_used_BR)


class MaskedTwoStageLoss(TwoStageLoss):
    """Loss of two-stage detectors with masks: `TwoStageLoss`, and the mean cross entropy of the masks of regions with
    an object of their class, against the part of the object's mask in the region.

    Inputs are the outputs of `MaskedRegionCoding` and boxes with masks.

    Args:
        mask_weight: weight of the cross entropy of masks.
        num_classes, num_samples, proposal_rho, rho, box_weight: see `TwoStageLoss`.
    """

    def __init__(
        self, num_classes: int, num_samples: int, proposal_rho: float, rho: float, box_weight: float, mask_weight: float
    ):
        super().__init__(num_classes, num_samples, proposal_rho, rho, box_weight)
        self._mask_weight = mask_weight

    def hybrid_forward(self, F: OperatorModule, *arrays: Array) -> Array:
        outputs, (detection_BQ6, mask_BQSS, row_BMR), targets = arrays[:5], arrays[5:8], arrays[8:]
        box_BMD = columns_of(F, row_BMR, 0, NUM_COLUMNS)
        loss_B = super().hybrid_forward(F, *outputs, box_BMD, *targets)
        return loss_B + self._mask_weight * self._mask_loss(F, F.BlockGrad(detection_BQ6), mask_BQSS, row_BMR)

    def _mask_loss(self, F: OperatorModule, detection_BQ6: Array, mask_BQSS: Array, row_BMR: Array) -> Array:
        """Returns the mean cross entropy of the masks of regions with an object of their class, (B,)."""
        edge_BQ4 = columns_of(F, detection_BQ6, 2, 6)
        matches = match_boxes(F, edge_BQ4, columns_of(F, row_BMR, 0, NUM_COLUMNS))
        true_BQR = take_rows(F, row_BMR, matches.index_BN)
        class_BQ1, is_used_BQ1 = columns_of(F, detection_BQ6, 0, 1), columns_of(F, detection_BQ6, 1, 2) > 0
        # Only the map of a region's own class leaves the network, so a wrong class has no mask to compare.
        is_same_BQ1 = class_BQ1 == columns_of(F, true_BQR, Column.CLASS, Column.CLASS + 1)
        is_object_BQ = F.squeeze(is_used_BQ1 * is_same_BQ1, axis=2) * (matches.iou_BN >= REGION_IOU)
        logit_TSS = F.reshape(mask_BQSS, shape=(-3, -2))
        mask_TSS = F.reshape(columns_of(F, true_BQR, NUM_COLUMNS, None), shape=(-1, TRUE_SIDE, TRUE_SIDE))
        true_T4, edge_T4 = (F.reshape(columns_of(F, rows, 0, 4), shape=(-3, 0)) for rows in (true_BQR, edge_BQ4))
        # True masks are cut here, on the device, so they need not enter the network.
        share_TSS = F.BlockGrad(resample_masks(F, mask_TSS, true_T4, edge_T4, logit_TSS))
        loss_T = F.mean(binary_cross_entropy(F, logit_TSS, share_TSS), axis=(1, 2))
        loss_BQ = F.reshape_like(loss_T, is_object_BQ)
        return _mean(F, F.where(is_object_BQ, loss_BQ, F.zeros_like(loss_BQ)), is_object_BQ)


def _mean(F: OperatorModule, loss_BR: Array, is_used_BR: Array) -> Array:
    """Returns the mean over counted elements, (B,); 0 if there are none."""
    # Each image is divided by its own count, so its loss depends on no other image. 2^24 is above any count: clip needs
    # an upper bound.
    return F.sum(loss_BR * is_used_BR, axis=1) / F.clip(F.sum(is_used_BR, axis=1), 1, 2.0**24)
