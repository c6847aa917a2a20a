"""Builds a NumPy version of a small network, for many predictions of single samples. Imports MXNet."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Mapping, Optional

from mxtrain.engine.host_graph import HostGraph, NotForHost
from mxtrain.model.graph.trace import NotTraceable, input_names, symbol_of

if TYPE_CHECKING:
    from mxnet import gluon

    from mxtrain.annotations import SymbolGraph


def host_graph(network: gluon.Block, names: Mapping[str, str]) -> Optional[HostGraph]:
    """A network as NumPy computes it; see `Strategy.on_host`.

    Args:
        names: structural names of its parameters, by `Parameter.name`.
    """
    try:
        symbol, _ = symbol_of(network, training=False)
        graph: SymbolGraph = json.loads(symbol.tojson())
        for node in graph["nodes"]:
            node["name"] = names.get(node["name"], node["name"])
        return HostGraph(graph, *input_names(1))
    except (NotTraceable, NotForHost):
        return None
