"""Losses of pose estimation as Gluon blocks. Imports MXNet.

Legend: B batch, J key points, h, w height and width of a heat map.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mxtrain.engine.backend import gluon

if TYPE_CHECKING:
    from mxtrain.types.annotations import Array, OperatorModule


class HeatmapL2Loss(gluon.HybridBlock):
    """Loss of heat maps.

    Inputs are heat maps (B, J, h, w), key points (B, J, 3), which are ignored, true heat maps, and weights (B, J).
    Returns the weighted sum over the key points of half the mean squared difference, (B,), and the sum of the weights,
    (B,).
    """

    weighted = True
    least_weight = 1.0

    def __call__(self, map_BJhw: Array, point_BJ3: Array, *targets: Array) -> Any:
        return super().__call__(map_BJhw, *targets)  # drops the key points: Gluon warns of unused inputs

    def hybrid_forward(self, F: OperatorModule, map_BJhw: Array, true_BJhw: Array, weight_BJ: Array) -> Any:
        loss_BJ = F.mean(F.square(map_BJhw - true_BJhw), axis=(2, 3))
        return 0.5 * F.sum(loss_BJ * weight_BJ, axis=1), F.sum(weight_BJ, axis=1)
