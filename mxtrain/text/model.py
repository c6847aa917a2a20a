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
    """The token types that it knows, from 0."""

    def build_text(self, num_classes: int, input_shape: Shapes, vocab_size: int) -> gluon.Block:
        """Returns the network, uninitialized. It takes tokens, token types (B, T) and valid lengths (B,).

        Args:
            num_classes: length of the output vector.
            input_shape: shape of each input of one sample, T being the longest; the fourth is masked positions, (M,),
                for which the network returns (B, M, num_classes).
            vocab_size: tokens are from 0 to this.
        """
        raise missing_method(self, "build_text")

    def build_tagger(self, num_classes: int, input_shape: Shapes, vocab_size: int) -> gluon.Block:
        """Returns the network that scores each token, (B, T, num_classes), uninitialized; arguments as of `build_text`,
        which a class of the user's own may have alone."""
        return self.build_text(num_classes, input_shape, vocab_size)


def build_text(model: Model, num_classes: int, input_shape: Shapes, vocab_size: int, tags: bool = False) -> gluon.Block:
    """Returns the network of any model for text; see `TextModel.build_text`.

    Args:
        tags: it scores each token.
    """
    if not isinstance(model, TextModel):
        return model.build_filled(num_classes, input_shape=input_shape, vocab_size=vocab_size)
    build = model.build_tagger if tags else model.build_text
    return build(num_classes, input_shape, vocab_size)
