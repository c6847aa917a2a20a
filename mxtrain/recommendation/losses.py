"""Losses that rank a positive item above sampled ones, or above all others.

Scores are (B, C), candidates (B, C) int32: the first one is the positive item; -1 = padding.

Legend: B batch, C candidates, N = C - 1 negative items, I all items.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Tuple

from mxtrain.loss.spec import PADDING_SCORE, FunctionLoss
from mxtrain.recommendation.kinds import NextItem
from mxtrain.types.kinds import Preference, Takes

if TYPE_CHECKING:
    from mxtrain.types.annotations import Array, OperatorModule


class RankingLoss(FunctionLoss):
    """Base of losses of an item that a user has against sampled ones that he has not."""

    takes: ClassVar[Takes] = Takes(Preference, NextItem)


class SampledBCE(RankingLoss):
    """Binary cross entropy of items that users have against sampled ones that they have not: the mean over both in the
    global batch.

    Source: He et al., "Neural Collaborative Filtering" (2017), equation 7.
    """

    weighted: ClassVar[bool] = True

    def compute(self, F: OperatorModule, score_BC: Array, item_BC: Array) -> Tuple[Array, Array]:
        """Returns the sum over the candidates of each sample, (B,), and their number, (B,)."""
        (positive_B1, negative_BN), counts_BC = split_positive(F, score_BC), candidate_mask(F, score_BC, item_BC)
        loss_BC = F.concat(softplus(F, -positive_B1), softplus(F, negative_BN), dim=1) * counts_BC
        return F.sum(loss_BC, axis=1), F.sum(counts_BC, axis=1)


class BPR(RankingLoss):
    """-log sigmoid of how far an item that a user has is above a sampled one: the mean over such pairs in the global
    batch.

    Source: Rendle et al., "BPR: Bayesian Personalized Ranking from Implicit Feedback" (2009).
    """

    weighted: ClassVar[bool] = True

    def compute(self, F: OperatorModule, score_BC: Array, item_BC: Array) -> Tuple[Array, Array]:
        """Returns the sum over the negative items of each sample, (B,), and their number, (B,)."""
        positive_B1, negative_BN = split_positive(F, score_BC)
        _, counts_BN = split_positive(F, candidate_mask(F, score_BC, item_BC))
        loss_BN = softplus(F, F.broadcast_sub(negative_BN, positive_B1)) * counts_BN
        return F.sum(loss_BN, axis=1), F.sum(counts_BN, axis=1)


class SampledSoftmax(RankingLoss):
    """Softmax cross entropy of an item that a user has among sampled ones: the mean over items in the global batch."""

    def compute(self, F: OperatorModule, score_BC: Array, item_BC: Array) -> Array:
        """Returns the loss of each sample, (B,)."""
        hidden_BC = (1 - candidate_mask(F, score_BC, item_BC)) * PADDING_SCORE
        positive_B1, _ = split_positive(F, F.log_softmax(score_BC + hidden_BC, axis=1))
        return -F.reshape(positive_B1, shape=(-1,))


class FullSoftmax(FunctionLoss):
    """Softmax cross entropy of the next item among all items: the mean over samples in the global batch."""

    takes: ClassVar[Takes] = Takes(NextItem)

    def compute(self, F: OperatorModule, score_BI: Array, item_B1: Array) -> Array:
        """Returns the loss of each sample, (B,)."""
        return -F.pick(F.log_softmax(score_BI, axis=1), F.reshape(item_B1, shape=(-1,)), axis=1)


def split_positive(F: OperatorModule, array_BC: Array) -> Tuple[Array, Array]:
    """Splits an array into the column of the positive item (B, 1) and those of the negative items (B, N)."""
    return F.slice_axis(array_BC, axis=1, begin=0, end=1), F.slice_axis(array_BC, axis=1, begin=1, end=None)


def candidate_mask(F: OperatorModule, score_BC: Array, item_BC: Array) -> Array:
    """Returns 1 for each candidate and 0 for padding, in the precision of the scores."""
    return F.where(item_BC >= 0, F.ones_like(score_BC), F.zeros_like(score_BC))


def softplus(F: OperatorModule, array: Array) -> Array:
    """Computes log(1 + exp(x)), which is -log sigmoid(-x)."""
    # exp would overflow for large scores; MXNet's softrelu returns x itself above 20.
    return F.Activation(array, act_type="softrelu")
