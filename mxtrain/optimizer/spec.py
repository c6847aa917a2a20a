"""Base class of optimizer descriptions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Dict, Optional, Tuple, Type

from mxtrain.config.specs import call_target
from mxtrain.config.wrapped import Wrapped
from mxtrain.types import NonNegativeFloat, PositiveFloat, Spec

if TYPE_CHECKING:
    import mxnet as mx


class Optimizer(Spec):
    """One of MXNet's optimizers. Field names are ours, `mxnet_names` says where MXNet calls them otherwise."""

    lr: PositiveFloat = 0.1
    """Base learning rate, before schedule and parameter groups."""
    wd: NonNegativeFloat = 0.0
    """Weight decay, as the optimizer defines it."""
    clip_gradient: Optional[PositiveFloat] = None
    """Clip each gradient element to [-clip_gradient, clip_gradient]."""

    mxnet_name: ClassVar[str] = ""
    workaround_class: ClassVar[str] = ""
    """Class in mxnet_workarounds.py that replaces MXNet's class because of a bug."""
    mxnet_names: ClassVar[Dict[str, str]] = {"lr": "learning_rate"}
    lr_scaling: ClassVar[Optional[str]] = None
    """Scaling of the learning rate with the batch size: "linear", or "sqrt" if the size of an update does not grow with
    that of the gradient; None if no rule is known. Source: see `lr_scheduler.reference_batch`."""
    draws_random: ClassVar[bool] = False
    """True if an update draws random numbers, so that the generator must be seeded in each step."""
    rowwise: ClassVar[bool] = False
    """True if the update of a row does not depend on other rows, so that rows can be updated separately."""
    whole_because: ClassVar[str] = "may look at all rows of a table at once"
    """Reason why it is not `rowwise`, as part of a sentence."""

    @property
    def is_lazy(self) -> bool:
        """Returns True if table rows without a gradient are not updated."""
        return False

    def arguments(self, steps_per_epoch: int) -> Dict[str, Any]:
        """Returns the keyword arguments for `mxnet.optimizer.create`."""
        # MXNet's own lazy_update is for row_sparse gradients, which abort its servers; ours has no meaning for MXNet.
        settings = self.model_dump(exclude={"lazy_update"})
        return {self.mxnet_names.get(name, name): value for name, value in settings.items()}

    def build(self, steps_per_epoch: int) -> mx.optimizer.Optimizer:
        """Builds the optimizer of MXNet."""
        if self.workaround_class:
            from mxtrain.optimizer import mxnet_workarounds

            return getattr(mxnet_workarounds, self.workaround_class)(**self.arguments(steps_per_epoch))
        from mxtrain.engine.backend import mx

        return mx.optimizer.create(self.mxnet_name, **self.arguments(steps_per_epoch))


class RowwiseOptimizer(Optimizer):
    """One whose update of a matrix's row looks at no other row."""

    rowwise: ClassVar[bool] = True
    lazy_update: bool = False
    """Of a table of embeddings whose gradient holds some rows only (trainer.sparse_grad): true leaves the other rows
    and their state (momentum, moments) as they are; false gives them the update that a gradient of 0 gives, as the
    dense run does."""

    @property
    def is_lazy(self) -> bool:
        return self.lazy_update


class CustomOptimizer(Wrapped, Optimizer):
    """Wraps an mxnet.optimizer.Optimizer class; it gets lr as `learning_rate`, wd and clip_gradient, and its own."""

    filled: ClassVar[Tuple[str, ...]] = ("learning_rate", "wd", "clip_gradient")

    @classmethod
    def with_target(cls) -> Type[Spec]:
        return Optimizer

    def build(self, steps_per_epoch: int) -> mx.optimizer.Optimizer:
        common = {"learning_rate": self.lr, "wd": self.wd, "clip_gradient": self.clip_gradient}
        return call_target(self.target, {**common, **self.arguments}, "optimizer")
