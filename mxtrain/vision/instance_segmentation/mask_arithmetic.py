"""Arithmetic of masks as operators of a graph, or of arrays: functions of MXNet's `F`. Imports no MXNet.

Legend: T objects, S squares along a side of a mask, P squares along a side of another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mxtrain.vision.detection.box_arithmetic import at_least_tiny, columns_of

if TYPE_CHECKING:
    from mxtrain.annotations import Array, OperatorModule


def cut_to(F: OperatorModule, mask_TSS: Array, edge_T4: Array, region_T4: Array, like_TPP: Array) -> Array:
    """Resamples masks to other boxes, (T, P, P): the mean over each square, and 0 outside of a mask's box.

    Args:
        mask_TSS: masks of objects, inside their boxes.
        edge_T4: these boxes.
        region_T4: the other ones.
        like_TPP: says how many squares are wanted, by its shape alone.
    """
    share_TPS, of_lines_TPS = (_shares(F, mask_TSS, edge_T4, region_T4, like_TPP, at) for at in (0, 1))
    return F.batch_dot(F.batch_dot(of_lines_TPS, mask_TSS), share_TPS, transpose_b=True)


def _shares(
    F: OperatorModule, mask_TSS: Array, edge_T4: Array, region_T4: Array, like_TPP: Array, at: int
) -> Array:  # fmt: skip
    """Returns the shares of P intervals of a region in S intervals of a box, (T, P, S).

    Args:
        at: 0 from left to right, 1 from top to bottom.
    """
    number_S, number_P = (F.contrib.arange_like(array, axis=1) for array in (mask_TSS, like_TPP))
    (begin_T1, end_T1), (from_T1, to_T1) = (
        [columns_of(F, edge, place, place + 1) for place in (at, at + 2)] for edge in (edge_T4, region_T4)
    )
    # Lengths in squares of the mask.
    unit_T1 = F.broadcast_div(at_least_tiny(F, end_T1 - begin_T1), F.expand_dims(F.max(number_S + 1), 0))
    step_T1 = F.broadcast_div((to_T1 - from_T1) / unit_T1, F.expand_dims(F.max(number_P + 1), 0))
    first_T1 = (from_T1 - begin_T1) / unit_T1
    low_TP1 = F.expand_dims(F.broadcast_add(F.broadcast_mul(step_T1, F.expand_dims(number_P, 0)), first_T1), axis=2)
    high_TP1 = F.broadcast_add(low_TP1, F.expand_dims(step_T1, axis=2))
    low_S, high_S = (F.reshape(one, shape=(1, 1, -1)) for one in (number_S, number_S + 1))
    common_TPS = F.relu(F.broadcast_minimum(high_TP1, high_S) - F.broadcast_maximum(low_TP1, low_S))
    return F.broadcast_div(common_TPS, F.expand_dims(at_least_tiny(F, step_T1), axis=2))
