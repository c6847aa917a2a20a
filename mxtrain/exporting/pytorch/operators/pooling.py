"""Pooling over windows, and over the whole image."""

from __future__ import annotations

from typing import List, Tuple

import numpy as np

from mxtrain.exporting.pytorch.call import Converted, Layer, TorchCall, numbers, optional
from mxtrain.exporting.pytorch.operators.table import converts

LAYOUTS = ("", "NCW", "NCHW", "NCDHW")


@converts("Pooling")
def pooling(call: TorchCall) -> Converted:
    kind, count = call.text("pool_type", "max"), call.rank() - 2
    if kind not in ("max", "avg", "sum") or (kind == "sum" and count == 1):
        raise call.unsupported(f"with pool_type={kind}")
    if call.text("layout") not in LAYOUTS:
        raise call.unsupported(f"with layout={call.text('layout')}")
    if call.flag("global_pool"):
        if kind == "sum":
            return f"{call.x()}.sum(dim={tuple(range(2, call.rank()))}, keepdim=True)"
        return Layer((f"nn.Adaptive{kind.title()}Pool{count}d(1)",))
    kernel, stride = call.numbers("kernel"), call.numbers("stride", (1,) * count)
    padding = call.numbers("pad", (0,) * count)
    full = call.text("pooling_convention") == "full"
    rest = _rest(call, kernel, stride, padding) if full else (0,) * count
    is_small = all(2 * pad <= size for pad, size in zip(padding, kernel))
    # PyTorch drops windows that begin behind the padding, and refuses padding of more than half a window.
    native = is_small and not any(end > size - 1 for end, size in zip(rest, kernel)) and _same_count(call, full)
    counted = call.flag("count_include_pad", True)
    if kind == "sum":
        return _sum(call, call.x(), kernel, stride, padding, rest)
    if native:
        options = optional(
            stride=(numbers("stride", stride), None),
            padding=(numbers("padding", padding), 0),
            ceil_mode=(full and any(rest), False),
        )
        if kind == "avg" and any(padding) and not counted:
            options["count_include_pad"] = False
        return Layer(
            call.construct(f"nn.{kind.title()}Pool{count}d", kernel_size=numbers("kernel_size", kernel), **options)
        )
    if kind == "max":
        lowest = float(np.finfo(call.dtype()).min)  # MXNet's maximum of a window without elements
        padded = f"F.pad({call.x()}, {_sides(padding, rest)}, value={lowest!r})"
        return f"F.max_pool{count}d({padded}, {kernel}, {stride})"
    raise call.unsupported("with windows that hold nothing but padding")


def _rest(
    call: TorchCall, kernel: Tuple[int, ...], stride: Tuple[int, ...], padding: Tuple[int, ...]
) -> Tuple[int, ...]:
    """Returns the elements behind the padding that the last windows reach, the most over all sizes."""
    rest: List[int] = []
    for axis, size in enumerate(call.dims()[2:]):
        counts = call.out_dims()[axis + 2]
        reach = [
            (count - 1) * stride[axis] + kernel[axis] - one - 2 * padding[axis] for count, one in zip(counts, size)
        ]
        rest.append(max(0, *reach))
    return tuple(rest)


def _same_count(call: TorchCall, full: bool) -> bool:
    """Returns True if PyTorch makes as many windows as MXNet for all sizes."""
    count = call.rank() - 2
    kernel, stride = call.numbers("kernel"), call.numbers("stride", (1,) * count)
    padding = call.numbers("pad", (0,) * count)
    for axis in range(count):
        for size, wanted in zip(call.dims()[axis + 2], call.out_dims()[axis + 2]):
            space = size + 2 * padding[axis] - kernel[axis]
            found = (-(-space // stride[axis]) if full else space // stride[axis]) + 1
            if full and (found - 1) * stride[axis] >= size + padding[axis]:
                found -= 1
            if found != wanted:
                return False
    return True


def _sum(
    call: TorchCall,
    x: str,
    kernel: Tuple[int, ...],
    stride: Tuple[int, ...],
    padding: Tuple[int, ...],
    rest: Tuple[int, ...],
) -> str:
    padded = f"F.pad({x}, {_sides(padding, rest)})" if any((*padding, *rest)) else x
    return f"F.avg_pool{len(kernel)}d({padded}, {kernel}, {stride}, divisor_override=1)"


def _sides(padding: Tuple[int, ...], rest: Tuple[int, ...]) -> Tuple[int, ...]:
    return tuple(side for pad, end in reversed(list(zip(padding, rest))) for side in (pad, pad + end))
