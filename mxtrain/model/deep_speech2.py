"""Convolutions and LSTMs in both directions over frames, as in Deep Speech 2."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, List, Tuple

import pydantic
from typing_extensions import Annotated

from mxtrain.model.base import FrameModel
from mxtrain.types import OpenFraction, Positive, Shape

if TYPE_CHECKING:
    from mxnet import gluon

Odd = Annotated[int, pydantic.Field(ge=1, le=63)]


class DeepSpeech2(FrameModel):
    """Convolutions over time and frequency, layers of LSTMs in both directions, and a dense layer.

    Source: Amodei et al., "Deep Speech 2", https://arxiv.org/abs/1512.02595, with layer norms in the place of batch
    norms, which would count padding and depend on what else is in a batch.
    """

    serves: ClassVar[Tuple[str, ...]] = ("speech_recognition",)

    channels: Annotated[List[Positive], pydantic.Field(min_length=1)] = [16, 32, 48]
    """Channels of each convolution."""
    time_kernels: List[Odd] = [5, 3, 3]
    """Frames that each convolution sees, odd."""
    frequency_kernels: List[Odd] = [5, 3, 3]
    """Numbers of a frame that each convolution sees, odd."""
    time_strides: List[Positive] = [2, 2, 1]
    """Step of each convolution in time: their product is the frames of one score."""
    frequency_strides: List[Positive] = [2, 2, 2]
    """Step of each convolution over the numbers of a frame."""
    units: Positive = 64
    """Units of each direction of a recurrent layer."""
    num_layers: Positive = 1
    """Recurrent layers of both directions."""
    dropout: OpenFraction = 0.1
    """Probability that something is dropped in training of what enters each recurrent layer and the last one."""

    @pydantic.model_validator(mode="after")
    def _check_convolutions(self) -> DeepSpeech2:
        for name in ("time_kernels", "frequency_kernels", "time_strides", "frequency_strides"):
            values = getattr(self, name)
            if len(values) != len(self.channels):
                raise ValueError(f"{name}={values} must have a number for each of channels={self.channels}")
            if name.endswith("kernels") and any(size % 2 == 0 for size in values):
                raise ValueError(f"{name}={values} must be odd")
        return self

    def count_scores(self, frames: int) -> int:
        """See `FrameModel.count_scores`."""
        for stride in self.time_strides:
            frames = -(-frames // stride)
        return frames

    def build(self, num_classes: int, input_shape: Shape) -> gluon.HybridBlock:
        from mxtrain.model.networks.speech import ConvolutionSizes, RecurrentRecognizer

        sizes = [ConvolutionSizes(*of_one) for of_one in zip(
            self.channels, self.time_kernels, self.frequency_kernels, self.time_strides, self.frequency_strides
        )]  # fmt: skip
        return RecurrentRecognizer(
            num_classes, input_shape[1], sizes, self.units, self.num_layers, self.dropout, prefix=""
        )
