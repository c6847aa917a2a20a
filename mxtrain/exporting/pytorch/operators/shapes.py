"""Operators that move, cut or look up elements, and compute none."""

from __future__ import annotations

from typing import List

import numpy as np

from mxtrain.exporting.pytorch.call import Converted, TorchCall
from mxtrain.exporting.pytorch.operators.table import converts


@converts("Reshape", "reshape", "reshape_like", "squeeze", "_contrib_reshape", "_np_reshape")
def reshape(call: TorchCall) -> Converted:
    return f"{call.x()}.reshape({call.shape(call.out_dims())})"


@converts("transpose")
def transpose(call: TorchCall) -> Converted:
    axes = call.numbers("axes", tuple(reversed(range(call.rank()))))
    return f"{call.x()}.permute({', '.join(map(str, axes))})"


@converts("SwapAxis", "swapaxes")
def swap_axes(call: TorchCall) -> Converted:
    return f"{call.x()}.transpose({call.axis('dim1', 0)}, {call.axis('dim2', 0)})"


@converts("expand_dims")
def expand_dims(call: TorchCall) -> Converted:
    return f"{call.x()}.unsqueeze({call.integer('axis')})"


@converts("Concat", "concat", "_rnn_param_concat")
def concat(call: TorchCall) -> Converted:
    return f"torch.cat([{', '.join(call.inputs)}], dim={call.integer('dim', 1)})"


@converts("stack")
def stack(call: TorchCall) -> Converted:
    return f"torch.stack([{', '.join(call.inputs)}], dim={call.integer('axis')})"


@converts("SliceChannel", "split", "_split_v2")
def split(call: TorchCall) -> Converted:
    axis = call.axis(default=0 if call.op == "_split_v2" else 1)
    x, size = call.x(), call.dims()[axis]
    if call.op == "_split_v2" and not call.integer("sections"):
        # `mx.nd.split_v2` has put a 0 in front of the indices.
        begins = [*call.numbers("indices"), None]
        parts = [_cut(x, axis, begin, end) for begin, end in zip(begins, begins[1:])]
    else:
        count = call.integer("sections") if call.op == "_split_v2" else call.integer("num_outputs")
        if len(set(size)) > 1:
            raise call.unsupported("of an open size")
        step = size[0] // count
        parts = [_cut(x, axis, step * number, step * (number + 1)) for number in range(count)]
    return [f"{part}.squeeze({axis})" for part in parts] if call.flag("squeeze_axis") else parts


def _cut(x: str, axis: int, begin: object, end: object) -> str:
    first, last = ("" if one is None else str(one) for one in (begin, end))
    return f"{x}[{':, ' * axis}{'' if first == '0' else first}:{last}]"


@converts("slice_axis")
def slice_axis(call: TorchCall) -> Converted:
    end = call.text("end")
    return _cut(call.x(), call.axis(), call.integer("begin"), int(end) if end else None)


@converts("slice")
def slice_(call: TorchCall) -> Converted:
    begins, ends = call.numbers("begin"), call.numbers("end")
    steps = call.numbers("step", (1,) * len(begins))
    parts: List[str] = []
    for begin, end, step in zip(begins, ends, steps):
        # MXNet allows None in the place of each step.
        if (step or 1) < 0:
            raise call.unsupported("with a negative step")
        first, last = ("" if one is None else str(one) for one in (begin, end))
        parts.append(f"{first}:{last}{f':{step}' if (step or 1) > 1 else ''}")
    return f"{call.x()}[{', '.join(parts)}]"


@converts("slice_like")
def slice_like(call: TorchCall) -> Converted:
    axes = [axis % call.rank() for axis in call.numbers("axes", tuple(range(call.rank(1))))]
    axes = [axis for axis in axes if len({*call.dims()[axis], *call.dims(1)[axis]}) > 1]
    if not axes:
        return call.x()
    parts = [f":{call.x(1)}.shape[{axis}]" if axis in axes else ":" for axis in range(max(axes) + 1)]
    return f"{call.x()}[{', '.join(parts)}]"


@converts("reverse", "flip")
def reverse(call: TorchCall) -> Converted:
    return f"{call.x()}.flip({tuple(call.numbers('axis'))})"


@converts("broadcast_like", "broadcast_axis", "broadcast_to", "broadcast_axes")
def broadcast(call: TorchCall) -> Converted:
    return f"{call.x()}.expand({call.shape(call.out_dims(), infer=False)})"


@converts("repeat")
def repeat(call: TorchCall) -> Converted:
    if not call.text("axis"):
        raise call.unsupported("of all elements")
    return f"{call.x()}.repeat_interleave({call.integer('repeats')}, dim={call.axis()})"


@converts("tile")
def tile(call: TorchCall) -> Converted:
    return f"torch.tile({call.x()}, {tuple(call.numbers('reps'))})"


@converts("depth_to_space")
def depth_to_space(call: TorchCall) -> Converted:
    """MXNet takes the block's place from the first channels, `F.pixel_shuffle` from the last."""
    block = call.integer("block_size")
    return f"{call.helper('depth_to_space')}({call.x()}, {block})"


@converts("space_to_depth")
def space_to_depth(call: TorchCall) -> Converted:
    """MXNet puts the position in a block before the channel, `F.pixel_unshuffle` behind it."""
    return f"{call.helper('space_to_depth')}({call.x()}, {call.integer('block_size')})"


@converts("take")
def take(call: TorchCall) -> Converted:
    axis, x, index = call.axis(default=0), call.x(), call.ints(1)
    if call.text("mode", "clip") == "wrap":
        index = f"{index} % {x}.shape[{axis}]"
    else:
        index = f"{index}.clamp(0, {x}.shape[{axis}] - 1)"
    return f"{x}[{':, ' * axis}{index}]"


@converts("pick")
def pick(call: TorchCall) -> Converted:
    axis, index = call.axis(), call.ints(1)
    if call.rank(1) < call.rank():
        index = f"{index}.unsqueeze({axis})"
    size = f"{call.x()}.shape[{axis}]"
    index = f"{index} % {size}" if call.text("mode", "clip") == "wrap" else f"{index}.clamp(0, {size} - 1)"
    picked = f"{call.x()}.gather({axis}, {index})"
    return picked if call.flag("keepdims") else f"{picked}.squeeze({axis})"


@converts("gather_nd")
def gather_nd(call: TorchCall) -> Converted:
    return f"{call.x()}[tuple({call.ints(1)})]"


@converts("one_hot")
def one_hot(call: TorchCall) -> Converted:
    off, on, depth = call.number_of("off_value", 0.0), call.number_of("on_value", 1.0), call.integer("depth")
    # MXNet sets nothing for an index that is out of range.
    is_on = f"({call.ints(0)}.unsqueeze(-1) == torch.arange({depth}, device={call.device}))"
    if (off, on) == (0, 1):
        return f"{is_on}.to(torch.{call.out_dtype()})"
    return f"torch.where({is_on}, {on}, {off}).to(torch.{call.out_dtype()})"


@converts("argmax")
def argmax(call: TorchCall) -> Converted:
    if not call.text("axis"):
        raise call.unsupported("over all elements")
    keep = ", keepdim=True" if call.flag("keepdims") else ""
    return f"{call.x()}.argmax(dim={call.axis()}{keep}).to(torch.{call.out_dtype()})"


@converts("topk")
def top_k(call: TorchCall) -> Converted:
    kind, count, axis = call.text("ret_typ", "indices"), call.integer("k", 1), call.axis()
    if kind == "mask":
        raise call.unsupported("with ret_typ=mask")
    # Equal numbers keep their order, which `topk` of PyTorch does not promise.
    found = f"torch.sort({call.x()}, dim={axis}, descending={not call.flag('is_ascend')}, stable=True)"
    values, indices = (_cut(f"{found}.{one}", axis, 0, count if count > 0 else None) for one in ("values", "indices"))
    # MXNet returns indices as float32 unless told otherwise.
    indices = f"{indices}.to(torch.{call.text('dtype', 'float32')})"
    return {"indices": indices, "value": values, "both": [values, indices]}[kind]


@converts("argsort")
def argsort(call: TorchCall) -> Converted:
    descending = not call.flag("is_ascend", True)
    return f"{call.x()}.argsort(dim={call.axis()}, descending={descending}, stable=True).to(torch.{call.out_dtype()})"


@converts("_contrib_arange_like")
def arange_like(call: TorchCall) -> Converted:
    if call.integer("repeat", 1) != 1:
        raise call.unsupported("with repeat")
    size = f"{call.x()}.shape[{call.axis()}]" if call.text("axis") else f"{call.x()}.numel()"
    values = f"torch.arange({size}, dtype=torch.{call.out_dtype()}, device={call.x()}.device)"
    values = values if call.text("axis") else f"{values}.reshape({call.x()}.shape)"
    step, start = call.number_of("step", 1.0), call.number_of("start", 0.0)
    return f"{values}{f' * {step}' if step != 1 else ''}{f' + {start}' if start else ''}"


@converts("_arange")
def arange(call: TorchCall) -> Converted:
    stop = call.number_of("stop") if call.text("stop") else None
    values: np.ndarray = np.arange(call.number_of("start"), stop, call.number_of("step", 1.0))
    return call.array("positions", np.repeat(values.astype(call.out_dtype()), call.integer("repeat", 1)))
