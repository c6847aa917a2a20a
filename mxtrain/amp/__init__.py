"""Precision of the arithmetic."""

from __future__ import annotations

from mxtrain.types import Spec


class FullPrecision(Spec):
    """Everything in float32."""
