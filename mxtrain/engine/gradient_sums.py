"""Workarounds for operators of MXNet 1.9.1 that overwrite a gradient instead of adding to it. Imports no MXNet.

With `grad_req="add"`, e.g. for parameters with `trainer.grad_accumulation`, the backward pass of some operators
overwrites the gradient of an array that they read directly, or divides the sum (`mean`). So these operators get a copy,
whose backward pass adds. The table in docs/internals/operators.md comes from a comparison of all operators.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Callable, List, Mapping, Sequence

if TYPE_CHECKING:
    from mxtrain.annotations import SymbolGraph

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


def with_added_gradients(operator: Callable[..., Any], autograd: Any, copy: Callable[[Any], Any]) -> Any:
    """Wraps an imperative operator so that the gradients of arrays that it reads directly are added up.

    Args:
        operator: function of `mxnet.nd`.
        autograd: mxnet.autograd.
        copy: operator that copies an array.
    """

    @functools.wraps(operator)
    def adding(*args: Any, **kwargs: Any) -> Any:
        if not autograd.is_recording():
            return operator(*args, **kwargs)
        return operator(
            *(copy(value) if has_gradient(value) else value for value in args),
            **{name: copy(value) if name != "out" and has_gradient(value) else value for name, value in kwargs.items()},
        )

    return adding


def has_gradient(value: object) -> bool:
    """Returns True for an array with a gradient array of its own, which outputs of operators do not have."""
    return getattr(value, "grad", None) is not None


def overwritten_inputs(graph: SymbolGraph) -> List[int]:
    """Returns the positions of a graph's inputs that such an operator reads directly, in the graph or in one of its
    loops and branches.

    A sum that is an output of the graph is left out: MXNet cannot infer the storage type of the gradient of such a
    graph if its inputs are results of other operators, as copies are.
    """
    nodes = graph["nodes"]
    inputs = [number for number, node in enumerate(nodes) if node["op"] == "null"]
    heads = {number for number, *_ in graph.get("heads", ())}
    read = {
        source for number, node in enumerate(nodes)
        if node.get("subgraphs") or node["op"] in OVERWRITES and not (node["op"] == "elemwise_add" and number in heads)
        for source, *_ in node["inputs"]
    }  # fmt: skip
    return [position for position, number in enumerate(inputs) if number in read]
