"""Operators of detectors: non-maximum suppression and RoIAlign.

Legend: B batch, C candidates, K classes, Q regions.
"""

from __future__ import annotations

from typing import Tuple

import numpy as np

from mxtrain.exporting.converters.table import converts
from mxtrain.exporting.graph import OperatorCall


def _column(call: OperatorCall, rows: str, begin: int, end: int) -> str:
    return call.add("Slice", [rows, call.ints(begin), call.ints(end), call.ints(2)])


@converts("_contrib_box_nms")
def box_nms(call: OperatorCall) -> str:
    """Sorts rows (B, C, 6) by score; suppressed rows come last, filled with -1.

    A row suppresses rows of its own class only, unless `force_suppress` is set.
    """
    rank, rows = call.rank(), call.x()
    if (
        call.text("in_format", "corner") != call.text("out_format", "corner")
        or call.text("in_format", "corner") != "corner"
    ):
        raise call.unsupported("of boxes in another form than corners")
    if rank == 2:
        rows = call.unsqueeze(rows, 0)
    elif rank != 3:
        raise call.unsupported(f"of an array with {rank} axes")
    count, most = call.dims()[-2], call.integer("topk", -1)
    all_rows = call.size(rows, 1)  # may be open, and may be fewer than `most` for some sizes
    is_cut = most > 0 and (len(set(count)) > 1 or most < count[0])
    if is_cut:
        rows = _highest(call, rows, call.add("Min", [all_rows, call.ints(most)]))
    coordinates, at_score, at_class = (
        call.integer(name, default) for name, default in (("coord_start", 2), ("score_index", 1), ("id_index", -1))
    )
    score_BC1 = _column(call, rows, at_score, at_score + 1)
    box_BC4 = _column(call, rows, coordinates, coordinates + 4)
    score_B1C = call.transpose(score_BC1, 0, 2, 1)
    if at_class >= 0 and not call.flag("force_suppress"):
        class_BC = call.cast(call.squeeze(_column(call, rows, at_class, at_class + 1), 2), "int64")
        one = call.constant(1, "int64")
        depth = call.add("Add", [call.add("ReduceMax", [class_BC], keepdims=0), one])
        # If all rows are empty, all classes are -1 and the depth would be 0.
        depth = call.add("Max", [depth, one])
        values = call.graph.constant(np.array([0, 1], np.float32))
        own_BCK = call.add("OneHot", [class_BC, depth, values], axis=-1)
        is_own_BKC = call.cast(call.transpose(own_BCK, 0, 2, 1), "bool")
        score_BKC = call.add("Where", [is_own_BKC, score_B1C, call.constant(-1e30, "float32")])
    else:
        score_BKC = score_B1C
    selected = _suppressed(
        call,
        rows,
        box_BC4,
        score_BKC,
        score_BC1,
        (call.number_of("overlap_thresh", 0.5), float(call.number_of("valid_thresh"))),
    )
    if call.dims()[-2] != call.out_dims()[-2]:
        raise call.unsupported("of another number of rows")
    selected = _padded(call, selected, all_rows) if is_cut else selected
    return call.squeeze(selected, 0) if rank == 2 else selected


def _suppressed(
    call: OperatorCall, rows: str, box_BC4: str, score_BKC: str, score_BC1: str, thresholds: Tuple[float, float]
) -> str:
    """Sorts rows by score; suppressed rows come last, filled with -1.

    Args:
        call: the operator.
        rows: (B, C, columns).
        box_BC4, score_BKC: that suppress each other.
        score_BC1: that rows are ordered by.
        thresholds: of intersection over union, and of scores.
    """
    iou, least = (call.graph.constant(np.array([value], np.float32)) for value in thresholds)
    # Without a number of boxes ONNX selects none: its default is 0.
    chosen = call.add("NonMaxSuppression", [box_BC4, score_BKC, call.ints(2**31 - 1), iou, least])
    position = call.add("Gather", [chosen, call.ints(0, 2)], axis=1)
    score_BC = call.squeeze(score_BC1, 2)
    nothing = call.add("Mul", [score_BC, call.constant(0, "float32")])
    ones = call.add("Expand", [call.constant(1, "float32"), call.size(position, 0)])
    kept_BC = call.add("ScatterND", [nothing, position, ones])
    order_BC = call.add("Where", [call.cast(kept_BC, "bool"), score_BC, call.constant(-1e30, "float32")])
    ordered, kept = (_ordered(call, one, order_BC, call.size(rows, 1)) for one in (rows, call.unsqueeze(kept_BC, 2)))
    return call.add("Where", [call.cast(kept, "bool"), ordered, call.constant(-1, "float32")])


@converts("_mxtrain_suppression")
def suppression(call: OperatorCall) -> str:
    """Converts non-maximum suppression of rows (B, T, 5) of score and box."""
    score_BT1, box_BT4 = _column(call, call.x(), 0, 1), _column(call, call.x(), 1, 5)
    thresholds = (call.number_of("iou", 0.5), call.number_of("least"))
    selected = _suppressed(call, call.x(), box_BT4, call.transpose(score_BT1, 0, 2, 1), score_BT1, thresholds)
    return _padded(call, selected, call.ints(call.integer("keep", 1)))


@converts("_mxtrain_roi_align")
def roi_align_of_maps(call: OperatorCall) -> str:
    """Converts RoI align of several feature maps. A region (Q, 5) is the index of a map, left, top, right, bottom; the
    regions of an image follow one another."""
    count, side, rows = call.integer("count", 1), call.integer("side", 1), call.x(len(call) - 1)
    number = call.add("Div", [call.range_of(rows, 0), call.constant(count, "int64")])
    box = call.add("Slice", [rows, call.ints(1), call.ints(5), call.ints(1)])
    position = call.add("Slice", [rows, call.ints(0), call.ints(1), call.ints(1)])
    position = call.reshape(position, -1, 1, 1, 1)
    pooled = ""
    for level, (name, scale) in enumerate(zip(call.inputs[:-1], call.numbers("scales"))):
        # Each map pools all regions, because how many of them belong to it depends on the data.
        part = call.add(
            "RoiAlign",
            [name, box, number],
            output_height=side,
            output_width=side,
            sampling_ratio=2,
            spatial_scale=float(scale),
            coordinate_transformation_mode="output_half_pixel",
        )
        is_here = call.add("GreaterOrEqual", [position, call.constant(level, "float32")])
        pooled = call.add("Where", [is_here, part, pooled]) if pooled else part
    return pooled


def _highest(call: OperatorCall, rows: str, most: str) -> str:
    """Returns the rows with the highest scores."""
    at_score = call.integer("score_index", 1)
    score_BC = call.squeeze(_column(call, rows, at_score, at_score + 1), 2)
    return _ordered(call, rows, score_BC, most)


def _ordered(call: OperatorCall, rows: str, score_BC: str, count: str) -> str:
    """Returns the first rows in descending order of scores."""
    _, order_BC = call.add_several("TopK", [score_BC, count], 2, axis=1)
    return call.add("GatherND", [rows, call.unsqueeze(order_BC, 2)], batch_dims=1)


def _padded(call: OperatorCall, rows: str, count: str) -> str:
    """Returns `count` rows: further ones are filled with -1, and superfluous ones are cut off."""
    missing = call.add("Sub", [count, call.size(rows, 1)])
    # A negative number makes Pad cut rows off.
    ends = call.add("Concat", [call.ints(0, 0, 0, 0), missing, call.ints(0)], axis=0)
    return call.add("Pad", [rows, ends, call.constant(-1, "float32")])


@converts("_contrib_ROIAlign")
def roi_align(call: OperatorCall) -> str:
    """Converts RoI align. A region (Q, 5) is the index of an image, left, top, right, bottom."""
    samples = call.integer("sample_ratio", -1)
    if call.flag("position_sensitive"):
        raise call.unsupported("with position_sensitive")
    height, width = call.numbers("pooled_size")
    number = call.reshape(
        call.cast(call.add("Slice", [call.x(1), call.ints(0), call.ints(1), call.ints(1)]), "int64"), -1
    )
    box = call.add("Slice", [call.x(1), call.ints(1), call.ints(5), call.ints(1)])
    # MXNet shifts by half a pixel only if `aligned` is set, ONNX does by default.
    mode = "half_pixel" if call.flag("aligned") else "output_half_pixel"
    return call.add(
        "RoiAlign",
        [call.x(), box, number],
        output_height=height,
        output_width=width,
        sampling_ratio=max(samples, 0),
        spatial_scale=call.number_of("spatial_scale", 1.0),
        coordinate_transformation_mode=mode,
    )
