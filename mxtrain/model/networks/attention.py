"""Multi-head attention as Gluon blocks: causal, of padded texts, and of one text to another. Imports MXNet.

Each has two forms: our own operator, which stores neither scores nor a mask, and MXNet's operators if our library is
    not available.

Without our operator, queries, keys and values of all heads are transposed together and multiplied by `batch_dot`: 1.07
times as fast as MXNet's interleaved operators for BERT-base, which read rows that are far apart in memory.

Legend: B batch, T tokens, S tokens that are looked at, U units, N heads, D units of a head; of a search: A texts, R
rows, K rows of a text. Time comes first, (T, B, U).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, List, Tuple

from mxtrain.engine.backend import gluon, native_operators
from mxtrain.model.graph.mxnet_workarounds import dropout
from mxtrain.model.networks import fused
from mxtrain.model.networks.bert import PADDING_SCORE

if TYPE_CHECKING:
    from mxtrain.types.annotations import Array, OperatorModule


class Attention(gluon.HybridBlock):
    """Base of attention blocks: heads, scores and weighted sums with MXNet's operators.

    Args:
        num_heads: N.
        dropout: of the weights.
    """

    drops = True

    def __init__(self, num_heads: int, dropout: float, **kwargs: Any):
        super().__init__(**kwargs)
        self._num_heads, self._rate = num_heads, dropout

    def heads(self, F: OperatorModule, packed: Array, count: int = 3) -> List[Array]:
        """Splits (T, B, count * U) into `count` parts, e.g. queries, keys and values, (B * N, T, D) each."""
        parts = F.transpose(F.reshape(packed, shape=(0, 0, count, self._num_heads, -1)), axes=(2, 1, 3, 0, 4))
        parts = F.reshape(parts, shape=(0, -3, 0, 0))
        if count == 1:  # of which `split` gives no list
            return [F.reshape(parts, shape=(-3, 0, 0))]
        return list(F.split(parts, num_outputs=count, axis=0, squeeze_axis=True))

    @staticmethod
    def scores(F: OperatorModule, query: Array, key: Array) -> Array:
        """Returns the attention scores (B * N, T, S)."""
        # The width of a head is known only within the graph, so it is counted by a sum of ones.
        scale = F.rsqrt(F.sum(F.ones_like(F.slice_axis(query, axis=1, begin=0, end=1)), axis=-1, keepdims=True))
        return F.batch_dot(F.broadcast_mul(query, F.BlockGrad(scale)), key, transpose_b=True)

    def weighted(self, F: OperatorModule, score: Array, value: Array) -> Array:
        """Scores (B * N, T, S) and values to contexts (T, B, U)."""
        weight = F.softmax(score, axis=-1)
        return self.joined(F, F.batch_dot(dropout(F, weight, self._rate), value))

    def joined(self, F: OperatorModule, context: Array) -> Array:
        """Reshapes (B * N, T, D) to (T, B, U)."""
        context_BNTD = F.reshape(context, shape=(-4, -1, self._num_heads, 0, 0))
        return F.reshape(F.transpose(context_BNTD, axes=(2, 0, 1, 3)), shape=(0, 0, -3))

    def by_row(self, F: OperatorModule, array: Array) -> Array:
        """Reshapes (B * N, T, D) to (B, N, T, D)."""
        return F.reshape(array, shape=(-4, -1, self._num_heads, 0, 0))

    def padding(self, F: OperatorModule, score: Array, length_B: Array) -> Array:
        """Returns a mask like the scores (B * N, T, S): 0 for tokens, `PADDING_SCORE` for padding."""
        position_1S = F.reshape(F.contrib.arange_like(score, axis=2), shape=(1, -1))
        is_padding_BS = F.broadcast_greater_equal(position_1S, F.reshape(length_B, shape=(-1, 1)))
        score_HS = F.repeat(is_padding_BS * PADDING_SCORE, repeats=self._num_heads, axis=0)
        # Made as large as the scores: the gradient of a broadcast addition is a slow sum.
        return F.BlockGrad(F.broadcast_like(F.expand_dims(score_HS, axis=1), score, lhs_axes=(1,), rhs_axes=(1,)))


class PaddedAttention(Attention):
    """Attention of each token to all tokens of its text, without the last projection: queries, keys and values
    (T, B, 3 * U), which nothing else reads, and lengths (B,) to (T, B, U)."""

    def hybrid_forward(self, F: OperatorModule, qkv: Array, length_B: Array) -> Array:
        if native_operators().path:
            return fused.attention(F, qkv, length_B, self._num_heads, self._rate)
        query, key, value = self.heads(F, qkv)
        score = self.scores(F, query, key)
        return self.weighted(F, score + self.padding(F, score, length_B), value)


class CrossAttention(Attention):
    """Attention of each token to all tokens of another text, without the last projection: queries (T, B, U), keys and
    values (S, B, 2 * U), which nothing else reads, and lengths of the other texts (B,) to (T, B, U)."""

    def hybrid_forward(self, F: OperatorModule, query_TBU: Array, key_value: Array, length_B: Array) -> Array:
        if native_operators().path:
            return fused.cross_attention(F, query_TBU, key_value, length_B, self._num_heads, self._rate)
        (query,), (key, value) = self.heads(F, query_TBU, 1), self.heads(F, key_value, 2)
        score = self.scores(F, query, key)
        return self.weighted(F, score + self.padding(F, score, length_B), value)

    def step(self, F: OperatorModule, query_1RU: Array, memory: List[Array], length_A: Array, beams: int) -> Array:
        """Computes the attention of one token of each row, (1, R, U); `beams` consecutive rows belong to one text.

        Args:
            query_1RU: query of each row.
            memory: keys and values of the other texts, (A, N, S, D) each.
            length_A: lengths of the other texts.
            beams: rows of each text, R / A.
        """
        if native_operators().path:
            return fused.source_attention_step(F, query_1RU, memory[0], memory[1], length_A, self._num_heads)
        # The rows of a text are its tokens.
        query_AKU = F.reshape(F.reshape(query_1RU, shape=(-3, 0)), shape=(-4, -1, beams, 0))
        query_KAU = F.transpose(query_AKU, axes=(1, 0, 2))
        (query,), (key, value) = self.heads(F, query_KAU, 1), (F.reshape(array, shape=(-3, 0, 0)) for array in memory)
        score = self.scores(F, query, key)
        context_KAU = self.weighted(F, score + self.padding(F, score, length_A), value)
        return F.expand_dims(F.reshape(F.transpose(context_KAU, axes=(1, 0, 2)), shape=(-3, 0)), axis=0)


class CausalAttention(Attention):
    """Multi-head attention of each token to itself and those before it, without the last projection: queries, keys and
    values (T, B, 3 * U) to (T, B, U).

    Our own operator makes no scores of tokens that lie ahead, and stores neither scores nor a mask. Without it the mask
    is made of positions in each layer.
    """

    def hybrid_forward(self, F: OperatorModule, qkv: Array) -> Array:
        if native_operators().path:
            return fused.attention(F, qkv, None, self._num_heads, self._rate, causal=True)
        query, key, value = self.heads(F, qkv)
        position_T = F.contrib.arange_like(qkv, axis=0)
        is_ahead_TT = F.broadcast_greater(F.reshape(position_T, shape=(1, -1)), F.reshape(position_T, shape=(-1, 1)))
        mask_1TT = F.BlockGrad(F.expand_dims(is_ahead_TT * PADDING_SCORE, axis=0))
        return self.weighted(F, F.broadcast_add(self.scores(F, query, key), mask_1TT), value)

    def step(self, F: OperatorModule, qkv_1RU: Array, memory: List[Array]) -> Tuple[Array, List[Array]]:
        """Computes the attention of the next token of each row, and appends its keys and values to those before.

        Args:
            qkv_1RU: (1, R, 3 * U).
            memory: keys and values of the tokens before, (R, N, T, D) each; empty if there are none.
        """
        if native_operators().path:
            context, *new_memory = fused.attention_step(F, qkv_1RU, memory, self._num_heads)
            return context, new_memory
        query, *new = self.heads(F, qkv_1RU)
        earlier = [F.reshape(array, shape=(-3, 0, 0)) for array in memory]
        key, value = (F.concat(*pair, dim=1) for pair in zip(earlier, new)) if memory else new
        context = F.batch_dot(F.softmax(self.scores(F, query, key), axis=-1), value)
        return self.joined(F, context), [self.by_row(F, key), self.by_row(F, value)]
