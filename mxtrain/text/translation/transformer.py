"""The Transformer, an encoder and a decoder of attention, for translation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, Literal, Optional

import pydantic

from mxtrain.text.translation.model import TranslatingModel
from mxtrain.types import OpenFraction, Positive, Shapes

if TYPE_CHECKING:
    from mxnet import gluon

SIZES: Dict[str, Dict[str, Any]] = {
    "small": {
        "num_layers": 2,
        "units": 128,
        "hidden_size": 512,
        "num_heads": 4,
        "dropout": 0.0,
        "norm_first": True,
    },
    "base": {
        "num_layers": 6,
        "units": 512,
        "hidden_size": 2048,
        "num_heads": 8,
        "dropout": 0.1,
        "norm_first": False,
    },
    "big": {
        "num_layers": 6,
        "units": 1024,
        "hidden_size": 4096,
        "num_heads": 16,
        "dropout": 0.3,
        "norm_first": False,
    },
}
"""`base` and `big` are the models of table 3 of the paper."""
PUBLISHED = "gluonnlp:transformer_en_de_512_WMT2014"
"""Name of GluonNLP's weights, from English to German with one vocabulary."""


class Transformer(TranslatingModel):
    """Transformer layers with sinusoidal positions, ReLU, and dropout of embeddings and of the output of each sublayer.

    Embeddings are drawn from a normal distribution of variance 1 / units, other weights as `init` says.

    Source: Vaswani et al., https://arxiv.org/abs/1706.03762.
    """

    size: Literal["small", "base", "big"] = "small"
    """Preset sizes of the fields below: small (2 + 2 layers, 128 units, 4 heads, pre-norm, no dropout), base (6 +
    6, 512, 8), big (6 + 6, 1024, 16)."""
    num_layers: Optional[Positive] = None
    """Layers of the encoder, and as many of the decoder."""
    units: Optional[Positive] = None
    """Width of the residual stream between layers."""
    hidden_size: Optional[Positive] = None
    """Hidden width of the feed-forward sublayers."""
    num_heads: Optional[Positive] = None
    """Number of attention heads; a divisor of units."""
    dropout: Optional[OpenFraction] = None
    """Probability that something is dropped while training; 0 of small, 0.1 of base, 0.3 of big."""
    norm_first: Optional[bool] = None
    """True for layer norms before each part (pre-norm: small), False after its sum (post-norm: base and big, as in the
    paper)."""

    variant: Literal["paper", "gluonnlp"] = "paper"
    """Details of the layers: those of the paper, or of GluonNLP's `transformer_en_de_512`, whose `.params` files
    `weights` then reads: a layer norm of embedded texts, other wavelengths of the positions, a bias for each token."""

    @property
    def published_name(self) -> str:
        """See `Model.published_name`."""
        return PUBLISHED if self.variant == "gluonnlp" and self.sizes == SIZES["base"] else ""

    @pydantic.model_validator(mode="after")
    def _check_heads(self) -> Transformer:
        sizes = self.sizes
        if self.variant == "gluonnlp" and sizes["norm_first"]:
            raise ValueError(
                "variant=gluonnlp: its layer norms come after each sum. Type size=base, or norm_first=false"
            )
        if sizes["units"] % sizes["num_heads"] or sizes["units"] % 2:
            raise ValueError(
                f"num_heads={sizes['num_heads']} and 2 must divide units={sizes['units']}: choose other ones"
            )
        return self

    @property
    def sizes(self) -> Dict[str, Any]:
        """Returns the numbers of `size`, overridden by the ones that are given."""
        overrides = {name: getattr(self, name) for name in SIZES[self.size]}
        return {**SIZES[self.size], **{name: value for name, value in overrides.items() if value is not None}}

    def build_translator(
        self, num_classes: int, input_shape: Shapes, vocab_size: int, is_joint: bool
    ) -> gluon.HybridBlock:
        from mxtrain.text.translation.networks.transformer import TransformerNetwork, TransformerSizes

        chunks = self.chunks(input_shape, num_classes)
        sizes = TransformerSizes(**self.sizes, is_gluonnlp=self.variant == "gluonnlp")
        return TransformerNetwork(vocab_size, num_classes, sizes, self.tie(is_joint), chunks, prefix="")
