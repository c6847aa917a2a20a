"""Arithmetic of boxes on the device: functions of MXNet's `F`, for graphs and for arrays. Does not import MXNet.
`box_geometry` has functions for NumPy arrays.

Legend: B batch, N boxes of an image, M true boxes of an image, K chosen boxes, D columns of `boxes.Column`. Edges are
left, top, right, bottom in pixels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Optional, Sequence, Tuple

from mxtrain.vision.detection.box_geometry import INSIDE_CROWD
from mxtrain.vision.detection.boxes import Column, Flag

if TYPE_CHECKING:
    from mxtrain.types.annotations import Array, OperatorModule

REGION_IOU = 0.5
"""Smallest intersection over union at which a region is matched to an object."""
REGION_VARIANCES = (0.1, 0.1, 0.2, 0.2)
"""Offsets from regions to objects are divided by these (x, y, width, height), which makes them about equally large.
Source: as GluonCV."""
TINY = 1e-12
"""Lower limit of divisors."""
_FARTHEST = 1e6
"""Limit of the coordinates that `bound_edges` accepts, in pixels."""


def columns_of(F: OperatorModule, array: Array, begin: int, end: Optional[int]) -> Array:
    """Returns the columns from `begin` up to `end` of the last axis."""
    return F.slice_axis(array, axis=-1, begin=begin, end=end)


def intersection_areas(F: OperatorModule, edge_BN4: Array, edge_BM4: Array) -> Array:
    """Computes the area of the intersection of each box with each true box, in pixels, (B, N, M)."""
    sides = []
    for low, high in ((0, 2), (1, 3)):
        begins, ends = (
            [_column(F, edge_BN4, column), F.transpose(_column(F, edge_BM4, column), axes=(0, 2, 1))]
            for column in (low, high)
        )
        sides.append(F.relu(F.broadcast_minimum(*ends) - F.broadcast_maximum(*begins)))
    return sides[0] * sides[1]


def _column(F: OperatorModule, edge_BN4: Array, index: int) -> Array:
    return columns_of(F, edge_BN4, index, index + 1)


def areas(F: OperatorModule, edge_BN4: Array) -> Array:
    """Computes the areas of boxes in pixels, (B, N)."""
    return F.prod(columns_of(F, edge_BN4, 2, 4) - columns_of(F, edge_BN4, 0, 2), axis=2)


class Matches(NamedTuple):
    """The true box with the highest intersection over union for each box.

    Attributes:
        iou_BN: intersection over union with it; 0 if there is no overlap.
        index_BN: its index among the true boxes.
        in_crowd_BN: 1 if the box lies in a crowd region, else 0.
    """

    iou_BN: Array
    index_BN: Array
    in_crowd_BN: Array


def is_object(F: OperatorModule, box_BMD: Array) -> Array:
    """Returns 1 for rows that are boxes of single objects with an area, else 0, (B, M)."""
    flags_BM1, class_BM1 = (_column(F, box_BMD, column) for column in (Column.FLAGS, Column.CLASS))
    side_BM2 = columns_of(F, box_BMD, 2, 4) - columns_of(F, box_BMD, 0, 2)
    return F.squeeze(class_BM1 >= 0, axis=2) * F.squeeze(flags_BM1 < Flag.CROWD, axis=2) * F.min(side_BM2 > 0, axis=2)


def match_boxes(F: OperatorModule, edge_BN4: Array, box_BMD: Array) -> Matches:
    """Finds the true box with the highest intersection over union for each box.

    Args:
        edge_BN4: edges of the boxes.
        box_BMD: true boxes; crowd regions are not matched, see `Matches.in_crowd_BN`.
    """
    edge_BM4 = columns_of(F, box_BMD, 0, 4)
    common_BNM = intersection_areas(F, edge_BN4, edge_BM4)
    area_BN1, area_B1M = F.expand_dims(areas(F, edge_BN4), axis=2), F.expand_dims(areas(F, edge_BM4), axis=1)
    union_BNM = F.broadcast_sub(F.broadcast_add(area_BN1, area_B1M), common_BNM)
    object_B1M = F.expand_dims(is_object(F, box_BMD), axis=1)
    # The union of two boxes without area is 0, and 0 / 0 would be NaN.
    iou_BNM = F.broadcast_mul(common_BNM / at_least_tiny(F, union_BNM), object_B1M)
    crowd_B1M = F.transpose(columns_of(F, box_BMD, Column.FLAGS, Column.FLAGS + 1) >= Flag.CROWD, axes=(0, 2, 1))
    # The region's own area divides and not the union: a small region inside a large crowd is covered wholly.
    covered_BNM = F.broadcast_div(F.broadcast_mul(common_BNM, crowd_B1M), at_least_tiny(F, area_BN1))
    return Matches(F.max(iou_BNM, axis=2), F.argmax(iou_BNM, axis=2), F.max(covered_BNM, axis=2) > INSIDE_CROWD)


def at_least_tiny(F: OperatorModule, array: Array) -> Array:
    """Returns the array with `TINY` as the lower limit, for use as a divisor."""
    return F.broadcast_maximum(array, F.ones_like(array) * TINY)


def take_rows(F: OperatorModule, array_BNC: Array, index_BK: Array) -> Array:
    """Gathers rows of each sample by index, (B, K, C).

    Args:
        F: MXNet's operators of symbols or of arrays.
        array_BNC: rows of each sample.
        index_BK: indices of the rows to take in each sample.
    """
    sample_B1 = F.reshape(F.contrib.arange_like(index_BK, axis=0), shape=(-1, 1))
    # int32, because float16 holds whole numbers exactly up to 2,048 only, and float32 up to 2^24.
    sample_BK = F.broadcast_like(F.cast(sample_B1, "int32"), index_BK)
    return F.gather_nd(array_BNC, F.stack(sample_BK, F.cast(index_BK, "int32"), axis=0))


def bound_edges(F: OperatorModule, edge: Array) -> Array:
    """Replaces edges that are NaN, infinite or far away, as of a diverged network, by 0: ROIAlign would read memory out
    of bounds at NaN."""
    # A comparison with NaN is false, so NaN becomes 0, too.
    return F.where(F.abs(edge) < _FARTHEST, edge, F.zeros_like(edge))


def centre_and_size(F: OperatorModule, edge: Array) -> Tuple[Array, Array]:
    """Computes the centres and sizes of boxes, (..., 2) each."""
    low, high = columns_of(F, edge, 0, 2), columns_of(F, edge, 2, 4)
    return (low + high) * 0.5, high - low


def offsets_to(F: OperatorModule, edge_BN4: Array, true_BN4: Array, variances: Sequence[float]) -> Array:
    """Computes the offsets from boxes to their true boxes, (B, N, 4): the distance of centres relative to the size of
    the box, and the logarithm of the ratio of sizes, both divided by `variances`.

    Source: Girshick et al., "Rich Feature Hierarchies for Accurate Object Detection" (2014), appendix C.
    """
    (centre, size), (true_centre, true_size) = (centre_and_size(F, edges) for edges in (edge_BN4, true_BN4))
    size, true_size = at_least_tiny(F, size), at_least_tiny(F, true_size)
    shift = (true_centre - centre) / size * (1.0 / variances[0])
    return F.concat(shift, F.log(true_size / size) * (1.0 / variances[2]), dim=2)


def apply_offsets(
    F: OperatorModule, edge: Array, offset: Array, variances: Sequence[float], max_log_scale: float
) -> Array:
    """Moves boxes by offsets: the inverse of `offsets_to`. Returns edges (..., 4).

    Args:
        edge: edges of the boxes (..., 4).
        offset: offsets (..., 4), which are broadcast over boxes.
        variances: divisors of the offsets.
        max_log_scale: logarithm of the largest factor by which a side may grow or shrink.
    """
    centre, size = centre_and_size(F, edge)
    centre = F.broadcast_add(F.broadcast_mul(columns_of(F, offset, 0, 2) * variances[0], size), centre)
    log_scale = columns_of(F, offset, 2, 4) * variances[2]
    # An untrained network gives any scale, and exp overflows in float32 from 89 on.
    half = F.broadcast_mul(F.exp(F.clip(log_scale, -max_log_scale, max_log_scale)), size) * 0.5
    return F.concat(centre - half, centre + half, dim=-1)


def max_positives(num_samples: int, positive_fraction: float) -> int:
    """Returns the largest number of positives among `num_samples`; at least 1, since MXNet's `topk` returns all
    elements for k = 0."""
    return max(round(num_samples * positive_fraction), 1)


def sampling_keys(
    F: OperatorModule,
    positive_BN: Array,
    negative_BN: Array,
    noise_BN: Array,
    num_samples: int,
    positive_fraction: float,
) -> Array:
    """Computes keys (B, N) whose `num_samples` largest are a random sample with a quota of positives.

    | key | row |
    | --- | --- |
    | 3 to 4 | a positive within the quota |
    | 2 to 3 | a negative |
    | 1 to 2 | a positive beyond the quota |
    | 0 | neither |

    The sample is a function of the given random numbers, so it does not depend on the device or on the division of a
    batch; GluonCV shuffles with the generator of the device.

    Args:
        positive_BN, negative_BN: 1 for rows of that kind, else 0.
        noise_BN: random numbers from 0 to 1.
        num_samples: number of rows to sample.
        positive_fraction: largest share of positives among them; one positive is always allowed.
    """
    quota = max_positives(num_samples, positive_fraction)
    key_BN = positive_BN * (noise_BN + 1)
    least_B1 = columns_of(F, F.topk(key_BN, k=quota, ret_typ="value", axis=1), quota - 1, quota)
    within_BN = positive_BN * F.broadcast_greater_equal(key_BN, least_B1)
    return key_BN + negative_BN * (noise_BN + 2) + within_BN * 2
