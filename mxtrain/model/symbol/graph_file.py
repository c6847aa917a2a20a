"""Reads the JSON of a symbol without MXNet, and checks what MXNet's reader trusts: the positions of nodes.

Source of the format: apache/mxnet 1.9.1, src/nnvm/legacy_json_util.cc (keys of older versions), and
3rdparty/tvm/nnvm/src/pass/saveload_json.cc.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Sequence, Set, Tuple

if TYPE_CHECKING:
    from mxtrain.types.annotations import GraphNode, SymbolGraph

VARIABLE = "null"
"""The operator of variables: inputs, labels and parameters."""
_ATTRIBUTE_KEYS = ("attrs", "attr", "param")
"""Keys of the arguments of a node in this and in older versions of MXNet."""

Output = Tuple[int, int]
"""A node and the index of one of its outputs."""


class DamagedGraph(ValueError):
    """The content of a file is no graph of a symbol."""


class _Damage(Exception):
    """What is wrong with a graph, as a clause such as "it is empty"."""


def parse_graph(text: str, file: str = "The graph") -> SymbolGraph:
    """Parses the JSON of a symbol of any version of MXNet.

    Args:
        text: the content of a `-symbol.json` file.
        file: name of the file, for messages.

    Returns:
        The graph. The arguments of each node are in `attrs`, whatever the version calls them; all else is as in the
        file.

    Raises:
        DamagedGraph: the text is not JSON, is truncated, or a node refers to a node that is not before it.
    """
    try:
        return _parsed(text)
    except _Damage as damage:
        raise DamagedGraph(f"{file} is damaged, or no graph of a symbol: {damage}") from damage


def _parsed(text: str) -> SymbolGraph:
    if not text.strip():
        raise _Damage("it is empty")
    try:
        graph = json.loads(text)
    except ValueError as error:
        raise _Damage(f"it is no JSON, or is truncated ({error})") from error
    except RecursionError as error:
        raise _Damage("its lists are nested too deeply") from error
    nodes = graph.get("nodes") if isinstance(graph, dict) else None
    if not isinstance(nodes, list) or not nodes:
        raise _Damage("it has no list 'nodes', so it is no graph of a symbol")
    outputs: List[List[int]] = graph.get("heads") or []
    for position, node in enumerate(nodes):
        if not isinstance(node, dict) or not all(isinstance(node.get(key), str) for key in ("op", "name")):
            raise _Damage(f"node {position} has no operator or no name")
        attributes: Dict[str, str] = {}
        for key in _ATTRIBUTE_KEYS:
            arguments = node.pop(key, None) or {}
            if not isinstance(arguments, dict) or not all(isinstance(value, str) for value in arguments.values()):
                raise _Damage(f"the arguments of node '{node['name']}' are not texts")
            attributes.update(arguments)
        if attributes:
            node["attrs"] = attributes
        _check_references(node.get("inputs") or [], position, f"node '{node['name']}'")
    _check_references(outputs, len(nodes), "the list 'heads'")
    if not outputs:
        raise _Damage("it names no outputs ('heads')")
    return graph


def _check_references(references: Any, limit: int, subject: str) -> None:
    """Checks that references are (node, output, ...) with a node before `limit`.

    Raises:
        _Damage: one is not.
    """
    for reference in references if isinstance(references, list) else [references]:
        is_pair = isinstance(reference, list) and len(reference) >= 2 and all(type(part) is int for part in reference)
        if not is_pair or not 0 <= reference[0] < limit or reference[1] < 0:
            raise _Damage(f"{subject} refers to {reference!r:.40}, which is no node before it")


def attributes_of(node: GraphNode) -> Mapping[str, str]:
    """Returns the arguments of a node."""
    return node.get("attrs") or {}


def inputs_of(node: GraphNode) -> List[Output]:
    """Returns the inputs of a node."""
    return [(reference[0], reference[1]) for reference in node.get("inputs") or ()]


def heads_of(graph: SymbolGraph) -> List[Output]:
    """Returns the outputs of a graph."""
    return [(head[0], head[1]) for head in graph["heads"]]


def nodes_before(graph: SymbolGraph, heads: Sequence[int]) -> List[int]:
    """Returns the positions of nodes that compute some nodes, which are included, in the graph's order."""
    found: Set[int] = set()
    waiting = list(heads)
    while waiting:
        position = waiting.pop()
        if position not in found:
            found.add(position)
            waiting += [source for source, _ in inputs_of(graph["nodes"][position])]
    return sorted(found)


def cut_at(graph: SymbolGraph, outputs: Sequence[Output]) -> SymbolGraph:
    """Returns the part of a graph that computes some outputs, with these as its outputs."""
    kept = nodes_before(graph, [position for position, _ in outputs])
    moved = {position: number for number, position in enumerate(kept)}
    nodes: List[GraphNode] = []
    for position in kept:
        node: GraphNode = {**graph["nodes"][position]}
        references = node.get("inputs") or []
        node["inputs"] = [[moved[reference[0]], *reference[1:]] for reference in references]
        nodes.append(node)
    part: SymbolGraph = {
        "nodes": nodes,
        "arg_nodes": [number for number, node in enumerate(nodes) if node["op"] == VARIABLE],
        "heads": [[moved[position], index, 0] for position, index in outputs],
    }
    if "attrs" in graph:
        part["attrs"] = graph["attrs"]
    return part
