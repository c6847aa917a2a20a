"""Networks that predict the next item of a user from the items so far: SASRec and GRU4Rec."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import pydantic
from typing_extensions import Self

from mxtrain.model.spec import Model, missing_method
from mxtrain.recommendation.kinds import NextItem, UserHistories
from mxtrain.types import OpenFraction, Positive
from mxtrain.types.kinds import Takes

if TYPE_CHECKING:
    from mxnet import gluon


class SequenceModel(Model):
    """Base of networks of the items of a user in order. Users have no vectors, so new users need no training."""

    takes: ClassVar[Takes] = Takes(UserHistories, NextItem)

    def build_sequence(self, num_items: int, max_history: int) -> gluon.Block:
        """Returns the network, uninitialized. It takes histories (B, H) int32, oldest item first and padded at the end,
        and their lengths (B,), at least 1; it returns the score of each item as the next one, (B, I).

        Args:
            num_items: I.
            max_history: H.
        """
        raise missing_method(self, "build_sequence")


class SASRec(SequenceModel):
    """Transformer layers in which each item attends to the items before it, with learned positions. The scores are
    products of the last item's output and the item embeddings.

    Source: Kang and McAuley, "Self-Attentive Sequential Recommendation" (2018), https://arxiv.org/abs/1808.09781; layer
    norm after each residual connection and GELU as in RecBole.
    """

    units: Positive = 64
    """Embedding size."""
    num_layers: Positive = 2
    """Number of transformer layers."""
    num_heads: Positive = 2
    """Number of attention heads; divides `units`."""
    hidden_size: Positive = 256
    """Hidden units of the feed-forward layers."""
    dropout: OpenFraction = 0.2
    """Dropout probability of embeddings, attention weights and the output of each sublayer."""

    @pydantic.model_validator(mode="after")
    def _check_heads(self) -> Self:
        if self.units % self.num_heads:
            raise ValueError(f"units={self.units} must be a multiple of num_heads={self.num_heads}")
        return self

    def build_sequence(self, num_items: int, max_history: int) -> gluon.HybridBlock:
        """See `SequenceModel.build_sequence`."""
        from mxtrain.recommendation.sequence_networks import AttentionSizes, SASRecNetwork

        sizes = AttentionSizes(self.num_layers, self.units, self.hidden_size, self.num_heads, max_history, self.dropout)
        return SASRecNetwork(num_items, sizes, prefix="")


class GRU4Rec(SequenceModel):
    """GRU layers over item embeddings. The scores are products of a dense layer of the last state and the embeddings.

    Source: Hidasi et al., "Session-based Recommendations with Recurrent Neural Networks" (2016),
    https://arxiv.org/abs/1511.06939; with shared embeddings as in RecBole.
    """

    units: Positive = 64
    """Embedding size."""
    hidden_size: Positive = 128
    """Units of each GRU layer."""
    num_layers: Positive = 1
    """Number of GRU layers."""
    dropout: OpenFraction = 0.2
    """Dropout probability of the embeddings."""

    def build_sequence(self, num_items: int, max_history: int) -> gluon.HybridBlock:
        """See `SequenceModel.build_sequence`."""
        from mxtrain.recommendation.sequence_networks import GRU4RecNetwork

        return GRU4RecNetwork(num_items, self.units, self.hidden_size, self.num_layers, self.dropout, prefix="")
