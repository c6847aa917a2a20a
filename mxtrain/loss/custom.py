"""A user's own loss, brought in by `_target_`."""

from __future__ import annotations

from typing import Any, Callable, Dict

from mxtrain.loss.losses import Loss


class CustomLoss(Loss):
    """Wraps a gluon loss class or function returning one: a block of (scores (B, K), one-hot (B, K)) -> (B,)."""

    target: Callable[..., Any]
    arguments: Dict[str, Any] = {}

    def block(self) -> Any:
        return self.target(**self.arguments)
