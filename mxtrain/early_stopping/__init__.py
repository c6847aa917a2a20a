"""Stops a run when what it monitors no longer gets better."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Callable, Mapping, Optional

from mxtrain.ranking import VAL_LOSS, is_perfect
from mxtrain.types import Finite, NonNegativeFloat, Positive, Spec

if TYPE_CHECKING:
    from mxtrain.annotations import Json, JsonObject


class StoppingRule(Spec):
    """Decides after each validation whether a run goes on; this one never ends it."""

    @property
    def monitored(self) -> str:
        """The tag of the value that it looks at; empty: none."""
        return ""

    def check(
        self, values: Mapping[str, float], state: JsonObject, direction_of: Callable[[str], str]
    ) -> Mapping[str, Json]:
        """The state after one more validation.

        Args:
            values: loss and metrics by tag, e.g. {"val/accuracy": 0.9}.
            state: what this returned last; empty at first.
            direction_of: "max" or "min" by a metric's name.
        """
        return {}

    def reason(self, state: JsonObject) -> str:
        """The sentence that says why the run stops in this state, or an empty string."""
        return ""


class EarlyStopping(StoppingRule):
    """Stop after `patience` validations without an improvement of more than `min_delta`.

    While the value is still that of the first validation, a validation with the lowest val/loss so far is an
    improvement too: a score of exact hits stays at 0 while the network learns what leads to the first hit.

    The direction is the metric's own. The state lives in `TrainState.early_stopping`, so that it survives a resume.
    """

    monitor: str = "val/accuracy"
    """A value that is measured; whether larger or smaller is better follows from the metric."""
    patience: Positive = 15
    """Validations without improvement before the run is stopped; while the value has never changed, a lower val/loss is
    an improvement, too."""
    min_delta: NonNegativeFloat = 0.0
    """The least change that counts as an improvement."""
    baseline: Optional[Finite] = None
    """A value that has to be beaten for a first improvement to count."""
    threshold: Optional[Finite] = None
    """A value that is good enough: a validation that reaches it ends the run, e.g. the return at which an environment
    counts as solved."""

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
        unmoved = {} if is_perfect(value, direction) else _note_first(value, values.get(VAL_LOSS), state)
        best = state.get("best", self.baseline)
        reached = {"reached": True} if self.threshold is not None and sign * value >= sign * self.threshold else {}
        if math.isfinite(value) and (best is None or sign * value > sign * best + self.min_delta):
            return {"best": value, "waited": 0, "last": value, **reached, **unmoved}
        kept = {"best": state["best"]} if "best" in state else {}
        loss_fell = bool(unmoved) and unmoved["loss"] != state.get("loss")
        waited = 0 if loss_fell else int(state.get("waited", 0)) + 1
        return {**kept, "waited": waited, "last": value, **reached, **unmoved}

    def reason(self, state: JsonObject) -> str:
        """See `StoppingRule.reason`."""
        if self.threshold is not None and state.get("reached"):
            return f"{self.monitor} has reached {state['last']:.6g} (threshold {self.threshold:.6g})"
        waited = state.get("waited", 0)
        if waited < self.patience:
            return ""
        kind, best = ("best", state["best"]) if "best" in state else ("baseline", self.baseline)
        shown = "none" if best is None else f"{best:.6g}"
        return f"{self.monitor} has not improved for {waited} validations ({kind} {shown}, last {state['last']:.6g})"


def _note_first(value: float, loss: Optional[float], state: JsonObject) -> Mapping[str, Json]:
    """The first value and the lowest loss, while all values are the first; else nothing."""
    is_first = not state
    if not math.isfinite(value) or not (is_first or state.get("first") == value):
        return {}
    lowest = state.get("loss")
    if loss is not None and math.isfinite(loss) and (lowest is None or loss < lowest):
        lowest = loss
    return {"first": value, "loss": lowest}


class NoEarlyStopping(StoppingRule):
    """Never stops."""
