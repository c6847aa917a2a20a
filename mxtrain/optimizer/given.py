"""Description of an optimizer that was passed as an object instead of a name."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, ClassVar, Dict, Mapping

from mxtrain.config.placeholders import Given, class_of
from mxtrain.errors import ConfigError
from mxtrain.optimizer.spec import Optimizer

if TYPE_CHECKING:
    import mxnet as mx

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
            raise ConfigError(
                f"optimizer={optimizer!r:.60}: must be an mxnet.optimizer.Optimizer or a dict of settings such as "
                f'{{"lr": 0.001}}, and is a {type(optimizer).__name__}. To choose one by its name, give an override: '
                '"optimizer=sgd".'
            )
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
        attributes = {
            name: value
            for name, value in sorted(vars(optimizer).items())
            if name not in CHANGING and isinstance(value, (bool, int, float, str)) and not name.startswith("_")
        }
        return {
            "lr": float(optimizer.lr),
            "wd": float(optimizer.wd),
            "clip_gradient": optimizer.clip_gradient,
            "settings": attributes,
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
