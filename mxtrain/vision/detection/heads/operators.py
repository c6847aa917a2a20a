"""Operators of arrays or of symbols: codings decode outputs of a network at once, and in an exported graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

if TYPE_CHECKING:
    import numpy as np

    from mxtrain.annotations import Array, OperatorModule


def operators(F: Optional[OperatorModule]) -> OperatorModule:
    """Returns the given operators; by default the operators of arrays."""
    from mxtrain.engine.backend import nd

    return nd if F is None else F


def constant(F: OperatorModule, value: np.ndarray, like: Array) -> Array:
    """Returns an array, on the device of `like`, or a symbol for it.

    Args:
        F: operators of arrays, or of an exported graph, which keep constants.
        value: float32.
        like: an array, if F is of arrays.
    """
    from mxtrain.engine.backend import nd

    return nd.array(value, ctx=like.context) if F is nd else F.constant(value)
