"""Inserts casts into a network's graph, so that each operator computes in the precision of its list.

    whole graph -> `with_marks` marks the operators of the low precision -> pieces -> `with_casts` casts in each piece

Parameters and the inputs and outputs of a piece stay float32: a cast is an operator of the graph, and its gradient is
the inverse cast. So the code that holds parameters, gradients or optimizer state does not depend on the precision, and
one process can use two precisions. MXNet's own AMP replaces the operators of the whole process.

Reasons: docs/decisions/0015-mixed-precision.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from mxtrain.amp.operators import LOW_IN_ALL_OUTPUTS, Operators
from mxtrain.types import Shape

if TYPE_CHECKING:
    from mxtrain.types.annotations import GraphNode, SymbolGraph

FLOAT32 = "float32"
ALL_INPUTS, FIRST_INPUT, FIRST_TWO = "__amp_all__", "__amp_first__", "__amp_two__"
"""Attributes that mark an operator of low precision. The value of the attribute is the precision. It applies to the
first output, and to all inputs, the first input, or the first two inputs; the other inputs are float32."""
LOW_INPUT_ONLY = "__amp_taken__"
"""Attribute that marks an operator whose first input has the low precision, and whose outputs are float32."""
Output = Tuple[int, int]
"""(index of a node, index of its output) in a graph."""


def with_marks(
    graph: SymbolGraph,
    shapes: Mapping[str, Shape],
    dtype: str,
    operators: Operators,
    keep_float32: Callable[[GraphNode], bool],
) -> SymbolGraph:
    """Returns a graph in which the operators that compute in a low precision have a mark as an attribute.

    Args:
        graph: a whole network as `Symbol.tojson` returns it. Its variables are float32 or integers.
        shapes: known shapes by name of a parameter or, as `<node>_output`, of an operator's output.
        dtype: the low precision, "bfloat16" or "float16".
        operators: the operator lists of `dtype`.
        keep_float32: returns True for nodes that compute in float32 regardless of the lists.
    """
    of_layers: Set[Output] = set()  # outputs computed by layers, and by joins of such outputs only
    nodes: List[GraphNode] = []
    # `Symbol.tojson` lists nodes in topological order, so the marks of a node's inputs are final here.
    for index, node in enumerate(graph["nodes"]):
        inputs = [(source, output) for source, output, *_ in node["inputs"]]
        is_join = node["op"] in operators.join
        is_layer = node["op"] in operators.low | operators.follow | operators.follow_whole | operators.follow_both
        if is_layer or is_join and of_layers.issuperset(inputs):
            of_layers.add((index, 0))
        # A sum of a float32 shortcut and a bfloat16 layer is computed in bfloat16: ResNet-20 took 0.81 of the time.
        joins_layers = operators.join_layers and (index, 0) in of_layers
        mark = "" if keep_float32(node) else _mark(node, nodes, shapes, operators, joins_layers)
        nodes.append({**node, "attrs": {**node.get("attrs", {}), mark: dtype}} if mark else node)
    return {**graph, "nodes": nodes}


def _mark(
    node: GraphNode, nodes: Sequence[GraphNode], shapes: Mapping[str, Shape], operators: Operators, joins_layers: bool
) -> str:
    """Returns the mark of an operator, or "" if it computes in float32. `nodes` are the marked nodes before it."""
    is_low = [_precision(nodes[source], output) != FLOAT32 for source, output, *_ in node["inputs"]]
    if node["op"] in operators.low:
        output = shapes.get(f"{node['name']}_output")
        return ALL_INPUTS if operators.pays(node, _weight(node, nodes, shapes), output) else ""
    if is_low and node["op"] in operators.join and (all(is_low) or joins_layers and any(is_low)):
        return ALL_INPUTS
    if node["op"] in operators.follow_both and all(is_low[:2]):
        return FIRST_TWO
    # MXNet refuses such an operator if its other inputs (slopes, filters, maps) stay float32.
    if node["op"] in operators.follow_whole and is_low[0]:
        return ALL_INPUTS
    if node["op"] in operators.take and is_low and is_low[0]:
        return LOW_INPUT_ONLY
    follows = node["op"] in operators.follow and is_low and is_low[0] and operators.can_follow(node)
    return FIRST_INPUT if follows else ""


def _precision(node: GraphNode, output: int) -> str:
    """Returns the precision of output number `output` of a marked operator."""
    # Only the first output is low: MXNet's type inference keeps a batch norm's mean and variance float32.
    if output and node["op"] not in LOW_IN_ALL_OUTPUTS:
        return FLOAT32
    attributes = node.get("attrs", {})
    return next((attributes[mark] for mark in (ALL_INPUTS, FIRST_INPUT, FIRST_TWO) if mark in attributes), FLOAT32)


def _weight(node: GraphNode, nodes: Sequence[GraphNode], shapes: Mapping[str, Shape]) -> Optional[Shape]:
    """Returns the shape of an operator's second input, its weight; None if it has none or the shape is unknown."""
    if len(node["inputs"]) < 2:
        return None
    name = nodes[node["inputs"][1][0]]["name"]
    return shapes.get(name, shapes.get(f"{name}_output"))


def with_casts(graph: SymbolGraph) -> SymbolGraph:
    """Inserts a cast into a marked graph, or a piece of one, for each input whose precision is not the operator's.

    Outputs of the graph are cast to float32.
    """
    builder = _CastGraphBuilder(graph["nodes"])
    for node in graph["nodes"]:
        builder.add(node)
    # Outputs of a piece are float32, so stores, stages and the loss need not know the precision of the network.
    heads = [builder.cast(source, output, FLOAT32) for source, output, *_ in graph["heads"]]
    # Inserted casts change the node numbers, so the old graph's list of inputs is not valid here.
    arguments = [index for index, node in enumerate(builder.nodes) if node["op"] == "null"]
    return {"nodes": builder.nodes, "arg_nodes": arguments, "heads": heads, "attrs": graph["attrs"]}


class _CastGraphBuilder:
    """Builds the graph with casts. Nodes keep the order of the old graph; a cast follows the node that it reads."""

    def __init__(self, old: List[GraphNode]):
        self.nodes: List[GraphNode] = []
        self._old = old
        self._new_index: List[int] = []
        self._casts: Dict[Tuple[int, int, str], int] = {}

    def add(self, node: GraphNode) -> None:
        """Appends the next node of the old graph after casts of its inputs."""
        attributes, inputs = node.get("attrs", {}), node["inputs"]
        dtypes = [attributes.get(ALL_INPUTS, FLOAT32)] * len(inputs)
        for count, mark in ((1, FIRST_INPUT), (1, LOW_INPUT_ONLY), (2, FIRST_TWO)):
            if mark in attributes:
                dtypes[:count] = [attributes[mark]] * count
        entries = [self.cast(source, output, dtype) for (source, output, *_), dtype in zip(inputs, dtypes)]
        self._new_index.append(len(self.nodes))
        self.nodes.append({**node, "inputs": entries})

    def cast(self, source: int, output: int, dtype: str) -> List[int]:
        """Returns the entry [node, output, version] of the new graph for an output of the old one in a precision.

        Operators that read the same output in the same precision share one cast.
        """
        node = self._old[source]
        if _precision(node, output) == dtype:
            return [self._new_index[source], output, 0]
        key = (source, output, dtype)
        if key not in self._casts:
            self._casts[key] = len(self.nodes)
            # Cast would also convert integers, such as labels and indices; amp_cast passes them through.
            self.nodes.append(
                {
                    "op": "amp_cast",
                    "name": f"{node['name']}_{output}_{dtype}",
                    "attrs": {"dtype": dtype},
                    "inputs": [[self._new_index[source], output, 0]],
                }
            )
        return [self._casts[key], 0, 0]
