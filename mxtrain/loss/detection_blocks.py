"""Losses of networks that find things in pictures, as Gluon blocks. Imports MXNet.

Each returns the sum over a sample, (B,), and how many things it is a loss of, (B,). `least_weight` is what the things
in a global batch count at least: pictures without any are learned from, too.

Legend: B batch, M boxes of a picture, K classes, N boxes that a network gives, h, w cells of a map.
"""

from __future__ import annotations

from mxtrain.engine.backend import gluon


class HeatmapFocalLoss(gluon.HybridBlock):
    """Scores of centres before the sigmoid (B, K, h, w), sizes and offsets (B, 4, h, w); boxes; and the three arrays of
    `HeatmapCoding.encode`.

    Source: Zhou et al., "Objects as Points" (2019), equations 1 to 4, with exponents 2 and 4.
    """

    weighted = True
    least_weight = 1.0

    def __init__(self, size_weight: float, offset_weight: float):
        super().__init__()
        self._size_weight, self._offset_weight = size_weight, offset_weight

    def __call__(self, logit_BKhw, size_B4hw, box_BMD, *encoded):
        return super().__call__(logit_BKhw, size_B4hw, *encoded)  # Gluon warns of inputs that nothing uses

    def hybrid_forward(self, F, logit_BKhw, size_B4hw, score_BKhw, true_size_B4hw, is_centre_B1hw):
        # With logits: log(sigmoid(x)) would be -inf where a network is sure and wrong.
        p_BKhw = F.sigmoid(logit_BKhw)
        log_p_BKhw = -F.Activation(-logit_BKhw, act_type="softrelu")
        log_rest_BKhw = -F.Activation(logit_BKhw, act_type="softrelu")
        is_one_BKhw = score_BKhw >= 1
        found_BKhw = is_one_BKhw * F.square(1 - p_BKhw) * log_p_BKhw
        quiet_BKhw = F.square(F.square(1 - score_BKhw)) * F.square(p_BKhw) * log_rest_BKhw
        difference_B4hw = F.broadcast_mul(F.abs(size_B4hw - true_size_B4hw), is_centre_B1hw)
        size_B2hw, offset_B2hw = F.split(difference_B4hw, 2, axis=1)
        loss_B = -F.sum(found_BKhw + quiet_BKhw, axis=(1, 2, 3))
        loss_B = loss_B + self._size_weight * F.sum(size_B2hw, axis=(1, 2, 3))
        loss_B = loss_B + self._offset_weight * F.sum(offset_B2hw, axis=(1, 2, 3))
        return loss_B, F.sum(is_centre_B1hw, axis=(1, 2, 3))


class MultiBoxLoss(gluon.HybridBlock):
    """Scores (B, N, 1 + K) and offsets (B, N, 4); boxes; and the two arrays of `MultiBoxCoding.encode`.

    GluonCV's takes lists with an entry for each device, and divides by the boxes with a thing of these alone.

    Source: Liu et al., "SSD: Single Shot MultiBox Detector" (2016), section 2.2.
    """

    weighted = True
    least_weight = 1.0

    def __init__(self, mining_ratio: float, least_negatives: int, rho: float, box_weight: float):
        super().__init__()
        self._mining_ratio, self._least_negatives = mining_ratio, least_negatives
        self._rho, self._box_weight = rho, box_weight

    def __call__(self, logit_BNK, offset_BN4, box_BMD, *encoded):
        return super().__call__(logit_BNK, offset_BN4, *encoded)  # Gluon warns of inputs that nothing uses

    def hybrid_forward(self, F, logit_BNK, offset_BN4, class_BN, true_offset_BN4):
        # -1, neither a thing nor background, becomes class 0; its loss is multiplied by 0 below.
        loss_BN = -F.pick(F.log_softmax(logit_BNK, axis=-1), F.relu(class_BN), axis=-1)
        is_thing_BN, is_background_BN = class_BN > 0, class_BN == 0
        thing_B, background_BN = F.sum(is_thing_BN, axis=1), loss_BN * is_background_BN
        # The place of each box in the order of losses of background, the most wrong first.
        order_BN = F.argsort(F.BlockGrad(background_BN), axis=1, is_ascend=False, dtype="int32")
        rank_BN = F.argsort(order_BN, axis=1, dtype="int32")
        most_B1 = F.expand_dims(F.clip(thing_B * self._mining_ratio, self._least_negatives, 2.0**24), axis=1)
        is_hard_BN = F.broadcast_lesser(rank_BN, F.cast(F.ceil(most_B1), "int32"))
        # In whatever precision losses are, these are of whole numbers.
        hard_BN = F.where(is_hard_BN, background_BN, F.zeros_like(background_BN))
        difference_BN4 = F.abs(offset_BN4 - true_offset_BN4)
        huber_BN4 = F.where(
            difference_BN4 > self._rho, difference_BN4 - 0.5 * self._rho, F.square(difference_BN4) * (0.5 / self._rho)
        )
        box_B = F.sum(F.broadcast_mul(huber_BN4, F.expand_dims(is_thing_BN, axis=2)), axis=(1, 2))
        return F.sum(loss_BN * is_thing_BN + hard_BN, axis=1) + self._box_weight * box_B, thing_B
