"""Losses of an item that a user has against sampled ones that he has not, as Gluon blocks.

Scores are (B, C), candidates (B, C) int32: the first is the item itself; -1 = padding.

Legend: B batch, C candidates, N sampled ones, which are C - 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Tuple

from mxtrain.engine.backend import gluon
from mxtrain.loss.blocks import PADDING_SCORE

if TYPE_CHECKING:
    from mxtrain.annotations import Array, OperatorModule


def own_and_others(F: OperatorModule, array_BC: Array) -> Tuple[Array, Array]:
    """Returns the first column (B, 1) and the others (B, N)."""
    return F.slice_axis(array_BC, axis=1, begin=0, end=1), F.slice_axis(array_BC, axis=1, begin=1, end=None)


def counts(F: OperatorModule, score_BC: Array, item_BC: Array) -> Array:
    """1 for each candidate, 0 where there is none, in the precision of the scores."""
    return F.where(item_BC >= 0, F.ones_like(score_BC), F.zeros_like(score_BC))


def softplus(F: OperatorModule, array: Array) -> Array:
    """log(1 + exp(x)), which is -log sigmoid(-x)."""
    return F.Activation(array, act_type="softrelu")


class SampledBCELoss(gluon.HybridBlock):
    """Binary cross entropy of each candidate, 1 for the first and 0 for the others: the sum of a sample's, (B,), and
    how many there are, (B,)."""

    weighted = True

    def hybrid_forward(self, F, score_BC, item_BC):
        (own_B1, other_BN), counts_BC = own_and_others(F, score_BC), counts(F, score_BC, item_BC)
        loss_BC = F.concat(softplus(F, -own_B1), softplus(F, other_BN), dim=1) * counts_BC
        return F.sum(loss_BC, axis=1), F.sum(counts_BC, axis=1)


class BPRLoss(gluon.HybridBlock):
    """-log sigmoid(score of the first - score of another): the sum of a sample's, (B,), and how many there are,
    (B,)."""

    weighted = True

    def hybrid_forward(self, F, score_BC, item_BC):
        own_B1, other_BN = own_and_others(F, score_BC)
        _, counts_BN = own_and_others(F, counts(F, score_BC, item_BC))
        loss_BN = softplus(F, F.broadcast_sub(other_BN, own_B1)) * counts_BN
        return F.sum(loss_BN, axis=1), F.sum(counts_BN, axis=1)


class SampledSoftmaxLoss(gluon.HybridBlock):
    """-log of the softmax of the first candidate among all, (B,)."""

    weighted = False

    def hybrid_forward(self, F, score_BC, item_BC):
        hidden_BC = (1 - counts(F, score_BC, item_BC)) * PADDING_SCORE
        own_B1, _ = own_and_others(F, F.log_softmax(score_BC + hidden_BC, axis=1))
        return -F.reshape(own_B1, shape=(-1,))
