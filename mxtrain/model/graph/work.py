"""Counts the work of the operators of a network: multiplications and additions, and bytes to move.

Each array counts once as read or written, as if caches held nothing and nothing were computed twice: what takes longer
than the machine needs for that has room for improvement.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Dict, List, Optional, Sequence

from mxtrain.model.graph.trace import INPUT, Node, Trace

BACKWARD = "_backward_"
CONTRIB = "_contrib_"
PASSES = {
    "sgd_update": 3,
    "sgd_mom_update": 5,
    "nag_mom_update": 5,
    "adam_update": 7,
    "adamw": 7,
    "rmsprop_update": 5,
    "adagrad_update": 5,
}
"""Arrays of a parameter's size that an update reads or writes."""
FLOAT_BYTES = 4
OWN_GRADIENTS = ("batch_dot", "transpose")
"""Operators whose gradients are the same operator again."""
ATTENTION, CROSS_ATTENTION = "_mxtrain_attention", "_mxtrain_cross_attention"
INTERLEAVED_OPS = ("_contrib_interleaved_matmul_selfatt_qk", "_contrib_interleaved_matmul_selfatt_valatt")


@dataclass(frozen=True)
class Work:
    """The work of an operator, or of several.

    Attributes:
        flops: multiplications and additions of matrix products and convolutions; 0 for all else.
        moved: bytes read and written.
    """

    flops: float = 0.0
    moved: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(self.flops + other.flops, self.moved + other.moved)

    def times(self, factor: float) -> Work:
        """Returns the same work, several times."""
        return Work(self.flops * factor, self.moved * factor)


def bare(name: str) -> str:
    """Returns an operator's name as the engine has it, without what says that it is experimental or a gradient."""
    for prefix in (BACKWARD, CONTRIB):
        name = name[len(prefix) :] if name.startswith(prefix) else name
    return name


def work_by_operator(trace: Trace, low: Sequence[str] = ()) -> Dict[str, Work]:
    """Returns the work of the forward and backward pass of a step, by the operator's name in the engine.

    Args:
        trace: trace of the whole network for the batch of a step.
        low: operators that compute in 16 bits.
    """
    nodes, work_of = trace.nodes, {}  # type: ignore[var-annotated]
    learning = learns(nodes)
    for index, node in enumerate(nodes):
        shapes = [nodes[i].shape for i in node.inputs]
        if node.op == "null" or node.shape is None or None in shapes:
            continue
        input_shapes = [shape for shape in shapes if shape is not None]
        size = FLOAT_BYTES / 2 if node.op in low else FLOAT_BYTES
        num_read, num_written = sum(map(math.prod, input_shapes)), math.prod(node.shape)
        flops = node_flops(node, trace)
        _add(work_of, node.op, Work(flops, size * (num_read + num_written)))
        if learning[index]:
            # One product for the gradient of each input; images have none.
            gradients = 2 if node.op == ATTENTION else sum(learning[i] for i in node.inputs[:2])
            name = node.op if node.op in OWN_GRADIENTS else BACKWARD + bare(node.op)
            # The backward pass reads the inputs and the head gradient, and writes a gradient for each input.
            _add(work_of, name, Work(flops * gradients, size * (2 * num_read + num_written)))
    return work_of


def update_work(name: str, num_elements: int) -> Optional[Work]:
    """Returns the work of an optimizer step over all parameters; None if `name` (in the engine) is unknown."""
    passes = next((count for operator, count in PASSES.items() if operator in name), None)
    return None if passes is None else Work(0.0, float(FLOAT_BYTES * passes * num_elements))


def node_flops(node: Node, traced: Trace) -> int:
    """Returns the FLOPs of one operator: 2 per multiply-add of matrix products, 0 for other operators."""
    inputs = [traced.nodes[index].shape for index in node.inputs]
    if node.op == ATTENTION and inputs[0] is not None:
        tokens, batch, width = inputs[0]
        return 4 * batch * tokens * tokens * (width // 3)
    if node.op == CROSS_ATTENTION and inputs[0] is not None and inputs[1] is not None:
        tokens, batch, width = inputs[0]
        return 4 * batch * tokens * inputs[1][0] * width
    if node.op in INTERLEAVED_OPS and node.shape is not None and inputs[0] is not None:
        tokens, batch, width = inputs[0]  # width: of queries, keys and values together
        return 2 * batch * tokens * tokens * (width // 3)
    first, second = inputs[:2] if len(inputs) > 1 else (None, None)
    if node.shape is None or first is None or second is None:
        return 0
    if node.op in ("Convolution", "FullyConnected"):  # the weight is (out, in / groups, *kernel)
        return 2 * math.prod(node.shape) * math.prod(second[1:])
    if node.op == "Deconvolution":  # the weight is (in, out / groups, *kernel)
        return 2 * math.prod(first) * math.prod(second[1:])
    if node.op in ("batch_dot", "dot", "_linalg_gemm2"):
        transposed = node.attrs.get("transpose_a", "False") in ("True", "1")
        return 2 * math.prod(node.shape) * first[-2 if transposed else -1]
    return 0


def learns(nodes: Sequence[Node]) -> List[bool]:
    """Returns for each node whether a gradient reaches it."""
    flags: List[bool] = []
    for node in nodes:
        if node.op == "null":
            flags.append(not node.name.startswith(INPUT))
        else:
            flags.append(node.op != "BlockGrad" and any(flags[i] for i in node.inputs))
    return flags


def _add(work_of: Dict[str, Work], name: str, work: Work) -> None:
    work_of[name] = work_of.get(name, Work()) + work
