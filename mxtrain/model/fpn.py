"""A small feature pyramid network that scores every pixel."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, List, Sequence, Tuple

import pydantic
from typing_extensions import Annotated

from mxtrain.errors import ConfigError
from mxtrain.model.base import Init, Model
from mxtrain.types import Positive, Shape

if TYPE_CHECKING:
    from mxnet import gluon


class FPN(Model):
    """Stages of 3x3 convolutions, each of which halves height and width, and a way back up that adds them together.

    The scores of 4 x 4 pixels are computed at once, at a quarter of the picture's height and width.

    Source: after Kirillov et al., "Panoptic Feature Pyramid Networks" (2019), section 3, much smaller; sub-pixel scores
    as Shi et al., "Real-Time Single Image and Video Super-Resolution" (2016).
    """

    serves: ClassVar[Tuple[str, ...]] = ("segmentation",)

    channels: Annotated[List[Positive], pydantic.Field(min_length=2)] = [24, 48, 96, 128]
    """Output channels of each stage; the first has one convolution, each other two."""
    init: Init = "msra"
    width: Positive = 64
    """Channels on the way back up."""

    def build(self, num_classes: int, input_shape: Shape) -> gluon.HybridBlock:
        """The network, uninitialised; it takes pictures of any size from the smallest on.

        Raises:
            ConfigError: the picture is too small to be halved by every stage.
        """
        from mxtrain.model.networks.fpn import FeaturePyramid

        refuse_too_small("fpn", self.channels, input_shape)
        return FeaturePyramid(num_classes, self.channels, self.width)


def refuse_too_small(option: str, channels: Sequence[int], input_shape: Shape) -> None:
    """Refuses pictures that a pyramid cannot halve in every stage.

    Args:
        option: of conf/model/.
        channels: of each stage.
        input_shape: (C, H, W).

    Raises:
        ConfigError: they are too small.
    """
    smallest = 2 ** len(channels)
    if min(input_shape[1:]) < smallest:
        raise ConfigError(
            f"model={option} with {len(channels)} stages needs pictures of at least {smallest}x{smallest}, but "
            f"they are {input_shape[1]}x{input_shape[2]}. Type dataset.image_size=[{smallest},{smallest}], or "
            "fewer stages, e.g. model.channels=[24,48]."
        )
