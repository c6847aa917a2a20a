"""Operators that move or cut elements, and compute none."""

from __future__ import annotations

from typing import List, Optional, Sequence, Tuple, Union

import numpy as np

from mxtrain.model.onnx.builder import Value
from mxtrain.model.onnx.call import OnnxCall
from mxtrain.model.onnx.operators.table import converts
from mxtrain.model.symbol.graph_file import Output

END = 2**31 - 1
"""Ends of slices from here on mean the end of an axis."""
BLOCK = 16
"""oneDNN groups channels by this number, and its gradient of a concatenation of parts that are no multiple of it fails
behind a convolution: on a CPU with AVX-512 the process ends, with a division by zero."""
Row = Tuple[int, Optional[int], Optional[int], int]
"""Axis, begin, end and step of a slice; None = from the first or to the last element."""


def axes_of(call: OnnxCall) -> List[int]:
    """Returns the axes, an input since version 13 and an attribute before; empty if they are not given."""
    return call.ints(1) if call.opset >= 13 else call.numbers("axes")


def slices_of(call: OnnxCall) -> List[Row]:
    """Returns the slices of Slice."""
    if call.opset < 10:
        starts, ends = call.numbers("starts"), call.numbers("ends")
        axes, steps = call.numbers("axes", range(len(starts))), [1] * len(starts)
    else:
        starts, ends = call.ints(1), call.ints(2)
        axes, steps = call.ints(3, range(len(starts))), call.ints(4, [1] * len(starts))
    rows: List[Row] = []
    for axis, start, end, step in zip(axes, starts, ends, steps):
        if not step:
            raise call.refused("has steps=0")
        begin = None if start >= END or (start == 0 and step > 0) else start
        # Beyond either end means up to the last element in the direction of the steps.
        rows.append((call.non_negative(axis), begin, None if abs(end) >= END else end, step))
    return rows


@converts("Identity")
def identity(call: OnnxCall) -> Value:
    return call.value(0)


@converts("Cast")
def cast(call: OnnxCall) -> Value:
    call.ignore("saturate")
    # `amp` chooses the precision of a run, so all floating-point types are float32.
    call.require("to", 1, 10, 11, 16)
    return call.value(0)


@converts("Flatten")
def flatten(call: OnnxCall) -> Value:
    axis, rank = call.integer("axis", 1), call.rank()
    if axis not in (1, 1 - rank):
        raise call.refused(f"has axis={axis}")
    return call.add("Flatten", [call.x()])


@converts("Reshape")
def reshape(call: OnnxCall) -> Value:
    target = call.sizes(1)
    if call.integer("allowzero") and 0 in target:
        raise call.refused("has allowzero=1")
    return call.add("Reshape", [call.x()], shape=_codes(call, target, call.shape()))


def _codes(call: OnnxCall, target: List[Union[int, str]], shape: Sequence[Union[int, str]]) -> List[int]:
    """Returns MXNet's shape for a target: 0 copies a size, -1 is the rest, -2 all sizes that are left, -3 joins two
    sizes, and -4 splits one into the next two numbers.

    So sizes of the batch and of the image need not be those of the file.
    """
    sizes = [shape[axis] if size == 0 and axis < len(shape) else size for axis, size in enumerate(target)]
    same = 0
    while same < min(len(sizes), len(shape)) and sizes[same] == shape[same]:
        same += 1
    behind = 0
    while behind < min(len(sizes), len(shape)) - same and sizes[-1 - behind] == shape[-1 - behind] != -1:
        behind += 1
    middle, before = sizes[same : len(sizes) - behind], shape[same : len(shape) - behind]
    whole: List[int] = [size for size in middle if not isinstance(size, str)]
    if behind and (len(before), len(middle)) == (2, 1):
        return [0] * same + [-3] + [-2]
    if behind and (len(before), len(middle)) == (1, 2) and len(whole) == 2:
        return [0] * same + [-4, *whole] + [-2]
    rest = sizes[same:]
    if rest.count(-1) == 0 and sum(isinstance(size, str) for size in rest) == 1:
        rest = [-1 if isinstance(size, str) else size for size in rest]
    numbers = [size for size in rest if not isinstance(size, str)]
    if len(numbers) < len(rest):
        open_sizes = ", ".join(size for size in rest if isinstance(size, str))
        raise call.refused(f"has a target with the open sizes {open_sizes}")
    return [0] * same + numbers


@converts("Squeeze")
def squeeze(call: OnnxCall) -> Value:
    axes = axes_of(call)
    if not axes:
        raise call.refused("has no axes, so that a batch of one would lose its axis")
    return call.add("squeeze", [call.x()], axis=[call.non_negative(axis) for axis in axes])


@converts("Unsqueeze")
def unsqueeze(call: OnnxCall) -> Value:
    x, axes = call.x(), axes_of(call)
    for axis in sorted(call.non_negative(axis, added_axes=len(axes)) for axis in axes):
        x = call.add("expand_dims", [x], axis=axis)
    return x


@converts("Transpose")
def transpose(call: OnnxCall) -> Value:
    return call.add("transpose", [call.x()], axes=call.numbers("perm", range(call.rank())[::-1]))


@converts("Concat")
def concat(call: OnnxCall) -> Value:
    inputs, dim = [call.x(index) for index in range(len(call))], call.axis("axis", 0)
    sizes = [call.shape(index)[dim] for index in range(len(inputs))]
    if call.rank() == 4 and dim == 1 and any(not isinstance(size, int) or size % BLOCK for size in sizes):
        # oneDNN joins arrays of four axes, MXNet those of five.
        wide = [call.step("expand_dims", [x], axis=4) for x in inputs]
        joined = call.step("Concat", wide, dim=dim, num_args=len(wide))
        return call.add("Reshape", [joined], shape=[0, 0, 0, 0])
    return call.add("Concat", inputs, dim=dim, num_args=len(inputs))


@converts("Slice")
def slice_(call: OnnxCall) -> Value:
    x, shape = call.x(), call.shape()
    for axis, begin, end, step in slices_of(call):
        size = shape[axis]
        if isinstance(size, int):
            # MXNet refuses ends beyond the size, and counts a begin from the end in another way when it is too small.
            begin, end, _ = slice(begin, end, step).indices(size)
            if step > 0 and end >= size:
                end = None
        if step == 1:
            x = call.add("slice_axis", [x], axis=axis, begin=begin or 0, end=str(end))
        elif step > 0:
            others = [None] * axis
            x = call.add("slice", [x], begin=[*others, begin], end=[*others, end], step=[*others, step])
        else:
            raise call.refused(f"has steps={step}")
    return x


@converts("Split")
def split(call: OnnxCall) -> List[Value]:
    axis, count = call.axis("axis", 0), len(call.node.output)
    call.ignore("num_outputs")
    sizes = call.ints(1) if call.opset >= 13 else call.numbers("split")
    if not sizes:
        size = call.shape()[axis]
        if isinstance(size, str):
            raise call.refused(f"splits an axis of the open size {size}")
        if size % count and call.opset < 18:
            raise call.refused(f"splits {size} elements into {count} equal parts")
        part = -(-size // count)
        sizes = [min(part, size - begin) for begin in range(0, part * count, part)]
    if len(sizes) != count or min(sizes) < 1:
        raise call.refused(f"has split={sizes}, and {count} outputs")
    if count == 1:
        return [call.value(0)]
    if len(set(sizes)) == 1:
        position, _ = call.add("SliceChannel", [call.x()], num_outputs=count, axis=axis, squeeze_axis=False)
        return [(position, index) for index in range(count)]
    ends = [int(end) for end in np.cumsum(sizes)]
    x = call.x()
    return [
        call.add("slice_axis", [x], axis=axis, begin=end - size, end=str(end if end < ends[-1] else None))
        for size, end in zip(sizes, ends)
    ]


@converts("Gather")
def gather(call: OnnxCall) -> Value:
    axis, index = call.axis("axis", 0), call.array(1)
    if index.ndim:
        raise call.refused(f"has {index.size} indices")
    number, size = int(index), call.shape()[axis]
    if number < 0 and isinstance(size, int):
        number += size
    end = None if number == -1 else number + 1
    return call.add(
        "squeeze", [call.step("slice_axis", [call.x()], axis=axis, begin=number, end=str(end))], axis=[axis]
    )


@converts("DepthToSpace")
def depth_to_space(call: OnnxCall) -> Value:
    block = call.integer("blocksize")
    if call.require("mode", "DCR", "CRD") == "DCR":
        return call.add("depth_to_space", [call.x()], block_size=block)
    parts = call.step("Reshape", [call.x()], shape=[0, -4, -1, block * block, 0, 0])
    parts = call.step("Reshape", [parts], shape=[0, 0, -4, block, block, 0, 0])
    moved = call.step("transpose", [parts], axes=[0, 1, 4, 2, 5, 3])
    return call.add("Reshape", [moved], shape=[0, 0, -3, -3])


@converts("SpaceToDepth")
def space_to_depth(call: OnnxCall) -> Value:
    return call.add("space_to_depth", [call.x()], block_size=call.integer("blocksize"))


@converts("Pad")
def pad(call: OnnxCall) -> Value:
    mode = str(call.require("mode", "constant", "reflect", "edge"))
    if call.opset < 11:
        widths, value = call.numbers("pads"), call.number("value")
    else:
        widths = call.ints(1)
        value = float(call.array(2, np.zeros(1, np.float32)).reshape(-1)[0])
    rank = call.rank()
    axes = list(range(rank))
    if call.has(3):
        axes = [call.non_negative(axis) for axis in call.ints(3)]
    if len(widths) != 2 * len(axes):
        raise call.refused(f"has {len(widths)} pads for {len(axes)} axes")
    begins, ends = [0] * rank, [0] * rank
    for axis, begin, end in zip(axes, widths, widths[len(axes) :]):
        begins[axis], ends[axis] = begin, end
    if any(begins[:2] + ends[:2]) or min(widths) < 0 or rank < 3:
        raise call.refused(f"has pads={widths}, and only images are padded, by no negative widths")
    return padded(call, call.x(), begins[2:], ends[2:], value, mode)


def padded(
    call: OnnxCall, x: Output, begins: Sequence[int], ends: Sequence[int], value: float = 0.0, mode: str = "constant"
) -> Output:
    """Pads a tensor (B, C, ...).

    Args:
        call: the operator.
        x: the tensor.
        begins, ends: widths before and behind each axis of the image.
        value: what is put there.
        mode: constant, edge or reflect.

    Raises:
        RefusedOnnx: MXNet cannot pad images of so many axes in this mode.
    """
    if not any((*begins, *ends)):
        return x
    count = len(begins)
    if count > 3:
        raise call.refused(f"pads {count} axes")
    if count == 1:  # MXNet pads images of two and three axes
        x = call.step("expand_dims", [x], axis=2)
        begins, ends = [0, *begins], [0, *ends]
    widths = [0] * 4 + [width for pair in zip(begins, ends) for width in pair]
    result = call.step("Pad", [x], mode=mode, pad_width=widths, constant_value=value)
    return call.step("squeeze", [result], axis=[2]) if count == 1 else result


def cropped(call: OnnxCall, x: Output, begins: Sequence[int], ends: Sequence[int]) -> Output:
    """Removes elements before and behind each axis of the image of a tensor (B, C, ...)."""
    for axis, (begin, end) in enumerate(zip(begins, ends), start=2):
        if begin or end:
            x = call.step("slice_axis", [x], axis=axis, begin=begin, end=str(-end or None))
    return x
