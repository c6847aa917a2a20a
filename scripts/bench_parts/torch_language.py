"""Language networks as an expert writes them with PyTorch, with the layers of ours; they compute their loss themselves,
so that it is compiled, too. Needs nothing of mxtrain.

Legend: B batch, S tokens of a source, T tokens of a target or a window, U units.
"""

from __future__ import annotations

import math
from typing import Any, List, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench_parts.language_sizes import BETA2, EPSILON, GPTS, LABEL_SMOOTHING, LR, TRANSFORMERS, WD, Sizes

INITIAL_STD = 0.02


def attend(query_BTU: Tensor, key_BSU: Tensor, value_BSU: Tensor, heads: int, **options: Any) -> Tensor:
    """Attention of several heads; options are those of PyTorch's own operator."""
    parts = (one.unflatten(-1, (heads, -1)).transpose(1, 2) for one in (query_BTU, key_BSU, value_BSU))
    return F.scaled_dot_product_attention(*parts, **options).transpose(1, 2).flatten(2)


class DecoderLayer(nn.Module):
    """A layer of GPT-2."""

    def __init__(self, sizes: Sizes):
        super().__init__()
        units = sizes.units
        self.sizes = sizes
        self.qkv, self.projection = nn.Linear(units, 3 * units), nn.Linear(units, units)
        self.inner, self.outer = nn.Linear(units, sizes.hidden_size), nn.Linear(sizes.hidden_size, units)
        self.norm_attention, self.norm = nn.LayerNorm(units), nn.LayerNorm(units)
        self.dropout = nn.Dropout(sizes.dropout)

    def forward(self, x_BTU: Tensor) -> Tensor:
        parts = self.qkv(self.norm_attention(x_BTU)).chunk(3, -1)
        rate = self.sizes.dropout if self.training else 0.0
        context = attend(*parts, self.sizes.num_heads, dropout_p=rate, is_causal=True)
        x_BTU = x_BTU + self.dropout(self.projection(context))
        return x_BTU + self.dropout(self.outer(F.gelu(self.inner(self.norm(x_BTU)), approximate="tanh")))


class Gpt(nn.Module):
    """Tokens and those that follow to the loss; the output layer's weights are the embeddings."""

    def __init__(self, sizes: Sizes, length: int):
        super().__init__()
        self.words, self.places = nn.Embedding(sizes.vocab_size, sizes.units), nn.Embedding(length, sizes.units)
        for table in (self.words, self.places):
            nn.init.normal_(table.weight, std=INITIAL_STD)
        self.dropout, self.norm = nn.Dropout(sizes.dropout), nn.LayerNorm(sizes.units)
        self.layers = nn.ModuleList(DecoderLayer(sizes) for _ in range(sizes.num_layers))

    def forward(self, token_BT: Tensor, label_BT: Tensor) -> Tensor:
        x_BTU = self.dropout(self.words(token_BT) + self.places.weight)
        for layer in self.layers:
            x_BTU = layer(x_BTU)
        logits = F.linear(self.norm(x_BTU), self.words.weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), label_BT.flatten())


class TranslatorLayer(nn.Module):
    """A layer of a Transformer's encoder or decoder; norms stand behind the sums, and attention drops nothing."""

    def __init__(self, sizes: Sizes, is_decoder: bool):
        super().__init__()
        units = sizes.units
        self.heads, self.is_decoder = sizes.num_heads, is_decoder
        self.qkv, self.projection = nn.Linear(units, 3 * units), nn.Linear(units, units)
        self.norm_attention, self.norm = nn.LayerNorm(units, 1e-6), nn.LayerNorm(units, 1e-6)
        if is_decoder:
            self.query, self.key_value = nn.Linear(units, units), nn.Linear(units, 2 * units)
            self.cross_projection, self.cross_norm = nn.Linear(units, units), nn.LayerNorm(units, 1e-6)
        self.inner, self.outer = nn.Linear(units, sizes.hidden_size), nn.Linear(sizes.hidden_size, units)
        self.dropout = nn.Dropout(sizes.dropout)

    def forward(self, x: Tensor, mask: Tensor, source: Optional[Tensor] = None) -> Tensor:
        options = {"is_causal": True} if self.is_decoder else {"attn_mask": mask}
        context = attend(*self.qkv(x).chunk(3, -1), self.heads, **options)
        x = self.norm_attention(x + self.dropout(self.projection(context)))
        if self.is_decoder:
            context = attend(self.query(x), *self.key_value(source).chunk(2, -1), self.heads, attn_mask=mask)
            x = self.cross_norm(x + self.dropout(self.cross_projection(context)))
        return self.norm(x + self.dropout(self.outer(F.relu(self.inner(x)))))


class Translator(nn.Module):
    """Sources, targets and the tokens that follow in them to the loss. No source is padded, though the network cannot
    know that; one table is that of sources, targets and the output layer."""

    def __init__(self, sizes: Sizes, length: int):
        super().__init__()
        self.units, self.words = sizes.units, nn.Embedding(sizes.vocab_size, sizes.units)
        nn.init.normal_(self.words.weight, std=sizes.units**-0.5)
        self.dropout = nn.Dropout(sizes.dropout)
        self.encoder, self.decoder = (
            nn.ModuleList(TranslatorLayer(sizes, is_decoder) for _ in range(sizes.num_layers))
            for is_decoder in (False, True)
        )
        wave_U = torch.exp(torch.arange(0, sizes.units, 2) * (-math.log(10000.0) / sizes.units))
        angle_TU = torch.arange(length)[:, None] * wave_U
        self.register_buffer("places", torch.stack([angle_TU.sin(), angle_TU.cos()], -1).flatten(1))
        self.register_buffer("ones", torch.ones(1, 1, 1, length, dtype=torch.bool))

    def _embed(self, token_BT: Tensor) -> Tensor:
        return self.dropout(self.words(token_BT) * self.units**0.5 + self.places)

    def forward(self, source_BS: Tensor, token_BT: Tensor, label_BT: Tensor) -> Tensor:
        x_BSU, y_BTU = self._embed(source_BS), self._embed(token_BT)
        for layer in self.encoder:
            x_BSU = layer(x_BSU, self.ones)
        for layer in self.decoder:
            y_BTU = layer(y_BTU, self.ones, x_BSU)
        logits = F.linear(y_BTU, self.words.weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), label_BT.flatten(), label_smoothing=LABEL_SMOOTHING)


def build(name: str, length: int) -> Tuple[nn.Module, torch.optim.Optimizer]:
    """The network and its optimizer."""
    if name in GPTS:
        network: nn.Module = Gpt(GPTS[name], length)
        return network, torch.optim.AdamW(network.parameters(), LR, weight_decay=WD, fused=True)
    network = Translator(TRANSFORMERS[name], length)
    return network, torch.optim.Adam(network.parameters(), LR, (0.9, BETA2), EPSILON, fused=True)


def batch_of(name: str, length: int, batch_size: int) -> List[Tensor]:
    """What the network is given."""
    vocab_size = {**GPTS, **TRANSFORMERS}[name].vocab_size
    number = 2 if name in GPTS else 3
    return [torch.randint(vocab_size, (batch_size, length)) for _ in range(number)]
