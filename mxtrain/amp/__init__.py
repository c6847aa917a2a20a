"""Precision of the arithmetic."""

from __future__ import annotations

from mxtrain.types import Spec


class Precision(Spec):
    """Describes in which precision a step computes. A new one is a subclass and one YAML in conf/amp/."""


class FullPrecision(Precision):
    """Everything in float32."""
