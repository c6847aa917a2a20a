"""A small network that finds things by their centres."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from mxtrain.model.detection.base import BoxCoding, Detector
from mxtrain.model.detection.heatmap import HeatmapCoding
from mxtrain.model.fpn import PyramidModel
from mxtrain.types import Shape

if TYPE_CHECKING:
    from mxnet import gluon


class CenterNet(PyramidModel, Detector):
    """The feature pyramid of `model=fpn` with two heads at a quarter of the picture's height and width.

    Source: Zhou et al., "Objects as Points" (2019), much smaller.
    """

    option: ClassVar[str] = "centernet"
    loss_option: ClassVar[str] = "heatmap_focal"
    weighs_boxes: ClassVar[bool] = True

    def box_coding(self, num_classes: int, input_shape: Shape) -> BoxCoding:
        """See `Detector.box_coding`."""
        return HeatmapCoding(num_classes, input_shape)

    def build_pyramid(self, num_classes: int) -> gluon.HybridBlock:
        """See `PyramidModel.build_pyramid`."""
        from mxtrain.model.networks.fpn import CentrePyramid

        return CentrePyramid(num_classes, self.channels, self.width)
