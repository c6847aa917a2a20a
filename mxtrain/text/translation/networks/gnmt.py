"""LSTMs with attention that translate, as Gluon blocks. Imports MXNet: the description imports this module when it
builds.

Each layer is a separate operator with dropout before it, because MXNet's multi-layer operator silently ignores dropout
between layers, and lengths, on a CPU. The backward layer reads sequences that `SequenceReverse` has reversed within
their lengths.

Attention asks with the first layer's output for the same token, not with the context of the token before as in the
paper, so that each layer is one operator over the whole target.

Legend: B batch, S tokens of the source, T tokens of the target, H hidden units, V vocabulary, R rows of a search.
Inside time comes first, (T, B, H).

Source: Wu et al., "Google's Neural Machine Translation System", https://arxiv.org/abs/1609.08144. Attention: Bahdanau
et al., https://arxiv.org/abs/1409.0473, and Luong et al., https://arxiv.org/abs/1508.04025.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, List, NamedTuple, Optional, Tuple

from mxtrain.engine.backend import gluon, mx, nd
from mxtrain.model.networks.bert import PADDING_SCORE
from mxtrain.model.networks.traced_step import StepNetwork, TracedStep, read
from mxtrain.text.networks.lstm import LstmLayer
from mxtrain.text.translation.networks.translation import TargetScores

if TYPE_CHECKING:
    from mxnet.ndarray import NDArray

    from mxtrain.types.annotations import Array, OperatorModule

nn = gluon.nn

EMBEDDING_RANGE, OUTPUT_RANGE = 1.0, 0.1
"""Embeddings are initialized uniformly from -1 to 1: with 0.1, activations are so small at first that attention learns
nothing for hundreds of steps."""


class GnmtSizes(NamedTuple):
    """The sizes of a network.

    Attributes:
        num_layers: number of layers of the encoder, and of the decoder.
        units: H, and the width of the embeddings.
        attention: "luong" or "bahdanau".
    """

    num_layers: int
    units: int
    attention: str
    dropout: float


class ZeroStateLSTM(gluon.HybridBlock):
    """An LSTM layer whose state is zeros before the first token: (T, B, I) to (T, B, H)."""

    begins_stage = True

    def __init__(self, width: int, units: int, **kwargs: Any):
        super().__init__(**kwargs)
        self._units = units
        with self.name_scope():
            self.cell = LstmLayer(width, units, 0.0, prefix="cell_")

    def hybrid_forward(self, F: OperatorModule, x_TBI: Array) -> Any:
        # The zeros are made of the input, because a symbol does not know the size of a batch.
        first_B1 = F.reshape(F.slice(x_TBI, begin=(0, None, 0), end=(1, None, 1)), shape=(-3, 0))
        zero_BH = F.BlockGrad(F.broadcast_axis(F.zeros_like(first_B1), axis=1, size=self._units))
        return self.cell(x_TBI, zero_BH, zero_BH)[0]


class SourceAttention(gluon.HybridBlock):
    """Attention of queries (B, T, H) to the encoded source: keys and values (B, S, H), without padding.

    Luong's scores are products of queries and keys with a learned scale, as in GluonNLP's `scaled_luong`. Bahdanau's
    are v * tanh(W query + key), which needs (B, T, S, H) numbers.
    """

    def __init__(self, sizes: GnmtSizes, **kwargs: Any):
        super().__init__(**kwargs)
        units = sizes.units
        self._is_luong = sizes.attention == "luong"
        with self.name_scope():
            if self._is_luong:
                self.scale = self.params.get("scale", shape=(1, 1, 1), init="ones")
            else:
                self.query = nn.Dense(units, flatten=False, in_units=units, prefix="query_")
                self.score = nn.Dense(1, use_bias=False, flatten=False, in_units=units, prefix="score_")

    def hybrid_forward(
        self, F: OperatorModule, query_BTH: Array, key_BSH: Array, value_BSH: Array, length_B: Array, scale: Any = None
    ) -> Array:
        score_BTS = self._score(F, query_BTH, key_BSH, scale)
        position_1S = F.reshape(F.contrib.arange_like(score_BTS, axis=2), shape=(1, -1))
        is_padding_BS = F.broadcast_greater_equal(position_1S, F.reshape(length_B, shape=(-1, 1)))
        padding_B1S = F.expand_dims(is_padding_BS * PADDING_SCORE, axis=1)
        padding_BTS = F.BlockGrad(F.broadcast_like(padding_B1S, score_BTS, lhs_axes=(1,), rhs_axes=(1,)))
        return F.batch_dot(F.softmax(score_BTS + padding_BTS, axis=-1), value_BSH)

    def _score(self, F: OperatorModule, query_BTH: Array, key_BSH: Array, scale: Any) -> Any:
        if self._is_luong:
            return F.broadcast_mul(F.batch_dot(query_BTH, key_BSH, transpose_b=True), scale)
        query_BT1H = F.expand_dims(self.query(query_BTH), axis=2)
        sum_BTSH = F.broadcast_add(query_BT1H, F.expand_dims(key_BSH, axis=1))
        return F.reshape(self.score(F.tanh(sum_BTSH)), shape=(0, 0, 0))


class GnmtNetwork(StepNetwork, gluon.HybridBlock):
    """Encoder-decoder LSTM with attention.

    Inputs are source tokens (B, S), their lengths (B,), target tokens (B, T), and the next target tokens (B, T), -1 for
    padding. Outputs are -log p of each next token, and the mean of -log p over the vocabulary (for label smoothing),
    (B, T) each.

    The first layer of the encoder is bidirectional. From the third layer on, encoder and decoder have residual
    connections. The output of the first decoder layer is the query of the attention; all other decoder layers read the
    context in addition to their input. So all tokens of a target are computed at once in training.

    Args:
        source_size: size of the source vocabulary.
        target_size: size of the target vocabulary.
        sizes: sizes of the layers.
        tied: see `TransformerNetwork`.
        chunks: number of chunks of the output layer, see `TargetScores`.
    """

    def __init__(self, source_size: int, target_size: int, sizes: GnmtSizes, tied: str, chunks: int, **kwargs: Any):
        super().__init__(**kwargs)
        self._sizes, self._tied, self._sizes_V = sizes, tied, (source_size, target_size)
        units = sizes.units
        with self.name_scope():
            # With tied="all" there is only the first table.
            tables = [
                ("source_table", source_size, EMBEDDING_RANGE),
                ("target_table", target_size, EMBEDDING_RANGE),
                ("output_table", target_size, OUTPUT_RANGE),
            ]
            for name, size, scale in tables[: {"all": 1, "target": 2, "none": 3}[tied]]:
                setattr(self, name, self.params.get(name, shape=(size, units), init=mx.init.Uniform(scale)))
            self.dropout = nn.Dropout(sizes.dropout)
            self.backward_layer = ZeroStateLSTM(units, units, prefix="backward_")
            self.encoder, self.decoder = nn.HybridSequential(prefix="encoder_"), nn.HybridSequential(prefix="decoder_")
            for number in range(sizes.num_layers):
                self.encoder.add(ZeroStateLSTM(2 * units if number == 1 else units, units, prefix=f"encoder{number}_"))
                # Layers above the first read the context of the same token. In the paper the first reads that of the
                # step before, which would make a step depend on another one outside of the fused LSTM.
                self.decoder.add(ZeroStateLSTM(2 * units if number else units, units, prefix=f"decoder{number}_"))
            self.keys = nn.Dense(units, use_bias=False, flatten=False, in_units=units, prefix="keys_")
            self.attention = SourceAttention(sizes, prefix="attention_")
            self.output = TargetScores(target_size, chunks, has_bias=True, prefix="output_")
        self._step = TracedStep(self, self.trace_step)

    def hybrid_forward(
        self,
        F: OperatorModule,
        source_BS: Array,
        length_B: Array,
        token_BT: Array,
        label_BT: Array,
        source_table: Any,
        target_table: Optional[Array] = None,
        output_table: Optional[Array] = None,
    ) -> Array:
        # One operator reads each parameter, so that stages may be cut between this and a tied output layer.
        source_table = F.identity(source_table)
        key_BSH, value_BSH = self._encode(F, source_BS, length_B, source_table)
        target_table = source_table if target_table is None else F.identity(target_table)
        y_TBH = self.decoder[0](self.dropout(self._embed(F, token_BT, target_table, 1)))
        context_BTH = self.attention(F.transpose(y_TBH, axes=(1, 0, 2)), key_BSH, value_BSH, length_B)
        context_TBH = self.dropout(F.transpose(context_BTH, axes=(1, 0, 2)))
        for number in range(1, self._sizes.num_layers):
            layer_output = self.decoder[number](F.concat(self.dropout(y_TBH), context_TBH, dim=2))
            y_TBH = layer_output if number < 2 else layer_output + y_TBH
        return self.output(self.dropout(y_TBH), label_BT, target_table if output_table is None else output_table)

    def _embed(self, F: OperatorModule, token_BT: Array, table: Any, which: Any) -> Any:
        return F.Embedding(F.transpose(token_BT), table, self._sizes_V[which], self._sizes.units)

    def _encode(self, F: OperatorModule, source_BS: Array, length_B: Array, source_table: Any) -> Any:
        """Returns keys and values of the source, (B, S, H) each. Padding does not influence them."""
        x_SBH = self.dropout(self._embed(F, source_BS, source_table, 0))
        # MXNet's LSTM ignores lengths on a CPU without a word: read backwards, it would begin with padding.
        reversed_SBH = F.SequenceReverse(x_SBH, length_B, use_sequence_length=True)
        backward = F.SequenceReverse(self.backward_layer(reversed_SBH), length_B, use_sequence_length=True)
        x_SBH = F.concat(self.encoder[0](x_SBH), backward, dim=2)
        for number in range(1, self._sizes.num_layers):
            layer_output = self.encoder[number](self.dropout(x_SBH))
            x_SBH = layer_output if number < 2 else layer_output + x_SBH
        value_BSH = F.transpose(x_SBH, axes=(1, 0, 2))
        return self.keys(value_BSH), value_BSH

    # One token after the other.

    def initial_state(self, *inputs: NDArray) -> Tuple[List[NDArray], List[NDArray]]:
        """See `StepDecoder`: constants are keys, values and lengths of the source; the state is state and cell of each
        layer."""
        source_BS, length_B = inputs[:2]
        shape = (len(source_BS), self._sizes.units)
        moving = [nd.zeros(shape, ctx=source_BS.context) for _ in range(2 * self._sizes.num_layers)]
        return self.trace_start(nd, source_BS, length_B), moving

    def trace_start(self, F: OperatorModule, source_BS: Array, length_B: Array) -> Any:
        """See `StepNetwork`."""
        return [*self._encode(F, source_BS, length_B, read(F, self.source_table, source_BS)), length_B]

    def step(
        self, token_R: NDArray, position: int, fixed: List[NDArray], moving: List[NDArray]
    ) -> Tuple[NDArray, List[NDArray]]:
        """See `StepDecoder`."""
        return self._step(token_R, nd.full((1,), position, ctx=token_R.context), fixed, moving)

    def trace_step(
        self, F: OperatorModule, token_R: Array, position_1: Array, fixed: Any, moving: Any, beams: Any
    ) -> Any:
        """See `StepNetwork`."""
        tables = [
            read(F, table, token_R)
            for table in (getattr(self, f"{name}_table", None) for name in ("source", "target", "output"))
            if table is not None
        ]
        table = tables[0] if self._tied == "all" else tables[1]
        x_1RH = self._embed(F, F.reshape(token_R, shape=(-1, 1)), table, 1)
        y_1RH, *after = self.decoder[0].cell(x_1RH, *moving[:2])
        # The beams of a sentence share its keys and values, so they take the time axis of the queries.
        query_AKH = F.reshape(F.reshape(y_1RH, shape=(-3, 0)), shape=(-4, -1, beams, 0))
        context_1RH = F.expand_dims(F.reshape(self.attention(query_AKH, *fixed), shape=(-3, 0)), axis=0)
        for number in range(1, self._sizes.num_layers):
            states = slice(2 * number, 2 * number + 2)
            layer_output, *layer_state = self.decoder[number].cell(F.concat(y_1RH, context_1RH, dim=2), *moving[states])
            y_1RH = layer_output if number < 2 else layer_output + y_1RH
            after += layer_state
        return F.log_softmax(self.output.scores(F, F.reshape(y_1RH, shape=(-3, 0)), tables[-1])), after
