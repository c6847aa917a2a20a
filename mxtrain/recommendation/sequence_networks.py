"""Networks of the items of a user in order. Imports MXNet.

Inputs are histories (B, H) int32, padded at the end, and their lengths (B,); the output is the score of each item as
the next one, (B, I). Padding has no influence: no layer looks ahead, and only the output at the last item is read.

Legend: B batch, H items of a history, U units, I all items, W units of a recurrent layer. Time comes first: (H, B, U).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from mxtrain.engine.backend import gluon
from mxtrain.model.networks.attention import CausalAttention
from mxtrain.model.networks.bert import EPSILON, Embed, FeedForward, LayerNorm, normal

if TYPE_CHECKING:
    from mxtrain.types.annotations import Array, OperatorModule

nn = gluon.nn


class AttentionSizes(NamedTuple):
    """Sizes of `SASRecNetwork`; see `SASRec`."""

    num_layers: int
    units: int
    hidden_size: int
    num_heads: int
    max_length: int
    dropout: float


class ItemScores(gluon.HybridBlock):
    """Outputs (H, B, U), lengths (B,) and item embeddings (I, U) to the scores of all items (B, I)."""

    begins_stage = True

    def __init__(self, num_items: int, **kwargs: Any):
        super().__init__(**kwargs)
        self._num_items = num_items

    def hybrid_forward(self, F: OperatorModule, x_HBU: Array, length_B: Array, table_IU: Array) -> Array:
        last_BU = F.SequenceLast(x_HBU, length_B, use_sequence_length=True)
        return F.FullyConnected(last_BU, table_IU, no_bias=True, num_hidden=self._num_items, flatten=False)


class CausalLayer(gluon.HybridBlock):
    """Transformer layer with layer norm after each residual connection; each item attends to itself and those before
    it: (H, B, U) to (H, B, U)."""

    begins_stage = True

    def __init__(self, sizes: AttentionSizes, **kwargs: Any):
        super().__init__(**kwargs)
        units, dropout = sizes.units, sizes.dropout
        with self.name_scope():
            self.qkv = nn.Dense(3 * units, flatten=False, in_units=units, weight_initializer=normal())
            self.attention = CausalAttention(sizes.num_heads, dropout)
            self.projection = nn.Dense(units, flatten=False, in_units=units, weight_initializer=normal())
            self.norm = LayerNorm(units, dropout, prefix="norm_")
            self.ffn = FeedForward(units, sizes.hidden_size, dropout, EPSILON, prefix="ffn_")

    def hybrid_forward(self, F: OperatorModule, x_HBU: Array) -> Array:
        return self.ffn(self.norm(self.projection(self.attention(self.qkv(x_HBU))), x_HBU))


class SASRecNetwork(gluon.HybridBlock):
    """See `SASRec`.

    Args:
        num_items: I.
        sizes: sizes of the layers.
    """

    def __init__(self, num_items: int, sizes: AttentionSizes, **kwargs: Any):
        super().__init__(**kwargs)
        with self.name_scope():
            self.items = Embed(num_items, sizes.units, is_shared=True, prefix="items_")
            self.positions = Embed(sizes.max_length, sizes.units, prefix="positions_")
            self.norm = LayerNorm(sizes.units, prefix="norm_")
            self.dropout = nn.Dropout(sizes.dropout)
            self.layers = nn.HybridSequential(prefix="")
            for number in range(sizes.num_layers):
                self.layers.add(CausalLayer(sizes, prefix=f"layer{number}_"))
            self.output = ItemScores(num_items)

    def hybrid_forward(self, F: OperatorModule, item_BH: Array, length_B: Array) -> Array:
        x_HBU, table_IU = self.items(F.transpose(item_BH))
        position_H1 = F.expand_dims(F.contrib.arange_like(x_HBU, axis=0), axis=1)
        # Looked up for each row, because the gradient of a broadcast addition is a slow reduction.
        position_HB = F.broadcast_like(position_H1, x_HBU, lhs_axes=(1,), rhs_axes=(1,))
        x_HBU = self.dropout(self.norm(x_HBU + self.positions(position_HB)))
        for layer in self.layers:
            x_HBU = layer(x_HBU)
        return self.output(x_HBU, length_B, table_IU)


class GRULayer(gluon.HybridBlock):
    """A GRU layer from a state of zeros: (H, B, I) to (H, B, W)."""

    begins_stage = True

    def __init__(self, width: int, units: int, **kwargs: Any):
        super().__init__(**kwargs)
        self._units = units
        with self.name_scope():
            self.i2h_weight = self.params.get("i2h_weight", shape=(3 * units, width))
            self.h2h_weight = self.params.get("h2h_weight", shape=(3 * units, units))
            self.i2h_bias = self.params.get("i2h_bias", shape=(3 * units,), init="zeros")
            self.h2h_bias = self.params.get("h2h_bias", shape=(3 * units,), init="zeros")

    def hybrid_forward(
        self, F: OperatorModule, x_HBI: Array, i2h_weight: Array, h2h_weight: Array, i2h_bias: Array, h2h_bias: Array
    ) -> Array:
        flat = [F.reshape(parameter, shape=(-1,)) for parameter in (i2h_weight, h2h_weight, i2h_bias, h2h_bias)]
        zero_1B1 = F.zeros_like(F.slice(x_HBI, begin=(0, None, 0), end=(1, None, 1)))
        state_1BW = F.repeat(zero_1B1, repeats=self._units, axis=2)
        # One layer per operator: on a CPU, MXNet's float64 gradients of several layers are wrong.
        return F.RNN(x_HBI, F.concat(*flat, dim=0), state_1BW, state_size=self._units, num_layers=1, mode="gru")


class GRU4RecNetwork(gluon.HybridBlock):
    """See `GRU4Rec`.

    Args:
        num_items: I.
        units: U.
        hidden_size: W.
        num_layers: number of GRU layers.
        dropout: dropout probability of the embeddings.
    """

    def __init__(self, num_items: int, units: int, hidden_size: int, num_layers: int, dropout: float, **kwargs: Any):
        super().__init__(**kwargs)
        with self.name_scope():
            self.items = Embed(num_items, units, is_shared=True, prefix="items_")
            self.dropout = nn.Dropout(dropout)
            self.layers = nn.HybridSequential(prefix="")
            for number in range(num_layers):
                self.layers.add(GRULayer(hidden_size if number else units, hidden_size, prefix=f"layer{number}_"))
            self.dense = nn.Dense(units, flatten=False, in_units=hidden_size)
            self.output = ItemScores(num_items)

    def hybrid_forward(self, F: OperatorModule, item_BH: Array, length_B: Array) -> Array:
        x_HBU, table_IU = self.items(F.transpose(item_BH))
        x_HBW = self.dropout(x_HBU)
        for layer in self.layers:
            x_HBW = layer(x_HBW)
        return self.output(self.dense(x_HBW), length_B, table_IU)
