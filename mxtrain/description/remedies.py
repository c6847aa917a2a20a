"""Says what to set where a run could not do what its description asks for."""

from __future__ import annotations

from mxtrain.amp import FULL
from mxtrain.description.groups import Description


def less_memory(description: Description) -> str:
    """Returns the settings that reduce the memory of a step on each device."""
    setting, size = description.dataset.batch_unit
    parts = description.trainer.grad_accumulation
    half = "" if description.amp.dtype != FULL.dtype else ", amp=bfloat16 on CPUs or amp=float16 on GPUs"
    return (
        f"A step takes dataset.{setting}={size} in trainer.grad_accumulation={parts} parts: "
        f"trainer.grad_accumulation={2 * parts} gives the same gradient in about half the memory. What else helps: "
        f"a lower dataset.{setting}, parallel=data over more devices{half}; where it fails while it validates, a lower "
        f"dataset.eval_batch_size than {description.dataset.eval_batch_size}."
    )
