"""GPT: a decoder of text that predicts the next token, in the style of GPT-2."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, Dict, List, Literal, Optional, Union

import pydantic

from mxtrain.errors import ConfigError
from mxtrain.model.networks.layers import Gelu
from mxtrain.text.kinds import NextTokens, Texts
from mxtrain.text.model import TextModel
from mxtrain.types import (
    NonNegative,
    NonNegativeFloat,
    OpenFraction,
    Positive,
    PositiveFloat,
    Shape,
    Shapes,
    shapes_of,
)
from mxtrain.types.kinds import Takes

if TYPE_CHECKING:
    from mxnet import gluon

SIZES: Dict[str, Dict[str, Optional[int]]] = {
    "small": {"num_layers": 2, "units": 128, "num_heads": 4, "max_length": None},
    "gpt2": {"num_layers": 12, "units": 768, "num_heads": 12, "max_length": 1024},
    "gpt2-medium": {"num_layers": 24, "units": 1024, "num_heads": 16, "max_length": 1024},
    "gpt2-large": {"num_layers": 36, "units": 1280, "num_heads": 20, "max_length": 1024},
    "gpt2-xl": {"num_layers": 48, "units": 1600, "num_heads": 25, "max_length": 1024},
}
"""Hyperparameters by size. All but `small` are published (table 2 of the paper; its code corrects parameter counts)."""


class Gpt(TextModel):
    """Decoder-only transformer with causal attention, layer norms before each sublayer, GELU, and an output layer that
    shares the weights of the embedding.

    Weights are initialised from a normal distribution with standard deviation 0.02, which is smaller for the last layer
    of each residual branch; `init` is not used.

    Source: Radford et al., "Language Models are Unsupervised Multitask Learners" (2019).
    """

    takes: ClassVar[Takes] = Takes(Texts, NextTokens)
    embedding_name: ClassVar[str] = "embedding.weight"

    size: Literal["small", "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"] = "small"
    """Preset sizes of the fields below: small (2 layers, 128 units, 4 heads), gpt2 (12, 768, 12), gpt2-medium (24,
    1024, 16), gpt2-large (36, 1280, 20), gpt2-xl (48, 1600, 25)."""
    num_layers: Optional[Positive] = None
    """Transformer layers."""
    units: Optional[Positive] = None
    """Width of the residual stream between layers; the feed-forward sublayers are four times as wide."""
    num_heads: Optional[Positive] = None
    """Number of attention heads; a divisor of units."""
    max_length: Optional[Positive] = None
    """Maximum context length in tokens, i.e. rows of the position embedding; by default 1024 for the published sizes,
    and dataset.max_length for small."""
    dropout: OpenFraction = 0.1
    """Dropout probability of embeddings, attention and the output of each sublayer."""
    gelu: Gelu = "erf"
    """Form of GELU: tanh = approximation of GPT-2, for published weights; erf = exact. `model=gpt` sets tanh; the
    default erf is for runs of earlier versions."""
    experts: NonNegative = 0
    """Experts of each layer: feed-forward sublayers of which a router chooses some for each token (a sparsely gated
    mixture of experts); 0 = one feed-forward sublayer for all tokens."""
    experts_per_token: Positive = 2
    """Experts that process each token (top-k routing), weighted by their probabilities divided by the sum of these."""
    capacity_factor: Optional[PositiveFloat] = None
    """Limits the tokens of a window that an expert takes to capacity_factor * experts_per_token * window / experts,
    rounded up, in training and prediction. Tokens beyond it pass through the residual connection. null: no limit."""
    load_balancing: NonNegativeFloat = 0.01
    """Coefficient of the load-balancing loss, which is 1 in each layer if all experts get equally many tokens of each
    window. It is trained on, but is not part of train/loss."""
    output_chunks: Union[Literal["auto"], Positive] = "auto"
    """Number of chunks in which the scores of a window are computed, to save memory; auto = up to 8 with a large
    vocabulary."""

    @property
    def embedding_size(self) -> int:
        return self.sizes(1)["units"]

    @pydantic.model_validator(mode="after")
    def _check_heads(self) -> Gpt:
        sizes = self.sizes(1)
        if sizes["units"] % sizes["num_heads"]:
            raise ValueError(
                f"num_heads must divide units, but {sizes['units']} / {sizes['num_heads']} is no whole number"
            )
        return self

    @pydantic.model_validator(mode="after")
    def _check_experts(self) -> Gpt:
        if self.experts == 1:
            raise ValueError("experts=1 leaves the router no choice. Type experts=0, or 2 or more")
        if self.experts and self.experts_per_token > self.experts:
            raise ValueError(f"experts_per_token={self.experts_per_token} is more than experts={self.experts}")
        for name in ("experts_per_token", "capacity_factor", "load_balancing"):
            if not self.experts and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name} needs experts, and experts=0. Type model.experts=8, or leave {name} out")
        return self

    def statistics_shapes(self) -> List[Shape]:
        return [(self.sizes(1)["num_layers"], self.experts)] if self.experts else []

    def sizes(self, length: int) -> Dict[str, int]:
        """Returns the numbers of `size`, overridden by the ones that are given; `length` tokens in a window."""
        return {name: getattr(self, name) or number or length for name, number in SIZES[self.size].items()}

    def _capacity(self, length: int) -> int:
        """Returns the number of tokens of a window that an expert takes; 0 = no limit."""
        if self.capacity_factor is None:
            return 0
        capacity = math.ceil(self.capacity_factor * self.experts_per_token * length / self.experts)
        return capacity if capacity < length else 0

    def build_text(self, num_classes: int, input_shape: Shapes, vocab_size: int) -> gluon.HybridBlock:
        """Returns the network, uninitialized.

        Raises:
            ConfigError: windows are longer than the network can take.
        """
        from mxtrain.text.networks import gpt
        from mxtrain.text.networks.language import num_chunks

        length = shapes_of(input_shape)[0][0]
        sizes = self.sizes(length)
        if length > sizes["max_length"]:
            raise ConfigError(
                f"dataset.max_length={length}: the network takes at most {sizes['max_length']} tokens. Type "
                f"dataset.max_length={sizes['max_length']}, or model.max_length={length}."
            )
        gpt_sizes = gpt.GptSizes(
            **sizes,
            dropout=self.dropout,
            gelu=self.gelu,
            num_experts=self.experts,
            experts_per_token=self.experts_per_token,
            load_balancing=self.load_balancing,
            expert_capacity=self._capacity(length),
        )
        chunks = num_chunks(self.output_chunks, length, vocab_size)
        return gpt.GptNetwork(vocab_size, length, gpt_sizes, chunks, prefix="")
