"""Losses of pose estimation. Does not import MXNet."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from mxtrain.loss.spec import Loss
from mxtrain.types.kinds import Takes
from mxtrain.vision.kinds import KeyPoints

if TYPE_CHECKING:
    from mxnet import gluon


class HeatmapL2(Loss):
    """Half the mean squared difference of heat maps: the mean over the key points with a known position in the global
    batch.

    If all positions are known, this equals GluonCV's L2Loss. Otherwise GluonCV's recipe gives unknown key points a
    weight of 0, but divides by the number of all key points.

    Source: Xiao et al., "Simple Baselines for Human Pose Estimation and Tracking" (2018), section 3.
    """

    takes: ClassVar[Takes] = Takes(KeyPoints)

    def build(self, num_classes: int, training: bool) -> gluon.HybridBlock:
        """Returns a HybridBlock (heat maps, key points, true heat maps (B, J, h, w), weights (B, J)) -> loss (B,),
        weight (B,).
        """
        from mxtrain.vision.pose.loss_blocks import HeatmapL2Loss

        return HeatmapL2Loss()
