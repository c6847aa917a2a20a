"""BERT as Gluon blocks. This module imports MXNet, so descriptions import it only when they build the network.

Structural parameter names equal those of GluonNLP 0.10 (`encoder.transformer_cells.0.proj.weight`), so `.params` files
can be exchanged in both directions. Inside the encoder the time axis comes first, (T, B, U).

The embedding table reaches the output layer as a tensor, because a pipeline cannot be cut between two stages that read
the same parameter; see `Embed`.

Legend: B batch, T tokens, U units, N heads, M masked positions, V vocabulary, K classes, R rows (T * B), H = B * N.

Source: Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers", https://arxiv.org/abs/1810.04805.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, Dict, Mapping, NamedTuple, Optional, Tuple

from mxtrain.engine.backend import gluon, mx, native_operators
from mxtrain.model.graph.mxnet_workarounds import dropout
from mxtrain.model.networks import fused

if TYPE_CHECKING:
    from mxtrain.types.annotations import Array, OperatorModule

nn = gluon.nn

EPSILON = 1e-12
"""The epsilon of layer norms, as in the published networks."""
PADDING_SCORE = -1e4
"""Added to the scores of padding before the softmax: exp of it is exactly 0, and float16 can hold it."""
NUM_TOKEN_TYPES = 2
INITIAL_STD = 0.02
"""Standard deviation of weights and embeddings. Source: the paper's reference code."""


class BertSizes(NamedTuple):
    """The sizes of an encoder."""

    num_layers: int
    units: int
    hidden_size: int
    num_heads: int
    max_length: int
    dropout: float
    epsilon: float = EPSILON
    """Of layer norms."""


def normal() -> mx.init.Initializer:
    """Returns the initializer of weights."""
    return mx.init.Normal(INITIAL_STD)


class LayerNorm(gluon.HybridBlock):
    """Computes layer_norm(dropout(x) + residual) over the last axis of (T, B, U) or (R, U).

    This is a single operator if native operators are available. Otherwise sums over the last axis and broadcasts along
    it are matrix products with vectors of ones, because BLAS is faster than MXNet's sequential reductions; and
    1 / deviation is multiplied by gamma before it is broadcast.
    """

    drops = True
    """Marks a block that applies dropout itself, with the probability `_rate`; `verify` sets that to 0."""

    def __init__(self, units: int, dropout: float = 0.0, epsilon: float = EPSILON, **kwargs: Any):
        super().__init__(**kwargs)
        self._units, self._rate, self._epsilon = units, dropout, epsilon
        self.gamma = self.params.get("gamma", shape=(units,), init="ones")
        self.beta = self.params.get("beta", shape=(units,), init="zeros")

    def hybrid_forward(
        self, F: OperatorModule, x: Array, residual: Optional[Array] = None, *, gamma: Array, beta: Array
    ) -> Array:
        if native_operators().path:
            return fused.norm(F, x, residual, gamma, beta, self._rate, self._epsilon)
        x = dropout(F, x, self._rate)
        x = x if residual is None else x + residual
        x_RU = F.reshape(x, shape=(-1, self._units))
        # Vectors of ones have no gradient; without BlockGrad the backward pass would compute one.
        ones_U = F.BlockGrad(F.ones_like(gamma))
        ones_1U, mean_U1 = F.reshape(ones_U, shape=(1, -1)), F.reshape(ones_U * (1.0 / self._units), shape=(-1, 1))
        # The negated mean is added: the gradient of a difference would need one more pass over the array.
        centred_RU = x_RU + F.dot(F.dot(x_RU, -mean_U1), ones_1U)
        scale_R1 = F.rsqrt(F.dot(F.square(centred_RU), mean_U1) + self._epsilon)
        ones_R1 = F.BlockGrad(F.ones_like(scale_R1))
        gamma_1U, beta_1U = (F.reshape(one, shape=(1, -1)) for one in (gamma, beta))
        # As MXNet's LayerNorm this takes 1.5 ms forward and 17 ms backward for 1024 x 768, so it is made of products.
        return F.reshape_like(centred_RU * F.dot(scale_R1, gamma_1U) + F.dot(ones_R1, beta_1U), x)


class DropoutSum(gluon.HybridBlock):
    """Computes dropout(x) + residual for (T, B, U). No other operator may read `x`."""

    drops = True
    """See `LayerNorm`."""

    def __init__(self, dropout: float, **kwargs: Any):
        super().__init__(**kwargs)
        self._rate = dropout

    def hybrid_forward(self, F: OperatorModule, x: Array, residual: Array) -> Array:
        return dropout(F, x, self._rate) + residual


PROJECTIONS = ("query", "key", "value")
"""Names of the three dense layers of self-attention, in the order of their parameters."""


class SelfAttention(gluon.HybridBlock):
    """Multi-head self-attention without the output projection: (T, B, U) to (T, B, U).

    The weights of queries, keys and values are separate parameters, as in GluonNLP's files. Each call concatenates them
    into one dense layer, whose output is the input of mxtrain's own attention operator. Without that operator, the
    weights are interleaved by head: the dense layer then has (N, 3, U / N) outputs, and one transposition separates the
    three. MXNet's `interleaved_matmul` operators are slower, because they read rows with a stride of 3 * B * U.
    """

    drops = True

    def __init__(self, units: int, num_heads: int, dropout: float, **kwargs: Any):
        super().__init__(**kwargs)
        self._units, self._num_heads, self._rate = units, num_heads, dropout
        with self.name_scope():
            for name in PROJECTIONS:
                weight = self.params.get(f"{name}_weight", shape=(units, units), init=normal())
                bias = self.params.get(f"{name}_bias", shape=(units,), init="zeros")
                setattr(self, f"{name}_weight", weight)
                setattr(self, f"{name}_bias", bias)

    def _collect_params_with_prefix(self, prefix: str = "") -> Dict[str, gluon.Parameter]:
        # Name parameters as in GluonNLP's files: `proj_query.weight` instead of `query_weight`.
        start = f"{prefix}." if prefix else ""
        return {f"{start}proj_{name.replace('_', '.', 1)}": parameter for name, parameter in self._reg_params.items()}

    def hybrid_forward(self, F: OperatorModule, x_TBU: Array, mask: Array, **parameters: Array) -> Array:
        num_heads, qkv = self._num_heads, self.project(F, x_TBU, parameters)
        if native_operators().path:
            return fused.attention(F, qkv, mask, num_heads, self._rate)
        width = self._units // num_heads
        # One transposition of all heads: `batch_dot` on its result made BERT-base 1.07 times as
        # fast as interleaved operators.
        qkv = F.transpose(F.reshape(qkv, shape=(0, -1, 3, width)), axes=(2, 1, 0, 3))
        query, key, value = F.split(qkv, num_outputs=3, axis=0, squeeze_axis=True)  # (B * N, T, U / N) each
        # The queries are scaled and not the scores, which are more numbers if a text is longer than a head is wide.
        score = F.batch_dot(query * width**-0.5, key, transpose_b=True)
        weight = F.softmax(score + mask, axis=-1)
        weight = dropout(F, weight, self._rate)
        context = F.transpose(F.batch_dot(weight, value), axes=(1, 0, 2))
        return F.reshape(context, shape=(0, -1, self._units))

    def project(self, F: OperatorModule, x_TBU: Array, parameters: Mapping[str, Array]) -> Array:
        """Returns queries, keys and values (T, B, 3 * U): one after the other with native operators, otherwise by head.

        Args:
            F: `nd` or `sym`.
            x_TBU: input of the three dense layers.
            parameters: weights and biases by the names of the attributes.
        """
        weights, biases = ([parameters[f"{name}_{kind}"] for name in PROJECTIONS] for kind in ("weight", "bias"))
        if native_operators().path:
            weight, bias = F.concat(*weights, dim=0), F.concat(*biases, dim=0)
        else:
            weights = [F.reshape(weight, shape=(self._num_heads, -1, self._units)) for weight in weights]
            biases = [F.reshape(bias, shape=(self._num_heads, -1)) for bias in biases]
            weight = F.reshape(F.concat(*weights, dim=1), shape=(-1, self._units))
            bias = F.reshape(F.concat(*biases, dim=1), shape=(-1,))
        return F.FullyConnected(x_TBU, weight, bias, num_hidden=3 * self._units, flatten=False)


class FeedForward(gluon.HybridBlock):
    """Two dense layers with GELU between them, a residual connection and layer norm: (T, B, U) to (T, B, U)."""

    def __init__(self, units: int, hidden_size: int, dropout: float, epsilon: float, **kwargs: Any):
        super().__init__(**kwargs)
        with self.name_scope():
            self.ffn_1 = nn.Dense(hidden_size, flatten=False, in_units=units, weight_initializer=normal())
            self.ffn_2 = nn.Dense(units, flatten=False, in_units=hidden_size, weight_initializer=normal())
            self.layer_norm = LayerNorm(units, dropout, epsilon, prefix="layer_norm_")

    def hybrid_forward(self, F: OperatorModule, x_TBU: Array) -> Array:
        # The GELU of `LeakyReLU` is a single operator, 7 times as fast as a GELU composed of elementwise erf or tanh.
        hidden = F.LeakyReLU(self.ffn_1(x_TBU), act_type="gelu")
        return self.layer_norm(self.ffn_2(hidden), x_TBU)


class EncoderLayer(gluon.HybridBlock):
    """Self-attention and feed-forward, each with a residual connection and layer norm: (T, B, U) to (T, B, U)."""

    begins_stage = True

    def __init__(self, sizes: BertSizes, **kwargs: Any):
        super().__init__(**kwargs)
        with self.name_scope():
            self.attention_cell = SelfAttention(sizes.units, sizes.num_heads, sizes.dropout, prefix="attention_")
            self.proj = nn.Dense(sizes.units, flatten=False, in_units=sizes.units, weight_initializer=normal())
            self.layer_norm = LayerNorm(sizes.units, sizes.dropout, sizes.epsilon, prefix="layer_norm_")
            self.ffn = FeedForward(sizes.units, sizes.hidden_size, sizes.dropout, sizes.epsilon, prefix="ffn_")

    def hybrid_forward(self, F: OperatorModule, x_TBU: Array, mask: Array) -> Array:
        return self.ffn(self.layer_norm(self.proj(self.attention_cell(x_TBU, mask)), x_TBU))


class Encoder(gluon.HybridBlock):
    """Transformer encoder: embedded tokens (T, B, U) and valid lengths (B,) to encoded tokens (T, B, U)."""

    def __init__(self, sizes: BertSizes, **kwargs: Any):
        super().__init__(**kwargs)
        self._sizes = sizes
        with self.name_scope():
            shape = (sizes.max_length, sizes.units)
            self.position_weight = self.params.get("position_weight", shape=shape, init=normal())
            self.layer_norm = LayerNorm(sizes.units, sizes.dropout, sizes.epsilon, prefix="layer_norm_")
            self.transformer_cells = nn.HybridSequential(prefix="")
            for number in range(sizes.num_layers):
                self.transformer_cells.add(EncoderLayer(sizes, prefix=f"transformer{number}_"))

    def hybrid_forward(self, F: OperatorModule, x_TBU: Array, valid_length_B: Array, position_weight: Array) -> Array:
        sizes = self._sizes
        positions_T = F.contrib.arange_like(x_TBU, axis=0)
        # Each text looks up its positions, because the gradient of a broadcast addition is a slow reduction.
        positions_TB = F.broadcast_like(F.expand_dims(positions_T, axis=1), x_TBU, lhs_axes=(1,), rhs_axes=(1,))
        x_TBU = self.layer_norm(x_TBU + F.Embedding(positions_TB, position_weight, *position_shape(sizes)))
        has_native = native_operators().path is not None  # the native attention reads lengths instead of a mask
        mask = valid_length_B if has_native else padding_mask(F, positions_T, valid_length_B, sizes.num_heads)
        for layer in self.transformer_cells:
            x_TBU = layer(x_TBU, mask)
        return x_TBU


def position_shape(sizes: BertSizes) -> Tuple[int, int]:
    """Returns the shape of the position embedding table."""
    return sizes.max_length, sizes.units


def padding_mask(F: OperatorModule, positions_T: Array, valid_length_B: Array, num_heads: int) -> Array:
    """Returns the additive attention mask (B * N, T, T): 0 at tokens, `PADDING_SCORE` at padding.

    All layers add the same full-size mask. MXNet's softmax with lengths is 7 times as slow as one without, and a
    broadcast addition 10 times, because its backward pass computes a sum that is not needed.
    """
    is_padding_BT = F.broadcast_greater_equal(
        F.reshape(positions_T, shape=(1, -1)), F.reshape(valid_length_B, shape=(-1, 1))
    )
    score_B1T = F.expand_dims(is_padding_BT * PADDING_SCORE, axis=1)
    score_H1T = F.expand_dims(F.reshape(F.repeat(score_B1T, repeats=num_heads, axis=1), shape=(-3, 0)), axis=1)
    positions_1T1 = F.reshape(positions_T, shape=(1, -1, 1))
    return F.BlockGrad(F.broadcast_like(score_H1T, positions_1T1, lhs_axes=(1,), rhs_axes=(1,)))


class Embed(gluon.HybridBlock):
    """Embedding lookup: indices (B, T) to embeddings (B, T, U). A shared table is returned as a second output, (V, U).

    A decoder with tied weights reads the second output, so that only one operator of the graph reads the parameter. A
    pipeline can then be cut between encoder and decoder; the table and its gradient are sent with each microbatch. If
    nothing is cut, `mxtrain.parallel.grid.Grid` clears `copies_table`, and the output is the parameter without a copy.
    """

    copies_table = True

    def __init__(self, size: int, units: int, is_shared: bool = False, std: float = INITIAL_STD, **kwargs: Any):
        super().__init__(**kwargs)
        self._size, self._units, self._is_shared = size, units, is_shared
        self.weight = self.params.get("weight", shape=(size, units), init=mx.init.Normal(std))

    def hybrid_forward(self, F: OperatorModule, index_BT: Array, weight: Array) -> Any:
        if not self._is_shared:
            return F.Embedding(index_BT, weight, self._size, self._units)
        table_VU = F.identity(weight) if self.copies_table else weight
        return F.Embedding(index_BT, table_VU, self._size, self._units), table_VU


class NumberedBlocks(gluon.HybridBlock):
    """Container of numbered blocks, named as in the `HybridSequential` of GluonNLP. The owner calls the blocks."""

    def __init__(self, blocks: Dict[int, gluon.HybridBlock], **kwargs: Any):
        super().__init__(**kwargs)
        for number, block in blocks.items():
            self.register_child(block, str(number))

    def __getitem__(self, number: int) -> gluon.HybridBlock:
        return self._children[str(number)]


class TiedProjection(gluon.HybridBlock):
    """Output projection with tied weights: (B, M, U) and an embedding table (V, U) to scores (B, M, V)."""

    begins_stage = True

    def __init__(self, vocab_size: int, **kwargs: Any):
        super().__init__(**kwargs)
        self._vocab_size = vocab_size
        self.bias = self.params.get("bias", shape=(vocab_size,), init="zeros")

    def hybrid_forward(self, F: OperatorModule, x_BMU: Array, table_VU: Array, bias: Array) -> Array:
        return F.FullyConnected(x_BMU, table_VU, bias, num_hidden=self._vocab_size, flatten=False)


class Head(enum.Enum):
    """Outputs of a `BertNetwork`."""

    POOLED = 0
    """The first token after a dense layer, (B, U)."""
    MASKED = 1
    """Scores of all tokens at positions, (B, M, V)."""
    TOKENS = 2
    """Every encoded token, (B, T, U)."""


class BertNetwork(gluon.HybridBlock):
    """BERT encoder with a head.

    Inputs are tokens (B, T), token types (B, T), valid lengths (B,), and for `Head.MASKED` the masked positions (B, M).

    Args:
        vocab_size: V.
        sizes: sizes of the encoder.
        head: output of the network.
    """

    def __init__(self, vocab_size: int, sizes: BertSizes, head: Head, **kwargs: Any):
        super().__init__(**kwargs)
        units, decodes = sizes.units, head is Head.MASKED
        self._head, self._decodes = head, decodes
        with self.name_scope():
            self.encoder = Encoder(sizes, prefix="encoder_")
            self.word_embed = NumberedBlocks({0: Embed(vocab_size, units, decodes, prefix="word_embed_")})
            self.token_type_embed = NumberedBlocks({0: Embed(NUM_TOKEN_TYPES, units, prefix="token_type_embed_")})
            if decodes:
                dense = nn.Dense(
                    units, flatten=False, in_units=units, weight_initializer=normal(), prefix="decoder_dense_"
                )
                norm = LayerNorm(units, epsilon=sizes.epsilon, prefix="decoder_norm_")
                self.decoder = NumberedBlocks({0: dense, 2: norm, 3: TiedProjection(vocab_size, prefix="decoder_")})
            elif head is Head.POOLED:
                self.pooler = nn.Dense(
                    units, activation="tanh", flatten=False, in_units=units, weight_initializer=normal()
                )

    def hybrid_forward(
        self,
        F: OperatorModule,
        tokens_BT: Array,
        types_BT: Array,
        valid_length_B: Array,
        positions_BM: Optional[Array] = None,
    ) -> Array:
        words_BTU = self.word_embed[0](tokens_BT)
        words_BTU, table_VU = words_BTU if self._decodes else (words_BTU, None)
        words_BTU = words_BTU + self.token_type_embed[0](types_BT)
        encoded_TBU = self.encoder(F.transpose(words_BTU, axes=(1, 0, 2)), valid_length_B)
        if self._head is Head.TOKENS:
            return F.transpose(encoded_TBU, axes=(1, 0, 2))
        if not self._decodes:
            return self.pooler(F.reshape(F.slice_axis(encoded_TBU, axis=0, begin=0, end=1), shape=(-3, 0)))
        positions_BM = F.cast(positions_BM, "float32")  # `stack` needs one type, and `arange_like` returns float32
        number_B1 = F.reshape(F.contrib.arange_like(positions_BM, axis=0), shape=(-1, 1))
        positions = F.stack(positions_BM, F.broadcast_like(number_B1, positions_BM), axis=0)
        hidden_BMU = F.LeakyReLU(self.decoder[0](F.gather_nd(encoded_TBU, positions)), act_type="gelu")
        return self.decoder[3](self.decoder[2](hidden_BMU), table_VU)


class BertClassifier(gluon.HybridBlock):
    """Text classifier: dropout and a dense layer on the pooled first token, logits (B, K)."""

    def __init__(self, num_classes: int, vocab_size: int, sizes: BertSizes, **kwargs: Any):
        super().__init__(**kwargs)
        with self.name_scope():
            self.bert = BertNetwork(vocab_size, sizes, Head.POOLED, prefix="bert_")
            self.classifier = nn.HybridSequential(prefix="")
            output = nn.Dense(num_classes, in_units=sizes.units, weight_initializer=normal(), prefix="classifier_")
            self.classifier.add(nn.Dropout(sizes.dropout), output)

    def hybrid_forward(self, F: OperatorModule, tokens_BT: Array, types_BT: Array, valid_length_B: Array) -> Array:
        return self.classifier(self.bert(tokens_BT, types_BT, valid_length_B))


class BertTagger(gluon.HybridBlock):
    """Token classifier: dropout and a dense layer on each encoded token, scores (B, T, K)."""

    def __init__(self, num_classes: int, vocab_size: int, sizes: BertSizes, **kwargs: Any):
        super().__init__(**kwargs)
        with self.name_scope():
            self.bert = BertNetwork(vocab_size, sizes, Head.TOKENS, prefix="bert_")
            self.classifier = nn.HybridSequential(prefix="")
            output = nn.Dense(
                num_classes, flatten=False, in_units=sizes.units, weight_initializer=normal(), prefix="classifier_"
            )
            self.classifier.add(nn.Dropout(sizes.dropout), output)

    def hybrid_forward(self, F: OperatorModule, tokens_BT: Array, types_BT: Array, valid_length_B: Array) -> Array:
        return self.classifier(self.bert(tokens_BT, types_BT, valid_length_B))
