"""Types that the descriptions of our own networks share."""

from __future__ import annotations

from typing import Literal

Gelu = Literal["tanh", "erf"]
"""The form of GELU: the approximation by tanh, or exact."""
Activation = Literal["relu", "tanh", "sigmoid", "softrelu", "softsign", "gelu", "selu", "swish"]
