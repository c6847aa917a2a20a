"""A decoder in the style of GPT-2 as Gluon blocks. Imports MXNet: settings import this module only when they build.

Legend: B batch, T tokens, U units, N heads, D units of a head, V vocabulary. Inside the network, the time axis comes
first: (T, B, U).

Source: Radford et al., "Language Models are Unsupervised Multitask Learners" (2019), and its published code.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, List, NamedTuple, Optional, Tuple

from mxtrain.engine.backend import gluon, mx, native_operators, nd
from mxtrain.model.networks import fused
from mxtrain.model.networks.attention import CausalAttention
from mxtrain.model.networks.bert import INITIAL_STD, DropoutSum, Embed, LayerNorm, normal
from mxtrain.model.networks.layers import Gelu
from mxtrain.model.networks.traced_step import StepNetwork, TracedStep
from mxtrain.text.networks.experts import Experts
from mxtrain.text.networks.language import TokenScores

if TYPE_CHECKING:
    from mxnet import Context
    from mxnet.ndarray import NDArray

    from mxtrain.types.annotations import Array, OperatorModule

nn = gluon.nn

EPSILON = 1e-5
"""The epsilon of layer norms, as published."""
LINEAR, CUBIC = 2 * (2 / math.pi) ** 0.5, 2 * (2 / math.pi) ** 0.5 * 0.044715
"""Coefficients of x and x^3 in 2 y, where 0.5 x (1 + tanh(y)) is GELU's tanh form."""


class GptSizes(NamedTuple):
    """The sizes of a decoder."""

    num_layers: int
    units: int
    num_heads: int
    max_length: int
    dropout: float
    gelu: Gelu = "tanh"
    num_experts: int = 0
    """0 = one feed-forward sublayer for all tokens."""
    experts_per_token: int = 2
    load_balancing: float = 0.0
    """Coefficient of the load-balancing loss of each layer."""
    expert_capacity: int = 0
    """Number of tokens of a window that an expert takes; 0 = no limit."""


class ExpertFeedForward(gluon.HybridBlock):
    """Feed-forward sublayer of one expert, (T, B, U) to (T, B, U)."""

    begins_stage = True

    def __init__(self, sizes: GptSizes, added: mx.init.Initializer, **kwargs: Any):
        super().__init__(**kwargs)
        units, self._gelu = sizes.units, sizes.gelu
        with self.name_scope():
            self.ffn_1 = nn.Dense(4 * units, flatten=False, in_units=units, weight_initializer=normal())
            self.ffn_2 = nn.Dense(units, flatten=False, in_units=4 * units, weight_initializer=added)

    def hybrid_forward(self, F: OperatorModule, x_TBU: Array) -> Array:
        return self.ffn_2(gelu(F, self.ffn_1(x_TBU), self._gelu))


class DecoderLayer(gluon.HybridBlock):
    """Pre-norm transformer layer: causal attention and feed-forward with residual connections, (T, B, U) to (T, B,
    U). With experts, it takes and returns more arrays, see `Experts`."""

    begins_stage = True

    def __init__(self, sizes: GptSizes, **kwargs: Any):
        super().__init__(**kwargs)
        units, self._gelu = sizes.units, sizes.gelu
        # Source: the paper, section 2.3: initial weights of residual branches are scaled down with the number of
        # layers.
        added = mx.init.Normal(INITIAL_STD * (2 * sizes.num_layers) ** -0.5)
        with self.name_scope():
            self.attention_norm = LayerNorm(units, epsilon=EPSILON, prefix="attention_norm_")
            self.qkv = nn.Dense(3 * units, flatten=False, in_units=units, weight_initializer=normal())
            self.attention = CausalAttention(sizes.num_heads, sizes.dropout)
            self.projection = nn.Dense(units, flatten=False, in_units=units, weight_initializer=added)
            self.ffn_norm = LayerNorm(units, epsilon=EPSILON, prefix="ffn_norm_")
            self.mixture: Optional[Experts] = None
            if sizes.num_experts:
                experts = [ExpertFeedForward(sizes, added) for _ in range(sizes.num_experts)]
                self.mixture = Experts(
                    units, experts, sizes.experts_per_token, sizes.expert_capacity, prefix="mixture_"
                )
            else:
                self.ffn_1 = nn.Dense(4 * units, flatten=False, in_units=units, weight_initializer=normal())
                self.ffn_2 = nn.Dense(units, flatten=False, in_units=4 * units, weight_initializer=added)
            self.residual_sum = DropoutSum(sizes.dropout)

    def hybrid_forward(self, F: OperatorModule, x_TBU: Array, *counts_TB1: Array) -> Any:
        # The identities are needed because our own norm operator overwrites other gradients of its input, see `fused`.
        context_TBU = self.attention(self.qkv(self.attention_norm(F.identity(x_TBU))))
        x_TBU = self.residual_sum(self.projection(context_TBU), x_TBU)
        if self.mixture is None:
            return self.residual_sum(self._feed_forward(F, self.ffn_norm(F.identity(x_TBU))), x_TBU)
        y_TBU, *balance_and_load = self.mixture(self.ffn_norm(F.identity(x_TBU)), *counts_TB1)
        return [self.residual_sum(y_TBU, x_TBU), *balance_and_load]

    def _feed_forward(self, F: OperatorModule, x_TBU: Array) -> Array:
        return self.ffn_2(gelu(F, self.ffn_1(x_TBU), self._gelu))

    def step(self, F: OperatorModule, x_1BU: Array, memory: List[Array]) -> Tuple[Array, List[Array]]:
        """Computes the layer for one more token.

        Args:
            x_1BU: input of the token.
            memory: keys and values of the previous tokens, and the memory of the experts.

        Returns:
            The output (1, B, U), and the memory including this token.
        """
        qkv_1BU = self.qkv(self.attention_norm(F.identity(x_1BU)))
        context_1BU, seen = self.attention.step(F, qkv_1BU, memory[:2])
        x_1BU = x_1BU + self.projection(context_1BU)
        normed_1BU = self.ffn_norm(F.identity(x_1BU))
        if self.mixture is None:
            return x_1BU + self._feed_forward(F, normed_1BU), seen
        y_1BU, counted = self.mixture.step(F, normed_1BU, memory[2:])
        return x_1BU + y_1BU, [*seen, *counted]


def gelu(F: OperatorModule, x: Array, form: Gelu) -> Array:
    """Applies GELU. No other operator may read `x`, see `fused`.

    Source: Hendrycks and Gimpel, https://arxiv.org/abs/1606.08415, section 2. GPT-2's code has the tanh form.
    """
    if form == "erf":
        # MXNet's operator takes 9 ms where a product with erf takes 62 (128 x 8 x 768, forward and backward).
        return F.LeakyReLU(x, act_type="gelu")
    if native_operators().path:
        return fused.gelu(F, x)
    # 0.5 (1 + tanh(y)) is sigmoid(2 y). Beyond 10 it is 0 or 1, and in float16 powers would overflow.
    near = F.clip(x, -10.0, 10.0)
    return x * F.sigmoid(near * (LINEAR + CUBIC * F.square(near)))


class GptNetwork(StepNetwork, gluon.HybridBlock):
    """Decoder-only transformer whose output layer shares the weights of the embedding.

    Inputs are tokens (B, T) and the next tokens (B, T); the output is -log p of each next token, (B, T). With experts,
    the second output is the number of tokens of each expert, (B, layers, E).

    Args:
        vocab_size: V.
        length: T.
        sizes: sizes of the layers.
        chunks: number of chunks of the output layer, see `TokenScores`.
    """

    def __init__(self, vocab_size: int, length: int, sizes: GptSizes, chunks: int, **kwargs: Any):
        super().__init__(**kwargs)
        self._sizes, self.max_positions = sizes, sizes.max_length
        with self.name_scope():
            self.embedding = Embed(vocab_size, sizes.units, is_shared=True, prefix="embedding_")
            self.positions = Embed(sizes.max_length, sizes.units, prefix="positions_")
            self.dropout = nn.Dropout(sizes.dropout)
            self.layers = nn.HybridSequential(prefix="")
            for number in range(sizes.num_layers):
                self.layers.add(DecoderLayer(sizes, prefix=f"layer{number}_"))
            self.norm = LayerNorm(sizes.units, epsilon=EPSILON, prefix="norm_")
            self.output = TokenScores(vocab_size, length, chunks, has_bias=False, prefix="output_")
        self._step = TracedStep(self, self.trace_step)

    def hybrid_forward(self, F: OperatorModule, token_BT: Array, label_BT: Array) -> Any:
        x_TBU, table_VU = self.embedding(F.transpose(token_BT))
        position_T1 = F.expand_dims(F.contrib.arange_like(x_TBU, axis=0), axis=1)
        # Looked up for each row, because the gradient of a broadcast addition is a slow reduction.
        position_TB = F.broadcast_like(position_T1, x_TBU, lhs_axes=(1,), rhs_axes=(1,))
        x_TBU = self.dropout(x_TBU + self.positions(position_TB))
        if not self._sizes.num_experts:
            for layer in self.layers:
                x_TBU = layer(x_TBU)
            return self.output(self.norm(x_TBU), label_BT, table_VU)
        counts_BT = label_BT >= 0
        counts_TB1 = F.expand_dims(F.transpose(counts_BT), axis=2)
        balances_B, loads_BE = [], []
        for layer in self.layers:
            x_TBU, balance_B, load_BE = layer(x_TBU, counts_TB1)
            balances_B.append(balance_B)
            loads_BE.append(load_BE)
        loss_BT = self.output(self.norm(x_TBU), label_BT, table_VU)
        balance_B1 = F.expand_dims(F.add_n(*balances_B) * self._sizes.load_balancing, axis=1)
        # Only the gradient of the load-balancing loss is added: the output stays -log p, of which metrics are computed.
        added_BT = F.broadcast_mul(counts_BT, balance_B1 - F.BlockGrad(balance_B1))
        return [loss_BT + added_BT, F.BlockGrad(F.stack(*loads_BE, axis=1))]

    # One token after the other.

    def initial_state(self, batch_size: int, device: Context) -> List[NDArray]:
        """See `Stepwise`."""
        return []

    def step(self, token_B: NDArray, position: int, memory: List[NDArray]) -> Tuple[NDArray, List[NDArray]]:
        """See `Stepwise`; the state is the memory of all layers."""
        return self._step(token_B, nd.full((1,), position, ctx=token_B.context), [], memory)

    def trace_step(
        self, F: OperatorModule, token_B: Array, position_1: Array, fixed: Any, memory: Any, beams: Any
    ) -> Any:
        """See `StepNetwork`."""
        x_1BU, table_VU = self.embedding(F.reshape(token_B, shape=(1, -1)))
        x_1BU = F.broadcast_add(x_1BU, self.positions(F.reshape(position_1, shape=(1, 1))))
        after, size = [], len(memory) // len(self.layers)
        for number, layer in enumerate(self.layers):
            x_1BU, layer_memory = layer.step(F, x_1BU, memory[size * number : size * (number + 1)])
            after += layer_memory
        return self.output.scores(F, F.reshape(self.norm(x_1BU), shape=(-3, 0)), table_VU), after
