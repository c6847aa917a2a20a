"""Estimates the cost of blocks from their shapes alone, so that every machine with such devices makes the same cut.

A time that is measured differs from one day and one machine to the next, and so would the cut, and with it the last
bits of a run. The constants below are measured once, and only their ratios count. Decision 0024 has the figures.

Reasons: docs/decisions/0024-pipeline-cuts.md.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Dict, List, Mapping, Optional, Tuple, Union

from mxtrain.model.graph.trace import Node, NotTraceable, Trace, trace, trace_symbol
from mxtrain.model.graph.work import FLOAT_BYTES, learns, node_flops
from mxtrain.parallel.cut import BlockSequence, Piece, Tensor, variable
from mxtrain.types import Shape

if TYPE_CHECKING:
    from mxnet import gluon


@dataclass(frozen=True)
class Rates:
    """The rates of a kind of device, from which an operator's time is estimated.

    Attributes:
        flops: per second, in matrix products and convolutions.
        moved: bytes per second that an operator reads and writes.
        look_s: of a pooling, for each element in each of its windows.
        call_s: of each operator, whatever it does.
        sent: bytes per second from one device to the next.
    """

    flops: float
    moved: float
    look_s: float
    call_s: float
    sent: float


# The CPU's constants are fitted to blocks measured on one thread (processor time, minimum of six); those of GPUs are
# round figures of the roofline model, not measured.
RATES = {
    "cpu": Rates(flops=50e9, moved=6e9, look_s=15e-9, call_s=50e-6, sent=5e9),
    "gpu": Rates(flops=10e12, moved=600e9, look_s=0.0, call_s=10e-6, sent=10e9),
}
PASSES = {"BatchNorm": 3, "_contrib_SyncBatchNorm": 3, "_contrib_BatchNormWithReLU": 3, "LayerNorm": 3, "softmax": 3}
"""Operator -> number of times that it reads its input, if not once."""
CALLS = {"Convolution": 3, "Deconvolution": 3, "FullyConnected": 2}
"""Operator -> how often `Rates.call_s` counts, where operands are brought into another memory layout first."""
RELAID = {"Convolution": 2, "Deconvolution": 2}
"""Operator -> how often its weights are moved besides, for that layout."""
FREE = ("Reshape", "reshape", "Flatten", "expand_dims", "squeeze", "BlockGrad", "identity", "_copy", "Cast", "cast")
"""Operators that compute nothing."""


def rates_of(device_type: str) -> Rates:
    """Returns the rates of this kind of device."""
    return RATES["cpu" if device_type.startswith("cpu") else "gpu"]


def piece_costs(
    piece: Union[Piece, BlockSequence], shapes: Mapping[Tensor, Shape], device_type: str
) -> Tuple[float, float]:
    """Returns the seconds of the forward and the backward pass of a piece or block row for one microbatch.

    Args:
        piece: result of `Cuttable.cut`.
        shapes: shapes of its input tensors.
        device_type: "cpu" or "gpu".
    """
    rates = rates_of(device_type)
    if isinstance(piece, BlockSequence):
        traces = _traces_of_row(piece, shapes)
    else:
        input_shapes = {variable(tensor): shapes[tensor] for tensor in piece.inputs}
        traces = [trace_symbol(piece.symbol, input_shapes)]
    forward = backward = 0.0
    for traced in traces:
        seconds = _times(traced, rates)
        forward, backward = forward + seconds[0], backward + seconds[1]
    return forward, backward


def _times(traced: Trace, rates: Rates) -> Tuple[float, float]:
    nodes = traced.nodes
    learning = learns(nodes)
    forward = backward = 0.0
    for index, node in enumerate(nodes):
        if node.op == "null" or node.op in FREE or node.shape is None:
            continue
        sizes = [math.prod(nodes[i].shape or ()) for i in node.inputs]
        num_read = sum(sizes) + RELAID.get(node.op, 0) * sum(sizes[1:2])
        num_written = math.prod(node.shape)
        flops = node_flops(node, traced)
        looks = rates.look_s * num_written * _window(node)
        passes = FLOAT_BYTES * PASSES.get(node.op, 1)
        call_s = rates.call_s * CALLS.get(node.op, 1)
        forward += flops / rates.flops + passes * (num_read + num_written) / rates.moved + looks + call_s
        if learning[index]:
            # One product for each; the network's own inputs have none.
            gradients = sum(learning[i] for i in node.inputs[:2])
            moved = passes * (2 * num_read + num_written)
            backward += flops * gradients / rates.flops + moved / rates.moved + looks / 3 + call_s
    return forward, backward


def _window(node: Node) -> int:
    """Returns the number of inputs that a pooling reads for each output; 0 for other operators.

    MXNet reads one by one.
    """
    if node.op != "Pooling" or node.attrs.get("global_pool", "False") in ("True", "1"):
        return 0
    return math.prod(int(size) for size in re.findall(r"\d+", node.attrs.get("kernel", "")))


def _traces_of_row(row: BlockSequence, shapes: Mapping[Tensor, Shape]) -> List[Trace]:
    """Returns a trace of each block. One that cannot be traced counts as one matrix product with all its parameters."""
    traces = []
    begin = row.inputs[0][0]
    for number, block in enumerate(row.blocks):
        batch_size, *shape = shapes[(begin + number, 0)]
        try:
            traces.append(trace(block, tuple(shape), batch_size=batch_size, training=True))
        except NotTraceable:
            traces.append(_as_product(block, (batch_size, *shape), shapes[(begin + number + 1, 0)]))
    return traces


def _as_product(block: gluon.Block, input_shape: Shape, output_shape: Shape) -> Trace:
    shapes: Dict[str, Optional[Shape]] = {name: p.shape for name, p in block.collect_params().items()}
    size = sum(math.prod(shape or ()) for shape in shapes.values())
    data = Node("data", "null", "", (), {}, input_shape)
    weight = Node("weight", "null", "", (), {}, (1, size))
    product = Node("product", "FullyConnected" if size else "opaque", "", (0, 1), {}, output_shape)
    return Trace([data, weight, product], shapes, [output_shape], {})
