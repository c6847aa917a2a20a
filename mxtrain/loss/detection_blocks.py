"""Losses of networks that find things in pictures, as Gluon blocks. Imports MXNet.

Each returns the sum over a sample, (B,), and how many things it is a loss of, (B,). `least_weight` is what the things
in a global batch count at least: pictures without any are learned from, too.

Legend: B batch, M boxes of a picture, K classes, h, w cells of a map.
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
