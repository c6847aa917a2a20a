"""Convolutions and LSTMs in both directions over frames, as in Deep Speech 2."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from mxtrain.speech.kinds import Frames, Transcripts
from mxtrain.speech.model import ConvolvedFrames
from mxtrain.types import OpenFraction, Positive, Shape
from mxtrain.types.kinds import Takes

if TYPE_CHECKING:
    from mxnet import gluon


class DeepSpeech2(ConvolvedFrames):
    """Convolutions over time and frequency, layers of LSTMs in both directions, and a dense layer.

    Source: Amodei et al., "Deep Speech 2", https://arxiv.org/abs/1512.02595, with layer norms in the place of batch
    norms, which would count padding and depend on what else is in a batch.
    """

    takes: ClassVar[Takes] = Takes(Frames, Transcripts)

    units: Positive = 64
    """Units of each direction of a recurrent layer."""
    num_layers: Positive = 1
    """Recurrent layers of both directions."""
    dropout: OpenFraction = 0.1
    """Dropout probability of the inputs of each recurrent layer and of the output layer."""

    def build(self, num_classes: int, input_shape: Shape) -> gluon.HybridBlock:
        from mxtrain.speech.networks.speech import RecurrentRecognizer

        return RecurrentRecognizer(
            num_classes, input_shape[1], self.convolutions, self.units, self.num_layers, self.dropout, prefix=""
        )
