"""A bidirectional LSTM over text that scores each token or a whole text."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Tuple

from mxtrain.text.kinds import AnswerSpan, Texts, TokenTags
from mxtrain.text.model import TextModel
from mxtrain.types import OpenFraction, Positive, Shapes
from mxtrain.types.kinds import ClassIndex, ClassSet, Number, Takes

if TYPE_CHECKING:
    from mxnet import gluon


class BiLSTM(TextModel):
    """Embeddings, layers of LSTMs in both directions, and a dense layer that scores each token, or the maximum over the
    tokens of a text.

    Source: Huang et al., "Bidirectional LSTM-CRF Models for Sequence Tagging", https://arxiv.org/abs/1508.01991,
    without the CRF.
    """

    takes: ClassVar[Takes] = Takes(Texts, TokenTags, AnswerSpan, ClassIndex, ClassSet, Number)
    num_token_types: ClassVar[int] = 3
    embedding_name: ClassVar[str] = "word_embed.weight"
    embedding_setting: ClassVar[str] = "embed_size"

    embed_size: Positive = 64
    """Size of the token embedding."""
    units: Positive = 96
    """Units of each direction."""
    num_layers: Positive = 2
    """Layers of both directions."""
    dropout: OpenFraction = 0.1
    """Dropout probability of the inputs of each layer and of the output layer."""

    def build_text(self, num_classes: int, input_shape: Shapes, vocab_size: int) -> gluon.HybridBlock:
        from mxtrain.model.networks.bilstm import BiLSTMClassifier

        return BiLSTMClassifier(num_classes, vocab_size, *self._sizes, prefix="")

    def build_tagger(self, num_classes: int, input_shape: Shapes, vocab_size: int) -> gluon.HybridBlock:
        from mxtrain.model.networks.bilstm import BiLSTMTagger

        return BiLSTMTagger(num_classes, vocab_size, *self._sizes, prefix="")

    @property
    def _sizes(self) -> Tuple[int, int, int, float]:
        return self.embed_size, self.units, self.num_layers, self.dropout
