"""A recurrent language model: embeddings, LSTM layers, and an output layer that may share the embeddings."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, List, Literal, Sequence, Union

from mxtrain.text.kinds import NextTokens, Texts
from mxtrain.text.model import TextModel
from mxtrain.types import OpenFraction, Positive, Shape, Shapes, shapes_of
from mxtrain.types.kinds import Takes

if TYPE_CHECKING:
    from mxnet import gluon


class Lstm(TextModel):
    """LSTM layers that carry their state from each window of text to the next, with the dropouts of AWD-LSTM.

    Weights of a layer are drawn from -1 / sqrt(hidden_size) to that, embeddings from -0.1 to 0.1, whatever `init` says.

    Source: Merity et al., https://arxiv.org/abs/1708.02182.
    """

    takes: ClassVar[Takes] = Takes(Texts, NextTokens)
    embedding_name: ClassVar[str] = "embedding.weight"

    units: Positive = 256
    """Width of an embedding."""
    hidden_size: Positive = 256
    """Hidden units of a layer; with tied weights the last layer has `units`."""
    num_layers: Positive = 1
    """LSTM layers."""
    tied: bool = True
    """If true, the output layer shares the weights of the embedding."""
    embedding_dropout: OpenFraction = 0.0
    """Probability that the embedding of a token of the vocabulary is 0 in a whole batch."""
    input_dropout: OpenFraction = 0.0
    """Dropout of embeddings, the same for all tokens of a row."""
    hidden_dropout: OpenFraction = 0.0
    """Dropout between layers, the same for all tokens of a row."""
    output_dropout: OpenFraction = 0.0
    """Dropout after the last layer, the same for all tokens of a row."""
    weight_dropout: OpenFraction = 0.0
    """Probability that a weight between hidden states is 0 for all of a batch."""
    output_chunks: Union[Literal["auto"], Positive] = "auto"
    """Number of chunks in which the scores of a window are computed, to save memory; auto = up to 8 with a large
    vocabulary."""

    def _widths(self) -> List[int]:
        return [self.hidden_size] * (self.num_layers - 1) + [self.units if self.tied else self.hidden_size]

    @property
    def state_shapes(self) -> Sequence[Shape]:
        """Returns the shapes of the state and the cell of each layer."""
        return [(width,) for width in self._widths() for _ in range(2)]

    def build_text(self, num_classes: int, input_shape: Shapes, vocab_size: int) -> gluon.HybridBlock:
        from mxtrain.text.networks import lstm
        from mxtrain.text.networks.language import num_chunks

        length = shapes_of(input_shape)[0][0]
        names = lstm.LstmSizes._fields
        sizes = lstm.LstmSizes(**{name: getattr(self, name) for name in names})
        chunks = num_chunks(self.output_chunks, length, vocab_size)
        return lstm.LstmNetwork(vocab_size, length, sizes, chunks, prefix="")
