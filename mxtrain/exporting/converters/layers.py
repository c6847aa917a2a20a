"""Operators of layers: convolutions, pooling, normalisation, products, reductions."""

from __future__ import annotations

from typing import Sequence

import numpy as np

from mxtrain.exporting.converters.table import converts
from mxtrain.exporting.graph import OperatorCall

REDUCTIONS = {
    "mean": "ReduceMean",
    "sum": "ReduceSum",
    "sum_axis": "ReduceSum",
    "max": "ReduceMax",
    "max_axis": "ReduceMax",
    "min": "ReduceMin",
    "min_axis": "ReduceMin",
    "prod": "ReduceProd",
}


def _window(call: OperatorCall) -> dict:
    """Returns the ONNX attributes of a convolution or its transpose."""
    kernel = call.numbers("kernel")
    zeros, ones = (0,) * len(kernel), (1,) * len(kernel)
    return {
        "kernel_shape": kernel,
        "strides": call.numbers("stride", ones),
        # ONNX lists the padding before all axes, then that behind them; MXNet's is the same on both sides.
        "pads": call.numbers("pad", zeros) * 2,
        "dilations": call.numbers("dilate", ones),
        "group": call.integer("num_group", 1),
    }


@converts("Convolution")
def convolution(call: OperatorCall) -> str:
    return call.add("Conv", call.inputs, **_window(call))


@converts("Deconvolution")
def deconvolution(call: OperatorCall) -> str:
    if call.numbers("target_shape"):
        raise call.unsupported("with target_shape")
    window = _window(call)
    return call.add(
        "ConvTranspose", call.inputs, output_padding=call.numbers("adj", (0,) * len(window["strides"])), **window
    )


@converts("BatchNorm")
def batch_norm(call: OperatorCall) -> str:
    x, gamma, beta, mean, variance = call.inputs
    axis = call.axis(default=1)
    if call.flag("fix_gamma", True):  # 1, whatever the array holds
        gamma = call.graph.constant(np.ones([size[0] for size in call.dims(1)], call.dtype(1)))
    order = list(range(call.rank()))
    order[1:1] = [order.pop(axis)]
    if axis != 1:
        x = call.transpose(x, *order)
    # Without `eps` MXNet uses 1e-3, and ONNX 1e-5. The momentum only matters if the graph is trained.
    options = {"epsilon": call.number_of("eps", 1e-3), "momentum": call.number_of("momentum", 0.9)}
    normalised = call.add("BatchNormalization", [x, gamma, beta, mean, variance], **options)
    return normalised if axis == 1 else call.transpose(normalised, *np.argsort(order).tolist())


@converts("LayerNorm")
def layer_norm(call: OperatorCall) -> str:
    # ONNX normalises over all axes from `axis` on, MXNet over this one: they agree only for the last.
    if call.axis() != call.rank() - 1:
        raise call.unsupported("along another axis than the last")
    return call.add("LayerNormalization", call.inputs, axis=-1, epsilon=call.number_of("eps", 1e-5))


@converts("_mxtrain_norm")
def fused_norm(call: OperatorCall) -> Sequence[str]:
    x, gamma_index = call.x(), 1
    if call.integer("residual"):
        x, gamma_index = call.add("Add", [x, call.x(1)]), 2
    epsilon = call.number_of("eps", 1e-12)
    return [call.add("LayerNormalization", [x, call.x(gamma_index), call.x(gamma_index + 1)], axis=-1, epsilon=epsilon)]


@converts("_mxtrain_dropout_sum")
def dropout_sum(call: OperatorCall) -> str:
    return call.add("Add", [call.x(), call.x(1)])


@converts("GroupNorm")
def group_norm(call: OperatorCall) -> str:
    """MXNet 1.9 has one gamma and one beta for each group, not for each channel."""
    grouped = call.reshape(call.x(), 0, call.integer("num_groups", 1), -1)
    normal = call.add("InstanceNormalization", [grouped, call.x(1), call.x(2)], epsilon=call.number_of("eps", 1e-5))
    return call.add("Reshape", [normal, call.add("Shape", [call.x()])])


@converts("InstanceNorm")
def instance_norm(call: OperatorCall) -> str:
    return call.add("InstanceNormalization", call.inputs, epsilon=call.number_of("eps", 1e-3))


@converts("L2Normalization")
def l2_normalization(call: OperatorCall) -> str:
    axes = {"channel": [1], "instance": list(range(1, call.rank())), "spatial": list(range(2, call.rank()))}
    squares = call.add("Mul", [call.x(), call.x()])
    total = call.add("ReduceSum", [squares, call.ints(*axes[call.text("mode", "instance")])], keepdims=1)
    root = call.add("Sqrt", [call.add("Add", [total, call.constant(call.number_of("eps", 1e-10))])])
    return call.add("Div", [call.x(), root])


@converts("_contrib_AdaptiveAvgPooling2D")
def adaptive_pooling(call: OperatorCall) -> str:
    (_, _, height, width), (_, _, lines, columns) = call.dims(), call.out_dims()
    if all(size == (1,) * len(size) for size in (lines, columns)):
        return call.add("GlobalAveragePool", [call.x()])
    if len(set(height)) > 1 or len(set(width)) > 1 or height[0] % lines[0] or width[0] % columns[0]:
        return _adaptive_by_products(call)
    kernel = [height[0] // lines[0], width[0] // columns[0]]
    return call.add("AveragePool", [call.x()], kernel_shape=kernel, strides=kernel)


def _adaptive_by_products(call: OperatorCall) -> str:
    """Computes means over unequal windows as products with constant matrices."""
    sizes, output_sizes = call.dims()[2:], call.out_dims()[2:]
    if any(len(set(size)) > 1 for size in sizes):
        call.shape_tensor([(-1, -2)])  # of an open size there are no such matrices
    lines, columns = (_window_means(size[0], count[0]) for size, count in zip(sizes, output_sizes))
    rows_reduced = call.add("MatMul", [call.x(), call.graph.constant(columns.T)])
    return call.add("MatMul", [call.graph.constant(lines), rows_reduced])


def _window_means(size: int, count: int) -> np.ndarray:
    matrix = np.zeros((count, size), np.float32)
    for row in range(count):
        begin, end = row * size // count, -(-(row + 1) * size // count)
        matrix[row, begin:end] = 1 / (end - begin)
    return matrix


@converts("Flatten", "flatten")
def flatten(call: OperatorCall) -> str:
    return call.add("Flatten", [call.x()], axis=1)


@converts("FullyConnected")
def fully_connected(call: OperatorCall) -> str:
    bias = [] if call.flag("no_bias") else [call.x(2)]
    if call.flag("flatten", True):
        # Gemm takes matrices only.
        x = call.x() if call.rank() == 2 else call.add("Flatten", [call.x()], axis=1)
        return call.add("Gemm", [x, call.x(1), *bias], transB=1)
    # A weight without further readers is transposed in the file; a shared one would be stored twice.
    is_own = call.x(1) in call.graph.initializers and call.graph.num_users(call.entries[1]) == 1
    weight = call.graph.constant(call.value(1).T, f"{call.x(1)}_T") if is_own else call.transpose(call.x(1), 1, 0)
    product = call.add("MatMul", [call.x(), weight])
    return call.add("Add", [product, *bias]) if bias else product


@converts("batch_dot")
def batch_dot(call: OperatorCall) -> str:
    sides = [
        call.transpose(name, 0, 2, 1) if call.flag(f"transpose_{side}") else name
        for name, side in zip(call.inputs, "ab")
    ]
    return call.add("MatMul", sides)


@converts("dot")
def dot(call: OperatorCall) -> str:
    """Sums over the last axis of the first and the first axis of the second array."""
    x, y = call.inputs
    if call.flag("transpose_a"):  # the first axis becomes the last one, the others keep their order
        x = call.transpose(x, *range(1, call.rank(0)), 0)
    if call.flag("transpose_b"):
        y = call.transpose(y, call.rank(1) - 1, *range(call.rank(1) - 1))
    # MatMul would take further axes of the second array for those of a batch.
    if call.rank(1) <= 2:
        return call.add("MatMul", [x, y])
    return call.to_shape(call.add("MatMul", [x, call.reshape(y, 0, -1)]), [], call.out_dims())


@converts(*REDUCTIONS)
def reduce(call: OperatorCall) -> str:
    op, rank = REDUCTIONS[call.op], call.rank()
    axes = [axis % rank for axis in call.numbers("axis", tuple(range(rank)))]
    if call.flag("exclude") and call.numbers("axis"):
        axes = [axis for axis in range(rank) if axis not in axes]
    keep = int(call.flag("keepdims"))
    # ReduceSum has its axes as an input since opset 13, the other reductions only since opset 18.
    if op == "ReduceSum":
        reduced = call.add(op, [call.x(), call.ints(*axes)], keepdims=keep)
    else:
        reduced = call.add(op, [call.x()], axes=axes, keepdims=keep)
    # MXNet has no arrays without axes.
    return call.reshape(reduced, 1) if len(axes) == rank and not keep else reduced


@converts("norm")
def norm(call: OperatorCall) -> str:
    op = {1: "ReduceL1", 2: "ReduceL2"}.get(call.integer("ord", 2))
    if op is None:
        raise call.unsupported(f"with ord={call.integer('ord')}")
    rank = call.rank()
    axes = [axis % rank for axis in call.numbers("axis", tuple(range(rank)))]
    reduced = call.add(op, [call.x()], axes=axes, keepdims=int(call.flag("keepdims")))
    return call.reshape(reduced, 1) if len(axes) == rank and not call.flag("keepdims") else reduced


@converts("softmax", "softmin", "log_softmax")
def softmax(call: OperatorCall) -> str:
    if len(call) > 1:
        raise call.unsupported("with lengths")
    temperature = call.number_of("temperature", 1.0) * (-1 if call.op == "softmin" else 1)
    x = call.x() if temperature == 1 else call.add("Div", [call.x(), call.constant(temperature)])
    return call.add("LogSoftmax" if call.op == "log_softmax" else "Softmax", [x], axis=call.axis())


@converts("SoftmaxActivation")
def softmax_activation(call: OperatorCall) -> str:
    return call.add("Softmax", [call.x()], axis=1 if call.text("mode", "instance") == "channel" else call.rank() - 1)


@converts("UpSampling")
def up_sampling(call: OperatorCall) -> str:
    if call.text("sample_type") != "nearest" or len(call) > 1:
        raise call.unsupported("with another sample_type than nearest")
    scale = call.number_of("scale")
    # "asymmetric" with "floor" takes the pixel x // scale, which is how MXNet repeats pixels.
    scales = call.graph.constant(np.array([1, 1, scale, scale], np.float32))
    return call.add(
        "Resize",
        [call.x(), "", scales],
        mode="nearest",
        nearest_mode="floor",
        coordinate_transformation_mode="asymmetric",
    )


@converts("_contrib_BilinearResize2D")
def bilinear_resize(call: OperatorCall) -> str:
    mode = "align_corners" if call.flag("align_corners", True) else "half_pixel"
    sizes = call.shape_tensor(call.out_dims())
    return call.add("Resize", [call.x(), "", "", sizes], mode="linear", coordinate_transformation_mode=mode)


@converts("Pad", "pad")
def pad(call: OperatorCall) -> str:
    widths = call.numbers("pad_width")
    value = call.constant(call.number_of("constant_value"))
    sides = call.ints(*widths[0::2], *widths[1::2])
    return call.add("Pad", [call.x(), sides, value], mode=call.text("mode"))
