"""Operators that compute each element by itself."""

from __future__ import annotations

import math

import numpy as np

from mxtrain.exporting.converters.table import CONVERTERS, converts
from mxtrain.exporting.graph import OperatorCall

UNARY = {
    "relu": "Relu",
    "sigmoid": "Sigmoid",
    "tanh": "Tanh",
    "exp": "Exp",
    "log": "Log",
    "sqrt": "Sqrt",
    "abs": "Abs",
    "negative": "Neg",
    "reciprocal": "Reciprocal",
    "sin": "Sin",
    "cos": "Cos",
    "floor": "Floor",
    "ceil": "Ceil",
    "erf": "Erf",
    "softsign": "Softsign",
    "sign": "Sign",
}
BINARY = {
    "add": "Add",
    "plus": "Add",
    "sub": "Sub",
    "minus": "Sub",
    "mul": "Mul",
    "div": "Div",
    "maximum": "Max",
    "minimum": "Min",
    "power": "Pow",
}
COMPARISONS = {
    "greater": "Greater",
    "greater_equal": "GreaterOrEqual",
    "lesser": "Less",
    "lesser_equal": "LessOrEqual",
    "equal": "Equal",
    # ONNX has no operator for "not equal": `finish` negates the result.
    "not_equal": "Equal",
}
LOGIC = {"logical_and": "And", "logical_or": "Or", "logical_xor": "Xor"}
ACTIVATIONS = {"relu": "Relu", "sigmoid": "Sigmoid", "tanh": "Tanh", "softrelu": "Softplus", "softsign": "Softsign"}


def _unary(op: str) -> None:
    @converts(op)
    def convert(call: OperatorCall) -> str:
        return call.add(UNARY[op], [call.x()])


def _binary(names: str, op: str) -> None:
    @converts(f"elemwise_{names}", f"broadcast_{names}", f"_{names}")
    def convert(call: OperatorCall) -> str:
        return call.add(op, call.inputs)

    @converts(f"_{names}_scalar")
    def convert_scalar(call: OperatorCall) -> str:
        return call.add(op, [call.x(), call.constant(call.number_of("scalar"))])

    @converts(f"_r{names}_scalar")
    def convert_reversed(call: OperatorCall) -> str:
        return call.add(op, [call.constant(call.number_of("scalar")), call.x()])


def _comparison(name: str, op: str) -> None:
    def finish(call: OperatorCall, output: str) -> str:
        """Casts the boolean result to numbers, which MXNet's comparisons return."""
        return call.cast(call.add("Not", [output]) if name == "not_equal" else output, call.out_dtype())

    @converts(f"broadcast_{name}", f"_{name}")
    def convert(call: OperatorCall) -> str:
        return finish(call, call.add(op, call.inputs))

    @converts(f"_{name}_scalar")
    def convert_scalar(call: OperatorCall) -> str:
        return finish(call, call.add(op, [call.x(), call.constant(call.number_of("scalar"))]))


def _logic(name: str, op: str) -> None:
    @converts(f"broadcast_{name}", f"_{name}")
    def convert(call: OperatorCall) -> str:
        # ONNX's logical operators take only booleans, MXNet's take and return numbers.
        return call.cast(call.add(op, [call.cast(one, "bool") for one in call.inputs]), call.out_dtype())


for _name in UNARY:
    _unary(_name)
for _name, _op in BINARY.items():
    _binary(_name, _op)
for _name, _op in COMPARISONS.items():
    _comparison(_name, _op)
for _name, _op in LOGIC.items():
    _logic(_name, _op)
CONVERTERS["_grad_add"] = CONVERTERS["elemwise_add"]


@converts("logical_not")
def logical_not(call: OperatorCall) -> str:
    return call.cast(call.add("Not", [call.cast(call.x(), "bool")]), call.out_dtype())


@converts("BlockGrad", "_copy", "identity", "amp_cast", "MakeLoss", "stop_gradient")
def same(call: OperatorCall) -> str:
    """Removes operators that do nothing in prediction."""
    return call.x()


@converts("Dropout")
def dropout(call: OperatorCall) -> str:
    # mode=always drops elements in prediction as well: no two runs agree, so the network could not be proven.
    if call.text("mode", "training") != "training":
        raise call.unsupported(f"with mode={call.text('mode')}")
    return call.x()


@converts("Cast", "cast")
def cast(call: OperatorCall) -> str:
    return call.x() if call.dtype() == call.out_dtype() else call.cast(call.x(), call.out_dtype())


@converts("rsqrt")
def rsqrt(call: OperatorCall) -> str:
    # ONNX has no reciprocal square root.
    return call.add("Reciprocal", [call.add("Sqrt", [call.x()])])


@converts("square")
def square(call: OperatorCall) -> str:
    return call.add("Mul", [call.x(), call.x()])


@converts("log2")
def log2(call: OperatorCall) -> str:
    return call.add("Div", [call.add("Log", [call.x()]), call.constant(math.log(2))])


@converts("log1p")
def log1p(call: OperatorCall) -> str:
    return call.add("Log", [call.add("Add", [call.x(), call.constant(1)])])


@converts("expm1")
def expm1(call: OperatorCall) -> str:
    return call.add("Sub", [call.add("Exp", [call.x()]), call.constant(1)])


@converts("add_n", "ElementWiseSum")
def add_n(call: OperatorCall) -> str:
    return call.add("Sum", call.inputs)


@converts("clip")
def clip(call: OperatorCall) -> str:
    return call.add("Clip", [call.x(), call.constant(call.number_of("a_min")), call.constant(call.number_of("a_max"))])


@converts("where")
def where(call: OperatorCall) -> str:
    condition = call.cast(call.x(), "bool")
    if call.rank() == 1 and call.rank(1) > 1:  # chooses rows
        condition = call.unsqueeze(condition, *range(1, call.rank(1)))
    return call.add("Where", [condition, call.x(1), call.x(2)])


@converts("hard_sigmoid")
def hard_sigmoid(call: OperatorCall) -> str:
    return call.add("HardSigmoid", [call.x()], alpha=call.number_of("alpha", 0.2), beta=call.number_of("beta", 0.5))


@converts("Activation")
def activation(call: OperatorCall) -> str:
    kind = call.text("act_type")
    if kind not in ACTIVATIONS:
        raise call.unsupported(f"with act_type={kind}")
    return call.add(ACTIVATIONS[kind], [call.x()])


@converts("LeakyReLU")
def leaky_relu(call: OperatorCall) -> str:
    kind, slope = call.text("act_type", "leaky"), call.number_of("slope", 0.25)
    if kind == "leaky":
        return call.add("LeakyRelu", [call.x()], alpha=slope)
    if kind == "elu":
        return call.add("Elu", [call.x()], alpha=slope)
    if kind == "selu":
        return call.add("Selu", [call.x()])
    if kind == "prelu":  # along the channels, which ONNX would take for the last axis
        return call.add("PRelu", [call.x(), call.reshape(call.x(1), -1, *[1] * (call.rank() - 2))])
    if kind == "gelu":
        # ONNX has the operator Gelu from opset 20 on, and the graph is of opset 17.
        grown = call.add("Erf", [call.add("Mul", [call.x(), call.constant(math.sqrt(0.5))])])
        half = call.add("Mul", [call.x(), call.constant(0.5)])
        return call.add("Mul", [half, call.add("Add", [grown, call.constant(1)])])
    raise call.unsupported(f"with act_type={kind}")


@converts("_mxtrain_gelu")
def gelu_tanh(call: OperatorCall) -> str:
    """Converts GELU in its tanh form."""
    x = call.x()
    cube = call.add("Mul", [call.add("Mul", [x, x]), x])
    inner = call.add("Add", [x, call.add("Mul", [cube, call.constant(0.044715)])])
    bent = call.add("Tanh", [call.add("Mul", [inner, call.constant(math.sqrt(2 / math.pi))])])
    return call.add("Mul", [call.add("Mul", [x, call.constant(0.5)]), call.add("Add", [bent, call.constant(1)])])


@converts("smooth_l1")
def smooth_l1(call: OperatorCall) -> str:
    sigma = call.number_of("scalar", 1.0) ** 2
    size = call.add("Abs", [call.x()])
    squared = call.add("Mul", [call.add("Mul", [size, size]), call.constant(0.5 * sigma)])
    linear = call.add("Sub", [size, call.constant(0.5 / sigma)])
    return call.add("Where", [call.add("Less", [size, call.constant(1 / sigma)]), squared, linear])


@converts("ones_like", "zeros_like", "_ones", "_zeros", "_full")
def filled(call: OperatorCall) -> str:
    value = {"ones_like": 1, "_ones": 1}.get(call.op, call.number_of("value", 0.0))
    constant = call.constant(value, call.out_dtype())
    dims = call.out_dims()
    if all(len(set(size)) == 1 for size in dims):
        return call.graph.constant(np.full([size[0] for size in dims], value, call.out_dtype()))
    return call.add("Expand", [constant, call.shape_tensor(dims)])
