"""Losses that rank a positive item above sampled ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from mxtrain.loss.spec import Loss
from mxtrain.types.kinds import Preference, Takes

if TYPE_CHECKING:
    from mxnet import gluon


class RankingLoss(Loss):
    """Base of losses of an item that a user has against sampled ones that he has not."""

    takes: ClassVar[Takes] = Takes(Preference)

    block_name: ClassVar[str] = ""
    """The class in mxtrain.recommendation.ranking_blocks."""

    def build(self, num_classes: int, training: bool) -> gluon.Block:
        from mxtrain.recommendation import ranking_blocks

        return getattr(ranking_blocks, self.block_name)()


class SampledBCE(RankingLoss):
    """Binary cross entropy of items that users have against sampled ones that they have not: the mean over both in the
    global batch.

    Source: He et al., "Neural Collaborative Filtering" (2017), equation 7.
    """

    block_name: ClassVar[str] = "SampledBCELoss"


class BPR(RankingLoss):
    """-log sigmoid of how far an item that a user has is above a sampled one: the mean over such pairs in the global
    batch.

    Source: Rendle et al., "BPR: Bayesian Personalized Ranking from Implicit Feedback" (2009).
    """

    block_name: ClassVar[str] = "BPRLoss"


class SampledSoftmax(RankingLoss):
    """Softmax cross entropy of an item that a user has among sampled ones: the mean over items in the global batch."""

    block_name: ClassVar[str] = "SampledSoftmaxLoss"
