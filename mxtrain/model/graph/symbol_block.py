"""The graph of a `gluon.SymbolBlock`, a part of a network that is known by its graph alone, and its batch norms.
Imports no MXNet until called."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Collection, Dict, Iterator, List, Mapping, Tuple

if TYPE_CHECKING:
    from mxnet import gluon

    from mxtrain.types.annotations import GraphNode, SymbolGraph


def graph_of(block: gluon.SymbolBlock) -> SymbolGraph:
    """Returns a copy of the graph."""
    _, symbol = block._cached_graph
    return json.loads(symbol.tojson(remove_amp_cast=False))


def norms_of_graph(graph: SymbolGraph) -> Iterator[Tuple[GraphNode, List[str]]]:
    """Yields (batch norm, names of its scale, shift, moving mean and moving variance)."""
    for node in graph["nodes"]:
        if node["op"] == "BatchNorm":
            yield node, [graph["nodes"][source]["name"] for source, *_ in node["inputs"][1:]]


def replace_graph(block: gluon.SymbolBlock, graph: SymbolGraph) -> None:
    """Makes the block compute another graph of the same variables."""
    from mxtrain.engine.backend import mx

    inputs, _ = block._cached_graph
    block._cached_graph = inputs, mx.sym.load_json(json.dumps(graph))
    # The cached operator would go on computing the graph before the change.
    block._clear_cached_op()


def norms_in(block: gluon.SymbolBlock) -> Dict[str, Tuple[Mapping[str, str], List[str]]]:
    """Returns, for each batch norm, its options and the names of scale, shift, moving mean and variance."""
    return {node["name"]: (node.get("attrs", {}), names) for node, names in norms_of_graph(graph_of(block))}


def norms_of(block: gluon.SymbolBlock) -> List[List[str]]:
    """Names of scale, shift, moving mean and variance of each batch norm (`Parameter.name`)."""
    return [names for _, names in norms_in(block).values()]


def keep_statistics(block: gluon.SymbolBlock, frozen: Collection[str]) -> None:
    """Makes batch norms whose moving mean and variance are frozen compute with these, so that they stay.

    Args:
        frozen: names of parameters (`Parameter.name`).
    """
    graph = graph_of(block)
    changed: Dict[str, GraphNode] = {}
    for node, (*_, mean, variance) in norms_of_graph(graph):
        if mean in frozen and variance in frozen:
            node.setdefault("attrs", {})["use_global_stats"] = "True"
            changed[node["name"]] = node
    if changed:
        replace_graph(block, graph)
