"""Workarounds for operators of MXNet 1.9.1 that overwrite a gradient instead of adding to it. Imports no MXNet.

With `grad_req="add"`, e.g. for parameters with `trainer.grad_accumulation`, the backward pass of some operators
overwrites the gradient of an array that they read directly, or divides the sum (`mean`). So these operators get a copy,
whose backward pass adds. The table in docs/internals/operators.md comes from a comparison of all operators.
"""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

if TYPE_CHECKING:
    from mxtrain.types.annotations import GraphNode, SymbolGraph

OVERWRITES: Mapping[str, Sequence[str]] = {
    "clip": ("clip",),
    "reverse": ("reverse", "flip"),
    "_split_v2": ("_internal._split_v2",),
    "_np_cumsum": ("cumsum",),
    "mean": ("mean",),
    "moments": ("moments",),
    "_contrib_boolean_mask": ("contrib.boolean_mask",),
    "_contrib_DeformableConvolution": ("contrib.DeformableConvolution",),
    "SpatialTransformer": ("SpatialTransformer",),
    "elemwise_add": (),
}
"""Operator in a graph -> its functions in `mxnet.nd`. The sum of two arrays is wrong in graphs only."""


def with_copied_arrays(
    operator: Callable[..., Any],
    autograd: Any,
    copy: Callable[[Any], Any],
    is_copied: Callable[[object], bool],
    only: Optional[Tuple[int, str]] = None,
) -> Any:
    """Wraps an imperative operator so that recorded calls read copies of arrays.

    Args:
        operator: function of `mxnet.nd`.
        autograd: mxnet.autograd.
        copy: operator that copies an array.
        is_copied: returns True for an argument that is copied.
        only: position and name of the only argument that is copied; None for all.
    """

    def copied(key: object, value: Any) -> Any:
        return copy(value) if key != "out" and (only is None or key in only) and is_copied(value) else value

    @functools.wraps(operator)
    def reading_copies(*args: Any, **kwargs: Any) -> Any:
        # Without a recorded call there is no backward pass that could overwrite, and a copy would cost memory.
        if not autograd.is_recording():
            return operator(*args, **kwargs)
        return operator(
            *(copied(position, value) for position, value in enumerate(args)),
            **{name: copied(name, value) for name, value in kwargs.items()},
        )

    return reading_copies


def has_gradient(value: object) -> bool:
    """Returns True for an array with a gradient array of its own, which outputs of operators do not have."""
    return getattr(value, "grad", None) is not None


def with_copied_inputs(graph: SymbolGraph) -> Optional[str]:
    """Returns a graph, as JSON, in which such operators, its outputs, and loops and branches read copies of its inputs.

    An output that is an input itself has the gradient 0 or an overwritten one. The order of inputs and outputs stays.

    Args:
        graph: the graph.

    Returns:
        The changed graph; None if there is nothing to change.
    """
    nodes = list(graph["nodes"])
    copies: Dict[int, int] = {}

    def copied(entries: Sequence[List[int]]) -> List[List[int]]:
        found: List[List[int]] = []
        for source, *rest in entries:
            if nodes[source]["op"] == "null" and source not in copies:
                # Operators that read the same input share its copy: the copy's own backward pass adds
                # their gradients correctly.
                name = f"{nodes[source]['name']}_copy"
                copies[source] = len(nodes)
                nodes.append({"op": "_copy", "name": name, "inputs": [[source, 0, 0]]})
            found.append([copies.get(source, source), *rest])
        return found

    for number, node in enumerate(graph["nodes"]):
        if node.get("subgraphs") or node["op"] in OVERWRITES:
            changed: GraphNode = {**node, "inputs": copied(node["inputs"])}
            nodes[number] = changed
    heads = copied(graph["heads"])
    return json.dumps({**graph, "nodes": nodes, "heads": heads}) if copies else None
