"""Batch norms of a `gluon.SymbolBlock`, a part of a network that is known by its graph alone. Imports no MXNet until
called."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Collection, Dict, Iterator, List, Tuple

if TYPE_CHECKING:
    from mxnet import gluon

    from mxtrain.annotations import GraphNode, SymbolGraph


def _graph(block: gluon.SymbolBlock) -> SymbolGraph:
    _, symbol = block._cached_graph
    return json.loads(symbol.tojson(remove_amp_cast=False))


def _norms(graph: SymbolGraph) -> Iterator[Tuple[GraphNode, List[str]]]:
    """(batch norm, names of its scale, shift, moving mean and variance)."""
    for node in graph["nodes"]:
        if node["op"] == "BatchNorm":
            yield node, [graph["nodes"][source]["name"] for source, *_ in node["inputs"][1:]]


def norms_of(block: gluon.SymbolBlock) -> List[List[str]]:
    """Names of scale, shift, moving mean and variance of each batch norm (`Parameter.name`)."""
    return [names for _, names in _norms(_graph(block))]


def keep_statistics(block: gluon.SymbolBlock, frozen: Collection[str]) -> None:
    """Makes batch norms whose moving mean and variance are frozen compute with these, so that they stay.

    Args:
        frozen: names of parameters (`Parameter.name`).
    """
    from mxtrain.engine.backend import mx

    graph = _graph(block)
    changed: Dict[str, GraphNode] = {}
    for node, (*_, mean, variance) in _norms(graph):
        if mean in frozen and variance in frozen:
            node.setdefault("attrs", {})["use_global_stats"] = "True"
            changed[node["name"]] = node
    if changed:
        inputs, _ = block._cached_graph
        block._cached_graph = inputs, mx.sym.load_json(json.dumps(graph))
        block._clear_cached_op()
