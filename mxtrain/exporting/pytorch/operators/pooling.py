"""Pooling over windows, and over the whole image."""

from __future__ import annotations

from typing import Tuple

import numpy as np

from mxtrain.exporting.pytorch.call import Converted, Layer, TorchCall, numbers, optional
from mxtrain.exporting.pytorch.operators.table import converts

LAYOUTS = ("", "NCW", "NCHW", "NCDHW")
Sizes = Tuple[int, ...]


@converts("Pooling")
def pooling(call: TorchCall) -> Converted:
    kind, count = call.text("pool_type", "max"), call.rank() - 2
    if kind not in ("max", "avg", "sum"):
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
    rest = tuple(step - 1 for step in stride) if full else (0,) * count
    counted = call.flag("count_include_pad", True) and any(padding)
    if kind != "sum" and _is_native(kernel, stride, padding, full):
        options = optional(
            stride=(numbers("stride", stride), None),
            padding=(numbers("padding", padding), 0),
            ceil_mode=(any(rest), False),
        )
        if kind == "avg" and any(padding) and not counted:
            options["count_include_pad"] = False
        code = call.construct(f"nn.{kind.title()}Pool{count}d", kernel_size=numbers("kernel_size", kernel), **options)
        return Layer(code)
    if kind == "avg":
        name = call.helper("mean_pool")
        return f"{name}({call.x()}, {kernel}, {stride}, {padding}, {rest}, count_padding={counted})"
    # MXNet's maximum of a window without elements is the lowest number.
    value = f", value={float(np.finfo(call.dtype()).min)!r}" if kind == "max" else ""
    padded = f"F.pad({call.x()}, {_sides(padding, rest)}{value})" if any((*padding, *rest)) else call.x()
    if kind == "max":
        return f"F.max_pool{count}d({padded}, {kernel}, {stride})"
    return f"F.avg_pool{count}d({padded}, {kernel}, {stride}) * {int(np.prod(kernel))}"


def _is_native(kernel: Sizes, stride: Sizes, padding: Sizes, full: bool) -> bool:
    """Returns True if PyTorch makes the same windows for images of all sizes.

    It refuses padding of more than half a window, and drops windows that begin behind the image and its padding.
    """
    return all(2 * pad <= size and (not full or step + pad <= size) for size, step, pad in zip(kernel, stride, padding))


def _sides(padding: Sizes, rest: Sizes) -> Sizes:
    """Returns the padding for `F.pad`, which begins with the last axis."""
    return tuple(side for pad, end in reversed(list(zip(padding, rest))) for side in (pad, pad + end))
