"""Stops a run when what it monitors no longer gets better."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Callable, Mapping, Optional

import pydantic
from typing_extensions import Annotated

from mxtrain.types import NonNegativeFloat, Positive, Spec

if TYPE_CHECKING:
    from mxtrain.annotations import Json, JsonObject

Finite = Annotated[float, pydantic.Field(allow_inf_nan=False)]


class StoppingRule(Spec):
    """Decides after each validation whether a run goes on; this one never ends it."""

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

    The direction is the metric's own. The state lives in `TrainState.early_stopping`, so that it survives a resume.
    """

    monitor: str = "val/accuracy"
    patience: Positive = 15
    """Validations without improvement before the run is stopped."""
    min_delta: NonNegativeFloat = 0.0
    """The least change that counts as an improvement."""
    baseline: Optional[Finite] = None
    """A value that has to be beaten for a first improvement to count."""
    threshold: Optional[Finite] = None
    """A value that is good enough: a validation that reaches it ends the run, e.g. the return at which an environment
    counts as solved."""

    def check(
        self, values: Mapping[str, float], state: JsonObject, direction_of: Callable[[str], str]
    ) -> Mapping[str, Json]:
        """See `StoppingRule.check`."""
        value = values[self.monitor]
        sign = 1.0 if direction_of(self.monitor.split("/", 1)[1]) == "max" else -1.0
        best = state.get("best", self.baseline)
        reached = {"reached": True} if self.threshold is not None and sign * value >= sign * self.threshold else {}
        if math.isfinite(value) and (best is None or sign * value > sign * best + self.min_delta):
            return {"best": value, "waited": 0, "last": value, **reached}
        kept = {"best": state["best"]} if "best" in state else {}
        return {**kept, "waited": int(state.get("waited", 0)) + 1, "last": value, **reached}

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


class NoEarlyStopping(StoppingRule):
    """Never stops."""
