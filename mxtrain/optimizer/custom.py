"""A user's own subclass of mxnet.optimizer.Optimizer, brought in by `_target_`."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Tuple, Type

from mxtrain.config.specs import call_target
from mxtrain.config.wrapped import Wrapped
from mxtrain.optimizer.base import Optimizer
from mxtrain.types import Spec

if TYPE_CHECKING:
    import mxnet as mx


class CustomOptimizer(Wrapped, Optimizer):
    """Wraps an mxnet.optimizer.Optimizer class; it gets lr as `learning_rate`, wd and clip_gradient, and its own."""

    filled: ClassVar[Tuple[str, ...]] = ("learning_rate", "wd", "clip_gradient")

    @classmethod
    def with_target(cls) -> Type[Spec]:
        return Optimizer

    def build(self, steps_per_epoch: int) -> mx.optimizer.Optimizer:
        common = {"learning_rate": self.lr, "wd": self.wd, "clip_gradient": self.clip_gradient}
        return call_target(self.target, {**common, **self.arguments}, "optimizer")
