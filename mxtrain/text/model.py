"""Base class of models for text, and the network of any model for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from mxtrain.model.spec import Model, missing_method
from mxtrain.text.kinds import Texts
from mxtrain.types import Shapes
from mxtrain.types.kinds import Takes

if TYPE_CHECKING:
    from mxnet import gluon


class TextModel(Model):
    """Base of networks for text."""

    takes: ClassVar[Takes] = Takes(Texts)
    num_token_types: ClassVar[int] = 2
    """Number of token types that the network distinguishes: their ids are 0 to `num_token_types` - 1."""

    def build_text(self, num_classes: int, input_shape: Shapes, vocab_size: int) -> gluon.Block:
        """Returns the network, uninitialized. It takes tokens, token types (B, T) and valid lengths (B,).

        Args:
            num_classes: length of the output vector.
            input_shape: shape of each input of one sample, T being the longest; the fourth is masked positions, (M,),
                for which the network returns (B, M, num_classes).
            vocab_size: number of tokens; their ids are 0 to `vocab_size` - 1.
        """
        raise missing_method(self, "build_text")

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
