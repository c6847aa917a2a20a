"""A bidirectional LSTM over text that scores each token."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from mxtrain.text.kinds import AnswerSpan, Texts, TokenTags
from mxtrain.text.model import TextModel
from mxtrain.types import OpenFraction, Positive, Shapes
from mxtrain.types.kinds import Takes

if TYPE_CHECKING:
    from mxnet import gluon


class BiLSTM(TextModel):
    """Embeddings, layers of LSTMs in both directions, and a dense layer that scores each token.

    Source: Huang et al., "Bidirectional LSTM-CRF Models for Sequence Tagging", https://arxiv.org/abs/1508.01991,
    without the CRF.
    """

    takes: ClassVar[Takes] = Takes(Texts, TokenTags, AnswerSpan)
    num_token_types: ClassVar[int] = 3

    embed_size: Positive = 64
    """Size of the token embedding."""
    units: Positive = 96
    """Units of each direction."""
    num_layers: Positive = 2
    """Layers of both directions."""
    dropout: OpenFraction = 0.1
    """Dropout probability of the inputs of each layer and of the output layer."""

    def build_tagger(self, num_classes: int, input_shape: Shapes, vocab_size: int) -> gluon.HybridBlock:
        from mxtrain.model.networks.bilstm import BiLSTMTagger

        return BiLSTMTagger(
            num_classes, vocab_size, self.embed_size, self.units, self.num_layers, self.dropout, prefix=""
        )
