"""Losses of speech: connectionist temporal classification, and differences of frames."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from mxtrain.loss.spec import Loss
from mxtrain.speech.kinds import MelFrames, Transcripts
from mxtrain.types.kinds import Takes

if TYPE_CHECKING:
    from mxnet import gluon


class CTC(Loss):
    """Connectionist temporal classification: -log p of a transcript, over all its alignments with the frames; the mean
    over utterances of the global batch.

    Source: Graves et al., "Connectionist Temporal Classification" (2006).
    """

    takes: ClassVar[Takes] = Takes(Transcripts)

    def build(self, num_classes: int, training: bool) -> gluon.Block:
        from mxtrain.speech.ctc_blocks import CTCLoss

        return CTCLoss()


class FrameL1(Loss):
    """Mean absolute difference of predicted and true frames, over all frames of the global batch without padding; each
    band is measured in units of its standard deviation."""

    takes: ClassVar[Takes] = Takes(MelFrames)

    def build(self, num_classes: int, training: bool) -> gluon.Block:
        from mxtrain.speech.frame_blocks import AbsoluteFrameLoss

        return AbsoluteFrameLoss()


class FrameL2(FrameL1):
    """Mean squared difference, likewise."""

    def build(self, num_classes: int, training: bool) -> gluon.Block:
        from mxtrain.speech.frame_blocks import SquaredFrameLoss

        return SquaredFrameLoss()
