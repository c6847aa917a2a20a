"""Losses of speech: connectionist temporal classification, and differences of frames."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Sequence, Tuple

from mxtrain.loss.spec import FunctionLoss, Loss
from mxtrain.speech.kinds import MelFrames, Transcripts
from mxtrain.types.kinds import Takes

if TYPE_CHECKING:
    from mxnet import gluon

    from mxtrain.types.annotations import Array, OperatorModule


class CTC(Loss):
    """Connectionist temporal classification: -log p of a transcript, over all its alignments with the frames; the mean
    over utterances of the global batch.

    Source: Graves et al., "Connectionist Temporal Classification" (2006).
    """

    takes: ClassVar[Takes] = Takes(Transcripts)

    def build(self, num_classes: int, training: bool) -> gluon.Block:
        from mxtrain.speech.ctc_blocks import CTCLoss

        return CTCLoss()


class FrameL1(FunctionLoss):
    """Mean absolute difference of predicted and true frames, over all frames of the global batch without padding; each
    band is measured in units of its standard deviation."""

    takes: ClassVar[Takes] = Takes(MelFrames)
    weighted: ClassVar[bool] = True

    def used(self, *arrays: Array) -> Sequence[Array]:
        """Leaves out arrays that only metrics read."""
        return arrays[:3]

    def compute(self, F: OperatorModule, frames_BTF: Array, true_BTF: Array, count_B: Array) -> Tuple[Array, Array]:
        """Returns the sum over the frames of each sample of the mean over bands, (B,), and the number of frames, (B,).

        Args:
            F: mx.nd or mx.sym.
            frames_BTF, true_BTF: predicted and true frames, (B, T, F).
            count_B: number of frames without padding, (B,).
        """
        error_BT = F.mean(self.error(F, frames_BTF - true_BTF), axis=2)
        counts_BT = F.SequenceMask(error_BT, count_B, use_sequence_length=True, value=0.0, axis=1)
        return F.sum(counts_BT, axis=1), F.identity(count_B)

    def error(self, F: OperatorModule, difference_BTF: Array) -> Array:
        """Returns the error of each number."""
        return F.abs(difference_BTF)


class FrameL2(FrameL1):
    """Mean squared difference, likewise."""

    def error(self, F: OperatorModule, difference_BTF: Array) -> Array:
        return F.square(difference_BTF)
