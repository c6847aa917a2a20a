"""Activation recomputation: a segment of the network keeps only its inputs, and runs again in the backward pass.

    forward, not recorded: inputs -> segment -> outputs, random masks
    backward: inputs, random masks -> segment, recorded -> gradients

MXNet's random state can be seeded, but neither read nor restored. So the first pass returns the random mask of each
dropout, with one byte per element, and the second pass multiplies by it instead of drawing again: it computes the bits
of a network that keeps its activations. mxtrain's own operators draw from a seed of 64 elements that is a dropout, too.

Source: Chen et al., Training Deep Nets with Sublinear Memory Cost, https://arxiv.org/abs/1604.06174.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Dict, List, Optional, Sequence, Tuple

import numpy as np

from mxtrain.engine.backend import autograd, mx, nd
from mxtrain.errors import ConfigError
from mxtrain.model.graph.summary import draws_random
from mxtrain.model.graph.trace import LAYER_ATTRIBUTE
from mxtrain.parallel.cut import Piece, variable
from mxtrain.parallel.stage import GraphOnDevices, parameters_by_full_name

if TYPE_CHECKING:
    from mxnet import gluon
    from mxnet.symbol import Symbol

    from mxtrain.types.annotations import GraphNode, SymbolGraph

MASK = "recompute_mask{}"
"""Name of the variable of a mask in the graph of the second pass."""


class RecomputedSegment:
    """A segment of a stage whose activations are computed again for the backward pass.

    Args:
        piece: piece of the graph.
        network: network that owns the parameters.
        number: number of the stage.
        devices: devices, [replica][stage].
        is_alike: True if the segment has static memory, which it shares with those that are alike.
        like: another segment that is alike, whose operators and memory are used; None if this one is the first.

    Raises:
        ConfigError: an operator draws random numbers that cannot be repeated.
    """

    def __init__(
        self,
        piece: Piece,
        network: gluon.Block,
        number: int,
        devices: List[List[mx.Context]],
        is_alike: bool = False,
        like: Optional[RecomputedSegment] = None,
    ):
        self.number, self.inputs, self.outputs = number, piece.inputs, piece.outputs
        graph: SymbolGraph = json.loads(piece.symbol.tojson(remove_amp_cast=False))
        on_stage = [stages[number] for stages in devices]
        require_repeatable(graph, on_stage[0].device_type)
        again, num_masks = with_masks_as_inputs(graph)
        names, parameters = [variable(tensor) for tensor in piece.inputs], parameters_by_full_name(network)
        # Segments that are alike share static memory: pages that are freed and allocated in every step cost much of its
        # time. Others have none: MXNet would keep the activations of all of them.
        flags = [("static_alloc", True)] if is_alike else []
        # Moving statistics are copies in the first pass, so that they change once.
        self._first: GraphOnDevices = GraphOnDevices(
            _symbol(with_masks_as_outputs(graph)),
            names,
            parameters,
            on_stage,
            flags,
            keeps_states=True,
            operator=like._first.operator if like else None,
        )
        mask_names = [MASK.format(index) for index in range(num_masks)]
        self._second: GraphOnDevices = GraphOnDevices(
            _symbol(again),
            [*names, *mask_names],
            parameters,
            on_stage,
            flags,
            operator=like._second.operator if like else None,
        )

    def forward(self, replica: int, inputs: Sequence[nd.NDArray]) -> Tuple[List[nd.NDArray], List[nd.NDArray]]:
        """Computes the outputs in training mode without recording; returns the outputs and the random masks."""
        with autograd.train_mode():
            returned = self._first(replica, inputs)
        return returned[: len(self.outputs)], returned[len(self.outputs) :]

    def again(self, replica: int, inputs: Sequence[nd.NDArray], masks: Sequence[nd.NDArray]) -> List[nd.NDArray]:
        """Computes the same outputs from the same inputs and masks. Called inside of `autograd.record`."""
        return self._second(replica, [*inputs, *masks])


def are_alike(pieces: Sequence[Piece]) -> bool:
    """Returns True if pieces compute the same, but for the names of their parameters, inputs and layers."""
    return len({_structure(piece) for piece in pieces}) == 1


def _structure(piece: Piece) -> str:
    graph: SymbolGraph = json.loads(piece.symbol.tojson(remove_amp_cast=False))
    inputs = {variable(tensor): position for position, tensor in enumerate(piece.inputs)}
    states = set(piece.symbol.list_auxiliary_states())
    nodes: List[object] = []
    for node in graph["nodes"]:
        if node["op"] == "null":
            nodes.append(inputs.get(node["name"], node["name"] in states))
        else:
            attrs = {**node.get("attrs", {}), LAYER_ATTRIBUTE: ""}
            nodes.append([node["op"], attrs, node["inputs"], node.get("subgraphs", ())])
    return json.dumps([nodes, graph["heads"]])


def _symbol(graph: SymbolGraph) -> Symbol:
    return mx.sym.load_json(json.dumps(graph))


def require_repeatable(graph: SymbolGraph, device_type: str) -> None:
    """Checks that a segment computes the same numbers when it runs again.

    Raises:
        ConfigError: names the first operator that does not.
    """
    for node in graph["nodes"]:
        attrs = node.get("attrs", {})
        for inner in node.get("subgraphs", ()):
            require_repeatable(inner, "")
        if not draws_random(node["op"], attrs) or (_drops(node) and device_type == "cpu"):
            continue
        reason = (
            "on GPUs cuDNN keeps its random masks to itself. Set the dropout of the model to 0"
            if _drops(node)
            else "it draws random numbers that cannot be repeated. Choose another model"
        )
        raise ConfigError(
            f"parallel.recompute: layer '{attrs.get(LAYER_ATTRIBUTE, node['name'])}' ({node['op']}) cannot run again: "
            f"{reason}, or type parallel.recompute=off."
        )


def _drops(node: GraphNode) -> bool:
    return node["op"] == "Dropout" and _rate(node) > 0


def _rate(node: GraphNode) -> float:
    return float(node.get("attrs", {}).get("p", 0.5))


def with_masks_as_outputs(graph: SymbolGraph) -> SymbolGraph:
    """Returns a graph that also returns the mask of each dropout: uint8, 1 for kept elements."""
    nodes, heads = [*graph["nodes"]], [*graph["heads"]]
    for index, node in enumerate(graph["nodes"]):
        if _drops(node):
            # The second output of a dropout is 0, or the factor by which it multiplies.
            source = [index, 1, 0]
            for op, attrs in (("_not_equal_scalar", {"scalar": "0"}), ("Cast", {"dtype": "uint8"})):
                nodes.append({"op": op, "name": f"{node['name']}_{op.lower()}", "attrs": attrs, "inputs": [source]})
                source = [len(nodes) - 1, 0, 0]
            heads.append(source)
    return {**graph, "nodes": nodes, "heads": heads}


def with_masks_as_inputs(graph: SymbolGraph) -> Tuple[SymbolGraph, int]:
    """Returns a graph that multiplies by given masks where the original draws them, and the number of masks."""
    nodes: List[GraphNode] = []
    moved: Dict[int, int] = {}
    num_masks = 0

    def add(op: str, name: str, attrs: Optional[Dict[str, str]], inputs: List[List[int]]) -> List[int]:
        nodes.append({"op": op, "name": name, **({"attrs": attrs} if attrs else {}), "inputs": inputs})
        return [len(nodes) - 1, 0, 0]

    for index, node in enumerate(graph["nodes"]):
        inputs = [[moved[source], *rest] for source, *rest in node["inputs"]]
        if _drops(node):
            name = MASK.format(num_masks)
            num_masks += 1
            kept = add("Cast", f"{name}_cast", {"dtype": "float32"}, [add("null", name, None, [])])
            factor = add("_mul_scalar", f"{name}_factor", {"scalar": repr(scale_of(_rate(node)))}, [kept])
            # With `axes` a mask has the size 1 along some of the axes.
            multiply = "broadcast_mul" if node.get("attrs", {}).get("axes", "()") != "()" else "elemwise_mul"
            add(multiply, node["name"], None, [*inputs, factor])
        else:
            nodes.append({**node, "inputs": inputs})
        moved[index] = len(nodes) - 1
    changed: SymbolGraph = {
        "nodes": nodes,
        "arg_nodes": [index for index, node in enumerate(nodes) if node["op"] == "null"],
        "heads": [[moved[source], *rest] for source, *rest in graph["heads"]],
        "attrs": graph["attrs"],
    }
    return changed, num_masks


def scale_of(rate: float) -> float:
    """Returns the factor by which MXNet's dropout multiplies what it keeps, as it computes it in float32.

    Source: MXNet 1.9.1, src/operator/nn/dropout-inl.h (DropoutKernel).
    """
    return float(np.float32(1) / (np.float32(1) - np.float32(rate)))
