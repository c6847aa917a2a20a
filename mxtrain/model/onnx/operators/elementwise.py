"""Operators that compute each element by itself."""

from __future__ import annotations

import math
from typing import Mapping, Optional, Tuple

import numpy as np

from mxtrain.model.onnx.builder import Value
from mxtrain.model.onnx.call import OnnxCall, shortest
from mxtrain.model.onnx.operators.constants import scalar_of
from mxtrain.model.onnx.operators.table import converts
from mxtrain.model.symbol.graph_file import Output

UNARY = {
    "Tanh": "tanh",
    "Exp": "exp",
    "Log": "log",
    "Sqrt": "sqrt",
    "Abs": "abs",
    "Neg": "negative",
    "Reciprocal": "reciprocal",
    "Floor": "floor",
    "Ceil": "ceil",
    "Erf": "erf",
    "Sin": "sin",
    "Cos": "cos",
    "Sign": "sign",
}
ACTIVATIONS = {"Relu": "relu", "Sigmoid": "sigmoid", "Softplus": "softrelu", "Softsign": "softsign"}
BINARY: Mapping[str, Tuple[str, str, str]] = {
    "Add": ("add", "_plus_scalar", "_plus_scalar"),
    "Sub": ("sub", "_minus_scalar", "_rminus_scalar"),
    "Mul": ("mul", "_mul_scalar", "_mul_scalar"),
    "Div": ("div", "_div_scalar", "_rdiv_scalar"),
    "Pow": ("power", "_power_scalar", "_rpower_scalar"),
    "Max": ("maximum", "_maximum_scalar", "_maximum_scalar"),
    "Min": ("minimum", "_minimum_scalar", "_minimum_scalar"),
    "Sum": ("add", "_plus_scalar", "_plus_scalar"),
    "Mean": ("add", "_plus_scalar", "_plus_scalar"),
}
"""Operator -> MXNet's with two arrays, with a number on the right, and with one on the left."""
ELEMENTWISE = frozenset(("add", "sub", "mul", "div"))
_HIGHEST = float(np.finfo(np.float32).max)


@converts(*UNARY)
def unary(call: OnnxCall) -> Value:
    return call.add(UNARY[call.op], [call.x()])


@converts(*ACTIVATIONS)
def activation(call: OnnxCall) -> Value:
    return call.add("Activation", [call.x()], act_type=ACTIVATIONS[call.op])


@converts(*BINARY)
def binary(call: OnnxCall) -> Value:
    """Converts operators of two tensors, and those of several, which ONNX computes from left to right."""
    if call.op == "Add" and len(call) == 2:
        with_bias = _bias(call, 0, 1) or _bias(call, 1, 0)
        if with_bias is not None:
            return with_bias
    result = call.value(0) if len(call) == 1 else _two(call)
    for index in range(2, len(call)):
        result = call.add(f"broadcast_{BINARY[call.op][0]}", [_output(call, result), call.x(index)])
    if call.op == "Mean" and len(call) > 1:
        result = call.add("_div_scalar", [_output(call, result)], scalar=float(len(call)))
    return result


def _output(call: OnnxCall, value: Value) -> Output:
    return value if isinstance(value, tuple) else call.x(0)


def _two(call: OnnxCall) -> Output:
    name, right, left = BINARY[call.op]
    role = "gamma" if call.op in ("Mul", "Div") else "beta"
    for index, other, op in ((1, 0, right), (0, 1, left)):
        if call.is_constant(index) and not call.is_constant(other):
            array = call.array(index)
            if array.size == 1 and array.ndim <= call.rank(other):
                return call.add(op, [call.x(other)], scalar=shortest(array.reshape(-1)[0]))
    shapes = call.shape(0), call.shape(1)
    kind = "elemwise" if shapes[0] == shapes[1] and name in ELEMENTWISE else "broadcast"
    return call.add(f"{kind}_{name}", [call.x(0, role), call.x(1, role)])


def _bias(call: OnnxCall, index: int, other: int) -> Optional[Value]:
    """Returns the layer before a sum with its bias, if the sum adds one number for each unit; else None."""
    found = call.producer(index)
    if found is None or not call.is_constant(other):
        return None
    node, position = found
    if node["op"] not in ("FullyConnected", "Convolution") or node["attrs"]["no_bias"] != "True":
        return None
    array, rank = call.array(other), call.rank(index)
    units = int(node["attrs"].get("num_hidden") or node["attrs"]["num_filter"])
    axis = rank - 1 if node["op"] == "FullyConnected" else 1
    padded = (1,) * (rank - array.ndim) + array.shape
    if len(padded) != rank or padded != tuple(units if number == axis else 1 for number in range(rank)):
        return None
    source = call.node.input[other] if call.node.input[other] in call.graph.file.initializers else ""
    bias = call.graph.parameter(f"{node['name']}_bias", array.reshape(-1), source)
    return call.graph.with_bias(position, bias)


@converts("Clip")
def clip(call: OnnxCall) -> Value:
    if call.opset < 11:
        lowest, highest = call.number("min", -_HIGHEST), call.number("max", _HIGHEST)
    else:
        lowest = scalar_of(call, 1) if call.has(1) else -_HIGHEST
        highest = scalar_of(call, 2) if call.has(2) else _HIGHEST
    return call.add("clip", [call.x()], a_min=lowest, a_max=highest)


@converts("LeakyRelu")
def leaky_relu(call: OnnxCall) -> Value:
    return call.add("LeakyReLU", [call.x()], act_type="leaky", slope=call.number("alpha", 0.01))


@converts("Elu")
def elu(call: OnnxCall) -> Value:
    return call.add("LeakyReLU", [call.x()], act_type="elu", slope=call.number("alpha", 1.0))


@converts("Selu")
def selu(call: OnnxCall) -> Value:
    # The gradient of MXNet's own Selu is wrong.
    bent = call.step("LeakyReLU", [call.x()], act_type="elu", slope=call.number("alpha", 1.67326319217681884765625))
    return call.add("_mul_scalar", [bent], scalar=call.number("gamma", 1.05070102214813232421875))


@converts("PRelu")
def prelu(call: OnnxCall) -> Value:
    slope, rank = call.array(1), call.rank()
    shape = (1,) * (rank - slope.ndim) + slope.shape
    if slope.size > 1 and (rank < 2 or shape != (1, slope.size, *[1] * (rank - 2))):
        raise call.refused(f"has slopes of the shape {slope.shape} that are not one for each channel")
    gamma = call.parameter(1, "gamma", slope.reshape(-1), fixed_shape=True)
    return call.add("LeakyReLU", [call.x(), gamma], act_type="prelu")


@converts("HardSigmoid")
def hard_sigmoid(call: OnnxCall) -> Value:
    return call.add("hard_sigmoid", [call.x()], alpha=call.number("alpha", 0.2), beta=call.number("beta", 0.5))


@converts("HardSwish")
def hard_swish(call: OnnxCall) -> Value:
    x = call.x()
    return call.add("elemwise_mul", [x, call.step("hard_sigmoid", [x], alpha=1 / 6, beta=0.5)])


@converts("Gelu")
def gelu(call: OnnxCall) -> Value:
    x = call.x()
    if call.require("approximate", "none", "tanh") == "none":
        return call.add("LeakyReLU", [x], act_type="gelu")
    cube = call.step("elemwise_mul", [call.step("square", [x]), x])
    inner = call.step("elemwise_add", [x, call.step("_mul_scalar", [cube], scalar=0.044715)])
    bent = call.step("tanh", [call.step("_mul_scalar", [inner], scalar=math.sqrt(2 / math.pi))])
    half = call.step("_mul_scalar", [x], scalar=0.5)
    return call.add("elemwise_mul", [half, call.step("_plus_scalar", [bent], scalar=1.0)])


@converts("Mish")
def mish(call: OnnxCall) -> Value:
    x = call.x()
    return call.add("elemwise_mul", [x, call.step("tanh", [call.step("Activation", [x], act_type="softrelu")])])


@converts("Dropout")
def dropout(call: OnnxCall) -> Value:
    call.require_one_output()
    call.ignore("seed")
    if call.opset < 12:
        ratio = call.number("ratio", 0.5)
    else:
        ratio = scalar_of(call, 1) if call.has(1) else 0.5
    return call.add("Dropout", [call.x()], p=ratio)


@converts("Softmax", "LogSoftmax")
def softmax(call: OnnxCall) -> Value:
    op = {"Softmax": "softmax", "LogSoftmax": "log_softmax"}[call.op]
    if call.opset >= 13:
        return call.add(op, [call.x()], axis=call.axis("axis", -1))
    axis, shape = call.axis("axis", 1), call.shape()
    # Before version 13 it is over all axes from this one on.
    if any(size != 1 for size in shape[axis + 1 :]):
        raise call.refused(f"has axis={axis} of {len(shape)} axes in version {call.opset}")
    return call.add(op, [call.x()], axis=axis)
