"""Finds the normalisation of images inside of a graph: operators between its input and its first layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, List

from mxtrain.model.symbol.graph_file import VARIABLE, attributes_of, inputs_of
from mxtrain.model.symbol.heads import WRAPPERS, is_label

if TYPE_CHECKING:
    from mxtrain.types.annotations import GraphNode, SymbolGraph

_SCALARS = frozenset(f"_{name}_scalar" for name in ("minus", "mul", "div", "plus"))
LEAST_PIXEL_OFFSET = 32.0
"""A subtracted constant of at least this many units, or an equal divisor, is one of pixels from 0 to 255."""


def scaling_of(graph: SymbolGraph) -> List[GraphNode]:
    """Returns the operators with a constant that the input passes first, in order.

    They are `_minus_scalar` and the like, as insightface's networks begin with, and a batch norm, as MXNet's residual
    networks begin with (`bn_data`).
    """
    nodes = graph["nodes"]
    inputs = [position for position, node in enumerate(nodes) if node["op"] == VARIABLE and not is_label(node)]
    found: List[GraphNode] = []
    current = inputs[0] if inputs else -1
    while True:
        readers = [
            number
            for number, node in enumerate(nodes)
            if inputs_of(node)[:1] == [(current, 0)] and node["op"] != VARIABLE
        ]
        if len(readers) != 1:
            return found
        current = readers[0]
        node = nodes[current]
        if node["op"] in _SCALARS or node["op"] == "BatchNorm":
            found.append(node)
        elif node["op"] not in WRAPPERS and node["op"] not in ("Cast", "cast"):
            return found


def takes_pixels(graph: SymbolGraph) -> bool:
    """Returns True if constants in a graph scale pixels from 0 to 255, so that nothing else may."""
    offset, divisor = 0.0, 1.0
    for node in scaling_of(graph):
        value = float(attributes_of(node).get("scalar", 0))
        if node["op"] == "_minus_scalar":
            offset = value
        elif node["op"] == "_mul_scalar" and value:
            divisor = 1 / value
        elif node["op"] == "_div_scalar":
            divisor = value
    return max(offset, divisor) >= LEAST_PIXEL_OFFSET
