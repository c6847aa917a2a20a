"""Stops a run when the monitored value no longer improves.

A new lowest `val/loss` counts as an improvement only while the monitored value is that of the first validation: exact
metrics are 0 for a long time.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Callable, Mapping, Optional

from mxtrain.checkpoint.ranking import ROUNDING, VAL_LOSS, is_perfect, undefined_monitor
from mxtrain.types import Finite, NonNegativeFloat, Positive, Spec

if TYPE_CHECKING:
    from mxtrain.types.annotations import Json, JsonObject


class StoppingRule(Spec):
    """Base class of rules that decide after each validation if a run stops. This one never stops it."""

    @property
    def monitored(self) -> str:
        """Tag of the monitored value, e.g. "val/accuracy"; empty if there is none."""
        return ""

    def check(
        self, values: Mapping[str, float], state: JsonObject, direction_of: Callable[[str], str]
    ) -> Mapping[str, Json]:
        """Returns the state after one more validation.

        Args:
            values: loss and metrics by tag, e.g. {"val/accuracy": 0.9}.
            state: previous result of this method; empty at first.
            direction_of: returns "max" or "min" for the name of a metric.
        """
        return {}

    def reason(self, state: JsonObject) -> str:
        """Returns the reason to stop in this state as a sentence; empty to continue."""
        return ""


class EarlyStopping(StoppingRule):
    """Stop after `patience` validations without an improvement of more than `min_delta`.

    While the value is still that of the first validation, a validation with the lowest val/loss so far is an
    improvement, too: scores of exact matches, such as BLEU, stay at 0 for a long time at the beginning of training.

    The metric determines if larger or smaller values are better. The state is in `TrainState.early_stopping`, so that a
    resumed run continues to count.
    """

    monitor: str = "val/accuracy"
    """Tag of the monitored value; the metric determines if larger or smaller is better."""
    patience: Positive = 15
    """Validations without improvement before the run is stopped; while the value has never changed, a lower val/loss is
    an improvement, too."""
    min_delta: NonNegativeFloat = 0.0
    """Minimum change that counts as an improvement."""
    baseline: Optional[Finite] = None
    """Value that the first improvement must exceed; null = any value."""
    threshold: Optional[Finite] = None
    """Target value: the run stops after the first validation that reaches it, e.g. the return at which an environment
    counts as solved; null = none."""

    @property
    def monitored(self) -> str:
        return self.monitor

    def check(
        self, values: Mapping[str, float], state: JsonObject, direction_of: Callable[[str], str]
    ) -> Mapping[str, Json]:
        """See `StoppingRule.check`."""
        value = values[self.monitor]
        direction = direction_of(self.monitor.split("/", 1)[1])
        sign = 1.0 if direction == "max" else -1.0
        # A falling loss must not prolong a run whose value cannot improve.
        unchanged = {} if is_perfect(value, direction) else _state_while_unchanged(value, values.get(VAL_LOSS), state)
        best = state.get("best", self.baseline)
        reached = {"reached": True} if self._reaches_threshold(sign * value, sign) else {}
        # 0.81 - 0.80 is above 0.01 in floating point, and 0.94 - 0.93 below.
        margin = self.min_delta + ROUNDING * abs(value) if self.min_delta else 0.0
        if math.isfinite(value) and (best is None or sign * value > sign * best + margin):
            return {"best": value, "waited": 0, "last": value, **reached, **unchanged}
        kept = {"best": state["best"]} if "best" in state else {}
        loss_fell = bool(unchanged) and unchanged["loss"] != state.get("loss")
        waited = 0 if loss_fell else int(state.get("waited", 0)) + 1
        return {**kept, "waited": waited, "last": value, **reached, **unchanged}

    def _reaches_threshold(self, value: float, sign: float) -> bool:
        """Returns True if the threshold is reached.

        Args:
            value: monitored value, multiplied by `sign` so that larger is better.
            sign: 1.0 if larger values of the metric are better, else -1.0.
        """
        threshold = self.threshold
        return threshold is not None and value >= sign * threshold - ROUNDING * abs(threshold)

    def reason(self, state: JsonObject) -> str:
        """See `StoppingRule.reason`."""
        if self.threshold is not None and state.get("reached"):
            return f"{self.monitor} has reached {state['last']:.6g} (threshold {self.threshold:.6g})"
        waited = state.get("waited", 0)
        if waited < self.patience:
            return ""
        if "best" not in state and self.baseline is None:
            return undefined_monitor(self.monitor, waited, "so it cannot improve", "early_stopping.monitor")
        kind, best = ("best", state["best"]) if "best" in state else ("baseline", self.baseline)
        return f"{self.monitor} has not improved for {waited} validations ({kind} {best:.6g}, last {state['last']:.6g})"


def _state_while_unchanged(value: float, loss: Optional[float], state: JsonObject) -> Mapping[str, Json]:
    """Returns the first value and the lowest loss if all values so far are equal; otherwise an empty mapping."""
    is_first = not state
    if not math.isfinite(value) or not (is_first or state.get("first") == value):
        return {}
    lowest = state.get("loss")
    if loss is not None and math.isfinite(loss) and (lowest is None or loss < lowest):
        lowest = loss
    return {"first": value, "loss": lowest}


class NoEarlyStopping(StoppingRule):
    """Never stops."""
