"""Traces a network with symbols into a graph of operators with inferred shapes, without any computation.

Tracing does not change the network: parameters, running statistics, hybridization and cached graphs stay as they are.
"""

from __future__ import annotations

import contextlib
import json
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from mxtrain.types import Shape, Shapes, shapes_of

if TYPE_CHECKING:
    from mxnet import gluon
    from mxnet.symbol import Symbol

    from mxtrain.types.annotations import GraphNode

LAYER_ATTRIBUTE = "__layer__"
INPUT = "data"


def input_names(num_inputs: int) -> List[str]:
    """Returns the names of the symbol variables for the network's inputs."""
    return [INPUT] if num_inputs == 1 else [f"{INPUT}{number}" for number in range(num_inputs)]


@dataclass(frozen=True)
class Node:
    """One operator or variable of the graph.

    Attributes:
        name: its name in MXNet's graph; not always unique.
        op: the operator, or "null" for the input and parameters.
        layer: structural name of the block that called it; "" for the network itself.
        inputs: indices of its input nodes.
        attrs: the operator's arguments as strings.
        shape: shape of the first output, including the batch axis; None if it cannot be inferred.
    """

    name: str
    op: str
    layer: str
    inputs: Tuple[int, ...]
    attrs: Mapping[str, str]
    shape: Optional[Shape]


@dataclass(frozen=True)
class Trace:
    """The graph of a network for one input shape."""

    nodes: List[Node]
    parameter_shapes: Mapping[str, Optional[Shape]]
    """Shapes of parameters, by full name (`Parameter.name`)."""
    output_shapes: List[Optional[Shape]]
    layers: Mapping[str, gluon.Block]
    """The blocks that were called, by structural name, in the order in which they began."""
    failure: Optional[TraceFailure] = None
    heads: Sequence[int] = ()
    """Indices of the nodes whose outputs the network returns."""


@dataclass(frozen=True)
class TraceFailure:
    """First operator whose input shapes are invalid."""

    layer: str
    op: str
    input_shapes: List[Optional[Shape]]
    reason: str


class NotTraceable(Exception):
    """The network cannot run on symbols: its code reads e.g. `x.shape`, or it is not a HybridBlock."""


@dataclass
class CallRecorder:
    """Records which blocks were called and where the first call failed."""

    called: Dict[str, gluon.Block] = field(default_factory=dict)
    output_shapes: Dict[str, Optional[Shape]] = field(default_factory=dict)
    path_of_operator: Dict[str, str] = field(default_factory=dict)
    """Operator name -> path of its block, for operators of a `gluon.SymbolBlock`, which cannot be marked."""
    failed: Optional[str] = None
    failed_inputs: Tuple[object, ...] = ()


def blocks_by_path(network: gluon.Block, prefix: str = "") -> Iterator[Tuple[str, gluon.Block]]:
    """Yields (structural name, block) for the network itself ("") and all its descendants, parents first."""
    yield prefix, network
    for name, child in network._children.items():
        yield from blocks_by_path(child, f"{prefix}.{name}" if prefix else name)


@contextlib.contextmanager
def recorded_calls(network: gluon.Block) -> Iterator[CallRecorder]:
    """Records block calls, and marks the symbols that a block creates with its structural name."""
    from mxtrain.engine.backend import gluon, mx

    recorder = CallRecorder()

    def wrap(path: str, block: gluon.Block) -> Any:
        forward = block.forward
        names: List[str] = []
        if isinstance(block, gluon.SymbolBlock):
            names = [node.name for node in block._cached_graph[1].get_internals()]

        def call(*args: Any) -> Any:
            recorder.called.setdefault(path, block)
            recorder.path_of_operator.update(dict.fromkeys(names, path))
            with mx.AttrScope(**{LAYER_ATTRIBUTE: path}):
                try:
                    output = forward(*args)
                    recorder.output_shapes[path] = getattr(output, "shape", None)  # symbols have none
                    return output
                except Exception:
                    if recorder.failed is None:
                        recorder.failed, recorder.failed_inputs = path, args
                    raise

        return call

    wrapped = {}
    for path, block in blocks_by_path(network):
        # A block with two names is wrapped once, and counts under its first name.
        if id(block) not in wrapped:
            wrapped[id(block)] = block
            # Set on the object and past Gluon's own __setattr__, which would look at the type of the attribute.
            object.__setattr__(block, "forward", wrap(path, block))
    try:
        yield recorder
    finally:
        for block in wrapped.values():
            object.__delattr__(block, "forward")


@contextlib.contextmanager
def fresh_variables(network: gluon.Block) -> Iterator[None]:
    """Hides the parameters' cached symbols during a trace. Otherwise they would keep the layer marks of the trace."""
    parameters = list(network.collect_params().values())
    variables = [parameter._var for parameter in parameters]
    for parameter in parameters:
        parameter._var = None
    try:
        yield
    finally:
        for parameter, variable in zip(parameters, variables):
            parameter._var = variable


def trace(network: gluon.Block, input_shape: Shapes, *, batch_size: int = 1, training: bool = False) -> Trace:
    """Traces the network and infers all shapes.

    Args:
        network: a gluon.HybridBlock, initialised or not.
        input_shape: shape of one sample without the batch axis, or of each input of a network with several.
        batch_size: batch size of the inferred shapes.
        training: if True, trace the operators that run in training mode.

    Returns:
        The graph. If shapes do not fit, `failure` has the first failing operator, and later shapes are None.

    Raises:
        NotTraceable: the network is no HybridBlock, or its code fails on symbols.
    """
    shapes = shapes_of(input_shape)
    graph, recorder = symbol_of(network, training=training, num_inputs=len(shapes))
    shape_of_input = {name: (batch_size, *shape) for name, shape in zip(input_names(len(shapes)), shapes)}
    return _infer(graph, shape_of_input, recorder)


def trace_symbol(symbol: Symbol, shapes: Mapping[str, Shape]) -> Trace:
    """Infers the shapes of a part of a network, as `trace` does for a whole one.

    Args:
        symbol: the part.
        shapes: variable name -> shape of each input, including the batch axis.
    """
    return _infer(symbol, shapes, CallRecorder())


def symbol_of(network: gluon.Block, *, training: bool, num_inputs: int = 1) -> Tuple[Symbol, CallRecorder]:
    """Returns the network as one symbol over its `input_names`. A node's `LAYER_ATTRIBUTE` names its block.

    Raises:
        NotTraceable: the network is no HybridBlock, or its code fails on symbols.
    """
    from mxtrain.engine.backend import autograd, gluon, mx

    if not isinstance(network, gluon.HybridBlock):
        raise NotTraceable(f"{type(network).__name__} is not a HybridBlock")
    mode = autograd.train_mode if training else autograd.predict_mode
    with fresh_variables(network), recorded_calls(network) as recorder, mode():
        try:
            # Called with symbols, a HybridBlock never touches its cached graph.
            outputs = network(*map(mx.sym.var, input_names(num_inputs)))
        except Exception as error:  # user code may raise anything on symbols
            raise NotTraceable(f"{recorder.failed}: {error}") from error
    flat = _flatten(outputs)
    if not all(isinstance(output, mx.sym.Symbol) for output in flat):
        raise NotTraceable("the output is not made of symbols")
    return mx.sym.Group(flat), recorder


def _flatten(outputs: object) -> List[object]:
    if isinstance(outputs, (list, tuple)):
        return [leaf for output in outputs for leaf in _flatten(output)]
    return [outputs]


def _infer(graph: Symbol, input_shapes: Mapping[str, Shape], recorder: CallRecorder) -> Trace:
    internals = graph.get_internals()
    # By default MXNet drops the casts of mixed precision from the JSON, but not from `internals`; node indices of the
    # two would then differ.
    content = json.loads(graph.tojson(remove_amp_cast=False))
    raw_nodes = content["nodes"]
    first_output = first_outputs(internals, [node["name"] for node in raw_nodes])
    failure = None
    arguments = graph.list_arguments() + graph.list_auxiliary_states()
    feed = {name: shape for name, shape in input_shapes.items() if name in arguments}
    shapes, reason = _infer_all(internals, feed)
    if reason is not None:
        shapes, failed = _infer_until_failure(internals, feed, raw_nodes, first_output)
        failure = _describe_failure(raw_nodes, failed, shapes, first_output, reason, input_shapes, recorder)
    nodes = [
        Node(
            name=raw["name"],
            op=raw["op"],
            layer=_layer_of(raw, recorder),
            inputs=tuple(entry[0] for entry in raw["inputs"]),
            attrs={key: value for key, value in raw.get("attrs", {}).items() if not key.startswith("__")},
            shape=shapes.get(first_output[index]),
        )
        for index, raw in enumerate(raw_nodes)
    ]
    parameters = {node.name: node.shape for node in nodes if node.op == "null" and node.name not in input_shapes}
    heads = [entry[0] for entry in content["heads"]]
    return Trace(nodes, parameters, [nodes[index].shape for index in heads], recorder.called, failure, heads)


def _layer_of(node: GraphNode, recorder: CallRecorder) -> str:
    """Returns the structural name of the block that called an operator."""
    marked = node.get("attrs", {}).get(LAYER_ATTRIBUTE)
    return recorder.path_of_operator.get(node["name"], "") if marked is None else marked


def first_outputs(internals: Symbol, names: List[str]) -> List[int]:
    """Returns the index of each node's first output in `internals`, which lists outputs in the order of the nodes.

    Args:
        internals: all outputs of a graph, from `Symbol.get_internals`.
        names: names of the graph's nodes, in order.
    """
    output_names = internals.list_outputs()
    first, position = [], 0
    for name in names:
        first.append(position)
        names_of_node = {output_names[position]}
        position += 1
        # The outputs of one node have different names; a next node with the same name starts over with the first name.
        while (
            position < len(output_names)
            and output_names[position].startswith(name + "_")
            and output_names[position] not in names_of_node
            and internals[position].name == name
        ):
            names_of_node.add(output_names[position])
            position += 1
    assert position == len(output_names), "graph nodes and outputs do not line up"
    return first


def _infer_all(internals: Symbol, feed: Mapping[str, Shape]) -> Tuple[Dict[int, Shape], Optional[str]]:
    """Returns the shape of each output by its index, and None, or the reason why a shape is missing."""
    from mxtrain.engine.backend import mx

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            _, shapes, _ = internals.infer_shape_partial(**feed)
        except mx.MXNetError as error:
            return {}, str(error)
    # MXNet marks unknown sizes as 0, or as -1 with NumPy shapes.
    valid = {index: tuple(shape) for index, shape in enumerate(shapes) if shape and 0 not in shape and -1 not in shape}
    reason = None if len(valid) == len(shapes) else "its output would be empty, or its shape cannot be inferred"
    return valid, reason


def _infer_until_failure(
    internals: Symbol, feed: Mapping[str, Shape], raw_nodes: Sequence[GraphNode], first_output: Sequence[int]
) -> Tuple[Dict[int, Shape], int]:
    """Returns the shapes before the first operator that fails, and the index of the node of that operator."""
    from mxtrain.engine.backend import mx

    def infer_prefix(count: int) -> Tuple[Dict[int, Shape], Optional[str]]:
        end = first_output[count] if count < len(first_output) else len(internals.list_outputs())
        return _infer_all(mx.sym.Group([internals[index] for index in range(end)]), feed)

    ops = [index for index, node in enumerate(raw_nodes) if node["op"] != "null"]
    # Bisection over operators, not nodes: a parameter's shape is unknown until the operator that reads it is included.
    low, high = -1, len(ops) - 1  # the graph up to operator `low` can be inferred, the one up to `high` cannot
    while high - low > 1:
        middle = (low + high) // 2
        if infer_prefix(ops[middle] + 1)[1] is None:
            low = middle
        else:
            high = middle
    if low >= 0:
        return infer_prefix(ops[low] + 1)[0], ops[high]
    return dict(zip(first_output[:1], feed.values())), ops[high]


def _describe_failure(
    raw_nodes: Sequence[GraphNode],
    failed: int,
    shapes: Mapping[int, Shape],
    first_output: Sequence[int],
    reason: str,
    inputs: Mapping[str, Shape],
    recorder: CallRecorder,
) -> TraceFailure:
    """Describes the operator at which the inference of shapes has failed.

    Args:
        raw_nodes: nodes of the graph.
        failed: index of the node of the operator.
        shapes: index among all outputs -> shape, as far as it is known.
        first_output: index of the first output of each node.
        reason: message of MXNet.
        inputs: shapes of the inputs of the network by name.
        recorder: knows the blocks of operators.
    """
    node = raw_nodes[failed]
    data_inputs = [entry[0] for entry in node["inputs"] if raw_nodes[entry[0]]["op"] != "null"]
    data_inputs = data_inputs or [entry[0] for entry in node["inputs"] if raw_nodes[entry[0]]["name"] in inputs]
    return TraceFailure(
        layer=_layer_of(node, recorder),
        op=node["op"],
        input_shapes=[shapes.get(first_output[index]) for index in data_inputs],
        reason=reason,
    )
