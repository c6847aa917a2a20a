"""Arithmetic of masks on the device: functions of MXNet's `F`, for graphs and for arrays. Imports no MXNet.

Legend: T objects, S cells along a side of a mask, P cells along a side of a resampled mask. Edges are left, top, right,
bottom in pixels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mxtrain.vision.detection.box_arithmetic import at_least_tiny, columns_of

if TYPE_CHECKING:
    from mxtrain.types.annotations import Array, OperatorModule


def resample_masks(F: OperatorModule, mask_TSS: Array, edge_T4: Array, region_T4: Array, like_TPP: Array) -> Array:
    """Resamples masks to other boxes, (T, P, P): each cell is the mean of the mask over its area. Masks are 0 outside
    of their boxes.

    Args:
        F: MXNet's operators of symbols or of arrays.
        mask_TSS: masks of objects, inside their boxes.
        edge_T4: boxes of the masks.
        region_T4: boxes of the result.
        like_TPP: array of the shape of the result; its values are not used.
    """
    weight_x_TPS, weight_y_TPS = (_overlaps(F, mask_TSS, edge_T4, region_T4, like_TPP, axis) for axis in (0, 1))
    # Means over squares are two matrix products. GluonCV samples at points, half a pixel beside the middles of pixels.
    return F.batch_dot(F.batch_dot(weight_y_TPS, mask_TSS), weight_x_TPS, transpose_b=True)


def _overlaps(
    F: OperatorModule, mask_TSS: Array, edge_T4: Array, region_T4: Array, like_TPP: Array, axis: int
) -> Array:
    """Returns the share of each cell of a region that lies in each cell of a box, along one axis, (T, P, S).

    Args:
        F, mask_TSS, edge_T4, region_T4, like_TPP: see `resample_masks`.
        axis: 0 for x, 1 for y.
    """
    index_S, index_P = (F.contrib.arange_like(array, axis=1) for array in (mask_TSS, like_TPP))
    (begin_T1, end_T1), (from_T1, to_T1) = (
        [columns_of(F, edge, column, column + 1) for column in (axis, axis + 2)] for edge in (edge_T4, region_T4)
    )
    # S and P as max(index) + 1: symbols have no shapes. `cell` is in pixels, all other lengths are in cells of the
    # mask.
    cell_T1 = F.broadcast_div(at_least_tiny(F, end_T1 - begin_T1), F.expand_dims(F.max(index_S + 1), 0))
    step_T1 = F.broadcast_div((to_T1 - from_T1) / cell_T1, F.expand_dims(F.max(index_P + 1), 0))
    first_T1 = (from_T1 - begin_T1) / cell_T1
    low_TP1 = F.expand_dims(F.broadcast_add(F.broadcast_mul(step_T1, F.expand_dims(index_P, 0)), first_T1), axis=2)
    high_TP1 = F.broadcast_add(low_TP1, F.expand_dims(step_T1, axis=2))
    low_S, high_S = (F.reshape(edge_S, shape=(1, 1, -1)) for edge_S in (index_S, index_S + 1))
    overlap_TPS = F.relu(F.broadcast_minimum(high_TP1, high_S) - F.broadcast_maximum(low_TP1, low_S))
    return F.broadcast_div(overlap_TPS, F.expand_dims(at_least_tiny(F, step_T1), axis=2))
