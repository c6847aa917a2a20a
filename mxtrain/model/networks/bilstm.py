"""Bidirectional LSTMs that score each token or a whole text. Imports MXNet: the description imports this module when it
builds.

On CPU, MXNet's fused recurrent operator silently ignores lengths and the dropout between its layers, and has wrong
gradients for several layers in float64. So each operator is one layer in one direction, followed by `Dropout`, and the
backward direction reads texts that `SequenceReverse` has reversed within their lengths.

Legend: B batch, T tokens, I width of what enters a layer, U units of a direction, K classes. Time is first: (T, B, U).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mxtrain.engine.backend import gluon, mx
from mxtrain.model.networks.lstm_layer import add_lstm_parameters

if TYPE_CHECKING:
    from mxtrain.types.annotations import Array, OperatorModule

nn = gluon.nn
NUM_TOKEN_TYPES = 3


class OneWayLSTM(gluon.HybridBlock):
    """One layer in one direction: (T, B, I) to (T, B, U), from a state of zeros. Gates are in MXNet's order."""

    def __init__(self, width: int, units: int, **kwargs: Any):
        super().__init__(**kwargs)
        self._units = units
        with self.name_scope():
            add_lstm_parameters(self, width, units)

    def hybrid_forward(
        self, F: OperatorModule, x_TBI: Array, i2h_weight: Array, h2h_weight: Array, i2h_bias: Array, h2h_bias: Array
    ) -> Array:
        flat = F.concat(
            F.reshape(i2h_weight, shape=(-1,)), F.reshape(h2h_weight, shape=(-1,)), i2h_bias, h2h_bias, dim=0
        )
        x_1B1 = F.slice_axis(F.slice_axis(x_TBI, axis=0, begin=0, end=1), axis=2, begin=0, end=1)
        zero_1BU = F.BlockGrad(F.broadcast_axis(F.zeros_like(x_1B1), axis=2, size=self._units))
        return F.RNN(x_TBI, flat, zero_1BU, zero_1BU, state_size=self._units, num_layers=1, mode="lstm")


class BiLSTMLayer(gluon.HybridBlock):
    """Both directions: (T, B, I) and lengths (B,) to (T, B, 2 U)."""

    begins_stage = True

    def __init__(self, width: int, units: int, **kwargs: Any):
        super().__init__(**kwargs)
        with self.name_scope():
            self.forward_lstm = OneWayLSTM(width, units, prefix="forward_")
            self.backward_lstm = OneWayLSTM(width, units, prefix="backward_")

    def hybrid_forward(self, F: OperatorModule, x_TBI: Array, length_B: Array) -> Array:
        # Padding stays behind the text, so the backward direction begins with the last token and not with padding.
        turned_TBI = F.SequenceReverse(x_TBI, length_B, use_sequence_length=True)
        backward_TBU = F.SequenceReverse(self.backward_lstm(turned_TBI), length_B, use_sequence_length=True)
        return F.concat(self.forward_lstm(x_TBI), backward_TBU, dim=2)


class BiLSTMTagger(gluon.HybridBlock):
    """Tokens, token types (B, T) and lengths (B,) to scores of each token, (B, T, K).

    Args:
        num_classes: K.
        vocab_size: tokens are from 0 to this.
        embed_size: width of the embedding of a token.
        units: of each direction.
        num_layers: of both directions.
        dropout: of what enters each layer, and the last one.
    """

    def __init__(
        self,
        num_classes: int,
        vocab_size: int,
        embed_size: int,
        units: int,
        num_layers: int,
        dropout: float,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        with self.name_scope():
            self.word_embed = nn.Embedding(vocab_size, embed_size, weight_initializer=mx.init.Normal(0.1))
            self.token_type_embed = nn.Embedding(NUM_TOKEN_TYPES, embed_size, weight_initializer=mx.init.Normal(0.1))
            self.layers = nn.HybridSequential(prefix="")
            self.dropouts = nn.HybridSequential(prefix="")
            for number in range(num_layers):
                width = 2 * units if number else embed_size
                self.layers.add(BiLSTMLayer(width, units, prefix=f"layer{number}_"))
                self.dropouts.add(nn.Dropout(dropout))
            self.last_dropout = nn.Dropout(dropout)
            self.output = nn.Dense(num_classes, flatten=False, in_units=2 * units)

    def hybrid_forward(self, F: OperatorModule, tokens_BT: Array, types_BT: Array, length_B: Array) -> Array:
        x_TBU = self.encode(F, tokens_BT, types_BT, length_B)
        return self.output(F.transpose(self.last_dropout(x_TBU), axes=(1, 0, 2)))

    def encode(self, F: OperatorModule, tokens_BT: Array, types_BT: Array, length_B: Array) -> Array:
        """Returns the states of the last layer, (T, B, 2 U)."""
        x_BTU = self.word_embed(tokens_BT) + self.token_type_embed(types_BT)
        x_TBU = F.transpose(x_BTU, axes=(1, 0, 2))
        for layer, dropout in zip(self.layers, self.dropouts):
            x_TBU = layer(dropout(x_TBU), length_B)
        return x_TBU


class BiLSTMClassifier(BiLSTMTagger):
    """Tokens, token types (B, T) and lengths (B,) to scores of each text, (B, K): of the maximum of the states over the
    tokens.

    Source: Conneau et al., "Supervised Learning of Universal Sentence Representations from Natural Language Inference
    Data", https://arxiv.org/abs/1705.02364, section 3.2.2.
    """

    def hybrid_forward(self, F: OperatorModule, tokens_BT: Array, types_BT: Array, length_B: Array) -> Array:
        x_TBU = self.encode(F, tokens_BT, types_BT, length_B)
        # States of an LSTM are between -1 and 1, so padding never has the maximum.
        masked_TBU = F.SequenceMask(x_TBU, length_B, use_sequence_length=True, value=-2)
        return self.output(self.last_dropout(F.max(masked_TBU, axis=0)))
