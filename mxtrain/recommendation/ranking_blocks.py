"""Losses of a positive item and sampled negative items, as Gluon blocks.

Scores are (B, C), candidates (B, C) int32: the first one is the positive item; -1 = padding.

Legend: B batch, C candidates, N = C - 1 negative items.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Tuple

from mxtrain.engine.backend import gluon
from mxtrain.loss.blocks import PADDING_SCORE

if TYPE_CHECKING:
    from mxtrain.types.annotations import Array, OperatorModule


def split_positive(F: OperatorModule, array_BC: Array) -> Tuple[Array, Array]:
    """Splits an array into the column of the positive item (B, 1) and those of the negative items (B, N)."""
    return F.slice_axis(array_BC, axis=1, begin=0, end=1), F.slice_axis(array_BC, axis=1, begin=1, end=None)


def candidate_mask(F: OperatorModule, score_BC: Array, item_BC: Array) -> Array:
    """Returns 1 for each candidate and 0 for padding, in the precision of the scores."""
    return F.where(item_BC >= 0, F.ones_like(score_BC), F.zeros_like(score_BC))


def softplus(F: OperatorModule, array: Array) -> Array:
    """Computes log(1 + exp(x)), which is -log sigmoid(-x)."""
    return F.Activation(array, act_type="softrelu")


class SampledBCELoss(gluon.HybridBlock):
    """Binary cross entropy of candidates, with target 1 for the positive item and 0 for negative items.

    Outputs are the sum over the candidates of each sample, (B,), and their number, (B,).
    """

    weighted = True

    def hybrid_forward(self, F: OperatorModule, score_BC: Array, item_BC: Array) -> Any:
        (positive_B1, negative_BN), counts_BC = split_positive(F, score_BC), candidate_mask(F, score_BC, item_BC)
        loss_BC = F.concat(softplus(F, -positive_B1), softplus(F, negative_BN), dim=1) * counts_BC
        return F.sum(loss_BC, axis=1), F.sum(counts_BC, axis=1)


class BPRLoss(gluon.HybridBlock):
    """-log sigmoid(score of the positive item - score of a negative item).

    Outputs are the sum over the negative items of each sample, (B,), and their number, (B,).
    """

    weighted = True

    def hybrid_forward(self, F: OperatorModule, score_BC: Array, item_BC: Array) -> Any:
        positive_B1, negative_BN = split_positive(F, score_BC)
        _, counts_BN = split_positive(F, candidate_mask(F, score_BC, item_BC))
        loss_BN = softplus(F, F.broadcast_sub(negative_BN, positive_B1)) * counts_BN
        return F.sum(loss_BN, axis=1), F.sum(counts_BN, axis=1)


class SampledSoftmaxLoss(gluon.HybridBlock):
    """-log of the softmax of the positive item among all candidates, (B,)."""

    weighted = False

    def hybrid_forward(self, F: OperatorModule, score_BC: Array, item_BC: Array) -> Any:
        hidden_BC = (1 - candidate_mask(F, score_BC, item_BC)) * PADDING_SCORE
        positive_B1, _ = split_positive(F, F.log_softmax(score_BC + hidden_BC, axis=1))
        return -F.reshape(positive_B1, shape=(-1,))
