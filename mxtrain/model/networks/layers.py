"""Types that the descriptions of our own networks share."""

from __future__ import annotations

from typing import Literal

Activation = Literal["relu", "tanh", "sigmoid", "softrelu", "softsign", "gelu", "selu", "swish"]
