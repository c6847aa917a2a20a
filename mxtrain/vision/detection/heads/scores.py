"""Conversion of log probabilities to logits."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mxnet.ndarray import NDArray

MIN_COMPLEMENT = 1e-30
"""Lower limit of 1 - p, so that its logarithm is finite."""


def log_odds(log_p: NDArray) -> NDArray:
    """Computes the logit log(p / (1 - p)) from log p. Unlike p, it has a useful gradient if p is nearly 1.

    Args:
        log_p: logarithm of p, float64.
    """
    from mxtrain.engine.backend import nd

    return (log_p - nd.log(nd.maximum(-nd.expm1(log_p), MIN_COMPLEMENT))).astype("float32")
