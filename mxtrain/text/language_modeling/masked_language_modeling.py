"""Masked language modeling: predicts the hidden tokens of a text.

Legend: B batch, M hidden tokens of a sample, K tokens of the vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, List, Tuple

from mxtrain.loss.custom import CustomLoss
from mxtrain.task.spec import Task
from mxtrain.text.kinds import MaskedTokens
from mxtrain.text.signature import TextSignature
from mxtrain.types.kinds import Takes

if TYPE_CHECKING:
    from mxnet.ndarray import NDArray

    from mxtrain.config.parts import RunParts
    from mxtrain.data.signature import Signature
    from mxtrain.types import Batch


class MaskedLanguageModeling(Task):
    """Scores (B, M, K) against token indices (B, M), -1 for positions that do not count."""

    name: ClassVar[str] = "masked_language_modeling"
    takes: ClassVar[Takes] = Takes(MaskedTokens)
    predicts: ClassVar[bool] = False

    def check(self, description: RunParts) -> None:
        super().check(description)
        loss = description.loss
        if not isinstance(loss, CustomLoss):
            return
        if not loss.dense_labels:
            loss.refuse_smoothing("token")
        loss.refuse_counting_ignored("positions without a hidden token", "masked_softmax_cross_entropy")

    def num_classes(self, signature: Signature) -> int:
        return TextSignature.cast(signature).vocab_size

    def output_shapes(self, description: RunParts, signature: Signature) -> List[Tuple[int, ...]]:
        return [(TextSignature.cast(signature).tokenizer_config.num_masked, self.num_classes(signature))]

    def decode(self, outputs: Tuple[NDArray, ...], batch: Batch) -> NDArray:
        """Returns the most probable token of each hidden one, (B, M)."""
        return outputs[0].argmax(axis=-1)
