"""Base class of the settings of optimizers, and optimizers defined by the user: by `_target_` or as objects."""

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
    """Base class of the settings of MXNet's optimizers.

    Fields have the same names in all optimizers; `mxnet_names` maps those that MXNet calls differently.
    """

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
    """Rule that scales the learning rate with the batch size: "linear", or "sqrt" for optimizers whose updates are
    normalised by the size of the gradient; None if no rule is known. Source: see `lr_scheduler.reference_batch`."""
    draws_random: ClassVar[bool] = False
    """True if an update draws random numbers, so that the generator must be seeded in each step."""
    rowwise: ClassVar[bool] = False
    """True if the update of a row does not depend on other rows, so that rows can be updated separately."""
    dense_reason: ClassVar[str] = "may look at all rows of a table at once"
    """Reason why the optimizer is not `rowwise`, as a clause for messages."""

    shardable: ClassVar[bool] = False
    """True if the update of a parameter does not depend on other parameters, so that workers can update different
    ones."""

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
    """Base class of optimizers that update each row of a matrix independently of the others."""

    rowwise: ClassVar[bool] = True
    shardable: ClassVar[bool] = True
    lazy_update: bool = False
    """Rows of an embedding table that are not in its row-wise gradient (trainer.sparse_grad): true = they and their
    state (momentum, moments) stay unchanged; false = they are updated with a gradient of 0, as with a dense
    gradient."""

    @property
    def is_lazy(self) -> bool:
        return self.lazy_update


class CustomOptimizer(Wrapped, Optimizer):
    """Wraps an mxnet.optimizer.Optimizer class. It is called with `learning_rate`, `wd`, `clip_gradient` and its own
    arguments."""

    filled: ClassVar[Tuple[str, ...]] = ("learning_rate", "wd", "clip_gradient")

    @classmethod
    def with_target(cls) -> Type[Spec]:
        return Optimizer

    def build(self, steps_per_epoch: int) -> mx.optimizer.Optimizer:
        common = {"learning_rate": self.lr, "wd": self.wd, "clip_gradient": self.clip_gradient}
        return call_target(self.target, {**common, **self.arguments}, "optimizer")


NOT_SETTINGS = ("lr", "wd", "num_update", "begin_num_update", "rescale_grad", "clip_gradient", "aggregate_num")
"""Attributes of MXNet's optimizers that have fields of their own, change in training, or have one allowed value."""


class GivenOptimizer(Given, Optimizer):
    """An mxnet.optimizer.Optimizer object. Each run computes with a copy of it."""

    argument: ClassVar[str] = "optimizer"

    settings: Dict[str, Any] = {}
    """Further settings of the optimizer, such as its momentum."""

    @classmethod
    def describe_object(cls, optimizer: Any) -> Dict[str, Any]:
        """Returns the settings that identify an optimizer, besides its class.

        Raises:
            ConfigError: the object is not an optimizer, was used before, or scales gradients or rates itself.
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
        # The step seeds the generator only for options that declare `draws_random`.
        if isinstance(optimizer, mx.optimizer.SGLD):
            raise ConfigError('optimizer: SGLD draws random numbers. Give the override "optimizer=sgld" instead.')
        attributes = plain_attributes(optimizer, without=NOT_SETTINGS)
        return {
            "lr": float(optimizer.lr),
            "wd": float(optimizer.wd),
            "clip_gradient": optimizer.clip_gradient,
            "settings": {name: value for name, value in attributes.items() if not name.startswith("_")},
        }

    def build(self, steps_per_epoch: int) -> mx.optimizer.Optimizer:
        # MXNet's optimizer object counts updates, so a second run with the same object would not start at 0.
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
        """Returns the learning rate of one of several networks, divided by that of the first."""
        return float(self.settings[name]["lr"]) / self.lr if isinstance(self.settings.get(name), dict) else 1.0


def describe_optimizers(optimizers: Mapping[str, Any]) -> Dict[str, Any]:
    """Returns the settings that identify the optimizers of several networks; `lr` is that of the first."""
    described = {name: GivenOptimizer.describe_object(optimizer) for name, optimizer in optimizers.items()}
    settings = {name: {"class": class_of(optimizers[name]), **facts} for name, facts in described.items()}
    return {"lr": next(iter(described.values()))["lr"], "settings": settings}
