"""Losses of pose estimation. Does not import MXNet.

Legend: B batch, J key points, h, w height and width of a heat map.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Sequence, Tuple

from mxtrain.loss.spec import FunctionLoss
from mxtrain.types.kinds import Takes
from mxtrain.vision.kinds import KeyPoints

if TYPE_CHECKING:
    from mxtrain.types.annotations import Array, OperatorModule


class HeatmapL2(FunctionLoss):
    """Half the mean squared difference of heat maps: the mean over the key points with a known position in the global
    batch.

    If all positions are known, this equals GluonCV's L2Loss. Otherwise GluonCV's recipe gives unknown key points a
    weight of 0, but divides by the number of all key points.

    Source: Xiao et al., "Simple Baselines for Human Pose Estimation and Tracking" (2018), section 3.
    """

    takes: ClassVar[Takes] = Takes(KeyPoints)
    weighted: ClassVar[bool] = True
    least_weight: ClassVar[float] = 1.0

    def used(self, *arrays: Array) -> Sequence[Array]:
        """Leaves out the key points (B, J, 3), from which the true heat maps were made."""
        return (arrays[0], *arrays[2:])

    def compute(self, F: OperatorModule, map_BJhw: Array, true_BJhw: Array, weight_BJ: Array) -> Tuple[Array, Array]:
        """Returns the weighted sum over the key points, (B,), and the sum of the weights, (B,)."""
        loss_BJ = F.mean(F.square(map_BJhw - true_BJhw), axis=(2, 3))
        # The weight counts known points. GluonCV divides by all, so that gradients shrink with the unmarked share.
        return 0.5 * F.sum(loss_BJ * weight_BJ, axis=1), F.sum(weight_BJ, axis=1)
