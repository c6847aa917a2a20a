"""Lists of the MXNet operators that compute in bfloat16 or float16.

Operators in no list compute in float32, which is slower but always correct.

A test infers the types of every network with its casts by MXNet's own type inference, because float16 graphs cannot be
computed on a CPU: an operator of the lists takes float16 where it can, no other one does, and parameters and outputs
are float32. Recurrent operators with lengths are not listed, because float16 counts only to 2048.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Callable, FrozenSet, Optional

from mxtrain.runtime.amx import uses_amx
from mxtrain.types import Shape

if TYPE_CHECKING:
    from mxtrain.types.annotations import GraphNode

AMX_BLOCK, BLOCK = 32, 16
"""Channels that oneDNN's kernels take at once: those for AMX, and those for AVX-512."""
LOW_IN_ALL_OUTPUTS = frozenset({"SliceChannel", "RNN"})
"""Operators of the lists whose outputs all have the low precision. Of all other operators only the first output has it:
a batch norm's mean and variance are float32."""


@dataclass(frozen=True)
class Operators:
    """The operator lists of one low precision.

    Attributes:
        low: operators that compute in the low precision and cast all their inputs to it: matrix products and
            convolutions, which take most of the time.
        follow: operators that compute in the precision of their first input. Their other inputs are not cast.
        follow_whole: as `follow`, but all other inputs are cast to the precision of the first one.
        follow_both: operators that compute in the low precision if their first two inputs have it. Their other inputs
            are not cast.
        take: operators that read a first input in the low precision without a cast, and return float32.
        join: operators that compute in the low precision if all their inputs have it, else in float32.
        join_layers: if True, one input in the low precision is enough for an operator of `join`, provided that all its
            inputs are outputs of layers: of operators of `low` and the `follow` lists, or of `join` over such outputs.
        can_follow: returns True if a node of `follow` can compute in the low precision.
        pays: returns True if a node of `low` is correct and faster in the low precision. Called with the node, the
            shape of its weight and the shape of its output (None if unknown).
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

    Without a fast kernel oneDNN falls back to one that is no faster than float32, or to a plain matrix product. The
    result of the fallback has another memory layout than the other two, and a batch norm that reads both layouts uses a
    reference kernel that takes 100 times as long. Measured on 70 configurations of convolutions with AMX.

    Args:
        node: the node of the layer.
        weight: shape of its weight, (outputs, inputs, ...); None if unknown.
        output: shape of its output, (B, C, H, W); None if unknown.
        amx: whether oneDNN uses its AMX kernels; None: whether it does in this process.
    """
    # Without a shape nothing says that a fast kernel exists, and float32 is always correct.
    if weight is None:
        return False
    if node["op"] == "FullyConnected":
        return min(weight[0], weight[1]) >= 32
    amx = uses_amx() if amx is None else amx
    if amx and math.prod(weight[2:]) == 1 and overruns(output):
        return False
    if output is not None and math.prod(output[2:]) == 1 < math.prod(weight[2:]):
        # The output is 1x1. oneDNN does not write the gradient of kernel elements that only read padding (3x3 with
        # padding 1 on a 1x1 input), so these elements would hold uninitialised memory.
        return False
    # With AMX, among 70 kinds of convolutions only ungrouped ones with whole blocks of channels have
    # kernels for both gradients.
    grouped = node.get("attrs", {}).get("num_group", "1") != "1"
    block = AMX_BLOCK if amx else BLOCK
    return not grouped and weight[0] % block == 0 and weight[1] % block == 0


def overruns(output: Optional[Shape]) -> bool:
    """Returns True if oneDNN 2.4's AMX kernel for 1x1 convolutions may write past the end of its buffer.

    The kernel splits the positions H * W of a map into groups of equal size, the largest divisor of H * W up to 16, and
    processes two groups at a time. With three groups it also writes a fourth, which corrupts the heap. Running all maps
    of up to 199 positions under glibc's heap checks found 27, 33, 36, 39, 42, 45 and 48. The rule also excludes 21, for
    which no overrun was seen.

    Args:
        output: shape (B, C, H, W) of the output; None if unknown, for which the result is True.
    """
    if output is None:
        return True
    positions = math.prod(output[2:])
    return positions == 3 * max(size for size in range(1, 17) if positions % size == 0)


def has_eltwise_kernel(node: GraphNode) -> bool:
    """Returns True if oneDNN has a kernel for the activation. It has none for prelu, selu and rrelu."""
    return node["op"] != "LeakyReLU" or node.get("attrs", {}).get("act_type", "leaky") in ("leaky", "elu", "gelu")


def takes_float16(node: GraphNode, weight: Optional[Shape], output: Optional[Shape]) -> bool:
    """Returns True if all inputs of a layer may be cast to float16.

    Sequence lengths may not: float16 represents integers exactly only up to 2048.
    """
    return node.get("attrs", {}).get("use_sequence_length", "False") not in ("True", "1")


BFLOAT16 = Operators(
    low=frozenset({"Convolution", "FullyConnected"}),
    # Operators with bfloat16 kernels in oneDNN. For others MXNet copies to float32 and back, or fails.
    # Our attention operators read and write bfloat16 but compute in float32.
    follow=frozenset({"BatchNorm", "Activation", "LeakyReLU", "Pooling", "Flatten", "Reshape", "_mxtrain_attention"}),
    follow_both=frozenset({"_mxtrain_cross_attention"}),
    take=frozenset({"_mxtrain_cross_entropy"}),
    join=frozenset({"elemwise_add", "Concat"}),
    # One layer that stays in float32 would otherwise turn everything after its sum or concatenation into float32: the
    # rest of a ResNet stage after a shortcut, the rest of a DenseNet block. Sums of other operators, such as those of
    # a layer norm written out, still need all inputs in bfloat16.
    join_layers=True,
    pays=has_kernels,
    can_follow=has_eltwise_kernel,
)
"""For oneDNN 2.4 under MXNet 1.9.1. MXNet's own lists have the same two operators in `low`, whatever their size."""

FLOAT16 = Operators(
    low=frozenset(
        {
            # Not dot: networks use it for long sums (BERT's layer norms), which overflow in float16.
            "Convolution",
            "Deconvolution",
            "FullyConnected",
            "RNN",
            "batch_dot",
            "_contrib_interleaved_matmul_selfatt_qk",
            "_contrib_interleaved_matmul_selfatt_valatt",
            "_contrib_interleaved_matmul_encdec_qk",
            "_contrib_interleaved_matmul_encdec_valatt",
        }
    ),
    # Without sums over many elements (mean, softmax, layer norms) and powers: the largest float16 number is 65504.
    follow=frozenset(
        {
            "BatchNorm",
            "Activation",
            "Pooling",
            "Flatten",
            "Reshape",
            "Dropout",
            "relu",
            "clip",
            "Pad",
            "transpose",
            "SwapAxis",
            "expand_dims",
            "squeeze",
            "slice",
            "slice_axis",
            "SliceChannel",
        }
    ),
    # Their other inputs: slopes of a PReLU, filters of a bilinear upsampling, further maps of a nearest one.
    follow_whole=frozenset({"LeakyReLU", "UpSampling"}),
    join=frozenset(
        {
            "elemwise_add",
            "elemwise_mul",
            "broadcast_add",
            "broadcast_mul",
            "add_n",
            "Concat",
            "stack",
            "where",
        }
    ),
    pays=takes_float16,
)
"""For cuDNN and cuBLAS, which add in float32 inside of products, those of an RNN included (from cuDNN 7.5 on, for which
rnn-inl.h of MXNet 1.9.1 asks it)."""
