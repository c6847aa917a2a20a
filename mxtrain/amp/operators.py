"""Lists the precision of each of MXNet's operators, for networks that compute in fewer bits than float32.

Operators in no list compute in float32: that is slower, but never wrong.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Callable, FrozenSet, Optional

from mxtrain.runtime.amx import uses_amx
from mxtrain.types import Shape

if TYPE_CHECKING:
    from mxtrain.annotations import GraphNode

AMX_BLOCK, BLOCK = 32, 16
"""Channels that oneDNN's kernels take at once: those for AMX, and those for AVX-512."""
SPLITS = frozenset({"SliceChannel", "RNN"})
"""Operators of the lists all of whose outputs are in one precision. Of the others only the first output is in the low
one: a batch norm's mean and variance are float32."""


@dataclass(frozen=True)
class Operators:
    """The lists of one low precision.

    Attributes:
        low: compute in it, from all of their inputs: matrix products and convolutions, which is where the time goes.
        follow: compute in what their first input is in; their other inputs stay as they are.
        follow_whole: compute in what their first input is in, and take their other inputs in it, too.
        follow_both: compute in it if their first two inputs are in it; their other inputs stay as they are.
        take: take their first input as it is, and give float32.
        join: compute in it if all inputs are in it, else in float32.
        join_layers: `join` computes in it, too, if one input is in it and all are made by layers: by operators of `low`
            and `bind`, and by `join` from such.
        can_follow: node of `bind` -> whether it can compute in the low precision.
        pays: (node of `low`, shape of its weight, of its output; None where unknown) -> whether it is faster in the low
            precision, and right.
    """

    low: FrozenSet[str]
    follow: FrozenSet[str]
    join: FrozenSet[str]
    pays: Callable[[GraphNode, Optional[Shape], Optional[Shape]], bool]
    can_follow: Callable[[GraphNode], bool] = lambda node: True
    join_layers: bool = False
    follow_whole: FrozenSet[str] = frozenset()
    follow_both: FrozenSet[str] = frozenset()
    take: FrozenSet[str] = frozenset()


def has_kernels(node: GraphNode, weight: Optional[Shape], output: Optional[Shape], amx: Optional[bool] = None) -> bool:
    """Returns True if oneDNN 2.4 has fast kernels for a layer's output and for both of its gradients.

    Where one of the three is missing, it is a kernel that is no faster than float32's, or a plain matrix product; and
    its result lies in memory in another order than the other two's, so that a batch norm that gets both falls back to
    a reference kernel, which takes a hundred times as long. Found by running 70 kinds of convolutions with AMX.

    Args:
        node: of the graph.
        weight: (outputs, inputs, ...).
        output: (B, C, H, W).
        amx: whether those for AMX are used; None: as in this process.
    """
    if weight is None:
        return False
    if node["op"] == "FullyConnected":
        return min(weight[0], weight[1]) >= 32
    amx = uses_amx() if amx is None else amx
    if amx and math.prod(weight[2:]) == 1 and overruns(output):
        return False
    if output is not None and math.prod(output[2:]) == 1 < math.prod(weight[2:]):
        # Of one position: what only reads padding of a kernel is not written into its gradient, which then holds
        # whatever was in memory before (3x3 with padding 1, on a map of 1x1).
        return False
    grouped = node.get("attrs", {}).get("num_group", "1") != "1"
    block = AMX_BLOCK if amx else BLOCK
    return not grouped and weight[0] % block == 0 and weight[1] % block == 0


def overruns(output: Optional[Shape]) -> bool:
    """Returns True if oneDNN 2.4's AMX kernel for 1 x 1 convolutions writes beyond its memory, or may.

    It works on as many positions at once as divide their number, 16 at most, and on two such groups at a time; where
    there are three, the fourth is written, too, and the process dies of a damaged heap, at once or later. Found by
    running all numbers of positions up to 199 with glibc's checks: 27, 33, 36, 39, 42, 45 and 48 do. 21 seems to have
    room.

    Args:
        output: (B, C, H, W), None if unknown.
    """
    if output is None:
        return True
    positions = math.prod(output[2:])
    return positions == 3 * max(size for size in range(1, 17) if positions % size == 0)


def has_eltwise_kernel(node: GraphNode) -> bool:
    """Returns True if oneDNN has the operator; of the kinds of LeakyReLU only these."""
    return node["op"] != "LeakyReLU" or node.get("attrs", {}).get("act_type", "leaky") in ("leaky", "elu", "gelu")


def takes_float16(node: GraphNode, weight: Optional[Shape], output: Optional[Shape]) -> bool:
    """Returns True if all inputs of a layer may be in float16: not lengths, which it holds exactly up to 2048."""
    return node.get("attrs", {}).get("use_sequence_length", "False") not in ("True", "1")


BFLOAT16 = Operators(
    low=frozenset({"Convolution", "FullyConnected"}),
    # Those for which oneDNN has kernels. MXNet computes others by way of float32 copies, or not at all.
    # Our attention stores what it takes and gives in it, and computes in float32.
    follow=frozenset({"BatchNorm", "Activation", "LeakyReLU", "Pooling", "Flatten", "Reshape", "_mxtrain_attention"}),
    follow_both=frozenset({"_mxtrain_cross_attention"}),
    take=frozenset({"_mxtrain_cross_entropy"}),
    join=frozenset({"elemwise_add", "Concat"}),
    # What a layer that stays in float32 adds to bfloat16, or puts beside it, would make float32 of all that follows:
    # every shortcut of a ResNet's stage, all of a block of a DenseNet. Not so other sums, of which norms are made.
    join_layers=True,
    pays=has_kernels,
    can_follow=has_eltwise_kernel,
)
"""For oneDNN 2.4 under MXNet 1.9.1. MXNet's own lists have the same two operators in `low`, whatever their size."""

FLOAT16 = Operators(
    low=frozenset({
        # Not dot: networks write sums with it (BERT's layer norms), which float16 has no room for.
        "Convolution", "Deconvolution", "FullyConnected", "RNN", "batch_dot",
        "_contrib_interleaved_matmul_selfatt_qk", "_contrib_interleaved_matmul_selfatt_valatt",
        "_contrib_interleaved_matmul_encdec_qk", "_contrib_interleaved_matmul_encdec_valatt",
    }),
    # Sums over many elements (mean, softmax, norms over layers) and powers are not among them: float16 ends at 65504.
    follow=frozenset({
        "BatchNorm", "Activation", "Pooling", "Flatten", "Reshape", "Dropout", "relu", "clip", "Pad",
        "transpose", "SwapAxis", "expand_dims", "squeeze", "slice", "slice_axis", "SliceChannel",
    }),
    # A PReLU's slopes, the filters of a bilinear resize, the other maps of a nearest one.
    follow_whole=frozenset({"LeakyReLU", "UpSampling"}),
    join=frozenset({
        "elemwise_add", "elemwise_mul", "broadcast_add", "broadcast_mul", "add_n", "Concat", "stack", "where",
    }),
    pays=takes_float16,
)  # fmt: skip
"""For cuDNN and cuBLAS, which add in float32 inside of products, those of an RNN included (from cuDNN 7.5 on, for which
rnn-inl.h of MXNet 1.9.1 asks it)."""
