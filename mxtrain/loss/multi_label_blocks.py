"""Gluon blocks of losses of samples with any number of classes.

A block maps scores (B, K), targets (B, K) from 0 to 1, and weights (B, K) if there are any, to losses (B,): the mean
over classes. -log p is computed as softplus(-score), since log(sigmoid(score)) is -inf for very negative scores.

Legend: B batch, K classes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional, Tuple

from mxtrain.engine.backend import gluon

if TYPE_CHECKING:
    from mxtrain.types.annotations import Array, OperatorModule


class ClassSetLoss(gluon.HybridBlock):
    """Base class: subclasses define the loss of each class."""

    weighted = False

    def terms(self, F: OperatorModule, score_BK: Array, target_BK: Array) -> Array:
        """Returns the loss of each class, (B, K)."""
        raise NotImplementedError

    def hybrid_forward(
        self, F: OperatorModule, score_BK: Array, target_BK: Array, weight_BK: Optional[Array] = None
    ) -> Array:
        loss_BK = self.terms(F, score_BK, target_BK)
        return F.mean(loss_BK if weight_BK is None else F.broadcast_mul(loss_BK, weight_BK), axis=1)


def answer_losses(F: OperatorModule, score_BK: Array) -> Tuple[Array, Array]:
    """Returns -log p and -log(1 - p), (B, K) each."""
    return F.Activation(-score_BK, act_type="softrelu"), F.Activation(score_BK, act_type="softrelu")


class WeightedSigmoidLoss(ClassSetLoss):
    """See `losses.SigmoidBCE`."""

    def __init__(self, pos_weight: float):
        super().__init__()
        self._pos_weight = pos_weight

    def terms(self, F: OperatorModule, score_BK: Array, target_BK: Array) -> Array:
        yes_BK, no_BK = answer_losses(F, score_BK)
        return self._pos_weight * target_BK * yes_BK + (1 - target_BK) * no_BK


class SigmoidFocalLoss(ClassSetLoss):
    """See `losses.SigmoidFocal`."""

    def __init__(self, gamma: float, alpha: float):
        super().__init__()
        self._gamma, self._alpha = gamma, alpha

    def terms(self, F: OperatorModule, score_BK: Array, target_BK: Array) -> Array:
        yes_BK, no_BK = answer_losses(F, score_BK)
        # The powers of 1 - p and p as exponentials: the derivative of a power at 0 may be infinite.
        yes_BK, no_BK = yes_BK * F.exp(-self._gamma * no_BK), no_BK * F.exp(-self._gamma * yes_BK)
        return self._alpha * target_BK * yes_BK + (1 - self._alpha) * (1 - target_BK) * no_BK


class AsymmetricLoss(ClassSetLoss):
    """See `losses.Asymmetric`."""

    def __init__(self, gamma_positive: float, gamma_negative: float, margin: float):
        super().__init__()
        self._gammas, self._margin = (gamma_positive, gamma_negative), margin

    def terms(self, F: OperatorModule, score_BK: Array, target_BK: Array) -> Array:
        yes_BK, no_BK = answer_losses(F, score_BK)
        gamma_positive, gamma_negative = self._gammas
        positive_BK = yes_BK * F.exp(-gamma_positive * no_BK)
        if not self._margin:  # 1 - p may be 0
            negative_BK = no_BK * F.exp(-gamma_negative * yes_BK)
        else:
            p_BK = F.relu(F.sigmoid(score_BK) - self._margin)
            negative_BK = -F.log(1 - p_BK)
            if gamma_negative:  # the derivative of a power 0 is 0 * inf
                negative_BK = negative_BK * p_BK**gamma_negative
        return target_BK * positive_BK + (1 - target_BK) * negative_BK
