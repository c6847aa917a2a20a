"""Losses of networks that find key points. Imports no MXNet."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Tuple

from mxtrain.loss.losses import Loss

if TYPE_CHECKING:
    from mxnet import gluon


class HeatmapL2(Loss):
    """Half the mean squared difference of heat maps, over the key points in the global batch whose place is known.

    It is what GluonCV's L2Loss gives with a weight of 0 for all others where there are none of these; where there are,
    GluonCV's recipe divides by their number, too.

    Source: Xiao et al., "Simple Baselines for Human Pose Estimation and Tracking" (2018), section 3.
    """

    tasks: ClassVar[Tuple[str, ...]] = ("pose_estimation",)

    def build(self, num_classes: int, training: bool) -> gluon.HybridBlock:
        """Returns a HybridBlock (heat maps, key points, true heat maps (B, J, h, w), weights (B, J)) -> loss (B,),
        weight (B,).
        """
        from mxtrain.vision.pose.loss_blocks import HeatmapL2Loss

        return HeatmapL2Loss()
