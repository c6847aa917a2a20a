"""Learning-rate schedules. Each one is a factor of the base learning rate as a function of the step.

The schedules are those of GluonCV's LRScheduler and of `mxnet.lr_scheduler`.
"""

from __future__ import annotations

import math
from typing import Callable, ClassVar, List, Literal, Optional

import pydantic

from mxtrain.config.specs import shown
from mxtrain.lr_scheduler.spec import Schedule
from mxtrain.types import Fraction, Positive, PositiveFloat


class Constant(Schedule):
    """The base learning rate throughout."""


class Step(Schedule):
    """Step decay: the rate is multiplied by `gamma` after every `period`."""

    period: PositiveFloat = 30.0
    """Length between two reductions."""
    gamma: Fraction = 0.1
    """Factor of each reduction."""

    def late_changes(self, per_unit: int, total_steps: int) -> List[str]:
        if round(self.period * per_unit) < total_steps:
            return []
        return [
            f"lr_scheduler.period={self.period:g} {self.unit} is not shorter than the run ({total_steps} steps), so "
            "the rate never falls."
        ]

    def factor(self, step: int, warmup_steps: int, end: int, per_unit: int) -> float:
        # In whole steps: dividing floats would put a boundary one step late.
        return self.gamma ** (step // max(round(self.period * per_unit), 1))


class MultiStep(Schedule):
    """Step decay: the rate is multiplied by `gamma` at each milestone."""

    milestones: List[PositiveFloat] = pydantic.Field(default=[15.0, 22.0], min_length=1)
    """Times at which the rate is reduced."""
    gamma: Fraction = 0.1
    """Factor at each milestone."""

    @pydantic.field_validator("milestones")
    @classmethod
    def _check_order(cls, milestones: List[float]) -> List[float]:
        if milestones != sorted(set(milestones)):
            raise ValueError(f"milestones={shown(milestones)}: each must come after the one before it")
        return milestones

    def late_changes(self, per_unit: int, total_steps: int) -> List[str]:
        late = [f"{milestone:g}" for milestone in self.milestones if round(milestone * per_unit) >= total_steps]
        if not late:
            return []
        return [
            f"lr_scheduler.milestones: {', '.join(late)} {self.unit} lie{'s' if len(late) == 1 else ''} at or beyond "
            f"the end of the run ({total_steps} steps), so the rate does not fall there."
        ]

    def factor(self, step: int, warmup_steps: int, end: int, per_unit: int) -> float:
        return self.gamma ** sum(step >= round(milestone * per_unit) for milestone in self.milestones)


class InverseSqrt(Schedule):
    """Decays with the inverse square root of the step after the warm-up, which ends at the base learning rate.

    A base rate of (model size * warm-up steps)^-0.5 gives the schedule of Vaswani et al.,
    https://arxiv.org/abs/1706.03762, section 5.3.
    """

    unit: Literal["epochs", "steps"] = "steps"
    """Unit of `warmup`."""
    warmup: PositiveFloat = 4000.0
    """Length of the linear warm-up, which ends at optimizer.lr."""

    follows_warmup: ClassVar[bool] = True

    def warmup_steps(self, per_unit: int, end: int) -> int:
        return max(super().warmup_steps(per_unit, end), 1)

    def factor(self, step: int, warmup_steps: int, end: int, per_unit: int) -> float:
        return math.sqrt(warmup_steps / (step + 1))


class Decay(Schedule):
    """Base class of schedules that decay smoothly from 1 to `end_factor` until the end of the run or of `duration`."""

    end_factor: Fraction = 0.0
    """Final learning rate, as a fraction of the base learning rate."""
    duration: Optional[PositiveFloat] = None
    """Length of the schedule, warm-up included; null = the whole run."""

    needs_end: ClassVar[bool] = True
    follows_warmup: ClassVar[bool] = True

    @pydantic.model_validator(mode="after")
    def _check_duration(self) -> Decay:
        if self.duration is not None and self.warmup >= self.duration:
            raise ValueError(
                f"warmup={self.warmup:g} must be shorter than duration={self.duration:g}, when the decay ends"
            )
        return self

    def end_steps(self, per_unit: int, total_steps: Optional[int]) -> int:
        return super().end_steps(per_unit, total_steps) if self.duration is None else round(self.duration * per_unit)

    def late_changes(self, per_unit: int, total_steps: int) -> List[str]:
        end = self.end_steps(per_unit, total_steps)
        if end <= total_steps:
            return []
        left = self.factor(total_steps, self.warmup_steps(per_unit, end), end, per_unit)
        return [
            f"lr_scheduler.duration={self.duration:g} {self.unit} ({end} steps) is longer than the run ({total_steps} "
            f"steps), which ends at {left:.2g} of optimizer.lr."
        ]

    def factor(self, step: int, warmup_steps: int, end: int, per_unit: int) -> float:
        t = min((step - warmup_steps) / max(end - warmup_steps, 1), 1.0)
        return self.end_factor + (1 - self.end_factor) * self.curve(t)

    def curve(self, t: float) -> float:
        """Returns the decay curve at `t`, the finished fraction of the decay: falls from 1 to 0 as `t` rises to 1."""
        raise NotImplementedError


class Poly(Decay):
    """Polynomial decay, (1 - t)^power, where t is the finished fraction of the decay."""

    power: PositiveFloat = 2.0
    """Exponent of the decay; 1 = linear."""

    def curve(self, t: float) -> float:
        return (1 - t) ** self.power


class Cosine(Decay):
    """Cosine annealing without restarts. Source: Loshchilov and Hutter, https://arxiv.org/abs/1608.03983."""

    def curve(self, t: float) -> float:
        return (1 + math.cos(math.pi * t)) / 2


class Linear(Decay):
    """Linear decay. If `warmup` is 0, the warm-up takes the fraction `warmup_share` of the steps until the end."""

    warmup_share: Fraction = 0.1
    """Length of the warm-up as a fraction of the schedule; used if `warmup` is 0."""

    def warmup_steps(self, per_unit: int, end: int) -> int:
        return super().warmup_steps(per_unit, end) or round(self.warmup_share * end)

    def curve(self, t: float) -> float:
        return 1 - t


class RangeTest(Schedule):
    """Raises the rate from `start` to `end` in `num_steps` steps, by a constant factor per step.

    It replaces `optimizer.lr`.

    Source: Smith, https://arxiv.org/abs/1506.01186, with an exponential instead of a linear rise.
    """

    # `lr_find` replaces the schedule of a preset, whose settings then stay in the description: they are ignored.
    model_config = pydantic.ConfigDict(extra="ignore")

    start: PositiveFloat = 1e-6
    """First learning rate."""
    end: PositiveFloat = 10.0
    """Last learning rate."""
    num_steps: Positive = 100
    """Number of steps from the first to the last learning rate."""

    def build(self, base_lr: float, steps_per_epoch: int, total_steps: Optional[int]) -> Callable[[int], float]:
        ratio, last = self.end / self.start, max(self.num_steps - 1, 1)
        return lambda step: self.start * ratio ** (min(step, last) / last)
