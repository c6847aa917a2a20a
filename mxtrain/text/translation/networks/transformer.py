"""Encoder-decoder Transformer as Gluon blocks. Imports MXNet, so descriptions import this module only when they build.

Legend: B batch, S tokens of the source, T tokens of the target, U units, N heads, D units of a head, V vocabulary, R
rows of a beam search, A sentences of a beam search. Inside the network the time axis comes first, (T, B, U).

Sources: Vaswani et al., "Attention Is All You Need", https://arxiv.org/abs/1706.03762; pre-norm: Xiong et al.,
https://arxiv.org/abs/2002.04745.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

import numpy as np

from mxtrain.engine.backend import gluon, mx, nd
from mxtrain.model.networks.attention import CausalAttention, CrossAttention, PaddedAttention
from mxtrain.model.networks.bert import DropoutSum, Embed, LayerNorm
from mxtrain.model.networks.traced_step import StepNetwork, TracedStep, read
from mxtrain.text.translation.networks.gluonnlp_arrays import arrays_of_gluonnlp
from mxtrain.text.translation.networks.translation import TargetScores

if TYPE_CHECKING:
    from mxnet import Context
    from mxnet.ndarray import NDArray

    from mxtrain.types.annotations import Array, OperatorModule

nn = gluon.nn

EPSILON = 1e-6
"""The epsilon of layer norms, as in the authors' code."""
GLUONNLP_EPSILON = 1e-5
"""The epsilon of GluonNLP's layer norms."""
MAX_WAVELENGTH = 10000.0


class TransformerSizes(NamedTuple):
    """Sizes of a network.

    Attributes:
        num_layers: number of layers of the encoder, and of the decoder.
        units: U.
        hidden_size: hidden units of the feed-forward part.
        num_heads: N.
        dropout: dropout probability of embeddings and of the output of each part.
        norm_first: True for layer norms before each part (pre-norm), False after its sum (post-norm).
        is_gluonnlp: True for the details of GluonNLP's networks, see `TransformerNetwork`.
    """

    num_layers: int
    units: int
    hidden_size: int
    num_heads: int
    dropout: float
    norm_first: bool
    is_gluonnlp: bool = False

    @property
    def epsilon(self) -> float:
        """Returns the epsilon of layer norms."""
        return GLUONNLP_EPSILON if self.is_gluonnlp else EPSILON


class TransformerLayer(gluon.HybridBlock):
    """Base class of layers. Each part has a residual connection and a layer norm, before (pre-norm) or after it."""

    begins_stage = True

    def __init__(self, sizes: TransformerSizes, parts: Tuple[str, ...], **kwargs: Any):
        super().__init__(**kwargs)
        self._sizes = sizes
        units, hidden_size = sizes.units, sizes.hidden_size
        with self.name_scope():
            for part in parts:
                norm_dropout = 0.0 if sizes.norm_first else sizes.dropout
                norm = LayerNorm(units, norm_dropout, sizes.epsilon, prefix=f"{part}_norm_")
                setattr(self, f"{part}_norm", norm)
                if part != "ffn":
                    projection = nn.Dense(units, flatten=False, in_units=units, prefix=f"{part}_projection_")
                    setattr(self, f"{part}_projection", projection)
            self.ffn_1 = nn.Dense(hidden_size, activation="relu", flatten=False, in_units=units, prefix="ffn_1_")
            self.ffn_2 = nn.Dense(units, flatten=False, in_units=hidden_size, prefix="ffn_2_")
            self.residual_sum = DropoutSum(sizes.dropout)

    def enter(self, F: OperatorModule, part: str, x: Array) -> Array:
        """Returns the input of a part: normalised for pre-norm, otherwise `x`."""
        # The identity is needed because our own norm operator overwrites other gradients of its input, see `fused`.
        return getattr(self, f"{part}_norm")(F.identity(x)) if self._sizes.norm_first else x

    def leave(self, part: str, x: Array, output: Array) -> Array:
        """Returns the residual sum of a part's input and output."""
        if self._sizes.norm_first:
            return self.residual_sum(output, x)
        return getattr(self, f"{part}_norm")(output, x)

    def feed_forward(self, F: OperatorModule, x: Array) -> Array:
        """Applies the feed-forward part: two dense layers with ReLU, residual and layer norm."""
        return self.leave("ffn", x, self.ffn_2(self.ffn_1(self.enter(F, "ffn", x))))


class TransformerEncoderLayer(TransformerLayer):
    """Self-attention and feed-forward: (S, B, U) and lengths (B,) to (S, B, U)."""

    def __init__(self, sizes: TransformerSizes, **kwargs: Any):
        super().__init__(sizes, ("self", "ffn"), **kwargs)
        with self.name_scope():
            self.qkv = nn.Dense(3 * sizes.units, flatten=False, in_units=sizes.units)
            self.attention = PaddedAttention(sizes.num_heads, 0.0)

    def hybrid_forward(self, F: OperatorModule, x_SBU: Array, length_B: Array) -> Array:
        context = self.attention(self.qkv(self.enter(F, "self", x_SBU)), length_B)
        return self.feed_forward(F, self.leave("self", x_SBU, self.self_projection(context)))


class TransformerDecoderLayer(TransformerLayer):
    """Causal self-attention, cross-attention and feed-forward.

    Inputs are (T, B, U), the encoded source (S, B, U) and its lengths (B,); the output is (T, B, U).
    """

    def __init__(self, sizes: TransformerSizes, **kwargs: Any):
        super().__init__(sizes, ("self", "cross", "ffn"), **kwargs)
        units = sizes.units
        with self.name_scope():
            self.qkv = nn.Dense(3 * units, flatten=False, in_units=units)
            self.attention = CausalAttention(sizes.num_heads, 0.0)
            self.query = nn.Dense(units, flatten=False, in_units=units)
            self.key_value = nn.Dense(2 * units, flatten=False, in_units=units)
            self.cross_attention = CrossAttention(sizes.num_heads, 0.0)

    def hybrid_forward(self, F: OperatorModule, x_TBU: Array, source_SBU: Array, length_B: Array) -> Array:
        context = self.attention(self.qkv(self.enter(F, "self", x_TBU)))
        x_TBU = self.leave("self", x_TBU, self.self_projection(context))
        query = self.query(self.enter(F, "cross", x_TBU))
        context = self.cross_attention(query, self.key_value(source_SBU), length_B)
        return self.feed_forward(F, self.leave("cross", x_TBU, self.cross_projection(context)))

    # One token after the other.

    def initial_state(self, F: OperatorModule, source_SBU: Array) -> List[Any]:
        """Returns keys and values of the source for cross-attention, (B, N, S, D) each."""
        attention = self.cross_attention
        return [attention.by_row(F, array) for array in attention.heads(F, self.key_value(source_SBU), 2)]

    def step(
        self, F: OperatorModule, x_1RU: Array, length_A: Array, source: List[Array], before: List[Array], beams: int
    ) -> Tuple[Array, List[Array]]:
        """Computes the layer for one more token.

        Args:
            x_1RU: input of each row.
            length_A: length of the source of each sentence.
            source: result of `initial_state`.
            before: keys and values of previous tokens, (R, N, T, D); empty for the first token.
            beams: R / A.

        Returns:
            The output (1, R, U), and keys and values including this token.
        """
        context, after = self.attention.step(F, self.qkv(self.enter(F, "self", x_1RU)), before)
        x_1RU = self.leave("self", x_1RU, self.self_projection(context))
        query = self.query(self.enter(F, "cross", x_1RU))
        context = self.cross_attention.step(F, query, source, length_A, beams)
        return self.feed_forward(F, self.leave("cross", x_1RU, self.cross_projection(context))), after


class TransformerNetwork(StepNetwork, gluon.HybridBlock):
    """Encoder-decoder Transformer.

    Inputs are source tokens (B, S), their lengths (B,), target tokens (B, T), and the next target tokens (B, T), -1 for
    padding. Outputs are -log p of each next token, and the mean of -log p over the vocabulary (for label smoothing),
    (B, T) each.

    GluonNLP's networks differ in four details: a layer norm of the embedded texts, other wavelengths of the sinusoids,
    a bias for each token of the output, and the epsilon of layer norms. Their `.params` files are then converted.

    Args:
        source_size: size of the source vocabulary.
        target_size: size of the target vocabulary.
        sizes: sizes of the layers.
        tied: tables that share weights: "all" (source, target and output), "target" (target and output), or "none".
        chunks: number of chunks of the output layer, see `TargetScores`.
    """

    def __init__(
        self, source_size: int, target_size: int, sizes: TransformerSizes, tied: str, chunks: int, **kwargs: Any
    ):
        super().__init__(**kwargs)
        units, std = sizes.units, sizes.units**-0.5
        self._sizes, self._tied, self._target_size = sizes, tied, target_size
        with self.name_scope():
            self.embedding = Embed(source_size, units, tied == "all", std, prefix="embedding_")
            if tied != "all":
                self.target_embedding = Embed(target_size, units, tied == "target", std, prefix="target_embedding_")
            self.dropout = nn.Dropout(sizes.dropout)
            self.encoder, self.decoder = nn.HybridSequential(prefix="encoder_"), nn.HybridSequential(prefix="decoder_")
            for number in range(sizes.num_layers):
                self.encoder.add(TransformerEncoderLayer(sizes, prefix=f"encoder{number}_"))
                self.decoder.add(TransformerDecoderLayer(sizes, prefix=f"decoder{number}_"))
            if sizes.norm_first:
                self.encoder_norm = LayerNorm(units, epsilon=sizes.epsilon, prefix="encoder_norm_")
                self.decoder_norm = LayerNorm(units, epsilon=sizes.epsilon, prefix="decoder_norm_")
            if sizes.is_gluonnlp:
                self.encoder_input_norm = LayerNorm(units, epsilon=sizes.epsilon, prefix="encoder_input_norm_")
                self.decoder_input_norm = LayerNorm(units, epsilon=sizes.epsilon, prefix="decoder_input_norm_")
            if tied == "none":
                self.table = self.params.get("table", shape=(target_size, units), init=mx.init.Normal(std))
            self.output = TargetScores(target_size, chunks, has_bias=sizes.is_gluonnlp, prefix="output_")
        self._step = TracedStep(self, self.trace_step)
        self._sinusoids: Dict[Tuple[int, Context], NDArray] = {}

    def convert_arrays(self, arrays: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """Returns the arrays of GluonNLP's file under the names of this network; others as they are."""
        return arrays_of_gluonnlp(arrays) if self._sizes.is_gluonnlp else arrays

    def hybrid_forward(
        self, F: OperatorModule, source_BS: Array, length_B: Array, token_BT: Array, label_BT: Array, table: Any = None
    ) -> Array:
        x_SBU, table_VU = self._encode(F, source_BS, length_B)
        y_TBU, table_VU = self._embed_target(F, token_BT, table_VU)
        y_TBU = self.dropout(self._positioned(F, y_TBU))
        y_TBU = self.decoder_input_norm(y_TBU) if self._sizes.is_gluonnlp else y_TBU
        for layer in self.decoder:
            y_TBU = layer(y_TBU, x_SBU, length_B)
        y_TBU = self.decoder_norm(y_TBU) if self._sizes.norm_first else y_TBU
        return self.output(y_TBU, label_BT, table_VU if table is None else table)

    def _encode(self, F: OperatorModule, source_BS: Array, length_B: Array) -> Any:
        """Returns the encoded source (S, B, U), and the embedding table if all tables are tied, otherwise None."""
        x_SBU, table_VU = self.embedding(F.transpose(source_BS)), None
        if self._tied == "all":
            x_SBU, table_VU = x_SBU
        x_SBU = self.dropout(self._positioned(F, x_SBU))
        x_SBU = self.encoder_input_norm(x_SBU) if self._sizes.is_gluonnlp else x_SBU
        for layer in self.encoder:
            x_SBU = layer(x_SBU, length_B)
        return self.encoder_norm(x_SBU) if self._sizes.norm_first else x_SBU, table_VU

    def _embed_target(self, F: OperatorModule, token_BT: Array, table_VU: Optional[Array]) -> Any:
        """Returns the embedded target (T, B, U), and the table of the output layer if it is tied, otherwise None."""
        token_TB = F.transpose(token_BT)
        if self._tied == "all":
            # The table arrives as a tensor: a pipeline cannot be cut between two stages that read one parameter.
            return F.Embedding(token_TB, table_VU, self._target_size, self._sizes.units), table_VU
        embedded = self.target_embedding(token_TB)
        return embedded if self._tied == "target" else (embedded, None)

    def _positioned(self, F: OperatorModule, x_TBU: Array) -> Any:
        """Multiplies embeddings by sqrt(U) and adds sinusoidal positions."""
        units = self._sizes.units
        position_T1 = F.reshape(F.contrib.arange_like(x_TBU, axis=0), shape=(-1, 1))
        number_U = F.contrib.arange_like(x_TBU, axis=2)
        is_odd_U = number_U - 2 * F.floor(number_U / 2)
        exponent_U = 2 * number_U if self._sizes.is_gluonnlp else number_U - is_odd_U
        wave_1U = F.reshape(F.exp(exponent_U * (-math.log(MAX_WAVELENGTH) / units)), shape=(1, -1))
        angle_TU = F.broadcast_mul(position_T1, wave_1U)
        is_odd_1U = F.reshape(is_odd_U, shape=(1, -1))
        sinusoid_TU = F.broadcast_mul(F.sin(angle_TU), 1 - is_odd_1U) + F.broadcast_mul(F.cos(angle_TU), is_odd_1U)
        # Expanded to the size of the batch, because the gradient of a broadcast addition is a slow reduction.
        sinusoid_TBU = F.broadcast_like(F.expand_dims(sinusoid_TU, axis=1), x_TBU, lhs_axes=(1,), rhs_axes=(1,))
        # The sinusoids have no parameters, so their gradient is not needed.
        return x_TBU * units**0.5 + F.BlockGrad(sinusoid_TBU)

    # Step-by-step decoding.

    def initial_state(self, *inputs: NDArray) -> Tuple[List[NDArray], List[NDArray]]:
        """See `StepDecoder`. Fixed are the source's lengths, and its keys and values in each layer; the moving state
        is keys and values of the target, initially none."""
        return self.trace_start(nd, *inputs[:2]), []

    def trace_start(self, F: OperatorModule, source_BS: Array, length_B: Array) -> Any:
        """See `StepNetwork`."""
        x_SBU, _ = self._encode(F, source_BS, length_B)
        return [length_B, *(array for layer in self.decoder for array in layer.initial_state(F, x_SBU))]

    def step(
        self, token_R: NDArray, position: int, fixed: List[NDArray], moving: List[NDArray]
    ) -> Tuple[NDArray, List[NDArray]]:
        """See `StepDecoder`."""
        key = (position, token_R.context)
        if key not in self._sinusoids:  # cached, because copying to the device waits for all pending operations
            values_11U = sinusoid(position, self._sizes)[None, None]
            self._sinusoids[key] = nd.array(values_11U, ctx=token_R.context, dtype="float32")
        return self._step(token_R, self._sinusoids[key], fixed, moving)

    def trace_position(self, F: OperatorModule, position_1: Array, num_positions: Any, constants: Any) -> Any:
        """See `StepNetwork`. Looks up the position's sinusoid in a table, (1, 1, U)."""
        units = self._sizes.units
        sinusoids = [sinusoid(position, self._sizes) for position in range(num_positions)]
        constants["sinusoids"] = np.stack(sinusoids).astype(np.float32)
        return F.reshape(F.take(F.var("sinusoids"), position_1), shape=(1, 1, units))

    def trace_step(
        self, F: OperatorModule, token_R: Array, sinusoid_11U: Array, fixed: Any, moving: Any, beams: Any
    ) -> Any:
        """See `StepNetwork`."""
        table_VU = read(F, self.embedding.weight, token_R) if self._tied == "all" else None
        y_1RU, table_VU = self._embed_target(F, F.reshape(token_R, shape=(-1, 1)), table_VU)
        y_1RU = F.broadcast_add(y_1RU * self._sizes.units**0.5, sinusoid_11U)
        y_1RU = self.decoder_input_norm(y_1RU) if self._sizes.is_gluonnlp else y_1RU
        (length_A, *sources), after = fixed, []
        for number, layer in enumerate(self.decoder):
            arrays = slice(2 * number, 2 * number + 2)
            y_1RU, layer_memory = layer.step(F, y_1RU, length_A, sources[arrays], moving[arrays], beams)
            after += layer_memory
        y_1RU = self.decoder_norm(y_1RU) if self._sizes.norm_first else y_1RU
        table_VU = read(F, self.table, token_R) if self._tied == "none" else table_VU
        return F.log_softmax(self.output.scores(F, F.reshape(y_1RU, shape=(-3, 0)), table_VU)), after


def sinusoid(position: int, sizes: TransformerSizes) -> np.ndarray:
    """Returns the sinusoidal position encoding of a position, (units,)."""
    number_U = np.arange(sizes.units)
    exponent_U = 2 * number_U if sizes.is_gluonnlp else number_U - number_U % 2
    angle_U = position * np.exp(exponent_U * (-math.log(MAX_WAVELENGTH) / sizes.units))
    return np.where(number_U % 2, np.cos(angle_U), np.sin(angle_U))
