"""Arithmetic of boxes as operators of a network's graph, or of arrays: functions of MXNet's `F`. Imports no MXNet.

Legend: B batch, N boxes of a picture, M true boxes of a picture, D columns of `boxes.Column`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Optional, Sequence, Tuple

from mxtrain.dataset.image.boxes import Column, Flag

if TYPE_CHECKING:
    from mxtrain.annotations import Array, OperatorModule

INSIDE_CROWD = 0.5
"""A box of which more than this share is in a crowd's region is neither background nor a thing."""
REGION_IOU = 0.5
"""A region holds the thing that it covers best, where it covers so much of it: intersection over union."""
REGION_VARIANCES = (0.1, 0.1, 0.2, 0.2)
"""Offsets of regions are divided by these, so that they are about as large as each other. Source: as GluonCV."""
TINY = 1e-12
"""Areas and sides are at least this."""
_FARTHEST = 1e6


def columns_of(F: OperatorModule, array: Array, begin: int, end: Optional[int]) -> Array:
    """Some of the last axis."""
    return F.slice_axis(array, axis=-1, begin=begin, end=end)


def common_areas(F: OperatorModule, edge_BN4: Array, edge_BM4: Array) -> Array:
    """Pixels that boxes have in common with others, (B, N, M)."""
    sides = []
    for low, high in ((0, 2), (1, 3)):
        begins, ends = (
            [_side(F, edge_BN4, place), F.transpose(_side(F, edge_BM4, place), axes=(0, 2, 1))] for place in (low, high)
        )  # fmt: skip
        sides.append(F.relu(F.broadcast_minimum(*ends) - F.broadcast_maximum(*begins)))
    return sides[0] * sides[1]


def _side(F: OperatorModule, edge_BN4: Array, at: int) -> Array:
    return columns_of(F, edge_BN4, at, at + 1)


def areas(F: OperatorModule, edge_BN4: Array) -> Array:
    """Pixels of boxes, (B, N)."""
    return F.prod(columns_of(F, edge_BN4, 2, 4) - columns_of(F, edge_BN4, 0, 2), axis=2)


class Matches(NamedTuple):
    """What true boxes have to do with others.

    Attributes:
        iou_BN: the most that a box covers of a true one: intersection over union.
        place_BN: which true one that is.
        in_crowd_BN: whether it lies in a crowd's region.
    """

    iou_BN: Array
    place_BN: Array
    in_crowd_BN: Array


def is_thing(F: OperatorModule, box_BMD: Array) -> Array:
    """Which rows are boxes of single things, (B, M)."""
    flags, kind = (columns_of(F, box_BMD, at, at + 1) for at in (Column.FLAGS, Column.CLASS))
    sides = columns_of(F, box_BMD, 2, 4) - columns_of(F, box_BMD, 0, 2)
    return F.squeeze(kind >= 0, axis=2) * F.squeeze(flags < Flag.CROWD, axis=2) * F.min(sides > 0, axis=2)


def match(F: OperatorModule, edge_BN4: Array, box_BMD: Array) -> Matches:
    """Which true box each box covers best."""
    edge_BM4 = columns_of(F, box_BMD, 0, 4)
    common_BNM = common_areas(F, edge_BN4, edge_BM4)
    area_BN1, area_B1M = F.expand_dims(areas(F, edge_BN4), axis=2), F.expand_dims(areas(F, edge_BM4), axis=1)
    union_BNM = F.broadcast_sub(F.broadcast_add(area_BN1, area_B1M), common_BNM)
    thing_B1M = F.expand_dims(is_thing(F, box_BMD), axis=1)
    iou_BNM = F.broadcast_mul(common_BNM / at_least_tiny(F, union_BNM), thing_B1M)
    crowd_B1M = F.transpose(columns_of(F, box_BMD, Column.FLAGS, Column.FLAGS + 1) >= Flag.CROWD, axes=(0, 2, 1))
    covered_BNM = F.broadcast_div(F.broadcast_mul(common_BNM, crowd_B1M), at_least_tiny(F, area_BN1))
    return Matches(F.max(iou_BNM, axis=2), F.argmax(iou_BNM, axis=2), F.max(covered_BNM, axis=2) > INSIDE_CROWD)


def at_least_tiny(F: OperatorModule, array: Array) -> Array:
    """Of sizes: a box without any covers nothing."""
    return F.broadcast_maximum(array, F.ones_like(array) * TINY)


def take_rows(F: OperatorModule, array_BNC: Array, place_BK: Array) -> Array:
    """Some rows of each sample, (B, K, C)."""
    sample_B1 = F.reshape(F.contrib.arange_like(place_BK, axis=0), shape=(-1, 1))
    sample_BK = F.broadcast_like(F.cast(sample_B1, "int32"), place_BK)
    return F.gather_nd(array_BNC, F.stack(sample_BK, F.cast(place_BK, "int32"), axis=0))


def near(F: OperatorModule, edge: Array) -> Array:
    """Edges of boxes without those of a diverged network, which are 0: ROIAlign reads memory that is none at a place
    that is not a number."""
    # A comparison with NaN is false.
    return F.where(F.abs(edge) < _FARTHEST, edge, F.zeros_like(edge))


def centre_and_size(F: OperatorModule, edge: Array) -> Tuple[Array, Array]:
    """Centres and sizes of boxes, (..., 2) each."""
    low, high = columns_of(F, edge, 0, 2), columns_of(F, edge, 2, 4)
    return (low + high) * 0.5, high - low


def offsets_to(F: OperatorModule, edge_BN4: Array, true_BN4: Array, variances: Sequence[float]) -> Array:
    """How far each box is from a true one, (B, N, 4): centre over the box's size, and logarithms of sizes."""
    (centre, size), (true_centre, true_size) = (centre_and_size(F, one) for one in (edge_BN4, true_BN4))
    size, true_size = at_least_tiny(F, size), at_least_tiny(F, true_size)
    moved = (true_centre - centre) / size * (1.0 / variances[0])
    return F.concat(moved, F.log(true_size / size) * (1.0 / variances[2]), dim=2)


def moved_by(F: OperatorModule, edge: Array, offset: Array, variances: Sequence[float], most: float) -> Array:
    """The inverse of `offsets_to`, for offsets that broadcast over boxes.

    Args:
        edge: (..., 4).
        offset: (..., 4).
        variances: what offsets were divided by.
        most: logarithm of the most that a side may grow by.
    """
    centre, size = centre_and_size(F, edge)
    centre = F.broadcast_add(F.broadcast_mul(columns_of(F, offset, 0, 2) * variances[0], size), centre)
    stretch = columns_of(F, offset, 2, 4) * variances[2]
    half = F.broadcast_mul(F.exp(F.clip(stretch, -most, most)), size) * 0.5
    return F.concat(centre - half, centre + half, dim=-1)


def keys_of_quota(
    F: OperatorModule, first_BN: Array, second_BN: Array, noise_BN: Array, most_first: int
) -> Array:  # fmt: skip
    """Numbers (B, N) whose largest are a random sample with a quota: at most `most_first` of the first kind, then the
    second kind, then the rest of the first; 0 for neither.

    A sample by the largest of given random numbers is the same wherever it is computed, and for any division of a
    batch; GluonCV shuffles with the device's own generator.

    Args:
        first_BN, second_BN: 1 for rows of that kind, else 0.
        noise_BN: from 0 to 1.
        most_first: of a sample.
    """
    key_BN = first_BN * (noise_BN + 1)
    least_B1 = columns_of(F, F.topk(key_BN, k=most_first, ret_typ="value", axis=1), most_first - 1, most_first)
    wanted_BN = first_BN * F.broadcast_greater_equal(key_BN, least_B1)
    return key_BN + second_BN * (noise_BN + 2) + wanted_BN * 2
