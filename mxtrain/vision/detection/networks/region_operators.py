"""Operations on regions of two-stage detectors, by mxtrain's operators if available, otherwise by MXNet's. Imports
MXNet.

MXNet's `ROIAlign` does not write the rows of regions with image -1, and sets another element of its output to 0 for
each. GluonCV's pyramid adds such rows up, so its results depend on what was in memory. Here every row belongs to an
image.

Legend: B batch, R regions of an image, Q = B R, T candidates of an image, C channels, h, w height and width of a map.
Edges are left, top, right, bottom in pixels of the network's input.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Sequence

from mxtrain.engine.backend import native_operators
from mxtrain.model.networks import fused
from mxtrain.vision.detection.box_arithmetic import columns_of

if TYPE_CHECKING:
    from mxtrain.types.annotations import Array, OperatorModule
    from mxtrain.vision.detection.heads.regions import RegionAnchors

CANONICAL_SIDE, CANONICAL_STRIDE = 224.0, 16
"""A region with this side in pixels is pooled from the map with this stride; a region with half the side from the map
with half the stride. Source: Lin et al., "Feature Pyramid Networks for Object Detection" (2017), equation 1."""
SAMPLES_PER_CELL_SIDE = 2
"""Number of sampling points of RoIAlign along each side of a cell of a region; mxtrain's own operator has the same."""


def suppress(
    F: OperatorModule, row_BT5: Array, num_candidates: int, max_kept: int, iou: float, min_score: float
) -> Array:
    """Applies non-maximum suppression. Returns the kept boxes of each image, (B, R, 5), padded with rows of -1.

    Args:
        F: MXNet's operators of symbols or of arrays.
        row_BT5: scores and edges, the highest scores first.
        num_candidates: T.
        max_kept: largest number of boxes to keep, R.
        iou: threshold: intersection over union with a higher-scoring box.
        min_score: boxes with at most this score are removed.
    """
    if native_operators().path:
        return fused.non_max_suppression(F, row_BT5, num_candidates, min(max_kept, num_candidates), iou, min_score)
    # box_nms moves the kept boxes to the front and fills the other rows with -1.
    kept_BT5 = F.contrib.box_nms(
        row_BT5,
        overlap_thresh=iou,
        valid_thresh=min_score,
        topk=-1,
        coord_start=1,
        score_index=0,
        id_index=-1,
        force_suppress=True,
    )
    return F.slice_axis(kept_BT5, axis=1, begin=0, end=max_kept)


def align_regions(
    F: OperatorModule, maps: Sequence[Array], anchors: Sequence[RegionAnchors], edge_BR4: Array, count: int, side: int
) -> Array:
    """Pools the features of regions with RoIAlign, (B R, C, side, side), each from the map that fits its size.

    Args:
        F: MXNet's operators of symbols or of arrays.
        maps: feature maps (B, C, h, w), the finest first. The coarsest of several is only for proposals.
        anchors: anchors of each map, which have its size and stride.
        edge_BR4: edges of regions.
        count: R.
        side: number of cells along each side of a region.
    """
    # The coarsest map of a pyramid serves proposals alone.
    num_maps = max(len(maps) - 1, 1)
    maps, anchors = maps[:num_maps], anchors[:num_maps]
    edge_Q4 = F.reshape(edge_BR4, shape=(-3, 0))
    size_Q2 = columns_of(F, edge_Q4, 2, 4) - columns_of(F, edge_Q4, 0, 2) + 1
    # 1e-6 is GluonCV's, so that both choose the same map for a size at a bound.
    level_Q = F.log2(F.sqrt(F.prod(size_Q2, axis=1)) / CANONICAL_SIDE + 1e-6)
    level_Q = F.floor(math.log2(CANONICAL_STRIDE / anchors[0].stride) + level_Q)
    level_Q = F.clip(level_Q, 0, num_maps - 1)
    if native_operators().path:
        row_Q5 = F.concat(F.expand_dims(level_Q, axis=1), edge_Q4, dim=1)
        sizes, strides = zip(*(((each.height, each.width), each.stride) for each in anchors))
        return fused.roi_align(F, maps, row_Q5, count, side, sizes, strides)
    return _align_on_each_map(F, maps, anchors, edge_BR4, level_Q, count, side)


def _align_on_each_map(
    F: OperatorModule,
    maps: Sequence[Array],
    anchors: Sequence[RegionAnchors],
    edge_BR4: Array,
    level_Q: Array,
    count: int,
    side: int,
) -> Array:
    """Pools regions with MXNet's operator, which is called with all regions for each map.

    Args:
        F, maps, anchors, edge_BR4, count, side: see `align_regions`.
        level_Q: index of the map of each region.
    """
    image_B1 = F.reshape(F.contrib.arange_like(edge_BR4, axis=0), shape=(-1, 1, 1))
    image_BR1 = F.broadcast_like(image_B1, columns_of(F, edge_BR4, 0, 1), lhs_axes=(1,), rhs_axes=(1,))
    row_BR5 = F.concat(image_BR1, edge_BR4, dim=2)
    row_Q5 = F.reshape(row_BR5, shape=(-3, 0))

    def align(number: int, row_Q5: Array) -> Array:
        return F.contrib.ROIAlign(
            maps[number],
            row_Q5,
            pooled_size=(side, side),
            spatial_scale=1.0 / anchors[number].stride,
            sample_ratio=SAMPLES_PER_CELL_SIDE,
        )

    if len(maps) == 1:
        return align(0, row_Q5)
    # ROIAlign skips regions of image -1, which makes them cheap. But for such a region in row n, it sets the n-th
    # number of the whole output to 0. Therefore unused rows are put first, `spare` for each image: enough of them to
    # contain all numbers that are overwritten.
    spare = -(-count // (side * side - 1))
    spare_S5 = F.reshape(-F.ones_like(F.slice_axis(row_BR5, axis=1, begin=0, end=spare)), shape=(-3, 0))
    results = []
    for number in range(len(maps)):
        is_here_Q = level_Q == number  # type: ignore[comparison-overlap]  # element by element
        here_Q5 = F.where(is_here_Q, row_Q5, -F.ones_like(row_Q5))
        values = align(number, F.concat(spare_S5, here_Q5, dim=0))
        # Reshaped to (spare + R, B, ...), which works for any batch size; the first `spare` rows are dropped.
        values = F.slice_axis(F.reshape(values, shape=(-4, spare + count, -1, -2)), axis=0, begin=spare, end=None)
        values = F.reshape(values, shape=(-3, -2))
        # ROIAlign leaves skipped rows as they were in memory: their sum is 1e22 or NaN once that memory was in use.
        results.append(F.where(is_here_Q, values, F.zeros_like(values)))
    return F.add_n(*results)
