"""A small feature pyramid network that finds key points."""

from __future__ import annotations

from typing import TYPE_CHECKING, List

import pydantic
from typing_extensions import Annotated

from mxtrain.model.base import Init
from mxtrain.model.fpn import refuse_too_small
from mxtrain.model.pose.base import PoseNetwork
from mxtrain.types import Positive, Shape

if TYPE_CHECKING:
    from mxnet import gluon


class PoseFPN(PoseNetwork):
    """The feature pyramid of `model=fpn` with a heat map for each key point, at a quarter of the height and width."""

    channels: Annotated[List[Positive], pydantic.Field(min_length=2)] = [24, 48, 96, 128]
    """Output channels of each stage; the first has one convolution, each other two."""
    init: Init = "msra"
    width: Positive = 64
    """Channels on the way back up."""

    def build(self, num_classes: int, input_shape: Shape) -> gluon.HybridBlock:
        """The network, uninitialised.

        Raises:
            ConfigError: the picture is too small to be halved by every stage.
        """
        from mxtrain.model.networks.fpn import KeyPointPyramid

        refuse_too_small("pose_fpn", self.channels, input_shape)
        return KeyPointPyramid(num_classes, self.channels, self.width)
