"""Measures the validation split in the middle of training, and remembers what was best."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Callable, List, Optional

from mxtrain.process.stopping import PassInterrupted, Stop
from mxtrain.ranking import VAL_LOSS, rank, should_warn_unmoved, track_unmoved, unmoved_warning
from mxtrain.training import snapshot
from mxtrain.training.agreement import Agreement
from mxtrain.training.context import RunContext
from mxtrain.training.evaluate import BreakableLoader
from mxtrain.training.recorder import Recorder
from mxtrain.training.state import NOT_MEASURED, LoopValues, TrainState
from mxtrain.types import Artifact, Progress, Validation

if TYPE_CHECKING:
    from mxtrain.early_stopping import StoppingRule


class Validator:
    """Validates.

    Args:
        run: objects of the run.
        direction: the name of a metric -> "max" or "min".
        early_stopping: its description.
    """

    def __init__(self, run: RunContext, direction: Callable[[str], str], early_stopping: StoppingRule):
        self._step, self._plan, self._data, self._evaluator = run.step, run.plan, run.data, run.evaluator
        self._direction, self._early_stopping = direction, early_stopping
        self._signals, self._callbacks, self._actions = run.signals, run.callbacks, run.actions
        self.broken_off: Optional[Stop] = None
        """Why the last validation was broken off."""

    def finds_best(
        self, state: TrainState, recorder: Recorder, agreement: Agreement, measured: LoopValues = NOT_MEASURED
    ) -> bool:  # fmt: skip
        """Validates; whether the weights are the best so far, and are to be kept whatever the cadence says.
        Arguments as `validate`."""
        if not self.validate(state, recorder, agreement, measured) or not self._plan.keeps_best:
            return False
        return state.best is not None and state.best["step"] == state.step

    def validate(self, state: TrainState, recorder: Recorder, agreement: Agreement, measured: LoopValues) -> bool:
        """Measures the validation split, unless that was done at this step. A signal breaks it off; it stays due.

        Args:
            state: counters of the run; gets the values.
            recorder: of the training steps.
            agreement: of the workers, on a signal that one of them saw.
            measured: what need not be measured again, and what the row has besides.

        Returns:
            Whether it was measured now.
        """
        if state.validated_step == state.step or self._data.val is None:
            return False
        state.validation_due = True  # until it is done, whatever comes between
        self._step.synchronize()
        snapshot.require_same_weights(self._step, state.step)
        with self._step.average.applied():
            try:
                values = measured.values or self._evaluator.measure(
                    BreakableLoader(self._data.val, self._signals), workers=self._step.store
                )
                values = {**values, **measured.more}
            except PassInterrupted:
                self.broken_off = agreement.now(self._signals.stop)
                return False
            found = {f"val/{name}": value for name, value in values.items() if name != "samples_per_s"}
            trained = {f"train/{name}": value for name, value in recorder.epoch_values().items()}
            state.values = self._step.store.agree({**found, **trained})
            if self._actions.ranks_validations:
                self._note_best(state)
            state.validated_step, state.validation_due = state.step, False
            part = {"part": self._data.val.coverage} if self._data.val.coverage else {}
            validation = Validation(
                row={"step": state.step, "epoch": state.epoch_number, "split": "val", **values, **part},
                best=state.best,
                read_samples=self._show_samples,
                read_parameters=lambda: snapshot.copy_parameters(self._step.strategy, with_remote=False),
            )
            self._callbacks.notify(
                "on_validation", validation, Progress(state.step, state.epoch, self._plan.total_steps)
            )
        self._actions.after_validation(state)  # with the live weights in place again
        if should_warn_unmoved(state.unmoved, state.step, self._plan.total_steps):
            remark = unmoved_warning(self._plan.monitor, self._plan.direction, state.unmoved)
            if remark:
                self._callbacks.notify("on_message", f"{remark}.")
        return True

    def _show_samples(self) -> List[Artifact]:
        return self._data.samples.artifacts(self._evaluator) if self._data.samples is not None else []

    def _note_best(self, state: TrainState) -> None:
        plan = self._plan
        value, loss = state.values[plan.monitor], state.values.get(VAL_LOSS)
        if loss is not None and not math.isfinite(loss):
            loss = None
        best = state.best
        if best is not None and best["metric"] != plan.monitor:
            best, state.unmoved = None, {}
        if math.isfinite(value) and (
            best is None
            or rank(value, loss, state.step, plan.direction)
            < rank(best["value"], best.get("loss"), best["step"], plan.direction)
        ):
            best = {"metric": plan.monitor, "value": value, "step": state.step, "loss": loss}
        state.best, state.unmoved = best, track_unmoved(state.unmoved, value, loss)
        state.early_stopping = self._early_stopping.check(state.values, state.early_stopping, self._direction)
