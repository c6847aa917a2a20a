"""Tells the inputs of a graph from its parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Collection, List

from mxtrain.engine.parameter_names import ROLES, role_of
from mxtrain.model.symbol.graph_file import VARIABLE, attributes_of, inputs_of
from mxtrain.model.symbol.heads import WEIGHTED, is_label

if TYPE_CHECKING:
    from mxtrain.types.annotations import SymbolGraph


_TRAINED = frozenset(("__init__", "__lr_mult__", "__wd_mult__"))
"""Attributes of variables that are trained, such as the scale of L2 normalisation in SSDs."""


def input_names(graph: SymbolGraph, parameters: Collection[str] = ()) -> List[str]:
    """Returns the names of the variables that are inputs, in the graph's order, without labels.

    Parameters are variables with a role in their name (`conv0_weight`), those that a layer takes beside its input,
    those with an initial value or a rate of their own, and those that the weights are known to hold.

    Args:
        graph: see `parse_graph`.
        parameters: names of arrays of the weights; empty if they are not known.
    """
    nodes = graph["nodes"]
    taken = {
        source
        for node in nodes
        if node["op"] in WEIGHTED or node["op"] == "BatchNorm"
        for source, _ in inputs_of(node)[1 : 2 if node["op"] == "RNN" else None]
    }
    return [
        node["name"]
        for position, node in enumerate(nodes)
        if node["op"] == VARIABLE
        and position not in taken
        and role_of(node["name"]) not in ROLES.values()
        and not _TRAINED & set(attributes_of(node))
        and node["name"] not in parameters
        and not is_label(node)
    ]
