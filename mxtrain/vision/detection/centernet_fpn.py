"""A small detector that finds objects by their centres."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from mxtrain.types import Shape
from mxtrain.vision.detection.heads.base import BoxCoding, Detector
from mxtrain.vision.detection.heads.heatmap import HeatmapCoding
from mxtrain.vision.segmentation.fpn import PyramidModel

if TYPE_CHECKING:
    from mxnet import gluon


class CenterNetFPN(PyramidModel, Detector):
    """The feature pyramid of `model=fpn` with two heads, at a quarter of the image's height and width: one for centres,
    and one for sizes and offsets of boxes.

    Source: Zhou et al., "Objects as Points" (2019), but much smaller.
    """

    option: ClassVar[str] = "centernet_fpn"
    loss_option: ClassVar[str] = "heatmap_focal"
    weighs_boxes: ClassVar[bool] = True

    def box_coding(self, num_classes: int, input_shape: Shape) -> BoxCoding:
        """Returns the box coding of CenterNets."""
        return HeatmapCoding(num_classes, input_shape)

    def build_pyramid(self, num_classes: int) -> gluon.HybridBlock:
        """Returns the network for images that are large enough."""
        from mxtrain.vision.detection.networks.fpn import CentrePyramid

        return CentrePyramid(num_classes, self.channels, self.width)
