"""Base of networks that translate."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, Union

from mxtrain.errors import ConfigError
from mxtrain.model.spec import Model, missing_method
from mxtrain.text.kinds import Texts
from mxtrain.types import Positive, Shapes, shapes_of
from mxtrain.types.kinds import Takes, Translations

if TYPE_CHECKING:
    from mxnet import gluon


class TranslatingModel(Model):
    """Base of networks of a source and a target."""

    takes: ClassVar[Takes] = Takes(Texts, Translations)

    tied: Literal["auto", "all", "target", "none"] = "auto"
    """Shared weights: all = embeddings of source and target and the output layer; target = without the source's; auto =
    all with a joint vocabulary, otherwise target."""
    output_chunks: Union[Literal["auto"], Positive] = "auto"
    """Number of chunks in which the scores of a target are computed, to save memory; auto = up to 8 with a large
    vocabulary."""

    def tie(self, is_joint: bool) -> str:
        """Returns the weights that are shared.

        Args:
            is_joint: whether source and target have one vocabulary.

        Raises:
            ConfigError: all are to be, and there are two vocabularies.
        """
        if self.tied == "all" and not is_joint:
            raise ConfigError(
                "model.tied=all: source and target have vocabularies of their own. Type model.tied=target, or "
                "dataset.joint_vocabulary=true."
            )
        if self.tied == "auto":
            return "all" if is_joint else "target"
        return self.tied

    def chunks(self, input_shape: Shapes, vocab_size: int) -> int:
        """Returns the number of parts in which scores are computed.

        Args:
            input_shape: shape of each input of one sample; the third is the target's.
            vocab_size: size of the target vocabulary.
        """
        from mxtrain.text.networks.language import num_chunks

        return num_chunks(self.output_chunks, shapes_of(input_shape)[2][0], vocab_size)

    def build_translator(self, num_classes: int, input_shape: Shapes, vocab_size: int, is_joint: bool) -> gluon.Block:
        """Returns the network, uninitialized. It takes a source (B, S), its lengths (B,), a target (B, T) and the
        tokens that follow in it (B, T), and returns -log p of each and the mean of -log p over the vocabulary.

        Args:
            num_classes: tokens of the target's vocabulary.
            input_shape: shape of each input of one sample, S and T being the longest.
            vocab_size: tokens of the source's vocabulary.
            is_joint: whether both are one.
        """
        raise missing_method(self, "build_translator")
