"""In which precision each of MXNet's operators computes, when a network computes in fewer bits than float32.

What is in no list computes in float32: an operator that nobody thought of is slower, never wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import FrozenSet


@dataclass(frozen=True)
class Operators:
    """The lists of one low precision.

    Attributes:
        low: compute in it, from all of their inputs: matrix products and convolutions, which is where the time goes.
        follow: compute in what their first input is in; their other inputs stay as they are.
        widest: compute in it if all inputs are in it, else in float32.
    """

    low: FrozenSet[str]
    follow: FrozenSet[str]
    widest: FrozenSet[str]


BFLOAT16 = Operators(
    low=frozenset({"Convolution", "FullyConnected"}),
    # Those for which oneDNN has kernels. MXNet computes others by way of float32 copies, or not at all.
    follow=frozenset({"BatchNorm", "Activation", "Pooling", "Flatten", "Reshape"}),
    widest=frozenset({"elemwise_add", "_plus", "_Plus", "Concat", "concat"}),
)
"""For oneDNN 2.4 under MXNet 1.9.1. Deconvolution and LRN have kernels too, but no network here shows that they pay."""

FLOAT16 = Operators(
    low=frozenset({
        "Convolution", "Deconvolution", "FullyConnected", "RNN", "dot", "batch_dot",
        "_contrib_interleaved_matmul_selfatt_qk", "_contrib_interleaved_matmul_selfatt_valatt",
        "_contrib_interleaved_matmul_encdec_qk", "_contrib_interleaved_matmul_encdec_valatt",
    }),
    # Sums over many elements (mean, softmax, norms over layers) and powers are not among them: float16 ends at 65504.
    follow=frozenset({
        "BatchNorm", "Activation", "Pooling", "Flatten", "Reshape", "Dropout", "LeakyReLU", "relu", "clip", "Pad",
        "transpose", "SwapAxis", "expand_dims", "squeeze", "slice", "slice_axis", "SliceChannel", "UpSampling",
    }),
    widest=frozenset({
        "elemwise_add", "_plus", "_Plus", "elemwise_mul", "broadcast_add", "broadcast_mul", "add_n", "Concat", "concat",
        "stack", "where",
    }),
)  # fmt: skip
"""For cuDNN and cuBLAS, which add in float32 inside of products."""
