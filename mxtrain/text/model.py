"""Base class of models for text, and the network of any model for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, List, Optional

import pydantic
from typing_extensions import Self

from mxtrain.model.spec import Model, missing_method
from mxtrain.text.kinds import Texts
from mxtrain.types import PathText, Shape, Shapes
from mxtrain.types.kinds import Takes

if TYPE_CHECKING:
    from mxnet import gluon

    from mxtrain.text.tokenizing.base import BaseTokenizer


class TextModel(Model):
    """Base of networks for text."""

    takes: ClassVar[Takes] = Takes(Texts)
    num_token_types: ClassVar[int] = 2
    """Number of token types that the network distinguishes: their ids are 0 to `num_token_types` - 1."""
    embedding_name: ClassVar[str] = ""
    """Last parts of the structural name of the embedding of tokens, e.g. `word_embed.weight`; empty: `embeddings`
    cannot be set."""
    embedding_setting: ClassVar[str] = "units"
    """Field with the length of this embedding, for messages."""

    embeddings: Optional[PathText] = None
    """File of word vectors with which the embeddings of words start: GloVe's .txt, .vec or .bin of fastText, or the
    text or binary file of word2vec, also in a .gz or .zip; other words start as without it. For vocabularies of whole
    words (dataset.tokenizer=words)."""

    @pydantic.model_validator(mode="after")
    def _check_embeddings(self) -> TextModel:
        if self.embeddings and not self.embedding_name:
            raise ValueError(
                f"embeddings={self.embeddings}: {type(self).__name__} does not say which parameter its embedding is. "
                "Leave it out, or set `embedding_name` in that class"
            )
        if self.embeddings and self.weights:
            raise ValueError(
                f"embeddings={self.embeddings} and weights={self.weights} both give the first values of the embedding. "
                "Leave one of them out"
            )
        return self

    @property
    def embedding_size(self) -> int:
        """Returns the length of an embedding."""
        return int(getattr(self, self.embedding_setting))

    def for_trained_weights(self) -> Self:
        return super().for_trained_weights().for_resumed_weights()

    def for_resumed_weights(self) -> Self:
        return super().for_resumed_weights().model_copy(update={"embeddings": None})

    def require_files(self) -> None:
        super().require_files()
        if self.embeddings:
            from mxtrain.text.word_vectors.reading import open_vectors

            open_vectors(self.embeddings, self.embedding_size, f"model.{self.embedding_setting}")

    def set_embeddings(self, network: gluon.Block, tokenizer: BaseTokenizer) -> None:
        """Sets the embeddings of words that have a vector in the file `embeddings`, if there is one.

        Args:
            network: initialised network.
            tokenizer: vocabulary.

        Raises:
            ConfigError, DataError: the vocabulary has no whole words, or the file cannot be used.
        """
        if not self.embeddings:
            return
        from mxtrain.text.word_vectors.reading import set_embeddings

        setting = f"model.{self.embedding_setting}"
        set_embeddings(network, self.embedding_name, self.embeddings, setting, tokenizer)

    def build_text(self, num_classes: int, input_shape: Shapes, vocab_size: int) -> gluon.Block:
        """Returns the network, uninitialized. It takes tokens, token types (B, T) and valid lengths (B,).

        Args:
            num_classes: length of the output vector.
            input_shape: shape of each input of one sample, T being the longest; the fourth is masked positions, (M,),
                for which the network returns (B, M, num_classes).
            vocab_size: number of tokens; their ids are 0 to `vocab_size` - 1.
        """
        raise missing_method(self, "build_text")

    def statistics_shapes(self) -> List[Shape]:
        """Returns the shapes, for one sample, of outputs after the first that only metrics and reports read."""
        return []

    def build_tagger(self, num_classes: int, input_shape: Shapes, vocab_size: int) -> gluon.Block:
        """Returns the network that scores each token, (B, T, num_classes), uninitialized; arguments as in `build_text`.

        By default it is the network of `build_text`, so a user's own class may implement that method alone.
        """
        return self.build_text(num_classes, input_shape, vocab_size)


def build_text(
    model: Model, num_classes: int, input_shape: Shapes, vocab_size: int, scores_tokens: bool = False
) -> gluon.Block:
    """Returns the network of any model for text; see `TextModel.build_text`.

    Args:
        model: description of the model.
        num_classes, input_shape, vocab_size: see `TextModel.build_text`.
        scores_tokens: True for a network that scores each token, see `TextModel.build_tagger`.
    """
    if not isinstance(model, TextModel):
        return model.build_filled(num_classes, input_shape=input_shape, vocab_size=vocab_size)
    build = model.build_tagger if scores_tokens else model.build_text
    return build(num_classes, input_shape, vocab_size)
