"""Workaround for crashes of the backward pass behind operators whose gradient is 0 in MXNet 1.9.1. Imports no MXNet.

The gradient of such an operator is `zeros_like` of its input, which autograd therefore keeps. An elementwise or
reshaping operator before it (e.g. `relu`, `reshape`) that receives only such a gradient does not compute its own one,
but `zeros_like` of its input, which autograd has not kept (`MakeNonlossGradNode` in src/operator/operator_common.h).
The process then ends, unless the graph is hybridized. Behind `add_n` the gradient no longer counts as 0, and the
operators before it compute theirs.
"""

from __future__ import annotations

from typing import Mapping, Optional, Tuple

from mxtrain.engine.gradient_sums import has_gradient

Input = Tuple[int, str]
"""Position and name of an argument."""
COMPARISONS = (
    "equal",
    "not_equal",
    "greater",
    "greater_equal",
    "lesser",
    "lesser_equal",
    "logical_and",
    "logical_or",
    "logical_xor",
)
DISTRIBUTIONS = (
    "uniform",
    "normal",
    "gamma",
    "exponential",
    "poisson",
    "negative_binomial",
    "generalized_negative_binomial",
    "multinomial",
)
ZERO_GRADIENTS: Mapping[str, Optional[Input]] = {
    **dict.fromkeys(
        (
            "BlockGrad",
            "stop_gradient",
            "round",
            "rint",
            "ceil",
            "floor",
            "trunc",
            "fix",
            "logical_not",
            "zeros_like",
            "ones_like",
            "one_hot",
            "argmax",
            "argmin",
            "argsort",
            "topk",
            "contrib.arange_like",
            "contrib.index_array",
        )
    ),
    **dict.fromkeys(f"broadcast_{name}" for name in COMPARISONS),
    **dict.fromkeys(f"_internal._{name}{kind}" for name in COMPARISONS for kind in ("", "_scalar")),
    **dict.fromkeys(f"sample_{name}" for name in DISTRIBUTIONS),
    **dict.fromkeys(f"_internal._sample_{name}" for name in DISTRIBUTIONS),
    # Only one input of these has the gradient 0; the others keep their real one and need no copy.
    "where": (0, "condition"),
    "pick": (1, "index"),
    "choose_element_0index": (1, "index"),
    "gather_nd": (1, "indices"),
    "scatter_nd": (1, "indices"),
    "broadcast_like": (1, "rhs"),
    "reshape_like": (1, "rhs"),
}
"""Function of `mxnet.nd` -> its input whose gradient is 0; None if all are."""


def is_result(value: object) -> bool:
    """Returns True for a dense array that may be the result of an operator: autograd keeps arrays with a gradient."""
    return getattr(value, "stype", "") == "default" and not has_gradient(value)
