"""Builds the Gluon block of a graph."""

from __future__ import annotations

import json
import warnings
from typing import TYPE_CHECKING, Collection, Dict, List, Mapping, Optional, Set

from mxtrain.engine.backend import gluon, mx
from mxtrain.errors import ConfigError, did_you_mean, reason_of
from mxtrain.files.text_lines import split_lines
from mxtrain.model.graph.symbol_block import norms_of_graph
from mxtrain.model.symbol.graph_file import VARIABLE, Output, attributes_of, cut_at, heads_of, inputs_of, parse_graph
from mxtrain.model.symbol.heads import Prediction, class_layer, find_prediction, weight_names
from mxtrain.model.symbol.inputs import input_names
from mxtrain.model.symbol.structure import match_structure
from mxtrain.model.weights_report import ClassRows
from mxtrain.types import Shape

if TYPE_CHECKING:
    from mxtrain.types.annotations import GraphNode, SymbolGraph

NEW_LAYER = "new_output"
"""Name of the layer that `model.new_layer` adds."""


def build_network(text: str, output: str, new_units: Optional[int], num_classes: int) -> gluon.SymbolBlock:
    """Returns the network of a graph, uninitialized, in float32.

    Args:
        text: JSON of the graph, of any version of MXNet.
        output: see `SymbolFile.output`.
        new_units: units of a new dense layer behind the output; None = no such layer.
        num_classes: number of units that the layer of the output gets.

    Raises:
        ConfigError: MXNet does not know an operator, or refuses its arguments; the message names the layer.
    """
    graph = read_known(text)
    prediction = find_prediction(graph, output)
    part = cut_at(graph, [prediction.output])
    head: Output = (part["heads"][0][0], part["heads"][0][1])
    class_weight, new_layers = "", [f"{NEW_LAYER}_weight", f"{NEW_LAYER}_bias"]
    if new_units is not None:
        _add_layer(part, head, new_units)
    else:
        layer = class_layer(part, head)
        if layer is not None:
            attributes = {**attributes_of(layer)}
            attributes["num_hidden" if "num_hidden" in attributes else "num_filter"] = str(num_classes)
            layer["attrs"] = attributes
            for source, _ in inputs_of(layer)[1:]:  # Gluon writes down the shapes of its variables
                part["nodes"][source].get("attrs", {}).pop("__shape__", None)
            new_layers = [*weight_names(part, layer)]
            class_weight = next((name for name in new_layers if name.endswith("_weight")), "")
    network = block_of(part)
    # Paths of parameters lack the start that all names have in common.
    network.class_heads = {
        path[: -len("_weight")]: ClassRows(groups=1, leading=0)
        for path, parameter in network._collect_params_with_prefix().items()
        if parameter.name == class_weight
    }
    network.new_layers = new_layers
    network.output_advice = _advice(prediction)
    return network


def read_known(text: str) -> SymbolGraph:
    """Returns a graph as this version of MXNet writes it, in float32.

    Args:
        text: JSON of the graph, of any version of MXNet.

    Raises:
        ConfigError: MXNet does not know an operator, or refuses its arguments; the message names the layer.
    """
    _require_known_operators(parse_graph(text))
    # MXNet's own reader brings graphs of older versions up to date, e.g. with the statistics of batch norms as inputs.
    graph = parse_graph(load_json(text).tojson(remove_amp_cast=False))
    _make_float32(graph)
    return graph


def block_of(part: SymbolGraph) -> gluon.SymbolBlock:
    """Returns the block of a graph, uninitialized."""
    with warnings.catch_warnings():
        # That an input has no known type: it is float32.
        warnings.simplefilter("ignore")
        network = gluon.SymbolBlock(load_json(json.dumps(part)), [mx.sym.var(name) for name in input_names(part)])
    for parameter in network.collect_params().values():
        parameter.dtype = "float32"
    _set_multipliers(network, part)
    return network


def _advice(prediction: Prediction) -> str:
    return (
        f"The output is that of {prediction}. Name another one by model.output=, or type model.new_layer=true for a "
        "new dense layer behind it."
    )


class StructureMatcher:
    """Finds the parameters of a graph in files that Gluon's `save_parameters` has written.

    Args:
        text: JSON of the whole graph, with the number of classes of its file.
        input_shape: shape of one sample.
    """

    def __init__(self, text: str, input_shape: Shape) -> None:
        self._text = text
        self._input_shape = tuple(input_shape)

    def __call__(self, arrays: Mapping[str, Shape], needed: Collection[str]) -> Dict[str, str]:
        """Returns, for each parameter, the name of its array.

        Args:
            arrays: shapes of the arrays of the file by name, in the file's order.
            needed: names of the parameters (`Parameter.name`).

        Raises:
            NoMatch: see `match_structure`.
        """
        graph = read_known(self._text)
        symbol = load_json(json.dumps(graph))
        data = input_names(graph)[0]
        arguments, _, states = symbol.infer_shape_partial(**{data: (1, *self._input_shape)})
        names = [*symbol.list_arguments(), *symbol.list_auxiliary_states()]
        # A size that is not known is 0 or -1, and the shape of an array of unknown rank is ().
        shapes = {name: shape for name, shape in zip(names, (*arguments, *states)) if shape and min(shape) > 0}
        shapes.pop(data)
        return match_structure(graph, shapes, arrays, needed)


def load_json(text: str) -> mx.sym.Symbol:
    """Returns the symbol of a graph.

    Raises:
        ConfigError: MXNet refuses it, or a layer lacks an output that is used.
    """
    graph = parse_graph(text)
    try:
        _require_outputs(graph)
        return mx.sym.load_json(text)
    except mx.MXNetError as error:
        # Further lines list all arguments of an operator, or lines of MXNet's source.
        lines = [
            line.strip() for line in split_lines(reason_of(error)) if not line.strip().startswith(("Trace", "File"))
        ]
        raise ConfigError(f"model.symbol: MXNet refuses the graph: {lines[0].rstrip('.')}.") from error


def _require_outputs(graph: SymbolGraph) -> None:
    """Checks that layers have the outputs that others take: for others MXNet reads memory that is not its own.

    Raises:
        ConfigError: one does not.
    """
    nodes = graph["nodes"]
    used = {output for node in nodes for output in inputs_of(node)}.union(heads_of(graph))
    for position, index in sorted(output for output in used if output[1] > 0):
        node = nodes[position]
        count = _count_outputs(graph, node)
        if index >= count:
            raise ConfigError(
                f"model.symbol: the layer '{node['name']}' ({node['op']}) has {count} outputs, counted from 0, and its "
                f"output {index} is used."
            )


def _count_outputs(graph: SymbolGraph, node: GraphNode) -> int:
    """Returns the number of outputs of a layer: it follows from its arguments, so that any inputs do."""
    if node["op"] == VARIABLE:
        return 1
    count = len(inputs_of(node))
    inputs: List[GraphNode] = [{"op": VARIABLE, "name": f"input{number}", "inputs": []} for number in range(count)]
    layer: GraphNode = {**node, "inputs": [[number, 0, 0] for number in range(count)]}
    alone = cut_at({**graph, "nodes": [*inputs, layer]}, [(count, 0)])
    return len(mx.sym.load_json(json.dumps(alone)).get_internals().list_outputs()) - count


def _require_known_operators(graph: SymbolGraph) -> None:
    known = set(mx.operator.get_all_registered_operators())
    for node in graph["nodes"]:
        if node["op"] != VARIABLE and node["op"] not in known:
            raise ConfigError(
                f"model.symbol: the layer '{node['name']}' has the operator '{node['op']}', which MXNet "
                f"{mx.__version__} does not have.{did_you_mean(node['op'], known)} Operators of other packages cannot "
                "be read; name an output before this layer by model.output=."
            )


def _make_float32(graph: SymbolGraph) -> None:
    """Makes a graph compute in float32 where it was saved in float16: `amp` chooses the precision of a run."""
    for node in graph["nodes"]:
        attributes = dict(attributes_of(node))
        if attributes.get("dtype") == "float16":
            attributes["dtype"] = "float32"
        attributes.pop("__dtype__", None)
        if attributes:
            node["attrs"] = attributes
        else:
            node.pop("attrs", None)


def _add_layer(graph: SymbolGraph, head: Output, units: int) -> None:
    """Puts a dense layer behind an output."""
    nodes = graph["nodes"]
    first = len(nodes)
    nodes += [
        {"op": VARIABLE, "name": f"{NEW_LAYER}_weight", "inputs": []},
        {"op": VARIABLE, "name": f"{NEW_LAYER}_bias", "inputs": []},
        {
            "op": "FullyConnected",
            "name": NEW_LAYER,
            "attrs": {"num_hidden": str(units), "no_bias": "False", "flatten": "True"},
            "inputs": [[*head, 0], [first, 0, 0], [first + 1, 0, 0]],
        },
    ]
    graph["arg_nodes"] += [first, first + 1]
    graph["heads"] = [[first + 2, 0, 0]]


def _number(node: GraphNode, key: str, text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise ConfigError(
            f"model.symbol: the variable '{node['name']}' has {key}={text}, which is no number."
        ) from error


def _set_multipliers(network: gluon.SymbolBlock, graph: SymbolGraph) -> None:
    """Sets what a graph says on the training of its variables, as Module does: rate and decay of a variable, and that a
    batch norm with `fix_gamma` has a scale of 1."""
    parameters = network.collect_params()
    for node in graph["nodes"]:
        if node["op"] == VARIABLE and node["name"] in parameters:
            attributes, parameter = attributes_of(node), parameters[node["name"]]
            parameter.lr_mult, parameter.wd_mult = (
                _number(node, f"__{name}__", attributes.get(f"__{name}__", "1")) for name in ("lr_mult", "wd_mult")
            )
    fixed: Set[str] = set()
    trained: Set[str] = set()
    for node, (scale, *_) in norms_of_graph(graph):
        is_fixed = attributes_of(node).get("fix_gamma", "True") in ("True", "1")
        (fixed if is_fixed else trained).add(scale)
    for scale in fixed:
        parameters[scale].grad_req = "null"
    # Such an array may hold anything in a file, and would be read where the weights go without the graph.
    network.ones = tuple(sorted(fixed - trained))
