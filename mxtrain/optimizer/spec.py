"""Base class of optimizer descriptions, and optimizers of a user's own, by `_target_` or as objects."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, ClassVar, Dict, Mapping, Optional, Tuple, Type

from mxtrain.config.placeholders import Given, class_of, plain_attributes
from mxtrain.config.specs import call_target
from mxtrain.config.wrapped import Wrapped
from mxtrain.errors import ConfigError
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
    dense_reason: ClassVar[str] = "may look at all rows of a table at once"
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


CHANGING = ("lr", "wd", "num_update", "begin_num_update", "rescale_grad", "clip_gradient", "aggregate_num")


class GivenOptimizer(Given, Optimizer):
    """An mxnet.optimizer.Optimizer, of which each run computes with a copy."""

    argument: ClassVar[str] = "optimizer"

    settings: Dict[str, Any] = {}
    """Further settings of it, such as its momentum."""

    @classmethod
    def describe_object(cls, optimizer: Any) -> Dict[str, Any]:
        """Returns facts that identify an optimizer: its class and its numbers.

        Raises:
            ConfigError: it is not an optimizer, was used before, or scales gradients or rates itself.
        """
        from mxtrain.engine.backend import mx

        if isinstance(optimizer, Mapping):
            return describe_optimizers(optimizer)
        if not isinstance(optimizer, mx.optimizer.Optimizer):
            kind = 'an mxnet.optimizer.Optimizer or a dict of settings such as {"lr": 0.001}'
            raise cls.refusal(optimizer, kind, "optimizer=sgd")
        name = type(optimizer).__name__
        if optimizer.lr_scheduler is not None:
            raise ConfigError(
                f"optimizer: this {name} has an lr_scheduler, which would be ignored. Make it without one, and choose "
                'the schedule by an override, e.g. "lr_scheduler=cosine".'
            )
        if optimizer.rescale_grad != 1:
            raise ConfigError(
                f"optimizer: this {name} has rescale_grad={optimizer.rescale_grad:g}; gradients are already of the "
                "mean over the batch. Construct it without rescale_grad."
            )
        if optimizer.num_update != optimizer.begin_num_update:
            raise ConfigError(f"optimizer: this {name} has been used for {optimizer.num_update} steps. Make a new one.")
        # Only named optimizers declare that they draw, which makes the step seed the generator.
        if isinstance(optimizer, mx.optimizer.SGLD):
            raise ConfigError('optimizer: SGLD draws random numbers. Give the override "optimizer=sgld" instead.')
        attributes = plain_attributes(optimizer, without=CHANGING)
        return {
            "lr": float(optimizer.lr),
            "wd": float(optimizer.wd),
            "clip_gradient": optimizer.clip_gradient,
            "settings": {name: value for name, value in attributes.items() if not name.startswith("_")},
        }

    def build(self, steps_per_epoch: int) -> mx.optimizer.Optimizer:
        # MXNet's optimizer counts its updates in itself, so a second run of the same object would begin late.
        return copy.deepcopy(self.require())

    def build_for(self, name: str) -> mx.optimizer.Optimizer:
        """Returns the optimizer of one of several networks.

        Raises:
            ConfigError: there is no optimizer for this network.
        """
        optimizers = self.require()
        if not isinstance(optimizers, Mapping):
            return self.build(0)
        if name not in optimizers:
            raise ConfigError(f"optimizer: there is none for the network '{name}'. Given are {', '.join(optimizers)}.")
        return copy.deepcopy(optimizers[name])

    def relative_lr(self, name: str) -> float:
        """Returns the learning rate of one of several networks, over that of the first."""
        return float(self.settings[name]["lr"]) / self.lr if isinstance(self.settings.get(name), dict) else 1.0


def describe_optimizers(optimizers: Mapping[str, Any]) -> Dict[str, Any]:
    """Returns facts that identify the optimizers of several networks; ``lr`` is that of the first."""
    described = {name: GivenOptimizer.describe_object(optimizer) for name, optimizer in optimizers.items()}
    settings = {name: {"class": class_of(optimizers[name]), **facts} for name, facts in described.items()}
    return {"lr": next(iter(described.values()))["lr"], "settings": settings}
