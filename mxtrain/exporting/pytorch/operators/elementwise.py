"""Operators that compute each element by itself."""

from __future__ import annotations

from mxtrain.exporting.pytorch.call import Converted, Layer, LayerSize, TorchCall
from mxtrain.exporting.pytorch.operators.table import CONVERTERS, converts

UNARY = {
    "tanh": "tanh",
    "exp": "exp",
    "log": "log",
    "sqrt": "sqrt",
    "rsqrt": "rsqrt",
    "abs": "abs",
    "negative": "neg",
    "reciprocal": "reciprocal",
    "sin": "sin",
    "cos": "cos",
    "floor": "floor",
    "ceil": "ceil",
    "erf": "erf",
    "sign": "sign",
    "square": "square",
    "log2": "log2",
    "log1p": "log1p",
    "expm1": "expm1",
}
BINARY = {"add": "+", "plus": "+", "sub": "-", "minus": "-", "mul": "*", "div": "/", "power": "**"}
EXTREMES = {"maximum": "maximum", "minimum": "minimum"}
COMPARISONS = {
    "greater": ">",
    "greater_equal": ">=",
    "lesser": "<",
    "lesser_equal": "<=",
    "equal": "==",
    "not_equal": "!=",
}
LOGIC = {"logical_and": "&", "logical_or": "|", "logical_xor": "^"}
ACTIVATIONS = {
    "relu": ("nn.ReLU()", "F.relu({x})"),
    "sigmoid": ("nn.Sigmoid()", "torch.sigmoid({x})"),
    "tanh": ("nn.Tanh()", "torch.tanh({x})"),
    "softrelu": ("nn.Softplus()", "F.softplus({x})"),
    "softsign": ("nn.Softsign()", "F.softsign({x})"),
}


def _text(value: float) -> str:
    return repr(int(value)) if value == int(value) else repr(value)


def _unary(op: str) -> None:
    @converts(op)
    def convert(call: TorchCall) -> Converted:
        return f"torch.{UNARY[op]}({call.x()})"


def _activation(op: str) -> None:
    @converts(op)
    def convert(call: TorchCall) -> Converted:
        return _active(call, op)


def _active(call: TorchCall, kind: str) -> Converted:
    if kind not in ACTIVATIONS:
        raise call.unsupported(f"with act_type={kind}")
    layer, plain = ACTIVATIONS[kind]
    return Layer((layer,), plain=plain.format(x=call.x()))


def _binary(names: str, sign: str) -> None:
    @converts(f"elemwise_{names}", f"broadcast_{names}", f"_{names}")
    def convert(call: TorchCall) -> Converted:
        return f"{call.x()} {sign} {call.x(1)}"

    @converts(f"_{names}_scalar")
    def convert_scalar(call: TorchCall) -> Converted:
        return f"{call.x()} {sign} {_text(call.number_of('scalar'))}"

    @converts(f"_r{names}_scalar")
    def convert_reversed(call: TorchCall) -> Converted:
        return f"{_text(call.number_of('scalar'))} {sign} {call.x()}"


def _extreme(name: str) -> None:
    @converts(f"broadcast_{name}", f"_{name}")
    def convert(call: TorchCall) -> Converted:
        return f"torch.{name}({call.x()}, {call.x(1)})"

    @converts(f"_{name}_scalar")
    def convert_scalar(call: TorchCall) -> Converted:
        bound = "min" if name == "maximum" else "max"
        return f"{call.x()}.clamp({bound}={_text(call.number_of('scalar'))})"


def _dtype(call: TorchCall) -> str:
    return f"torch.{call.out_dtype()}"


def _comparison(name: str, sign: str) -> None:
    @converts(f"broadcast_{name}", f"_{name}")
    def convert(call: TorchCall) -> Converted:
        # MXNet's comparisons return numbers.
        return f"({call.x()} {sign} {call.x(1)}).to({_dtype(call)})"

    @converts(f"_{name}_scalar")
    def convert_scalar(call: TorchCall) -> Converted:
        return f"({call.x()} {sign} {_text(call.number_of('scalar'))}).to({_dtype(call)})"


def _logic(name: str, sign: str) -> None:
    @converts(f"broadcast_{name}", f"_{name}")
    def convert(call: TorchCall) -> Converted:
        return f"(({call.x()} != 0) {sign} ({call.x(1)} != 0)).to({_dtype(call)})"


for _name in UNARY:
    _unary(_name)
for _name in ("relu", "sigmoid", "softsign"):
    _activation(_name)
for _name, _sign in BINARY.items():
    _binary(_name, _sign)
for _name in EXTREMES:
    _extreme(_name)
for _name, _sign in COMPARISONS.items():
    _comparison(_name, _sign)
for _name, _sign in LOGIC.items():
    _logic(_name, _sign)
CONVERTERS["_grad_add"] = CONVERTERS["elemwise_add"]


@converts("logical_not")
def logical_not(call: TorchCall) -> Converted:
    return f"({call.x()} == 0).to({_dtype(call)})"


@converts("_copy", "identity", "amp_cast", "MakeLoss")
def same(call: TorchCall) -> Converted:
    return Layer(("nn.Identity()",), plain=call.x())


@converts("BlockGrad", "stop_gradient")
def without_gradient(call: TorchCall) -> Converted:
    return f"{call.x()}.detach()"


@converts("Dropout")
def dropout(call: TorchCall) -> Converted:
    if call.text("mode", "training") != "training":
        raise call.unsupported(f"with mode={call.text('mode')}")
    rate = call.number_of("p", 0.5)
    if call.numbers("axes"):
        raise call.unsupported("with axes")
    return Layer((f"nn.Dropout({rate})",), plain=f"F.dropout({call.x()}, {rate}, self.training)")


@converts("Cast", "cast")
def cast(call: TorchCall) -> Converted:
    return call.x() if call.dtype() == call.out_dtype() else f"{call.x()}.to({_dtype(call)})"


@converts("add_n", "ElementWiseSum")
def add_n(call: TorchCall) -> Converted:
    return " + ".join(call.inputs)


@converts("clip")
def clip(call: TorchCall) -> Converted:
    low, high = call.number_of("a_min"), call.number_of("a_max")
    if (low, high) == (0, 6):
        return Layer(("nn.ReLU6()",), plain=f"F.relu6({call.x()})")
    return f"{call.x()}.clamp({_text(low)}, {_text(high)})"


@converts("where")
def where(call: TorchCall) -> Converted:
    condition = f"{call.x()} != 0"
    if call.rank() == 1 and call.rank(1) > 1:  # chooses rows
        condition = f"({condition}).reshape(-1, {', '.join('1' for _ in range(call.rank(1) - 1))})"
    return f"torch.where({condition}, {call.x(1)}, {call.x(2)})"


@converts("hard_sigmoid")
def hard_sigmoid(call: TorchCall) -> Converted:
    return f"({call.x()} * {call.number_of('alpha', 0.2)} + {call.number_of('beta', 0.5)}).clamp(0, 1)"


@converts("Activation")
def activation(call: TorchCall) -> Converted:
    return _active(call, call.text("act_type"))


@converts("LeakyReLU")
def leaky_relu(call: TorchCall) -> Converted:
    kind, slope, x = call.text("act_type", "leaky"), call.number_of("slope", 0.25), call.x()
    if kind == "leaky":
        return Layer((f"nn.LeakyReLU({slope})",), plain=f"F.leaky_relu({x}, {slope})")
    if kind == "elu":
        return Layer((f"nn.ELU({slope})",), plain=f"F.elu({x}, {slope})")
    if kind == "selu":
        return Layer(("nn.SELU()",), plain=f"F.selu({x})")
    if kind == "gelu":
        return Layer(("nn.GELU()",), plain=f"F.gelu({x})")
    if kind == "prelu":
        if not call.owns(1):
            return f"F.prelu({x}, {call.x(1)})"
        code = call.construct("nn.PReLU", LayerSize("num_parameters", call.dims(1)[0][0]))
        return Layer(code, {"weight": call.entries[1]})
    raise call.unsupported(f"with act_type={kind}")


@converts("_mxtrain_gelu")
def gelu_tanh(call: TorchCall) -> Converted:
    """Converts GELU in its tanh form."""
    return Layer(('nn.GELU(approximate="tanh")',), plain=f'F.gelu({call.x()}, approximate="tanh")')


@converts("smooth_l1")
def smooth_l1(call: TorchCall) -> Converted:
    sigma, x = call.number_of("scalar", 1.0) ** 2, call.x()
    squared, linear = f"{x}.square() * {0.5 * sigma}", f"{x}.abs() - {0.5 / sigma}"
    return f"torch.where({x}.abs() < {1 / sigma}, {squared}, {linear})"


@converts("ones_like", "zeros_like")
def filled_like(call: TorchCall) -> Converted:
    return f"torch.{call.op}({call.x()})"


@converts("_ones", "_zeros", "_full")
def filled(call: TorchCall) -> Converted:
    value = {"_ones": 1, "_zeros": 0}.get(call.op, call.number_of("value", 0.0))
    shape = call.shape(call.out_dims(), infer=False)
    return f"torch.full(({shape},), {_text(value)}, dtype={_dtype(call)}, device={call.device})"
