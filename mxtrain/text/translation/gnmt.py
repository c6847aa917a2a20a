"""GNMT: LSTMs with attention, for translation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import pydantic
from typing_extensions import Annotated

from mxtrain.text.translation.model import TranslatingModel
from mxtrain.types import OpenFraction, Positive, Shapes

if TYPE_CHECKING:
    from mxnet import gluon


class Gnmt(TranslatingModel):
    """An encoder of LSTM layers, the first one in both directions, and a decoder of as many, with attention to the
    source.

    Embeddings are drawn from -1 to 1, an output layer of its own from -0.1 to 0.1, weights of LSTMs from
    -1 / sqrt(units) to that, others as `init` says.

    Source: Wu et al., https://arxiv.org/abs/1609.08144, sections 3.1 to 3.3.
    """

    num_layers: Annotated[int, pydantic.Field(ge=2)] = 2
    """LSTM layers of the encoder, the first in both directions, and as many of the decoder."""
    units: Positive = 128
    """Hidden units of a layer and direction, and width of an embedding."""
    attention: Literal["luong", "bahdanau"] = "luong"
    """Scores of the source: luong = scaled products; bahdanau = a network, which takes units numbers for each pair."""
    dropout: OpenFraction = 0.0
    """Dropout probability of the inputs of each layer and of the output layer."""

    def build_translator(
        self, num_classes: int, input_shape: Shapes, vocab_size: int, is_joint: bool
    ) -> gluon.HybridBlock:
        from mxtrain.text.translation.networks.gnmt import GnmtNetwork, GnmtSizes

        sizes = GnmtSizes(self.num_layers, self.units, self.attention, self.dropout)
        chunks = self.chunks(input_shape, num_classes)
        return GnmtNetwork(vocab_size, num_classes, sizes, self.tie(is_joint), chunks, prefix="")
