"""Settings of the group `lr_scheduler`: the base class of learning-rate schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, ClassVar, List, Literal, Optional

from mxtrain.errors import ConfigError
from mxtrain.types import Fraction, NonNegativeFloat, Spec

if TYPE_CHECKING:
    from mxtrain.callback.action import Action


class Schedule(Spec):
    """Base class of schedules: a constant rate after an optional linear warm-up. Subclasses override `factor`.

    Lengths are in `unit`s, counted from the start of the run, warm-up included.
    """

    unit: Literal["epochs", "steps"] = "epochs"
    """Unit of all lengths."""
    warmup: NonNegativeFloat = 0.0
    """Length of the linear warm-up."""
    warmup_from: Fraction = 0.0
    """Initial learning rate of the warm-up, as a fraction of the base learning rate."""

    needs_end: ClassVar[bool] = False
    """True if the rate depends on the length of the run."""
    follows_warmup: ClassVar[bool] = False
    """True if the decay begins at the end of the warm-up, so that the two cannot overlap."""

    @property
    def monitored(self) -> str:
        """Returns the tag of the monitored value, e.g. `val/accuracy`; empty if the schedule monitors none."""
        return ""

    def build_action(self) -> Optional[Action]:
        """Builds the action that changes the rate during the run; None if the rate is a function of the step alone."""
        return None

    def build(self, base_lr: float, steps_per_epoch: int, total_steps: Optional[int]) -> Callable[[int], float]:
        """Returns a function that maps the number of finished steps to the learning rate.

        Args:
            base_lr: learning rate at factor 1.
            steps_per_epoch: optimizer steps in an epoch.
            total_steps: steps of the whole run; None if only a time limit ends it.

        Raises:
            ConfigError: the schedule depends on the length of the run, which is unknown.
        """
        per_unit = steps_per_epoch if self.unit == "epochs" else 1
        end = self.end_steps(per_unit, total_steps)
        warmup_steps = self.warmup_steps(per_unit, end)

        def lr(step: int) -> float:
            if step < warmup_steps:
                # step + 1: with `warmup_from=0` the first step would otherwise have a rate of 0 and change nothing.
                return base_lr * (self.warmup_from + (1 - self.warmup_from) * (step + 1) / warmup_steps)
            return base_lr * self.factor(step, warmup_steps, end, per_unit)

        return lr

    def warnings(self, steps_per_epoch: int, total_steps: Optional[int]) -> List[str]:
        """Returns warnings about the schedule in a run of this length, a sentence each."""
        if total_steps is None:
            return []
        per_unit = steps_per_epoch if self.unit == "epochs" else 1
        end = self.end_steps(per_unit, total_steps)
        warmup = self.warmup_steps(per_unit, end)
        if warmup > total_steps:
            setting = f"lr_scheduler.warmup={self.warmup:g} {self.unit}" if self.warmup else "lr_scheduler: the warm-up"
            reached = self.warmup_from + (1 - self.warmup_from) * total_steps / warmup
            return [
                f"{setting} ({warmup} steps) is longer than the run ({total_steps} steps), in which the rate rises to "
                f"{reached:.2g} of optimizer.lr only."
            ]
        problems = self.late_changes(per_unit, total_steps)
        may_drop = warmup and warmup < total_steps and not self.follows_warmup
        if may_drop and self.factor(warmup, warmup, end, per_unit) < 1:
            problems.append(
                f"lr_scheduler.warmup={self.warmup:g} {self.unit}: the rate falls within the warm-up already, and "
                f"drops to {self.factor(warmup, warmup, end, per_unit):.2g} of optimizer.lr right after it."
            )
        if warmup < total_steps and self.factor(total_steps - 1, warmup, end, per_unit) == 0:
            last = next(step for step in range(warmup, total_steps) if not self.factor(step, warmup, end, per_unit))
            problems.append(
                f"lr_scheduler: the rate is 0 from step {last + 1} of {total_steps} on, so nothing is learned after it."
            )
        return problems

    def late_changes(self, per_unit: int, total_steps: int) -> List[str]:
        """Returns warnings about changes of the rate after the end of the run."""
        return []

    def warmup_steps(self, per_unit: int, end: int) -> int:
        """Returns the number of warm-up steps."""
        return round(self.warmup * per_unit)

    def end_steps(self, per_unit: int, total_steps: Optional[int]) -> int:
        """Returns the step at which the decay ends; 0 if the run has an unknown length that is not needed.

        Raises:
            ConfigError: the schedule needs the length of the run, which is unknown.
        """
        if self.needs_end and total_steps is None:
            raise ConfigError(
                "lr_scheduler: this schedule needs to know how long the run is, and neither trainer.max_epochs nor "
                "trainer.max_steps says so. Set one of them, or lr_scheduler.duration."
            )
        return total_steps or 0

    def factor(self, step: int, warmup_steps: int, end: int, per_unit: int) -> float:
        """Returns the factor of the base learning rate at a step after the warm-up.

        Args:
            step: number of finished steps, at least `warmup_steps`.
            warmup_steps: number of warm-up steps.
            end: step at which the decay ends, see `end_steps`.
            per_unit: steps in one `unit`.
        """
        return 1.0
