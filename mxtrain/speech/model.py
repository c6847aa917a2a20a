"""Base classes of models for frames and for symbols."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, List

import pydantic
from typing_extensions import Annotated

from mxtrain.model.spec import Model, missing_method
from mxtrain.speech.kinds import Frames, Symbols
from mxtrain.types import Positive, Shapes
from mxtrain.types.kinds import Takes

if TYPE_CHECKING:
    from mxnet import gluon

    from mxtrain.speech.networks.speech import ConvolutionSizes

Odd = Annotated[int, pydantic.Field(ge=1, le=63)]


def check_block(units: int, num_heads: int, **kernels: int) -> None:
    """Checks the sizes of a block with rotary attention and convolutions.

    Raises:
        ValueError: a size is invalid.
    """
    if units % num_heads:
        raise ValueError(f"num_heads must divide units, got num_heads={num_heads} and units={units}")
    if units // num_heads % 2:
        raise ValueError(
            f"units / num_heads must be even, got units={units} and num_heads={num_heads}: rotary positions turn pairs "
            "of a head's units"
        )
    for name, size in kernels.items():
        if size % 2 == 0:
            raise ValueError(f"{name}={size} must be odd")


class SymbolModel(Model):
    """Base of networks that speak symbols."""

    takes: ClassVar[Takes] = Takes(Symbols)

    def build_symbols(self, num_classes: int, input_shape: Shapes, vocab_size: int) -> gluon.Block:
        """Returns the network, uninitialized. It takes symbols (B, L), their numbers (B,), the symbol index of each
        frame (B, T) and frame positions (B, T, 4), and returns frames (B, T, num_classes).

        Args:
            num_classes: number of mel bands.
            input_shape: shape of each input of one sample.
            vocab_size: number of symbols.
        """
        raise missing_method(self, "build_symbols")


def build_symbols(model: Model, num_classes: int, input_shape: Shapes, vocab_size: int) -> gluon.Block:
    """Returns the network of any model that speaks symbols; see `SymbolModel.build_symbols`."""
    if isinstance(model, SymbolModel):
        return model.build_symbols(num_classes, input_shape, vocab_size)
    return model.build_filled(num_classes, input_shape=input_shape, vocab_size=vocab_size)


class FrameModel(Model):
    """Base of networks that score characters along frames, (B, T, F) and numbers of frames (B,) to (B, T', K), and say
    how many scores they give. Of any other model this is found by a trace."""

    takes: ClassVar[Takes] = Takes(Frames)

    def count_scores(self, frames: int) -> int:
        """Returns the count of scores, T', of a sample of T frames. Imports no MXNet."""
        raise NotImplementedError(f"{type(self).__name__} does not say how many scores it gives")


class ConvolvedFrames(FrameModel):
    """Convolutions over time and over the numbers of a frame, which make fewer and wider frames."""

    channels: Annotated[List[Positive], pydantic.Field(min_length=1)] = [16, 32, 48]
    """Channels of each convolution."""
    time_kernels: List[Odd] = [5, 3, 3]
    """Kernel size of each convolution in time, odd."""
    frequency_kernels: List[Odd] = [5, 3, 3]
    """Kernel size of each convolution in frequency, odd."""
    time_strides: List[Positive] = [2, 2, 1]
    """Stride of each convolution in time; their product is the number of frames per score."""
    frequency_strides: List[Positive] = [2, 2, 2]
    """Stride of each convolution in frequency."""

    @pydantic.model_validator(mode="after")
    def _check_convolutions(self) -> ConvolvedFrames:
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

    @property
    def convolutions(self) -> List[ConvolutionSizes]:
        """Returns the sizes of each convolution."""
        from mxtrain.speech.networks.speech import ConvolutionSizes

        columns = (self.channels, self.time_kernels, self.frequency_kernels, self.time_strides, self.frequency_strides)
        return [ConvolutionSizes(*of_one) for of_one in zip(*columns)]
