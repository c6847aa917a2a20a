"""Evaluates the validation split during training, and tracks the best result."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Callable, Dict, List, Optional

from mxtrain.callback.protocol import Progress, Validation
from mxtrain.checkpoint.ranking import VAL_LOSS, rank, should_warn_unmoved, track_unmoved, unmoved_warning
from mxtrain.cluster.stopping import PassInterrupted, Stop
from mxtrain.training import snapshot
from mxtrain.training.agreement import Agreement
from mxtrain.training.context import RunContext
from mxtrain.training.evaluate import BreakableLoader
from mxtrain.training.recorder import Recorder
from mxtrain.training.state import NOT_MEASURED, LoopValues, TrainState
from mxtrain.types import Artifact

if TYPE_CHECKING:
    from mxtrain.early_stopping.spec import StoppingRule
    from mxtrain.kvstore.store import Store


class Validator:
    """Evaluates the validation split and updates the best value and early stopping in the state.

    Args:
        run: objects of the run.
        direction: maps the name of a metric to "max" or "min".
        early_stopping: rule of early stopping.
    """

    def __init__(self, run: RunContext, direction: Callable[[str], str], early_stopping: StoppingRule):
        self._step, self._plan, self._data, self._evaluator = run.step, run.plan, run.data, run.evaluator
        self._direction, self._early_stopping = direction, early_stopping
        self._signals, self._callbacks, self._actions = run.signals, run.callbacks, run.actions
        self.interrupted_by: Optional[Stop] = None
        """Reason for which the last validation was interrupted."""

    def finds_best(
        self, state: TrainState, recorder: Recorder, agreement: Agreement, measured: LoopValues = NOT_MEASURED
    ) -> bool:
        """Validates; returns True if the weights are the best so far and must be saved regardless of the cadence.

        Arguments as for `validate`.
        """
        if not self.validate(state, recorder, agreement, measured) or not self._plan.keeps_best:
            return False
        return state.best is not None and state.best["step"] == state.step

    def validate(self, state: TrainState, recorder: Recorder, agreement: Agreement, measured: LoopValues) -> bool:
        """Evaluates the validation split, unless this was done at this step. After a signal it remains due.

        Args:
            state: counters of the run; updated with the values.
            recorder: recorder of the training steps.
            agreement: agreement of the workers about a signal that one of them received.
            measured: values that are already known, and further values for the row.

        Returns:
            True if the split was evaluated now.
        """
        if state.validated_step == state.step or self._data.val is None:
            return False
        state.validation_due = True  # stays True if an exception or a signal interrupts the evaluation
        # Workers that take independent steps have different weights until they synchronise, and the next check compares
        # the weights.
        with self._step.synchronized():
            if not self._measure(state, recorder, agreement, measured):
                return False
        self._actions.after_validation(state)  # with the live weights in place again
        if should_warn_unmoved(state.unmoved, state.step, self._plan.total_steps):
            remark = unmoved_warning(self._plan.monitor, self._plan.direction, state.unmoved)
            if remark:
                self._callbacks.notify("on_message", f"{remark}.")
        return True

    def _measure(self, state: TrainState, recorder: Recorder, agreement: Agreement, measured: LoopValues) -> bool:
        """Evaluates with equal weights on all workers; arguments and result as for `validate`."""
        assert self._data.val is not None
        snapshot.require_same_weights(self._step, state.step)
        with self._step.average.applied():
            try:
                values = measured.values or self._evaluator.measure(
                    BreakableLoader(self._data.val, self._signals), workers=self._step.store
                )
                values = {**values, **measured.more}
            except PassInterrupted:
                # The signal may have reached another worker only, and all workers must stop for the same reason.
                self.interrupted_by = agreement.now(self._signals.stop)
                return False
            val_values = {f"val/{name}": value for name, value in values.items() if name != "samples_per_s"}
            train_values = {f"train/{name}": value for name, value in recorder.epoch_values().items()}
            state.values = values_of_first({**val_values, **train_values}, self._step.store)
            # While channels are pruned gradually, the best network would always be the unpruned one.
            if self._actions.ranks_validations:
                self._note_best(state)
            state.validated_step, state.validation_due = state.step, False
            part = {"part": self._data.val.coverage} if self._data.val.coverage else {}
            # Callbacks are notified while the moving average is applied, so that they show what was validated.
            validation = Validation(
                row={"step": state.step, "epoch": state.epoch_number, "split": "val", **values, **part},
                best=state.best,
                read_samples=self._show_samples,
                read_parameters=lambda: snapshot.copy_parameters(self._step.strategy, with_remote=False),
            )
            self._callbacks.notify(
                "on_validation", validation, Progress(state.step, state.epoch, self._plan.total_steps)
            )
        return True

    def _show_samples(self) -> List[Artifact]:
        return self._data.samples.artifacts(self._evaluator) if self._data.samples is not None else []

    def _note_best(self, state: TrainState) -> None:
        plan = self._plan
        value, loss = state.values[plan.monitor], state.values.get(VAL_LOSS)
        if loss is not None and not math.isfinite(loss):
            loss = None
        best = state.best
        # A continued run may monitor another metric (checkpoint.changes), and values of two metrics cannot be ranked.
        if best is not None and best["metric"] != plan.monitor:
            best, state.unmoved = None, {}
        # An undefined value never becomes the best, because no later value would compare as better than NaN.
        if math.isfinite(value) and (
            best is None
            or rank(value, loss, state.step, plan.direction)
            < rank(best["value"], best.get("loss"), best["step"], plan.direction)
        ):
            best = {"metric": plan.monitor, "value": value, "step": state.step, "loss": loss}
        state.best, state.unmoved = best, track_unmoved(state.unmoved, value, loss)
        state.early_stopping = self._early_stopping.check(state.values, state.early_stopping, self._direction)


def values_of_first(values: Dict[str, float], workers: Store) -> Dict[str, float]:
    """Returns the values of rank 0 on all workers. They only differ if workers take independent steps. Collective."""
    if not workers.independent_steps or workers.world.size == 1:
        return values
    values = json.loads(workers.broadcast(json.dumps(values).encode() if workers.world.rank == 0 else None))
    return values
