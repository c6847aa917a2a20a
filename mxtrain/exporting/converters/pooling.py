"""Pooling over windows, and over the whole image.

MXNet's "full" convention rounds the number of windows up, so the last windows may lie partly or completely behind the
padding. ONNX's `ceil_mode` drops windows completely behind the padding, and counts elements differently. So the input
is padded explicitly, and the number of windows is rounded down.
"""

from __future__ import annotations

from typing import List, NamedTuple, Tuple

import numpy as np

from mxtrain.exporting.converters.table import converts
from mxtrain.exporting.graph import OperatorCall

LAYOUTS = ("", "NCW", "NCHW", "NCDHW")
Sizes = Tuple[int, ...]


class Windows(NamedTuple):
    """Windows of a pooling operator. Each attribute has a number for each axis of the image.

    Attributes:
        kernel, stride: sizes and distances of the windows.
        padding: elements before and behind the image.
        rest: elements behind the padding that windows may reach.
    """

    kernel: Sizes
    stride: Sizes
    padding: Sizes
    rest: Sizes

    @property
    def ends(self) -> Sizes:
        """Returns the elements behind the image."""
        return tuple(padding + rest for padding, rest in zip(self.padding, self.rest))


@converts("Pooling")
def pooling(call: OperatorCall) -> str:
    kind, count = call.text("pool_type", "max"), call.rank() - 2
    if kind not in ("max", "avg", "sum"):
        raise call.unsupported(f"with pool_type={kind}")
    if call.text("layout") not in LAYOUTS:
        raise call.unsupported(f"with layout={call.text('layout')}")
    if call.flag("global_pool"):
        return _global(call, kind)
    stride = call.numbers("stride", (1,) * count)
    rest = tuple(step - 1 for step in stride) if call.text("pooling_convention") == "full" else (0,) * count
    windows = Windows(call.numbers("kernel"), stride, call.numbers("pad", (0,) * count), rest)
    if kind == "max":
        return _maximum(call, windows)
    if kind == "sum":
        return _sum(call, call.x(), windows)
    return _mean(call, windows)


def _global(call: OperatorCall, kind: str) -> str:
    if kind == "sum":
        return call.add("ReduceSum", [call.x(), call.ints(*range(2, call.rank()))], keepdims=1)
    return call.add("GlobalMaxPool" if kind == "max" else "GlobalAveragePool", [call.x()])


def _fits(windows: Windows) -> bool:
    """Returns True if each window has an element of the image, as ONNX's operators require."""
    return all(end < size for end, size in zip(windows.ends, windows.kernel))


def _native(call: OperatorCall, op: str, x: str, windows: Windows, **attrs: int) -> str:
    pads = (*windows.padding, *windows.ends)
    return call.add(op, [x], kernel_shape=windows.kernel, strides=windows.stride, pads=pads, **attrs)


def _maximum(call: OperatorCall, windows: Windows) -> str:
    if _fits(windows):
        return _native(call, "MaxPool", call.x(), windows)
    lowest = float(np.finfo(call.dtype()).min)  # MXNet's maximum of a window without elements
    padded = _padded(call, call.x(), windows.padding, windows.ends, lowest)
    return call.add("MaxPool", [padded], kernel_shape=windows.kernel, strides=windows.stride)


def _mean(call: OperatorCall, windows: Windows) -> str:
    counts_padding = call.flag("count_include_pad", True) and any(windows.padding)
    # MXNet counts the padding but not the rest behind it; ONNX's `count_include_pad` counts both or none.
    if _fits(windows) and not (counts_padding and any(windows.rest)):
        return _native(call, "AveragePool", call.x(), windows, count_include_pad=int(counts_padding))
    sizes = call.add("Slice", [call.add("Shape", [call.x()]), call.ints(2), call.ints(call.rank())])
    shape = call.add("Concat", [call.ints(1, 1), sizes], axis=0)
    counted = call.add("Expand", [call.constant(1), shape])
    if counts_padding:
        counted = _padded(call, counted, windows.padding, windows.padding, 1)
        windows_left = windows._replace(padding=(0,) * len(windows.padding))
    else:
        windows_left = windows
    number = _sum(call, counted, windows_left)
    if call.rank() < 5:  # MXNet's mean of a window without elements is 0, and NaN in three dimensions
        number = call.add("Max", [number, call.constant(1)])
    return call.add("Div", [_sum(call, call.x(), windows), number])


def _sum(call: OperatorCall, x: str, windows: Windows) -> str:
    padded = _padded(call, x, windows.padding, windows.ends, 0)
    # ONNX has no sum over windows; all windows of the padded input are complete, so the mean times their size is exact.
    mean = call.add("AveragePool", [padded], kernel_shape=windows.kernel, strides=windows.stride)
    return call.add("Mul", [mean, call.constant(int(np.prod(windows.kernel)))])


def _padded(call: OperatorCall, x: str, begins: Sizes, ends: Sizes, value: float) -> str:
    if not any((*begins, *ends)):
        return x
    pads: List[int] = [0, 0, *begins, 0, 0, *ends]
    return call.add("Pad", [x, call.ints(*pads), call.constant(value)])
