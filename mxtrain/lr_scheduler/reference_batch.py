"""Scales the learning rate and the warm-up when the global batch size differs from the one that they were tuned for.

Sources: Goyal et al., "Accurate, Large Minibatch SGD", https://arxiv.org/abs/1706.02677, for the linear rule and the
warm-up counted in samples; Malladi et al., "On the SDEs and Scaling Rules for Adaptive Gradient Algorithms",
https://arxiv.org/abs/2205.10287, for the square-root rule. Malladi et al. also scale Adam's betas and epsilon; mxtrain
does not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Dict, Optional

import pydantic

from mxtrain.errors import ConfigError
from mxtrain.lr_scheduler.spec import Schedule

if TYPE_CHECKING:
    from mxtrain.types.annotations import Json

RULES = {"linear": lambda ratio: ratio, "sqrt": math.sqrt}
"""Rule -> function that computes the factor of the learning rate from the factor of the batch size."""


@dataclass(frozen=True)
class LearningRates:
    """Base learning rate and schedule of a run.

    Attributes:
        lr: learning rate before the schedule and the multipliers of parameter groups.
        schedule: schedule with the scaled warm-up.
        remark: one line that describes the scaling; empty if nothing was scaled.
        facts: the content of `remark` as JSON.
    """

    lr: float
    schedule: Schedule
    remark: str = ""
    facts: Dict[str, Json] = field(default_factory=dict)


def scale_rates(
    lr: float, schedule: Schedule, *, batch_size: int, reference: Optional[int], rule: Optional[str], optimizer: str
) -> LearningRates:
    """Returns the learning rate and the schedule for `batch_size`.

    The warm-up always covers the same number of samples: a length in steps is divided by the ratio of the batch sizes;
    a length in epochs or as a share of the run needs no change. Other lengths in steps are not scaled, like
    `trainer.max_steps`.

    Args:
        lr: learning rate tuned for the batch size `reference`.
        schedule: schedule tuned for the batch size `reference`.
        batch_size: global batch size of the run.
        reference: global batch size that `lr` and `schedule` were tuned for; None = `batch_size`.
        rule: "linear" or "sqrt"; None if no rule is known for the optimizer.
        optimizer: name of the optimizer, for messages.

    Raises:
        ConfigError: no rule is given, or the scaled warm-up is longer than the schedule.
    """
    if reference is None or reference == batch_size:
        return LearningRates(lr, schedule)
    if rule is None:
        raise ConfigError(
            f"trainer.reference_batch_size={reference}: no rule is known that scales the learning rate of {optimizer} "
            f"to a batch size of {batch_size}. Type trainer.lr_scaling=linear or sqrt, or "
            "trainer.reference_batch_size=null."
        )
    ratio = batch_size / reference
    scaled = lr * RULES[rule](ratio)
    remark = f"learning rate scaled from {lr:.6g} (batch size {reference}) to {scaled:.6g} ({batch_size}; {rule} rule)"
    facts: Dict[str, Json] = {
        "reference_batch_size": reference,
        "batch_size": batch_size,
        "rule": rule,
        "reference_lr": lr,
        "lr": scaled,
    }
    if schedule.warmup and schedule.unit == "steps":
        warmup = schedule.warmup / ratio
        remark += f"; warm-up {schedule.warmup:.6g} -> {warmup:.6g} steps"
        facts.update(reference_warmup=schedule.warmup, warmup=warmup)
        schedule = _with_warmup(schedule, warmup)
    return LearningRates(scaled, schedule, remark, facts)


def _with_warmup(schedule: Schedule, warmup: float) -> Schedule:
    # Not `model_copy`, which would skip the checks of warm-up against duration.
    try:
        return type(schedule).model_validate({**schedule.model_dump(), "warmup": warmup})
    except pydantic.ValidationError as error:
        reason = str(error.errors()[0].get("ctx", {}).get("error", error))
        raise ConfigError(
            f"lr_scheduler.warmup={schedule.warmup:g} steps for trainer.reference_batch_size becomes {warmup:g} steps: "
            f"{reason}."
        ) from None
