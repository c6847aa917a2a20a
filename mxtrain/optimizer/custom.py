"""A user's own subclass of mxnet.optimizer.Optimizer, brought in by `_target_`."""

from __future__ import annotations

from typing import Any, Callable, Dict

from mxtrain.description.config import call_target
from mxtrain.optimizer.base import Optimizer


class CustomOptimizer(Optimizer):
    """Wraps an mxnet.optimizer.Optimizer class; it gets lr as `learning_rate`, wd and clip_gradient, and its own."""

    target: Callable[..., Any]
    target_arguments: Dict[str, Any] = {}

    def build(self, steps_per_epoch: int) -> Any:
        common = {"learning_rate": self.lr, "wd": self.wd, "clip_gradient": self.clip_gradient}
        return call_target(self.target, {**common, **self.target_arguments}, "optimizer")
