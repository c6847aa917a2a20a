"""Multi-head attention as Gluon blocks: causal, of padded texts, and of one text to another. Imports MXNet.

Each has two forms: our own operator, which stores neither scores nor a mask, and MXNet's operators where it is not
there.

Legend: B batch, T tokens, S tokens that are looked at, U units, N heads, D units of a head. Time comes first,
(T, B, U).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, List, Tuple

from mxtrain.engine.backend import gluon, own_operators
from mxtrain.model.graph.mended import dropout
from mxtrain.model.networks import fused
from mxtrain.model.networks.bert import PADDING_SCORE

if TYPE_CHECKING:
    from mxtrain.annotations import Array, OperatorModule


class Attention(gluon.HybridBlock):
    """Base: heads, scores, and what is made of them with MXNet's operators.

    Args:
        num_heads: N.
        dropout: of the weights.
    """

    drops = True

    def __init__(self, num_heads: int, dropout: float, **kwargs: Any):
        super().__init__(**kwargs)
        self._num_heads, self._rate = num_heads, dropout

    def heads(self, F: OperatorModule, packed: Array, count: int = 3) -> List[Array]:
        """What `count` parts of (T, B, count * U) are, e.g. queries, keys and values, (B * N, T, D) each."""
        parts = F.transpose(F.reshape(packed, shape=(0, 0, count, self._num_heads, -1)), axes=(2, 1, 3, 0, 4))
        parts = F.reshape(parts, shape=(0, -3, 0, 0))
        if count == 1:  # of which `split` gives no list
            return [F.reshape(parts, shape=(-3, 0, 0))]
        return list(F.split(parts, num_outputs=count, axis=0, squeeze_axis=True))

    @staticmethod
    def scores(F: OperatorModule, query: Array, key: Array) -> Array:
        """(B * N, T, S)."""
        scale = F.rsqrt(F.sum(F.ones_like(F.slice_axis(query, axis=1, begin=0, end=1)), axis=-1, keepdims=True))
        return F.batch_dot(F.broadcast_mul(query, F.BlockGrad(scale)), key, transpose_b=True)

    def weighted(self, F: OperatorModule, score: Array, value: Array) -> Array:
        """Scores (B * N, T, S) and values to contexts (T, B, U)."""
        weight = F.softmax(score, axis=-1)
        return self.joined(F, F.batch_dot(dropout(F, weight, self._rate), value))

    def joined(self, F: OperatorModule, context: Array) -> Array:
        """(B * N, T, D) to (T, B, U)."""
        context_BNTD = F.reshape(context, shape=(-4, -1, self._num_heads, 0, 0))
        return F.reshape(F.transpose(context_BNTD, axes=(2, 0, 1, 3)), shape=(0, 0, -3))

    def padding(self, F: OperatorModule, score: Array, length_B: Array) -> Array:
        """Like scores (B * N, T, S): 0 for tokens, `PADDING_SCORE` behind a text's length."""
        place_1S = F.reshape(F.contrib.arange_like(score, axis=2), shape=(1, -1))
        is_padding_BS = F.broadcast_greater_equal(place_1S, F.reshape(length_B, shape=(-1, 1)))
        score_HS = F.repeat(is_padding_BS * PADDING_SCORE, repeats=self._num_heads, axis=0)
        # Made as large as the scores: the gradient of a broadcast addition is a slow sum.
        return F.BlockGrad(F.broadcast_like(F.expand_dims(score_HS, axis=1), score, lhs_axes=(1,), rhs_axes=(1,)))


class PaddedAttention(Attention):
    """Attention of each token to all tokens of its text, without the last projection: queries, keys and values
    (T, B, 3 * U), which nothing else reads, and lengths (B,) to (T, B, U)."""

    def hybrid_forward(self, F, qkv, length_B):
        if own_operators().path:
            return fused.attention(F, qkv, length_B, self._num_heads, self._rate)
        query, key, value = self.heads(F, qkv)
        score = self.scores(F, query, key)
        return self.weighted(F, score + self.padding(F, score, length_B), value)


class CrossAttention(Attention):
    """Attention of each token to all tokens of another text, without the last projection: queries (T, B, U), keys and
    values (S, B, 2 * U), which nothing else reads, and lengths of the other texts (B,) to (T, B, U)."""

    def hybrid_forward(self, F, query_TBU, key_value, length_B):
        if own_operators().path:
            return fused.cross_attention(F, query_TBU, key_value, length_B, self._num_heads, self._rate)
        (query,), (key, value) = self.heads(F, query_TBU, 1), self.heads(F, key_value, 2)
        score = self.scores(F, query, key)
        return self.weighted(F, score + self.padding(F, score, length_B), value)


class CausalAttention(Attention):
    """Multi-head attention of each token to itself and those before it, without the last projection: queries, keys and
    values (T, B, 3 * U) to (T, B, U).

    Our own operator makes no scores of tokens that lie ahead, and stores neither scores nor a mask. Without it the mask
    is made of positions in each layer.
    """

    def hybrid_forward(self, F, qkv):
        if own_operators().path:
            return fused.attention(F, qkv, None, self._num_heads, self._rate, causal=True)
        query, key, value = self.heads(F, qkv)
        place_T = F.contrib.arange_like(qkv, axis=0)
        is_ahead_TT = F.broadcast_greater(F.reshape(place_T, shape=(1, -1)), F.reshape(place_T, shape=(-1, 1)))
        mask_1TT = F.BlockGrad(F.expand_dims(is_ahead_TT * PADDING_SCORE, axis=0))
        return self.weighted(F, F.broadcast_add(self.scores(F, query, key), mask_1TT), value)

    def step(self, F: OperatorModule, qkv_1BU: Array, memory: List[Array]) -> Tuple[Array, List[Array]]:
        """The same for one more token, and its keys and values behind those of the tokens before it."""
        query, *own = self.heads(F, qkv_1BU)
        key, value = (F.concat(*pair, dim=1) for pair in zip(memory, own)) if memory else own
        context = F.batch_dot(F.softmax(self.scores(F, query, key), axis=-1), value)
        return self.joined(F, context), [key, value]
