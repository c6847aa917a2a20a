"""Workarounds for operators of MXNet 1.9.1 with wrong gradients. Imports MXNet only when called.

Gluon layers that use such an operator are changed to compute the same function correctly. Networks whose own code calls
one are rejected. `scripts/operators` compares all operators of MXNet with finite differences.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, Iterator, List, Mapping, Tuple

from mxtrain.errors import ConfigError
from mxtrain.model.graph.trace import blocks_by_path

if TYPE_CHECKING:
    from mxnet import gluon
    from mxnet.ndarray import NDArray

    from mxtrain.types.annotations import Array, OperatorModule, SymbolGraph

# Klambauer et al., Self-normalizing neural networks, https://arxiv.org/abs/1706.02515, equation 14.
SELU_ALPHA = 1.6732632423543772848170429916717
SELU_SCALE = 1.0507009873554804934193349852946

Called = Tuple[str, str, Mapping[str, str]]
"""A layer's structural name, an operator, and the operator's arguments as text."""


def selu(F: OperatorModule, x: Array) -> Array:
    """Computes SELU as a scaled ELU. The gradient of MXNet's own SELU at -3 is 0.0028 instead of 0.0875."""
    # LeakyReLU's ELU has an oneDNN kernel and a correct gradient.
    return SELU_SCALE * F.LeakyReLU(x, act_type="elu", slope=SELU_ALPHA)


def average(arguments: Mapping[str, Any]) -> Callable[[OperatorModule, Array], Array]:
    """Returns the `hybrid_forward` of an average pooling that counts padding, as explicit padding plus plain pooling.

    Args:
        arguments: arguments of the `Pooling` operator.
    """
    padding = [side for size in arguments["pad"] for side in (size, size)]
    # With the padding made explicit there is none left to count, and both passes divide by the same number.
    plain = {**arguments, "pad": (0,) * len(arguments["pad"]), "count_include_pad": False}
    is_line = len(arguments["pad"]) == 1

    def hybrid_forward(F: OperatorModule, x: Array) -> Array:
        if any(padding):
            image = F.expand_dims(x, axis=3) if is_line else x  # MXNet pads images and volumes only
            width = (0, 0, 0, 0, *padding, *((0, 0) if is_line else ()))
            image = F.Pad(image, mode="constant", constant_value=0, pad_width=width)
            x = F.squeeze(image, axis=3) if is_line else image
        return F.Pooling(x, **plain)

    return hybrid_forward


def dropout(F: OperatorModule, x: Array, rate: float, axes: Tuple[int, ...] = ()) -> Array:
    """Computes dropout: sets random elements to 0 and scales up the remaining ones.

    Args:
        F: `nd` or `sym`.
        x: array of any shape.
        rate: probability that an element is set to 0; with a rate of 0, `x` is returned unchanged.
        axes: axes along which all elements share one random decision.
    """
    return F.Dropout(x, p=rate, axes=axes) if rate else x


def replace_wrong_layers(network: gluon.Block) -> None:
    """Replaces the forward pass of Gluon layers that use an operator with a wrong gradient, in place."""
    from mxtrain.engine.backend import gluon

    pools = (gluon.nn.AvgPool1D, gluon.nn.AvgPool2D, gluon.nn.AvgPool3D)
    for _, block in blocks_by_path(network):
        # Patch the instance, not its class: other code may rely on the class.
        if type(block) is gluon.nn.SELU:
            object.__setattr__(block, "hybrid_forward", selu)
        if type(block) in pools and _is_average_beyond_the_edge("Pooling", _as_text(block._kwargs)):
            object.__setattr__(block, "hybrid_forward", average(block._kwargs))


def _as_text(arguments: Mapping[str, object]) -> Dict[str, str]:
    return {name: str(value) for name, value in arguments.items()}


def _is_selu(op: str, attrs: Mapping[str, str]) -> bool:
    return op == "LeakyReLU" and attrs.get("act_type") == "selu"


def _is_rrelu(op: str, attrs: Mapping[str, str]) -> bool:
    return op == "LeakyReLU" and attrs.get("act_type") == "rrelu"


def _is_average_beyond_the_edge(op: str, attrs: Mapping[str, str]) -> bool:
    """Returns True for an average pooling whose last windows may exceed the padded image.

    Its forward pass divides by the number of elements inside, but oneDNN's backward pass by the full window size.
    """
    return (
        (op, attrs.get("pool_type"), attrs.get("pooling_convention")) == ("Pooling", "avg", "full")
        and attrs.get("global_pool", "False") not in ("True", "1")
        and attrs.get("count_include_pad", "True") not in ("False", "0")
    )


def _leaves_dropout_out(op: str, attrs: Mapping[str, str]) -> bool:
    """Returns True for an RNN with dropout between its layers on a CPU, where MXNet silently ignores the dropout."""
    return op == "RNN" and float(attrs.get("p", 0)) > 0 and int(attrs.get("num_layers", 1)) > 1 and _is_on_cpu()


def _leaves_lengths_out(op: str, attrs: Mapping[str, str]) -> bool:
    """Returns True for an RNN with sequence lengths on a CPU, where MXNet silently ignores the lengths."""
    return op == "RNN" and attrs.get("use_sequence_length", "False") in ("True", "1") and _is_on_cpu()


def _is_on_cpu() -> bool:
    from mxtrain.engine.backend import mx

    return not mx.context.num_gpus()


WRONG: Dict[Callable[[str, Mapping[str, str]], bool], str] = {
    _is_selu: "LeakyReLU(act_type='selu'): its gradient is wrong for negative numbers. Use mxnet.gluon.nn.SELU(), "
    "which mxtrain mends",
    _is_rrelu: "LeakyReLU(act_type='rrelu'): MXNet ends the process when it trains with it. Use act_type='leaky'",
    _is_average_beyond_the_edge: "Pooling(pool_type='avg', pooling_convention='full'): its gradient is wrong where a "
    "window hangs over the edge. Add count_include_pad=False, which without padding gives the same value, or use "
    "mxnet.gluon.nn.AvgPool2D(), which mxtrain mends",
    _leaves_dropout_out: "RNN with several layers and dropout, which MXNet leaves out on a CPU. Use layers of "
    "num_layers=1, one after the other, and mxnet.gluon.nn.Dropout between them",
    _leaves_lengths_out: "RNN with use_sequence_length, which MXNet does not look at on a CPU. Turn texts round with "
    "SequenceReverse for the way back, and take the states at their lengths",
}
"""Condition on an operator -> its defect, and the replacement to use."""


def refuse_wrong(called: Iterable[Called]) -> None:
    """Raises a `ConfigError` that lists all calls of operators in `WRONG`, by layer, if there are any."""
    problems: List[str] = []
    for layer, op, attrs in called:
        location = f"layer '{layer}'" if layer else "the network"
        problems += [f"{location} calls {reason}." for is_wrong, reason in WRONG.items() if is_wrong(op, attrs)]
    if problems:
        raise ConfigError("\n".join(dict.fromkeys(problems)))


def called_in(outputs: Iterable[NDArray]) -> List[Called]:
    """Returns the operators that autograd recorded for these arrays. For networks that cannot be traced."""
    from mxtrain.engine.backend import autograd

    return [operator for output in outputs for operator in _operators(json.loads(autograd.get_symbol(output).tojson()))]


def _operators(graph: SymbolGraph) -> Iterator[Called]:
    for node in graph["nodes"]:
        yield "", node["op"], node.get("attrs", {})
        for inner in node.get("subgraphs", ()):  # of a part that is hybridized
            yield from _operators(inner)
