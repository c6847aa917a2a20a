"""Learning rate and warm-up of a run whose global batch is another one than they were tuned for.

Source: the linear rule, and a warm-up that is counted in samples, are those of Goyal et al., "Accurate, Large Minibatch
SGD", https://arxiv.org/abs/1706.02677; the square root is that of Malladi et al., "On the SDEs and Scaling Rules for
Adaptive Gradient Algorithms", https://arxiv.org/abs/2205.10287, who scale Adam's betas and epsilon, too, which is not
done here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Dict, Optional

import pydantic

from mxtrain.errors import ConfigError
from mxtrain.lr_scheduler.schedules import Schedule

if TYPE_CHECKING:
    from mxtrain.annotations import Json

RULES = {"linear": lambda ratio: ratio, "sqrt": math.sqrt}
"""The factor of the learning rate by that of the batch."""


@dataclass(frozen=True)
class LearningRates:
    """The base learning rate and the schedule that a run trains with.

    Attributes:
        lr: before schedule and parameter groups.
        schedule: with the run's own warm-up.
        remark: what was scaled, in a line; empty if nothing was.
        facts: the same as JSON.
    """

    lr: float
    schedule: Schedule
    remark: str = ""
    facts: Dict[str, Json] = field(default_factory=dict)


def scale_rates(
    lr: float, schedule: Schedule, *, batch_size: int, reference: Optional[int], rule: Optional[str], optimizer: str
) -> LearningRates:  # fmt: skip
    """Learning rate and schedule for `batch_size`.

    A warm-up in epochs, or in a share of the run, covers the same samples as it is; one in steps takes more of them
    where a step has fewer samples. Other lengths in steps stay, as the run's own length in steps does.

    Args:
        lr: for the reference.
        schedule: likewise.
        batch_size: of the run.
        reference: the batch size they were tuned for; None = this one.
        rule: "linear" or "sqrt"; None if no rule is known for the optimizer.
        optimizer: its name, for messages.

    Raises:
        ConfigError: there is no rule, or the schedule falls within its warm-up then.
    """
    if reference is None or reference == batch_size:
        return LearningRates(lr, schedule)
    if rule is None:
        raise ConfigError(
            f"trainer.reference_batch_size={reference}: no rule is known by which the learning rate of {optimizer} "
            f"follows the batch (here {batch_size}). Type trainer.lr_scaling=linear or sqrt, or "
            "trainer.reference_batch_size=null."
        )
    ratio = batch_size / reference
    scaled = lr * RULES[rule](ratio)
    remark = f"learning rate {lr:.6g} for a batch of {reference}, {scaled:.6g} for this one of {batch_size} ({rule})"
    facts: Dict[str, Json] = {
        "reference_batch_size": reference, "batch_size": batch_size, "rule": rule, "reference_lr": lr, "lr": scaled,
    }  # fmt: skip
    if schedule.warmup and schedule.unit == "steps":
        warmup = schedule.warmup / ratio
        remark += f"; warm-up {schedule.warmup:.6g} -> {warmup:.6g} steps"
        facts.update(reference_warmup=schedule.warmup, warmup=warmup)
        schedule = _with_warmup(schedule, warmup)
    return LearningRates(scaled, schedule, remark, facts)


def _with_warmup(schedule: Schedule, warmup: float) -> Schedule:
    try:
        return type(schedule).model_validate({**schedule.model_dump(), "warmup": warmup})
    except pydantic.ValidationError as error:
        said = str(error.errors()[0].get("ctx", {}).get("error", error))
        raise ConfigError(
            f"lr_scheduler.warmup={schedule.warmup:g} steps for trainer.reference_batch_size becomes {warmup:g} steps: "
            f"{said}."
        ) from None
