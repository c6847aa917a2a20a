"""Operators that move, cut or look up elements, and compute none."""

from __future__ import annotations

from typing import List, Sequence, Union

import numpy as np

from mxtrain.exporting.converters.table import converts
from mxtrain.exporting.graph import OperatorCall

END = 2**31 - 1
"""Slice end beyond the size of any axis."""


@converts("Reshape", "reshape", "reshape_like", "squeeze", "_contrib_reshape", "_np_reshape")
def reshape(call: OperatorCall) -> str:
    return call.to_shape(call.x(), call.dims(), call.out_dims())


@converts("transpose")
def transpose(call: OperatorCall) -> str:
    return call.transpose(call.x(), *call.numbers("axes", tuple(reversed(range(call.rank())))))


@converts("SwapAxis", "swapaxes")
def swap_axes(call: OperatorCall) -> str:
    order = list(range(call.rank()))
    first, second = call.axis("dim1", 0), call.axis("dim2", 0)
    order[first], order[second] = order[second], order[first]
    return call.transpose(call.x(), *order)


@converts("expand_dims")
def expand_dims(call: OperatorCall) -> str:
    return call.unsqueeze(call.x(), call.integer("axis"))


@converts("Concat", "concat")
def concat(call: OperatorCall) -> str:
    return call.add("Concat", call.inputs, axis=call.integer("dim", 1))


@converts("stack")
def stack(call: OperatorCall) -> str:
    axis = call.integer("axis")
    return call.add("Concat", [call.unsqueeze(name, axis) for name in call.inputs], axis=axis)


@converts("SliceChannel", "split", "_split_v2")
def split(call: OperatorCall) -> Sequence[str]:
    axis = call.axis(default=0 if call.op == "_split_v2" else 1)
    if call.op == "_split_v2" and not call.integer("sections"):
        # `mx.nd.split_v2` has put a 0 in front of the indices.
        begins = [*call.numbers("indices"), END]
        parts = [
            call.add("Slice", [call.x(), call.ints(begin), call.ints(end), call.ints(axis)])
            for begin, end in zip(begins, begins[1:])
        ]
    else:
        count = call.integer("sections") if call.op == "_split_v2" else call.integer("num_outputs")
        parts = call.add_several("Split", [call.x()], count, axis=axis) if count > 1 else [call.x()]
    return [call.squeeze(part, axis) for part in parts] if call.flag("squeeze_axis") else parts


@converts("slice_axis")
def slice_axis(call: OperatorCall) -> str:
    begin, end = call.ints(call.integer("begin")), call.ints(call.integer("end", END))
    return call.add("Slice", [call.x(), begin, end, call.ints(call.axis())])


@converts("slice")
def slice_(call: OperatorCall) -> str:
    begins, ends = call.numbers("begin"), call.numbers("end")
    steps = call.numbers("step", (1,) * len(begins))
    rows: List[Sequence[int]] = []
    for axis, (begin, end, step) in enumerate(zip(begins, ends, steps)):
        # MXNet allows None in the place of each step.
        step = step or 1
        if (begin, end, step) != (None, None, 1):
            first = begin if begin is not None else 0 if step > 0 else END
            last = end if end is not None else END if step > 0 else -END
            rows.append((first, last, axis, step))
    if not rows:
        return call.x()
    return call.add("Slice", [call.x(), *(call.ints(*column) for column in zip(*rows))])


@converts("slice_like")
def slice_like(call: OperatorCall) -> str:
    axes = [axis % call.rank() for axis in call.numbers("axes", tuple(range(call.rank(1))))]
    # Open sizes that are equal in all probes may differ for others: a map that was halved and doubled may be larger.
    axes = [axis for axis in axes if len({*call.dims()[axis], *call.dims(1)[axis]}) > 1]
    if not axes:
        return call.x()
    ends = call.add("Gather", [call.add("Shape", [call.x(1)]), call.ints(*axes)], axis=0)
    return call.add("Slice", [call.x(), call.ints(*[0] * len(axes)), ends, call.ints(*axes)])


@converts("reverse", "flip")
def reverse(call: OperatorCall) -> str:
    axes = call.numbers("axis")
    count = len(axes)
    first, last, steps = ([value] * count for value in (-1, -END, -1))
    return call.add("Slice", [call.x(), *(call.ints(*values) for values in (first, last, axes, steps))])


@converts("broadcast_like", "broadcast_axis", "broadcast_to", "broadcast_axes")
def broadcast(call: OperatorCall) -> str:
    return call.add("Expand", [call.x(), call.shape_tensor(call.out_dims())])


@converts("repeat")
def repeat(call: OperatorCall) -> str:
    times = call.integer("repeats")
    if not call.text("axis"):
        raise call.unsupported("of all elements")
    axis, rank = call.axis(), call.rank()
    longer = call.add(
        "Expand", [call.unsqueeze(call.x(), axis + 1), call.ints(*[1] * (axis + 1), times, *[1] * (rank - axis - 1))]
    )
    return call.to_shape(longer, [], call.out_dims())


@converts("tile")
def tile(call: OperatorCall) -> str:
    times, rank = call.numbers("reps"), call.rank()
    missing = len(times) - rank
    # ONNX's Tile needs one number for each axis; MXNet lets either side be shorter.
    x = call.unsqueeze(call.x(), *range(missing)) if missing > 0 else call.x()
    return call.add("Tile", [x, call.ints(*[1] * -missing, *times)])


@converts("depth_to_space")
def depth_to_space(call: OperatorCall) -> str:
    return call.add("DepthToSpace", [call.x()], blocksize=call.integer("block_size"), mode="DCR")


@converts("space_to_depth")
def space_to_depth(call: OperatorCall) -> str:
    return call.add("SpaceToDepth", [call.x()], blocksize=call.integer("block_size"))


@converts("Embedding")
def embedding(call: OperatorCall) -> str:
    return call.add("Gather", [call.x(1), call.as_ints(0)], axis=0)


@converts("take")
def take(call: OperatorCall) -> str:
    axis = call.axis(default=0)
    return call.add("Gather", [call.x(), _within(call, call.as_ints(1), axis)], axis=axis)


def _within(call: OperatorCall, index: str, axis: int) -> str:
    """Returns indices along an axis of the first input that are clipped to its size, or taken modulo it."""
    # ONNX's Gather neither clips nor wraps, and onnxruntime refuses indices that are out of range.
    size = call.scalar_size(call.x(), axis)
    if call.text("mode", "clip") == "wrap":
        return call.add("Mod", [index, size])
    last = call.add("Sub", [size, call.constant(1, "int64")])
    return call.add("Clip", [index, call.constant(0, "int64"), last])


@converts("pick")
def pick(call: OperatorCall) -> str:
    axis, index = call.axis(), call.as_ints(1)
    if call.rank(1) < call.rank():
        index = call.unsqueeze(index, axis)
    index = _within(call, index, axis)
    picked = call.add("GatherElements", [call.x(), index], axis=axis)
    return picked if call.flag("keepdims") else call.squeeze(picked, axis)


@converts("gather_nd")
def gather_nd(call: OperatorCall) -> str:
    # MXNet has the coordinates of a point along the first axis, ONNX along the last.
    order = [*range(1, call.rank(1)), 0]
    return call.add("GatherND", [call.x(), call.transpose(call.as_ints(1), *order)])


@converts("one_hot")
def one_hot(call: OperatorCall) -> str:
    off, on = call.number_of("off_value", 0.0), call.number_of("on_value", 1.0)
    values = call.graph.constant(np.array([off, on], call.out_dtype()))
    depth = call.integer("depth")
    index = call.as_ints(0)
    # MXNet sets nothing for a negative index, ONNX counts it from the end.
    is_negative = call.add("Less", [index, call.constant(0, "int64")])
    index = call.add("Where", [is_negative, call.constant(depth, "int64"), index])
    return call.add("OneHot", [index, call.ints(depth), values], axis=-1)


@converts("argmax")
def argmax(call: OperatorCall) -> str:
    if not call.text("axis"):
        raise call.unsupported("over all elements")
    index = call.add("ArgMax", [call.x()], axis=call.axis(), keepdims=int(call.flag("keepdims")))
    return call.cast(index, call.out_dtype())


@converts("topk")
def top_k(call: OperatorCall) -> Union[str, Sequence[str]]:
    kind, count = call.text("ret_typ", "indices"), call.integer("k", 1)
    axis = call.axis()
    if kind == "mask":
        raise call.unsupported("with ret_typ=mask")
    k = call.size(call.x(), axis) if count < 1 else call.ints(count)
    values, indices = call.add_several("TopK", [call.x(), k], 2, axis=axis, largest=int(not call.flag("is_ascend")))
    # MXNet returns indices as float32 unless told otherwise.
    indices = call.cast(indices, call.text("dtype", "float32"))
    return {"indices": indices, "value": values, "both": [values, indices]}[kind]


@converts("argsort")
def argsort(call: OperatorCall) -> str:
    axis = call.axis()
    _, indices = call.add_several(
        "TopK", [call.x(), call.size(call.x(), axis)], 2, axis=axis, largest=int(not call.flag("is_ascend", True))
    )
    return call.cast(indices, call.out_dtype())


@converts("_contrib_arange_like")
def arange_like(call: OperatorCall) -> str:
    if call.integer("repeat", 1) != 1:
        raise call.unsupported("with repeat")
    zero, increment = call.constant(0, "int64"), call.constant(1, "int64")
    if call.text("axis"):
        numbers = call.range_of(call.x(), call.axis())
    else:
        flat = call.add("Range", [zero, call.add("Size", [call.x()]), increment])
        numbers = call.add("Reshape", [flat, call.add("Shape", [call.x()])])
    values = call.cast(numbers, call.out_dtype())
    step, start = call.number_of("step", 1.0), call.number_of("start", 0.0)
    if step != 1:
        values = call.add("Mul", [values, call.constant(step, call.out_dtype())])
    return call.add("Add", [values, call.constant(start, call.out_dtype())]) if start else values


@converts("_arange")
def arange(call: OperatorCall) -> str:
    stop = call.number_of("stop") if call.text("stop") else None
    numbers: np.ndarray = np.arange(call.number_of("start"), stop, call.number_of("step", 1.0))
    return call.graph.constant(np.repeat(numbers.astype(call.out_dtype()), call.integer("repeat", 1)))


@converts("shape_array")
def shape_array(call: OperatorCall) -> str:
    return call.add("Shape", [call.x()])
