"""The losses of networks that propose regions and look at each, as Gluon blocks. Imports MXNet.

Legend: B batch, M true boxes of a picture, D columns of `boxes.Column`, N boxes that the network begins with,
R regions, Q regions that masks are made of, S squares along a side of a mask, K classes, T = B Q.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mxtrain.dataset.image.box_arithmetic import (
    REGION_IOU,
    REGION_VARIANCES,
    columns_of,
    keys_of_quota,
    match,
    offsets_to,
    take_rows,
)
from mxtrain.dataset.image.boxes import NUM_COLUMNS, Column
from mxtrain.dataset.image.mask_arithmetic import cut_to
from mxtrain.dataset.image.mask_rows import TRUE_SIDE
from mxtrain.engine.backend import gluon
from mxtrain.loss.detection_blocks import binary_cross_entropy, huber

if TYPE_CHECKING:
    from mxtrain.annotations import Array, OperatorModule

SHARE_OF_THINGS = 0.5
"""The most boxes with a thing among those that proposals are trained on."""


class TwoStageLoss(gluon.HybridBlock):
    """The five outputs of `RegionCoding`; boxes; the two arrays of its `encode`; and random numbers (B, N). Each sample
    weighs 1: the means are over a picture's own boxes and regions, so that no division of a batch changes them.

    Args:
        num_classes: K.
        samples: boxes of a picture that proposals are trained on.
        proposal_rho, rho: a difference of offsets counts by its square up to this, above by itself.
        box_weight: how much the differences of offsets count.
    """

    def __init__(self, num_classes: int, samples: int, proposal_rho: float, rho: float, box_weight: float):
        super().__init__()
        self._num_classes, self._samples = num_classes, samples
        self._proposal_rho, self._rho, self._box_weight = proposal_rho, rho, box_weight

    def hybrid_forward(
        self, F, score_BN, offset_BN4, region_BR5, logit_BRK, offset_BRP, box_BMD, kind_BN, true_BN4, noise_BN
    ):
        proposals_B = self._of_proposals(F, score_BN, offset_BN4, kind_BN, true_BN4, noise_BN)
        return proposals_B + self._of_regions(F, region_BR5, logit_BRK, offset_BRP, box_BMD)

    def _of_proposals(
        self, F: OperatorModule, score_BN: Array, offset_BN4: Array, kind_BN: Array, true_BN4: Array, noise_BN: Array
    ) -> Array:  # fmt: skip
        """Of a sample of the boxes that the network begins with, (B,)."""
        key_BN = keys_of_quota(
            F, kind_BN > 0, F.relu(1 - F.abs(kind_BN)), noise_BN, round(self._samples * SHARE_OF_THINGS)
        )
        # Boxes with a thing beyond their quota do not stand in for background.
        key_BN = key_BN * (key_BN >= 2)
        place_BR = F.topk(key_BN, k=self._samples, ret_typ="indices", axis=1, dtype="int32")
        row_BN6 = F.concat(*(F.expand_dims(one, axis=2) for one in (key_BN, kind_BN)), true_BN4, dim=2)
        row_BR6 = take_rows(F, F.BlockGrad(row_BN6), place_BR)
        counts_BR, kind_BR = (F.squeeze(columns_of(F, row_BR6, at, at + 1), axis=2) for at in (0, 1))
        counts_BR = counts_BR > 0
        found_BR5 = take_rows(F, F.concat(F.expand_dims(score_BN, axis=2), offset_BN4, dim=2), place_BR)
        score_BR = F.squeeze(columns_of(F, found_BR5, 0, 1), axis=2)
        loss_BR = binary_cross_entropy(F, score_BR, F.relu(kind_BR))
        box_BR = F.sum(
            huber(F, columns_of(F, found_BR5, 1, 5) - columns_of(F, row_BR6, 2, 6), self._proposal_rho), axis=2
        )
        return _mean(F, loss_BR + self._box_weight * box_BR * (kind_BR > 0), counts_BR)

    def _of_regions(
        self, F: OperatorModule, region_BR5: Array, logit_BRK: Array, offset_BRP: Array, box_BMD: Array
    ) -> Array:  # fmt: skip
        """Of regions, (B,)."""
        edge_BR4 = columns_of(F, F.BlockGrad(region_BR5), 0, 4)
        found = match(F, edge_BR4, box_BMD)
        holds_BR = found.iou_BN >= REGION_IOU
        true_BRD = take_rows(F, box_BMD, found.place_BN)
        class_BR = F.squeeze(columns_of(F, true_BRD, Column.CLASS, Column.CLASS + 1), axis=2)
        class_BR = F.where(holds_BR, class_BR + 1, F.zeros_like(class_BR))
        counts_BR = F.squeeze(columns_of(F, region_BR5, 4, 5), axis=2)
        counts_BR = F.BlockGrad(counts_BR * F.broadcast_maximum(holds_BR, 1 - found.in_crowd_BN))
        loss_BR = -F.pick(F.log_softmax(logit_BRK, axis=-1), class_BR, axis=-1)
        # Of the region's class; of background the first, whose difference is multiplied by 0.
        offset_BRK4 = F.reshape(offset_BRP, shape=(0, 0, self._num_classes, 4))
        place_BR4 = F.broadcast_axis(F.expand_dims(F.relu(class_BR - 1), axis=2), axis=2, size=4)
        offset_BR4 = F.pick(offset_BRK4, place_BR4, axis=2)
        wanted_BR4 = offsets_to(F, edge_BR4, columns_of(F, true_BRD, 0, 4), REGION_VARIANCES)
        box_BR = F.sum(huber(F, offset_BR4 - wanted_BR4, self._rho), axis=2)
        box_BR = F.where(holds_BR, box_BR, F.zeros_like(box_BR))
        return _mean(F, loss_BR + self._box_weight * box_BR, counts_BR)


class MaskedTwoStageLoss(TwoStageLoss):
    """That of regions, of the outputs of `MaskedRegionCoding` and boxes with masks; and the mean cross entropy of the
    masks of those regions that hold a thing of their class, each against what it sees of the thing.

    Args:
        mask_weight: how much that counts.
        others: as of `TwoStageLoss`.
    """

    def __init__(
        self, num_classes: int, samples: int, proposal_rho: float, rho: float, box_weight: float, mask_weight: float
    ):
        super().__init__(num_classes, samples, proposal_rho, rho, box_weight)
        self._mask_weight = mask_weight

    def hybrid_forward(  # type: ignore[override]  # of further outputs
        self, F, score_BN, offset_BN4, region_BR5, logit_BRK, offset_BRP, found_BQ6, mask_BQSS, row_BMR, kind_BN,
        true_BN4, noise_BN,
    ):  # fmt: skip
        box_BMD = columns_of(F, row_BMR, 0, NUM_COLUMNS)
        loss_B = super().hybrid_forward(
            F, score_BN, offset_BN4, region_BR5, logit_BRK, offset_BRP, box_BMD, kind_BN, true_BN4, noise_BN
        )
        return loss_B + self._mask_weight * self._of_masks(F, F.BlockGrad(found_BQ6), mask_BQSS, row_BMR)

    def _of_masks(self, F: OperatorModule, found_BQ6: Array, mask_BQSS: Array, row_BMR: Array) -> Array:
        """Of masks, (B,)."""
        edge_BQ4 = columns_of(F, found_BQ6, 2, 6)
        found = match(F, edge_BQ4, columns_of(F, row_BMR, 0, NUM_COLUMNS))
        true_BQR = take_rows(F, row_BMR, found.place_BN)
        class_BQ1, counts_BQ1 = columns_of(F, found_BQ6, 0, 1), columns_of(F, found_BQ6, 1, 2) > 0
        is_same_BQ1 = class_BQ1 == columns_of(F, true_BQR, Column.CLASS, Column.CLASS + 1)
        holds_BQ = F.squeeze(counts_BQ1 * is_same_BQ1, axis=2) * (found.iou_BN >= REGION_IOU)
        logit_TSS = F.reshape(mask_BQSS, shape=(-3, -2))
        mask_TSS = F.reshape(columns_of(F, true_BQR, NUM_COLUMNS, None), shape=(-1, TRUE_SIDE, TRUE_SIDE))
        true_T4, edge_T4 = (F.reshape(columns_of(F, one, 0, 4), shape=(-3, 0)) for one in (true_BQR, edge_BQ4))
        share_TSS = F.BlockGrad(cut_to(F, mask_TSS, true_T4, edge_T4, logit_TSS))
        loss_T = F.mean(binary_cross_entropy(F, logit_TSS, share_TSS), axis=(1, 2))
        loss_BQ = F.reshape_like(loss_T, holds_BQ)
        return _mean(F, F.where(holds_BQ, loss_BQ, F.zeros_like(loss_BQ)), holds_BQ)


def _mean(F: OperatorModule, loss_BR: Array, counts_BR: Array) -> Array:
    """Over those that count, (B,); 0 where none does."""
    return F.sum(loss_BR * counts_BR, axis=1) / F.clip(F.sum(counts_BR, axis=1), 1, 2.0**24)
