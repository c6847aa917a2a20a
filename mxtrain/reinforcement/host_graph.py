"""Computes graphs of dense layers and activations with NumPy, without MXNet.

For small networks, a call of MXNet's engine takes longer than the arithmetic. This matters if outputs are needed one
after the other, as for the actions of a policy. Sums have another order than in MXNet, so the last bits differ.

Measured: the policy of CartPole takes 0.07 ms of CPU time for 8 rows, and 0.67 ms with MXNet. A step, including the
environment, takes 25 us instead of 67 us.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Callable, Dict, List, Mapping, Optional, Sequence, Set, Tuple

import numpy as np

from mxtrain.amp.spec import FULL
from mxtrain.model.graph.trace import NotTraceable, input_names, symbol_of
from mxtrain.model.parameters import distinct_parameters
from mxtrain.types import shapes_of

if TYPE_CHECKING:
    from mxnet import gluon

    from mxtrain.parallel.base import Strategy
    from mxtrain.types.annotations import GraphNode, SymbolGraph

Arrays = Sequence[np.ndarray]
Compute = Callable[[Arrays], np.ndarray]


class UnsupportedOnHost(Exception):
    """The graph cannot be computed by `HostGraph`. Callers then use MXNet."""


class HostGraph:
    """Computes a graph in inference mode for one input (B, ...), with the parameters of the last `set_parameters`.

    Args:
        graph: the graph of a symbol.
        data: name of the input variable.

    Raises:
        UnsupportedOnHost: the graph has unsupported operators, no variable `data`, or several outputs.
    """

    def __init__(self, graph: SymbolGraph, data: str):
        nodes, heads = graph["nodes"], graph["heads"]
        if len(heads) != 1:
            raise UnsupportedOnHost
        variables = {index: node["name"] for index, node in enumerate(nodes) if node["op"] == "null"}
        self.parameters = [name for name in variables.values() if name != data]
        """Names of the variables of the graph other than the input."""
        self._indices = {name: index for index, name in variables.items()}
        self._data, self._head = self._indices.get(data, -1), heads[0][0]
        if self._data < 0:
            raise UnsupportedOnHost
        self._steps: List[Tuple[int, Compute, List[int]]] = []
        for index, node in enumerate(nodes):
            if node["op"] != "null":
                inputs = [source for source, output, *_ in node["inputs"]]
                # Values are stored by node, so only the first output of an operator can be read.
                if any(output for _, output, *_ in node["inputs"]):
                    raise UnsupportedOnHost
                self._steps.append((index, _operator(node), inputs))
        self._values: List[Optional[np.ndarray]] = [None] * len(nodes)

    def set_parameters(self, parameters: Mapping[str, np.ndarray]) -> None:
        """Sets the parameters, name -> array, for the following calls of the graph."""
        for name in self.parameters:
            self._values[self._indices[name]] = parameters[name]

    def __call__(self, data: np.ndarray) -> np.ndarray:
        """Returns the output (B, O) for an input (B, ...) of the parameters' dtype."""
        # A copy, so that results of a call are not kept until the next one.
        values = list(self._values)
        values[self._data] = data
        for index, compute, inputs in self._steps:
            values[index] = compute([values[source] for source in inputs])  # type: ignore[misc]  # computed before, in topological order
        output = values[self._head]
        assert output is not None
        return output


def _operator(node: GraphNode) -> Compute:
    """Returns the NumPy function of a node, from its input arrays to its output.

    Raises:
        UnsupportedOnHost: the operator, or one of its attributes, has no NumPy version here.
    """
    attributes = {name: value for name, value in node.get("attrs", {}).items() if not name.startswith("__")}
    make = _MAKERS.get(node["op"])
    if make is None:
        raise UnsupportedOnHost
    return make(attributes)


def _dense(attributes: Mapping[str, str]) -> Compute:
    _require(attributes, {"num_hidden", "no_bias", "flatten"})

    def compute(inputs: Arrays) -> np.ndarray:
        data, weight, *bias = inputs
        output = np.dot(data.reshape((len(data), -1)), weight.T)
        for value in bias:
            output += value
        return output

    if attributes.get("flatten", "True") not in ("True", "1"):
        raise UnsupportedOnHost
    return compute


def _activation(attributes: Mapping[str, str]) -> Compute:
    _require(attributes, {"act_type"})
    if attributes["act_type"] not in _ACTIVATIONS:
        raise UnsupportedOnHost
    return _unary(_ACTIVATIONS[attributes["act_type"]])(attributes)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    # exp overflows to infinity for very negative x, and 1 / infinity is the correct 0.
    with np.errstate(over="ignore"):
        return np.reciprocal(np.exp(-x) + np.ones((), x.dtype))


def _soft_relu(x: np.ndarray) -> np.ndarray:
    return np.logaddexp(x, np.zeros((), x.dtype))


def _relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, np.zeros((), x.dtype))


def _unary(compute: Callable[[np.ndarray], np.ndarray]) -> Callable[[Mapping[str, str]], Compute]:
    return lambda attributes: lambda inputs: compute(inputs[0])


def _binary(compute: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Callable[[Mapping[str, str]], Compute]:
    return lambda attributes: lambda inputs: compute(inputs[0], inputs[1])


def _with_scalar(compute: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Callable[[Mapping[str, str]], Compute]:
    def make(attributes: Mapping[str, str]) -> Compute:
        _require(attributes, {"scalar", "is_int"})
        scalar = float(attributes["scalar"])
        return lambda inputs: compute(inputs[0], np.asarray(scalar, inputs[0].dtype))

    return make


def _clip(attributes: Mapping[str, str]) -> Compute:
    _require(attributes, {"a_min", "a_max"})
    low, high = float(attributes["a_min"]), float(attributes["a_max"])
    return lambda inputs: np.minimum(
        np.maximum(inputs[0], np.asarray(low, inputs[0].dtype)), np.asarray(high, inputs[0].dtype)
    )


def _concat(attributes: Mapping[str, str]) -> Compute:
    _require(attributes, {"dim", "num_args"})
    axis = int(attributes.get("dim", "1"))
    return lambda inputs: np.concatenate(inputs, axis=axis)


def _expand_dims(attributes: Mapping[str, str]) -> Compute:
    _require(attributes, {"axis"})
    axis = int(attributes["axis"])
    return lambda inputs: np.expand_dims(inputs[0], axis)


def _broadcast_like(attributes: Mapping[str, str]) -> Compute:
    _require(attributes, set())
    return lambda inputs: np.broadcast_to(inputs[0], inputs[1].shape)


def _flatten(x: np.ndarray) -> np.ndarray:
    return x.reshape((len(x), -1))


def _require(attributes: Mapping[str, str], known: Set[str]) -> None:
    """Checks that an operator has only known attributes, because others could change the result.

    Raises:
        UnsupportedOnHost: it has another attribute.
    """
    if set(attributes) - known:
        raise UnsupportedOnHost


_ACTIVATIONS: Dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "relu": _relu,
    "tanh": np.tanh,
    "sigmoid": _sigmoid,
    "softrelu": _soft_relu,
    "softsign": lambda x: x / (np.abs(x) + np.ones((), x.dtype)),
}
_MAKERS: Dict[str, Callable[[Mapping[str, str]], Compute]] = {
    "FullyConnected": _dense,
    "Activation": _activation,
    "Concat": _concat,
    "Flatten": _unary(_flatten),
    "flatten": _unary(_flatten),
    "tanh": _unary(np.tanh),
    "sigmoid": _unary(_sigmoid),
    "relu": _unary(_relu),
    "exp": _unary(np.exp),
    "sqrt": _unary(np.sqrt),
    "square": _unary(np.square),
    "abs": _unary(np.abs),
    "clip": _clip,
    "expand_dims": _expand_dims,
    "broadcast_like": _broadcast_like,
    "broadcast_add": _binary(np.add),
    "broadcast_sub": _binary(np.subtract),
    "broadcast_mul": _binary(np.multiply),
    "broadcast_div": _binary(np.divide),
    "elemwise_add": _binary(np.add),
    "elemwise_sub": _binary(np.subtract),
    "elemwise_mul": _binary(np.multiply),
    "elemwise_div": _binary(np.divide),
    "_plus_scalar": _with_scalar(np.add),
    "_minus_scalar": _with_scalar(np.subtract),
    "_mul_scalar": _with_scalar(np.multiply),
    "_div_scalar": _with_scalar(np.divide),
}


def build_host_graph(strategy: Strategy) -> Optional[HostGraph]:
    """Returns the network of a strategy as a NumPy function; None if that is not supported.

    Supported are dense layers and activations in full precision on CPUs, uncut, in code that accepts symbols.
    The function has no parameters yet: take them from `Strategy.values`, by the names in its `parameters`.
    """
    objective, layout = strategy.objective, strategy.layout
    num_inputs = len(shapes_of(objective.predict_shape or objective.input_shape))
    is_whole = layout.num_stages == 1 and objective.precision.dtype == FULL.dtype
    if not is_whole or strategy.rows or num_inputs != 1 or layout.devices[0][0].device_type != "cpu":
        return None
    names = {parameter.name: name for name, parameter in distinct_parameters(objective.network).items()}
    return trace_host_graph(objective.network, names)


def trace_host_graph(network: gluon.Block, names: Mapping[str, str]) -> Optional[HostGraph]:
    """Returns a network as a NumPy function; None if that is not supported.

    Args:
        network: network to trace.
        names: `Parameter.name` -> structural name of each parameter.
    """
    try:
        symbol, _ = symbol_of(network, training=False)
        graph: SymbolGraph = json.loads(symbol.tojson(remove_amp_cast=False))
        for node in graph["nodes"]:
            node["name"] = names.get(node["name"], node["name"])
        return HostGraph(graph, *input_names(1))
    except (NotTraceable, UnsupportedOnHost):
        return None
