"""Pooling over windows, and over the whole image."""

from __future__ import annotations

from typing import Tuple

import numpy as np

from mxtrain.model.onnx.builder import Value
from mxtrain.model.onnx.call import OnnxCall
from mxtrain.model.onnx.operators.shapes import padded
from mxtrain.model.onnx.operators.table import converts
from mxtrain.model.onnx.operators.windows import padding_of
from mxtrain.model.symbol.graph_file import Output

GLOBAL = {"GlobalAveragePool": "avg", "GlobalMaxPool": "max"}
LOWEST = float(np.finfo(np.float32).min)


@converts(*GLOBAL)
def global_pooling(call: OnnxCall) -> Value:
    return call.add("Pooling", [call.x()], pool_type=GLOBAL[call.op], global_pool=True, kernel=[1] * (call.rank() - 2))


@converts("MaxPool", "AveragePool")
def pooling(call: OnnxCall) -> Value:
    call.require_one_output()
    kernel = call.numbers("kernel_shape")
    ones = [1] * len(kernel)
    if len(kernel) != call.rank() - 2 or not 1 <= len(kernel) <= 3:
        raise call.refused(f"has kernel_shape={kernel} for an input of {call.rank()} axes")
    if call.numbers("dilations", ones) != ones:
        raise call.refused(f"has dilations={call.attributes['dilations']}")
    call.ignore("storage_order")  # of the indices, which are not returned
    stride = call.numbers("strides", ones)
    begins, ends = padding_of(call, kernel, stride, ones)
    ceil = bool(call.integer("ceil_mode"))
    if ceil:
        _refuse_windows_in_padding(call, kernel, stride, begins, ends)
    arguments = dict(kernel=kernel, stride=stride, pooling_convention="full" if ceil else "valid")
    if call.op == "MaxPool":
        x, pad = call.x(), begins
        if begins != ends:
            x, pad = padded(call, x, begins, ends, LOWEST), (0,) * len(kernel)
        return call.add("Pooling", [x], pool_type="max", pad=pad, **arguments)
    counted = bool(call.integer("count_include_pad"))
    if counted and any((*begins, *ends)):
        # MXNet's gradient is wrong where it counts padding and windows exceed it, so there is none left to count.
        x = padded(call, call.x(), begins, ends)
        return call.add("Pooling", [x], pool_type="avg", count_include_pad=False, **arguments)
    if begins == ends:
        return call.add("Pooling", [call.x()], pool_type="avg", pad=begins, count_include_pad=False, **arguments)
    if ceil:
        raise call.refused("has ceil_mode=1 and other pads before than behind the image")
    mean = _mean(call, call.x(), begins, ends, arguments)
    # Means over the padded image and over its padded ones have the same divisor.
    number = _mean(call, call.step("ones_like", [call.x()]), begins, ends, arguments)
    return call.add("elemwise_div", [mean, number])


def _mean(call: OnnxCall, x: Output, begins: Tuple[int, ...], ends: Tuple[int, ...], arguments: dict) -> Output:
    return call.add("Pooling", [padded(call, x, begins, ends)], pool_type="avg", **arguments)


def _refuse_windows_in_padding(
    call: OnnxCall, kernel: list, stride: list, begins: Tuple[int, ...], ends: Tuple[int, ...]
) -> None:
    """Raises `RefusedOnnx` if rounding up may add a window behind the image, which ONNX drops, and MXNet does not."""
    for size, step, end in zip(kernel, stride, ends):
        # The last window starts less than this far behind the begin of the padding, without the image.
        if end + step > size:
            raise call.refused(
                f"has ceil_mode=1 with kernel_shape={kernel}, strides={stride} and pads={[*begins, *ends]}, so that "
                "its last window may hold padding only"
            )
