"""Separates batch norm from ReLU where MXNet 1.9.1 fuses them. Imports no MXNet: callers pass it.

The backward pass of `_contrib_BatchNormWithReLU` writes the moving statistics, but is not registered as changing them
(src/operator/contrib/batch_norm_relu.cc has no `FMutateInputs` for it; batch_norm.cc has). So MXNet's engine does not
make readers wait: after a training step, evaluation and checkpoints may get the statistics of the step before. The
results of `BatchNorm` followed by ReLU are the same bits.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Callable, List

if TYPE_CHECKING:
    from mxtrain.types.annotations import SymbolGraph

FUSED = "_contrib_BatchNormWithReLU"


def in_two_operators(fused: Callable[..., Any], norm: Callable[..., Any], relu: Callable[..., Any]) -> Any:
    """Returns a function that replaces the fused operator.

    Args:
        fused: `contrib.BatchNormWithReLU` of mxnet.nd or mxnet.sym.
        norm: `BatchNorm` of the same module.
        relu: computes ReLU with `Activation` of the same module.
    """

    @functools.wraps(fused)
    def norm_then_relu(*args: Any, **kwargs: Any) -> Any:
        result = norm(*args, **kwargs)
        if str(kwargs.get("output_mean_var", False)) not in ("True", "1"):
            return relu(result)
        output, mean, variance = result
        return [relu(output), mean, variance]

    return norm_then_relu


def separated(graph: SymbolGraph) -> SymbolGraph:
    """Returns a graph in which each fused operator, also in loops and branches, is a batch norm and a ReLU."""
    nodes: List[Any] = []
    outputs: List[int] = []  # node of the old graph -> node with its first output
    norms: List[int] = []  # -> node with its other outputs

    def moved(entry: List[int]) -> List[int]:
        source, output, *version = entry
        return [norms[source] if output else outputs[source], output, *version]

    for node in graph["nodes"]:
        changed = {**node, "inputs": [moved(entry) for entry in node["inputs"]]}
        if "subgraphs" in node:
            changed["subgraphs"] = [separated(inner) for inner in node["subgraphs"]]
        norms.append(len(nodes))
        nodes.append(changed)
        if node["op"] == FUSED:
            changed["op"] = "BatchNorm"
            # Attributes with two underscores are marks of mixed precision and structural names, which
            # the ReLU needs as well.
            kept = {name: value for name, value in node.get("attrs", {}).items() if name.startswith("__")}
            inputs, attrs = [[norms[-1], 0, 0]], {**kept, "act_type": "relu"}
            nodes.append({"op": "Activation", "name": f"{node['name']}_relu", "inputs": inputs, "attrs": attrs})
        outputs.append(len(nodes) - 1)
    result: SymbolGraph = {
        "nodes": nodes,
        "arg_nodes": [number for number, node in enumerate(nodes) if node["op"] == "null"],
        "heads": [moved(entry) for entry in graph["heads"]],
    }
    if "attrs" in graph:
        result["attrs"] = graph["attrs"]
    return result
