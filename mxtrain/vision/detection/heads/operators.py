"""Choice between operators of arrays and of symbols: codings decode outputs as arrays, or as part of an exported
graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

if TYPE_CHECKING:
    import numpy as np
    from mxnet.ndarray import NDArray

    from mxtrain.types.annotations import Array, OperatorModule


def operators(F: Optional[OperatorModule]) -> OperatorModule:
    """Returns the given operators; by default the operators of arrays."""
    from mxtrain.engine.backend import nd

    return nd if F is None else F


def constant(F: OperatorModule, value: np.ndarray, like: Array) -> Array:
    """Returns a constant as an array on the device of `like`, or as a symbol.

    Args:
        F: operators of arrays, or of an exported graph, which stores constants.
        value: the constant, float32.
        like: array whose device is used; not used for symbols.
    """
    from mxtrain.engine.backend import nd

    return nd.array(value, ctx=like.context) if F is nd else F.constant(value)


MIN_COMPLEMENT = 1e-30
"""Lower limit of 1 - p, so that its logarithm is finite."""


def log_odds(log_p: NDArray) -> NDArray:
    """Computes the logit log(p / (1 - p)) from log p. Unlike p, it has a useful gradient if p is nearly 1.

    Args:
        log_p: logarithm of p, float64.
    """
    from mxtrain.engine.backend import nd

    return (log_p - nd.log(nd.maximum(-nd.expm1(log_p), MIN_COMPLEMENT))).astype("float32")
