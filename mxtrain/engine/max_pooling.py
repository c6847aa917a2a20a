"""Workarounds for the gradient of max pooling in MXNet 1.9.1 on a CPU. Imports no MXNet: callers pass it.

The backward pass of oneDNN's max pooling reads the positions of the maxima that the forward pass has stored. The
forward pass does not store them (`PoolingComputeExCPU` in src/operator/nn/pooling.cc) if

- its input is a view, i.e. the result of `NDArray.reshape`, of a slice of rows, of an index or of iterating, because
  then MXNet uses its own kernel, or
- autograd records in inference mode, for which oneDNN has another kernel.

The backward pass then reads uninitialised memory: the gradient goes to random elements of a window. So in recorded
calls views are copied, and pooling runs in training mode, in which its output is the same.
"""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Any, Callable, List, Mapping

if TYPE_CHECKING:
    from mxtrain.types.annotations import SymbolGraph

INFERENCE: Mapping[str, Mapping[str, str]] = {
    "BatchNorm": {"use_global_stats": "True"},
    "_contrib_SyncBatchNorm": {"use_global_stats": "True"},
    "Dropout": {"p": "0"},
    "RNN": {"p": "0"},
}
"""Operator -> attributes with which its result in training mode equals that in inference mode."""


def with_stored_positions(operator: Callable[..., Any], autograd: Any, copy: Callable[[Any], Any]) -> Any:
    """Wraps the imperative operator `Pooling` so that max pooling has the right gradient.

    MXNet has no function that tells a view from another array, so each input that autograd records is copied. The copy
    keeps oneDNN's memory layout.

    Args:
        operator: mxnet.nd.Pooling.
        autograd: mxnet.autograd.
        copy: operator that copies an array.
    """

    @functools.wraps(operator)
    def pooling(data: Any = None, *args: Any, **kwargs: Any) -> Any:
        # The default of MXNet's operator is max, so a call without a kind counts as max pooling.
        kind = args[1] if len(args) > 1 else kwargs.get("pool_type", "max")  # args: kernel, pool_type, ...
        if kind in ("avg", "sum", "lp") or not autograd.is_recording():
            return operator(data, *args, **kwargs)
        # The value of pooling is the same in both modes; only training mode stores the positions.
        with autograd.train_mode():
            return operator(copy(data), *args, **kwargs)

    return pooling


def pooled_inputs(graph: SymbolGraph) -> List[int]:
    """Returns the positions of a graph's inputs that max pooling reads directly, in the graph or in one of its loops
    and branches."""
    nodes = graph["nodes"]
    inputs = [number for number, node in enumerate(nodes) if node["op"] == "null"]
    read = {source for node in nodes if _is_max_pooling(node) or node.get("subgraphs") for source, *_ in node["inputs"]}
    return [position for position, number in enumerate(inputs) if number in read]


def has_max_pooling(graph: SymbolGraph) -> bool:
    """Returns True if a graph, or a loop or branch in it, has max pooling."""
    return any(
        _is_max_pooling(node) or any(has_max_pooling(inner) for inner in node.get("subgraphs", ()))
        for node in graph["nodes"]
    )


def inference_in_training_mode(graph: SymbolGraph) -> str:
    """Returns a copy of a graph, as JSON, whose results in training mode equal those of the graph in inference mode."""
    changed: SymbolGraph = json.loads(json.dumps(graph))
    _change(changed)
    return json.dumps(changed)


def _change(graph: SymbolGraph) -> None:
    for node in graph["nodes"]:
        attrs = node.get("attrs", {})
        if node["op"] in INFERENCE and attrs.get("mode") != "always":  # such dropout draws in inference, too
            node["attrs"] = {**attrs, **INFERENCE[node["op"]]}
        for inner in node.get("subgraphs", ()):
            _change(inner)


def _is_max_pooling(node: Mapping[str, Any]) -> bool:
    return node["op"] == "Pooling" and node.get("attrs", {}).get("pool_type", "max") == "max"
