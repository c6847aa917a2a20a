"""Reduces the learning rate when a validation metric stops improving."""

from __future__ import annotations

import math
from typing import Literal

from mxtrain.callback.action import Action, Control
from mxtrain.checkpoint.ranking import undefined_monitor
from mxtrain.lr_scheduler.spec import Schedule
from mxtrain.types import NonNegative, NonNegativeFloat, ProperFraction


class Plateau(Schedule):
    """The rate is multiplied by `gamma` after more than `patience` validations without an improvement.

    Source: the rule is that of torch.optim.lr_scheduler.ReduceLROnPlateau, without its `eps`.
    """

    monitor: str = "val/accuracy"
    """Tag of the monitored value; the metric determines if larger or smaller is better."""
    gamma: ProperFraction = 0.1
    """Factor of each reduction."""
    patience: NonNegative = 5
    """Number of validations without improvement after which the next one lowers the rate."""
    threshold: NonNegativeFloat = 1e-4
    """Minimum change that counts as an improvement."""
    threshold_mode: Literal["rel", "abs"] = "rel"
    """rel: `threshold` is a fraction of the best value; abs: a difference from it."""
    cooldown: NonNegative = 0
    """Number of validations after a decrease that do not count towards patience."""
    min_lr: NonNegativeFloat = 0.0
    """Lower bound of the learning rate."""

    @property
    def monitored(self) -> str:
        return self.monitor

    def build_action(self) -> Action:
        return ReduceOnPlateau(self)

    def is_better(self, value: float, best: float, direction: str) -> bool:
        """Returns True if `value` improves on `best` by more than the threshold.

        Args:
            value: value of the last validation.
            best: best value so far.
            direction: "max" if larger values are better, otherwise "min".
        """
        sign = 1.0 if direction == "max" else -1.0
        margin = self.threshold * (best if self.threshold_mode == "rel" else 1.0)
        # As in PyTorch, a relative margin is best * threshold, so it is negative for a negative best value.
        return value > best + margin if sign > 0 else value < best - margin


class ReduceOnPlateau(Action):
    """Multiplies the learning rate by `gamma` at a plateau, see `Plateau`.

    The checkpointed `state` holds the factor of the base rate, the best value, the number of validations without
    improvement (`waited`) and the number of validations left in the cooldown.
    """

    def __init__(self, spec: Plateau):
        self._spec = spec

    def after_validation(self, run: Control) -> None:
        spec, value = self._spec, run.values[self._spec.monitor]
        state = {"factor": 1.0, "best": None, "waited": 0, "cooldown": 0, **self.state}
        direction = run.direction(spec.monitor.split("/", 1)[1])
        if math.isfinite(value) and (state["best"] is None or spec.is_better(value, state["best"], direction)):
            state.update(best=value, waited=0)
        else:
            state["waited"] += 1
        if state["cooldown"] > 0:
            state.update(cooldown=state["cooldown"] - 1, waited=0)
        if state["best"] is None:  # without a finite value, nothing is known about a plateau
            if state["waited"] == spec.patience + 1:
                effect = "so it does not lower the learning rate"
                run.say(f"{undefined_monitor(spec.monitor, state['waited'], effect, 'lr_scheduler.monitor')}.")
        elif state["waited"] > spec.patience:
            # `min_lr` limits a reduction, but never raises a rate that is already below it.
            factor = max(state["factor"] * spec.gamma, min(spec.min_lr / run.lr, state["factor"]))
            if factor < state["factor"]:
                run.say(
                    f"{spec.monitor} has not improved for {state['waited']} validations (best {state['best']}): "
                    f"learning rate {run.lr * state['factor']:.4g} -> {run.lr * factor:.4g}"
                )
                run.scale_lr(factor)
            state.update(factor=factor, cooldown=spec.cooldown, waited=0)
        self.state = state
