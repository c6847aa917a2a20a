"""Learning-rate range test: the rate rises exponentially."""

from __future__ import annotations

from typing import Callable, Optional

import pydantic

from mxtrain.lr_scheduler.spec import Schedule
from mxtrain.types import Positive, PositiveFloat


class RangeTest(Schedule):
    """Raises the rate from `start` to `end` in `num_steps` steps, by a constant factor per step.

    It replaces `optimizer.lr`.

    Source: Smith, https://arxiv.org/abs/1506.01186, with an exponential instead of a linear rise.
    """

    # Settings of the schedule that a preset chose have no meaning here.
    model_config = pydantic.ConfigDict(extra="ignore")

    start: PositiveFloat = 1e-6
    """First learning rate."""
    end: PositiveFloat = 10.0
    """Last learning rate."""
    num_steps: Positive = 100
    """Steps from one to the other."""

    def build(self, base_lr: float, steps_per_epoch: int, total_steps: Optional[int]) -> Callable[[int], float]:
        ratio, last = self.end / self.start, max(self.num_steps - 1, 1)
        return lambda step: self.start * ratio ** (min(step, last) / last)
