"""A user's own subclass of mxnet.optimizer.Optimizer, brought in by `_target_`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, ClassVar, Dict, Mapping, Tuple, Type

from mxtrain.description.config import call_target
from mxtrain.optimizer.base import Optimizer
from mxtrain.types import Spec

if TYPE_CHECKING:
    import mxnet as mx


class CustomOptimizer(Optimizer):
    """Wraps an mxnet.optimizer.Optimizer class; it gets lr as `learning_rate`, wd and clip_gradient, and its own."""

    filled: ClassVar[Tuple[str, ...]] = ("learning_rate", "wd", "clip_gradient")

    target: Callable[..., Any]
    target_arguments: Dict[str, Any] = {}

    @classmethod
    def with_target(cls) -> Type[Spec]:
        return Optimizer

    @classmethod
    def of_target(cls, target: Any, arguments: Mapping[str, Any], common: Spec, path: str) -> Spec:
        return cls(target=target, target_arguments=dict(arguments), **dict(common))

    def build(self, steps_per_epoch: int) -> mx.optimizer.Optimizer:
        common = {"learning_rate": self.lr, "wd": self.wd, "clip_gradient": self.clip_gradient}
        return call_target(self.target, {**common, **self.target_arguments}, "optimizer")
