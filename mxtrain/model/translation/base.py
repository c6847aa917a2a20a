"""Base of networks that translate."""

from __future__ import annotations

from typing import ClassVar, Literal, Tuple, Union

from mxtrain.errors import ConfigError
from mxtrain.model.base import Model
from mxtrain.types import Positive, Shapes, shapes_of


class TranslatingModel(Model):
    """A network of a source and a target, see `Model.build_translator`."""

    reads: ClassVar[Tuple[str, ...]] = ("text",)
    serves: ClassVar[Tuple[str, ...]] = ("translation",)

    tied: Literal["auto", "all", "target", "none"] = "auto"
    """Which tables are one: all = embeddings of source and target and the output layer; target = without the source's;
    auto = all with a joint vocabulary, else target."""
    output_chunks: Union[Literal["auto"], Positive] = "auto"
    """Parts of a target whose scores are computed one after the other; auto = 8 at most, with a large vocabulary."""

    def tie(self, is_joint: bool) -> str:
        """Which tables are one.

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
        """The number of parts in which scores are computed.

        Args:
            input_shape: of each input of one sample; the third is the target's.
            vocab_size: of the target.
        """
        from mxtrain.model.networks.language import num_chunks

        return num_chunks(self.output_chunks, shapes_of(input_shape)[2][0], vocab_size)
