"""A small network that finds things by their centres."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, List

import pydantic
from typing_extensions import Annotated

from mxtrain.model.base import Init
from mxtrain.model.detection.base import BoxCoding, Detector
from mxtrain.model.detection.heatmap import HeatmapCoding
from mxtrain.model.fpn import refuse_too_small
from mxtrain.types import Positive, Shape

if TYPE_CHECKING:
    from mxnet import gluon


class CenterNet(Detector):
    """The feature pyramid of `model=fpn` with two heads at a quarter of the picture's height and width.

    Source: Zhou et al., "Objects as Points" (2019), much smaller.
    """

    loss_option: ClassVar[str] = "heatmap_focal"
    weighs_boxes: ClassVar[bool] = True

    channels: Annotated[List[Positive], pydantic.Field(min_length=2)] = [24, 48, 96, 128]
    """Output channels of each stage; the first has one convolution, each other two."""
    init: Init = "msra"
    width: Positive = 64
    """Channels on the way back up."""

    def box_coding(self, num_classes: int, input_shape: Shape) -> BoxCoding:
        """See `Detector.box_coding`."""
        return HeatmapCoding(num_classes, input_shape)

    def build(self, num_classes: int, input_shape: Shape) -> gluon.HybridBlock:
        """The network, uninitialised.

        Raises:
            ConfigError: the picture is too small to be halved by every stage.
        """
        from mxtrain.model.networks.fpn import CentrePyramid

        refuse_too_small("centernet", self.channels, input_shape)
        return CentrePyramid(num_classes, self.channels, self.width)
