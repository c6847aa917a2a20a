"""A small convolutional network for spectrograms of a fixed length.

Depthwise separable convolutions, as in Zhang et al., "Hello Edge: Keyword Spotting on Microcontrollers" (2017), train
slowly in MXNet on CPUs: a step of 32 clips took 2 s with 64 channels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, List

import pydantic
from typing_extensions import Annotated

from mxtrain.model.spec import Model
from mxtrain.speech.kinds import Spectrograms
from mxtrain.types import OpenFraction, Positive, Shape
from mxtrain.types.kinds import ClassIndex, Takes

if TYPE_CHECKING:
    from mxnet import gluon


class KeywordCNN(Model):
    """Pairs of 3x3 convolutions with batch norm, of which the first has stride 2, and the mean over time and
    frequency."""

    takes: ClassVar[Takes] = Takes(Spectrograms, ClassIndex)

    channels: Annotated[List[Positive], pydantic.Field(min_length=1)] = [16, 32, 48]
    """Channels of each pair of convolutions."""
    dropout: OpenFraction = 0.2
    """Dropout probability before the output layer."""

    def build(self, num_classes: int, input_shape: Shape) -> gluon.HybridBlock:
        """Returns the network, uninitialized."""
        from mxtrain.speech.networks.keyword_cnn import build_keyword_cnn

        return build_keyword_cnn(num_classes, self.channels, self.dropout)
