"""Suggests settings for runs that failed."""

from __future__ import annotations

from mxtrain.amp.spec import FULL
from mxtrain.config.groups import Description


def less_memory(description: Description) -> str:
    """Returns the settings that reduce the memory of a step on each device."""
    setting, size = description.dataset.batch_unit
    num_parts = description.trainer.grad_accumulation
    precision_hint = "" if description.amp.dtype != FULL.dtype else ", amp=bfloat16 on CPUs or amp=float16 on GPUs"
    recompute_hint = ", parallel.recompute=auto" if description.parallel.recompute == "off" else ""
    return (
        f"A step takes dataset.{setting}={size} in trainer.grad_accumulation={num_parts} parts: "
        f"trainer.grad_accumulation={2 * num_parts} gives the same gradient in about half the memory. What else helps: "
        f"a lower dataset.{setting}{recompute_hint}, parallel=data over more devices{precision_hint}; where it "
        f"fails while it validates, a lower dataset.eval_batch_size than {description.dataset.eval_batch_size}."
    )
