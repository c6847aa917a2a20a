"""A small feature pyramid network for pose estimation."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from mxtrain.vision.pose.model import PoseNetwork
from mxtrain.vision.segmentation.fpn import PyramidModel

if TYPE_CHECKING:
    from mxnet import gluon


class PoseFPN(PyramidModel, PoseNetwork):
    """The feature pyramid of `model=fpn` with a heat map for each key point, at a quarter of the height and width."""

    option: ClassVar[str] = "pose_fpn"

    def build_pyramid(self, num_classes: int) -> gluon.HybridBlock:
        """Returns the network for images that are large enough."""
        from mxtrain.vision.detection.networks.fpn import KeyPointPyramid

        return KeyPointPyramid(num_classes, self.channels, self.width)
