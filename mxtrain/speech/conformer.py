"""Blocks of attention and convolution over frames."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, List

import pydantic
from typing_extensions import Annotated

from mxtrain.speech.kinds import Frames, Transcripts
from mxtrain.speech.model import ConvolvedFrames, Odd, check_block
from mxtrain.types import OpenFraction, Positive, Shape
from mxtrain.types.kinds import Takes

if TYPE_CHECKING:
    from mxnet import gluon


class Conformer(ConvolvedFrames):
    """Convolutions that make fewer frames, and blocks of half a feed-forward, attention, convolution and half a
    feed-forward.

    Source: Gulati et al., "Conformer", https://arxiv.org/abs/2005.08100, with layer norms in the place of batch norms,
    and rotary positions (Su et al., "RoFormer", https://arxiv.org/abs/2104.09864) in the place of relative ones.
    """

    takes: ClassVar[Takes] = Takes(Frames, Transcripts)

    channels: Annotated[List[Positive], pydantic.Field(min_length=1)] = [16, 32]
    time_kernels: List[Odd] = [5, 3]
    frequency_kernels: List[Odd] = [5, 3]
    time_strides: List[Positive] = [2, 2]
    frequency_strides: List[Positive] = [2, 2]
    units: Positive = 96
    """Width of the residual stream between blocks."""
    hidden_size: Positive = 256
    """Hidden width of the feed-forward sublayers."""
    num_heads: Positive = 4
    """Number of attention heads; a divisor of units."""
    num_layers: Positive = 3
    """Blocks."""
    kernel: Odd = 15
    """Kernel size of a block's convolution in frames, odd."""
    dropout: OpenFraction = 0.1
    """Dropout probability after each sublayer of a block and of attention weights."""

    @pydantic.model_validator(mode="after")
    def _check_block(self) -> Conformer:
        check_block(self.units, self.num_heads, kernel=self.kernel)
        return self

    def build(self, num_classes: int, input_shape: Shape) -> gluon.HybridBlock:
        from mxtrain.speech.networks.conformer import ConformerRecognizer, ConformerSizes

        sizes = ConformerSizes(self.units, self.hidden_size, self.num_heads, self.kernel, self.dropout)
        return ConformerRecognizer(num_classes, input_shape[1], self.convolutions, sizes, self.num_layers, prefix="")
