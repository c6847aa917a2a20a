"""Base of the descriptions of networks that begin with convolutions over frames."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, List, Tuple

import pydantic
from typing_extensions import Annotated

from mxtrain.model.base import Model
from mxtrain.types import Positive

if TYPE_CHECKING:
    from mxtrain.model.networks.speech import ConvolutionSizes

Odd = Annotated[int, pydantic.Field(ge=1, le=63)]


def check_block(units: int, num_heads: int, **kernels: int) -> None:
    """Raises: ValueError: a block of attention with rotary positions and of convolution cannot be so."""
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


class ConvolvedFrames(Model):
    """Convolutions over time and over the numbers of a frame, which make fewer and wider frames."""

    reads: ClassVar[Tuple[str, ...]] = ("frames",)

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
        """See `Model.count_scores`."""
        for stride in self.time_strides:
            frames = -(-frames // stride)
        return frames

    @property
    def convolutions(self) -> List[ConvolutionSizes]:
        """The sizes of each convolution."""
        from mxtrain.model.networks.speech import ConvolutionSizes

        columns = (
            self.channels, self.time_kernels, self.frequency_kernels, self.time_strides, self.frequency_strides
        )  # fmt: skip
        return [ConvolutionSizes(*of_one) for of_one in zip(*columns)]
