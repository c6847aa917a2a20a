"""Ranking of validations: by the monitored value, then by lower validation loss, then by later step.

Metrics of exact hits (BLEU, average precision, exact match) are 0 for a long time at the beginning of training. Without
the second criterion, the first and least trained checkpoint of such a run would be the best one.
"""

from __future__ import annotations

import math
from typing import Dict, Mapping, Optional, Tuple, Union

VAL_LOSS = "val/loss"
"""Tag of the validation loss, which ranks validations with equal monitored values."""
WARN_AFTER = 3
"""Number of validations with the same value, counted from the first one, after which a run warns."""

ROUNDING = 1e-7
"""Relative tolerance for bounds on metrics: the error of rounding to float32."""
MIN_DECREASE = 1e-3
"""Relative decrease of the loss from which the warning says that the network learns."""

Unmoved = Dict[str, Union[int, float, None]]
"""Record of `track_unmoved`, saved in checkpoints: {"value", "validations", "first_loss", "loss"} while all validations
had the same value; {"undefined": 1, "validations"} while none had a finite value; {"moved": 1} otherwise."""


def rank(value: float, loss: Optional[float], step: int, direction: str) -> Tuple[float, float, int]:
    """Returns a sort key of a validation; smaller keys are better.

    Args:
        value: monitored value, finite.
        loss: loss of the same validation; None or a non-finite loss is worse than any other.
        step: step of the validation.
        direction: "max" if larger values are better, otherwise "min".
    """
    # Of equal validations the later one is better: its weights were trained for longer.
    is_known = loss is not None and math.isfinite(loss)
    return (-value if direction == "max" else value), (float(loss or 0.0) if is_known else math.inf), -step


def is_perfect(value: float, direction: str) -> bool:
    """Returns True if a value cannot improve: an error of 0, a rate of 1 or a score of 100 in percent."""
    return value == 0.0 if direction == "min" else value in (1.0, 100.0)


def track_unmoved(before: Mapping[str, Union[int, float, None]], value: float, loss: Optional[float]) -> Unmoved:
    """Records after a validation if the monitored value has ever changed.

    Args:
        before: previous result of this function; empty at first.
        value: monitored value of this validation.
        loss: loss of this validation, or None.
    """
    count = int(before.get("validations") or 0) + 1
    if not math.isfinite(value) and (not before or "undefined" in before):
        return {"undefined": 1, "validations": count}
    # `before` stays {"moved": 1} because its missing value differs from every value.
    if before and before.get("value") != value or not math.isfinite(value):
        return {"moved": 1}
    first_loss = before["first_loss"] if before else loss
    return {"value": value, "validations": count, "first_loss": first_loss, "loss": loss}


def should_warn_unmoved(unmoved: Mapping[str, Union[int, float, None]], step: int, total_steps: Optional[int]) -> bool:
    """Returns True if a run should warn now that the value never changed: after `WARN_AFTER` validations."""
    return unmoved.get("validations") == WARN_AFTER and step != total_steps


def undefined_monitor(monitor: str, count: int, effect: str, setting: str) -> str:
    """Returns a warning about a monitored value that no validation defined.

    Args:
        monitor: tag of the value.
        count: number of validations.
        effect: the consequence, a clause.
        setting: setting that names the value.
    """
    times = f"each of the {count} validations" if count > 1 else "the only validation"
    return (
        f"{monitor} was no finite number at {times} so far, {effect}. Monitor a value that the validation samples "
        f"define, e.g. {setting}={VAL_LOSS}"
    )


def unmoved_warning(monitor: str, direction: str, unmoved: Mapping[str, Union[int, float, None]]) -> str:
    """Returns a warning that the monitored value has never changed or been a number; empty if it has.

    A single validation gives no warning, unless it has no finite value, or its value is 0 and larger values are better.
    """
    value, count = unmoved.get("value"), int(unmoved.get("validations") or 0)
    if "undefined" in unmoved:
        effect = "so no checkpoint is the best, and the last one counts"
        return undefined_monitor(monitor, count, effect, "trainer.monitor")
    if value is None or is_perfect(value, direction) or not (count > 1 or (direction == "max" and value == 0.0)):
        return ""
    times = f"each of the {count} validations" if count > 1 else "the only validation"
    said = f"{monitor} was {value:.6g} at {times} so far, so it says nothing of which weights are better"
    if monitor == VAL_LOSS:
        return f"{said}: nothing is learned. Check the data (data check) and the learning rate (optimizer.lr)"
    first, last = unmoved.get("first_loss"), unmoved.get("loss")
    if first is None or last is None or not (math.isfinite(first) and math.isfinite(last)):
        return f"{said}. The last checkpoint counts as the best"
    said += f". The checkpoint with the lowest {VAL_LOSS} counts as the best"
    if count == 1:
        return f"{said}. Train longer, or monitor the loss: trainer.monitor={VAL_LOSS}"
    change = f"{VAL_LOSS} went from {first:.6g} to {last:.6g}"
    if first - last > MIN_DECREASE * abs(first):
        return f"{said}. {change}: train longer, or monitor the loss (trainer.monitor={VAL_LOSS})"
    return f"{said}. {change}: check the data (data check) and the learning rate (optimizer.lr)"
