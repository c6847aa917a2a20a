"""Scores as numbers without bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mxnet.ndarray import NDArray

LEAST = 1e-30
"""A probability this far from 1 counts as so far."""


def log_odds(log_p: NDArray) -> NDArray:
    """Computes the logit log(p / (1 - p)) from log p. Unlike p, it has a gradient also if p is nearly 1.

    Args:
        log_p: logarithm of p, float64.
    """
    from mxtrain.engine.backend import nd

    return (log_p - nd.log(nd.maximum(-nd.expm1(log_p), LEAST))).astype("float32")
