"""Operators of layers: convolutions, products, normalisation, reductions."""

from __future__ import annotations

from typing import List, Tuple

import numpy as np

from mxtrain.model.onnx.builder import ROLE_END, Value
from mxtrain.model.onnx.call import OnnxCall
from mxtrain.model.onnx.operators.shapes import cropped, padded
from mxtrain.model.onnx.operators.table import converts
from mxtrain.model.onnx.operators.windows import Sizes, halved, padding_of
from mxtrain.model.symbol.graph_file import Output

REDUCTIONS = {"ReduceMean": "mean", "ReduceSum": "sum", "ReduceMax": "max", "ReduceMin": "min", "ReduceProd": "prod"}
MAX_AXES = 3


def _kernel(call: OnnxCall, weight: np.ndarray) -> Tuple[int, ...]:
    """Returns the sizes of the windows of a convolution.

    Raises:
        RefusedOnnx: they are not those of the weight, or MXNet has no such convolution.
    """
    kernel = tuple(weight.shape[2:])
    if not 1 <= len(kernel) <= MAX_AXES or weight.ndim != call.rank():
        raise call.refused(f"has a weight of the shape {weight.shape} for an input of {call.rank()} axes")
    given = tuple(call.numbers("kernel_shape", kernel))
    if given != kernel:
        raise call.refused(f"has kernel_shape={list(given)} and a weight of the shape {weight.shape}")
    return kernel


def _with_bias(call: OnnxCall, x: Output, weight: Output) -> List[Output]:
    return [x, weight, call.parameter(2, "bias")] if call.has(2) else [x, weight]


@converts("Conv")
def convolution(call: OnnxCall) -> Value:
    weight = call.array(1)
    kernel = _kernel(call, weight)
    ones = (1,) * len(kernel)
    stride, dilate = call.numbers("strides", ones), call.numbers("dilations", ones)
    begins, ends = padding_of(call, kernel, stride, dilate)
    x = call.x()
    if begins != ends:  # MXNet pads both sides alike
        x, begins = padded(call, x, begins, ends), (0,) * len(kernel)
    return call.add(
        "Convolution",
        _with_bias(call, x, call.parameter(1, "weight")),
        kernel=kernel,
        stride=stride,
        dilate=dilate,
        pad=begins,
        num_filter=weight.shape[0],
        num_group=call.integer("group", 1),
        no_bias=not call.has(2),
    )


@converts("ConvTranspose")
def transposed_convolution(call: OnnxCall) -> Value:
    weight = call.array(1)
    kernel = _kernel(call, weight)
    ones, zeros = (1,) * len(kernel), (0,) * len(kernel)
    stride, dilate = call.numbers("strides", ones), call.numbers("dilations", ones)
    more = call.numbers("output_padding", zeros)
    if call.numbers("output_shape"):
        raise call.refused(f"has output_shape={call.numbers('output_shape')}")
    begins, ends = _transposed_padding(call, kernel, stride, dilate, more)
    group = call.integer("group", 1)
    # MXNet removes as much at both ends; the rest is cut off behind it.
    pad = tuple(min(pair) for pair in zip(begins, ends))
    result = call.add(
        "Deconvolution",
        _with_bias(call, call.x(), call.parameter(1, "weight")),
        kernel=kernel,
        stride=stride,
        dilate=dilate,
        pad=pad,
        adj=more,
        num_filter=weight.shape[1] * group,
        num_group=group,
        no_bias=not call.has(2),
    )
    return cropped(call, result, *([size - cut for size, cut in zip(side, pad)] for side in (begins, ends)))


def _transposed_padding(
    call: OnnxCall, kernel: Sizes, stride: Sizes, dilate: Sizes, more: Sizes
) -> Tuple[Sizes, Sizes]:
    """Returns the elements that a transposed convolution removes before and behind each axis."""
    same = str(call.require("auto_pad", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"))
    if not same.startswith("SAME"):
        pads = call.numbers("pads", (0,) * 2 * len(kernel))
        return tuple(pads[: len(kernel)]), tuple(pads[len(kernel) :])
    call.ignore("pads")
    # The output is as large as the input times the stride.
    totals = [(size - 1) * each + 1 + extra - step for size, step, each, extra in zip(kernel, stride, dilate, more)]
    if min(totals) < 0:
        raise call.refused(f"has auto_pad={same} with strides={list(stride)} beyond its kernel")
    return halved(totals, same)


@converts("Gemm")
def gemm(call: OnnxCall) -> Value:
    alpha, beta = call.number("alpha", 1.0), call.number("beta", 1.0)
    weight = call.array(1)
    if weight.ndim != 2:
        raise call.refused(f"has a weight of the shape {weight.shape}")
    weight = weight if call.integer("transB") else weight.T
    x = call.x()
    if call.integer("transA"):
        x = call.step("transpose", [x], axes=[1, 0])
    inputs = [x, call.parameter(1, "weight", weight if alpha == 1 else weight * np.float32(alpha))]
    if call.has(2):
        bias = call.array(2)
        if bias.size not in (1, len(weight)) or (bias.ndim == 2 and len(bias) != 1):
            raise call.refused(f"has a bias of the shape {bias.shape} for {len(weight)} units")
        values = np.broadcast_to(bias.reshape(-1), (len(weight),))
        inputs.append(call.parameter(2, "bias", values if beta == 1 else values * np.float32(beta)))
    return call.add("FullyConnected", inputs, num_hidden=len(weight), no_bias=not call.has(2), flatten=False)


@converts("MatMul")
def matmul(call: OnnxCall) -> Value:
    if call.is_constant(1) and not call.is_constant(0):
        weight = call.array(1)
        if weight.ndim != 2:
            raise call.refused(f"has a weight of the shape {weight.shape}")
        parameter = call.parameter(1, "weight", weight.T)
        return call.add(
            "FullyConnected", [call.x(), parameter], num_hidden=weight.shape[1], no_bias=True, flatten=False
        )
    ranks = call.rank(0), call.rank(1)
    if ranks == (2, 2):
        return call.add("dot", [call.x(0), call.x(1)])
    if ranks[0] != ranks[1] or ranks[0] < 3 or call.shape(0)[:-2] != call.shape(1)[:-2]:
        raise call.refused(f"multiplies the shapes {call.shape(0)} and {call.shape(1)}")
    return call.add("_linalg_gemm2", [call.x(0), call.x(1)])


@converts("BatchNormalization")
def batch_norm(call: OnnxCall) -> Value:
    call.require("spatial", 1)
    # In the form for training it returns the batch's statistics, which MXNet keeps itself.
    call.require("training_mode", 0, 1)
    call.require_one_output()
    roles = ("beta", "running_mean", "running_var")
    # `mxtrain export` writes a scale that is fixed at 1 as a nameless constant, which layers share.
    is_fixed = not ROLE_END.search(call.node.input[1]) and bool((call.array(1) == 1).all())
    gamma = call.filled("gamma", call.array(1).size, 1.0) if is_fixed else call.parameter(1, "gamma")
    inputs = [call.x(), gamma, *(call.parameter(index, role) for index, role in enumerate(roles, start=2))]
    return call.add(
        "BatchNorm",
        inputs,
        eps=call.number("epsilon", 1e-5),
        momentum=call.number("momentum", 0.9),
        fix_gamma=False,
        use_global_stats=False,
        axis=1,
    )


@converts("InstanceNormalization")
def instance_norm(call: OnnxCall) -> Value:
    inputs = [call.x(), call.parameter(1, "gamma"), call.parameter(2, "beta")]
    return call.add("InstanceNorm", inputs, eps=call.number("epsilon", 1e-5))


@converts("LayerNormalization")
def layer_norm(call: OnnxCall) -> Value:
    call.require_one_output()
    call.require("stash_type", 1)
    if call.axis("axis", -1) != call.rank() - 1:
        raise call.refused(f"has axis={call.attributes['axis']}, and MXNet normalises over one axis")
    gamma = call.parameter(1, "gamma")
    beta = call.parameter(2, "beta") if call.has(2) else call.filled("beta", call.array(1).size, 0.0)
    return call.add("LayerNorm", [call.x(), gamma, beta], axis=-1, eps=call.number("epsilon", 1e-5))


@converts("LRN")
def local_response_norm(call: OnnxCall) -> Value:
    size = call.integer("size")
    if size % 2 == 0:
        raise call.refused(f"has size={size}")
    return call.add(
        "LRN",
        [call.x()],
        nsize=size,
        alpha=call.number("alpha", 1e-4),
        beta=call.number("beta", 0.75),
        knorm=call.number("bias", 1.0),
    )


@converts(*REDUCTIONS)
def reduce(call: OnnxCall) -> Value:
    has_input = call.opset >= (13 if call.op == "ReduceSum" else 18)
    axes = call.ints(1) if has_input else call.numbers("axes")
    keep = bool(call.integer("keepdims", 1))
    if call.integer("noop_with_empty_axes") and not axes:
        return call.value(0)
    axes = [call.non_negative(axis) for axis in axes]
    if 0 in axes or not axes:
        raise call.refused(f"has axes={axes or None}, which mixes the images of a batch")
    return call.add(REDUCTIONS[call.op], [call.x()], axis=axes, keepdims=keep)
