"""The loop around the step: epochs, validation, saving, stopping.

    for each batch:  step -> record -> [validate] -> [save] -> [stop]

It knows nothing of devices, precision or stores: those are the step's.
"""

from __future__ import annotations

import math
import time
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Callable, Dict, Mapping, Optional, Sequence

from mxtrain import snapshot
from mxtrain.cadence import Cadence
from mxtrain.checkpoint import canonical_sha256
from mxtrain.errors import EXIT_CRASHED, EXIT_FINISHED, MxtrainError, NonFiniteError
from mxtrain.evaluate import Evaluator
from mxtrain.nonfinite import first_nonfinite_layer
from mxtrain.recorder import Entry, Recorder, first_nonfinite
from mxtrain.state import TrainState
from mxtrain.step import Step
from mxtrain.stopping import Budget, SignalStop, Stop
from mxtrain.types import Callback, Progress, Result, RunInfo, Validation


@dataclass
class Plan:
    """What a run does when: plain numbers and functions, made by `build`.

    Attributes:
        lr: learning rate by the number of finished steps.
        total_steps: where the description is complete; None if only time limits it.
        max_steps, max_time: budgets of `trainer`.
        monitor: e.g. "val/accuracy"; `direction` is "max" or "min".
    """

    lr: Callable[[int], float]
    steps_per_epoch: int
    total_steps: Optional[int]
    max_steps: Optional[int]
    max_time: Optional[float]
    log: Cadence
    validate: Cadence
    save: Cadence
    monitor: str
    direction: str
    identity: Mapping[str, Any]
    """What a checkpoint has to say of its run: the description, the input, the classes."""


@dataclass
class Data:
    """The loaders of a run; a split that does not exist is None."""

    train: Any
    val: Optional[Any] = None
    test: Optional[Any] = None
    samples: Optional[Any] = None
    """A loader of the few samples to show predictions of."""


class Runner:
    """Trains until the description is complete, a budget is used up, or something stops it.

    Args:
        step: one optimizer update.
        plan: lengths and cadences.
        data: loaders.
        evaluator: measures the validation split.
        meter: of the training sums.
        store: where checkpoints go (`CheckpointStore`), or None.
        early_stopping: its description.
        callbacks: who watches.
    """

    def __init__(
        self, step: Step, plan: Plan, data: Data, evaluator: Evaluator, meter: Any, store: Optional[Any],
        early_stopping: Any, callbacks: Sequence[Callback],
    ):  # fmt: skip
        self.state = TrainState()
        self._step, self._plan, self._data, self._evaluator = step, plan, data, evaluator
        self._meter, self._store, self._early_stopping = meter, store, early_stopping
        self._callbacks = list(callbacks)
        self._recorder = Recorder(meter, self.state.epoch_sums)
        self._values: Dict[str, float] = {}
        self._saved_step = -1

    # Public: what a command asks for.

    def restore(self, checkpoint: Any) -> None:
        """Continues from a checkpoint instead of from the initial weights.

        Raises:
            CheckpointError: it does not fit.
        """
        self.state = snapshot.restore(checkpoint, self._step)
        self._recorder = Recorder(self._meter, self.state.epoch_sums)
        self._saved_step = self.state.step

    def train(self, run: RunInfo) -> Result:
        """Runs to the end, saves, and measures the test split with the best weights.

        Args:
            run: what the callbacks are told.

        Raises:
            Exception: whatever a user's own code raised, after the callbacks were told.
        """
        started = time.monotonic()
        try:
            with SignalStop() as signals:
                self._emit("on_start", run)
                if self.state.step == 0:
                    self._save()  # what a look back at a non-finite loss starts from
                result = self._finish(self._loop(signals))
        except MxtrainError as error:
            result = self._failed(error, error.exit_code)
        except BaseException as error:
            self._emit("on_end", self._failed(error, EXIT_CRASHED))
            raise
        finally:
            if self._store is not None:
                self._report_saves(self._store.wait())
        result = replace(result, wall_s=time.monotonic() - started)
        self._emit("on_end", result)
        return result

    # The loop.

    def _loop(self, signals: SignalStop) -> Stop:
        for rule in (self._plan.log, self._plan.validate, self._plan.save):
            rule.start(self.state.step, self.state.epoch, time.monotonic())
        budget = Budget(self._plan.total_steps, self._plan.max_steps, self._plan.max_time)
        stop = self._complete() or budget.check(self.state.step)
        while stop is None:
            batches = self._data.train.epoch(self.state.epoch, start=self.state.epoch_step)
            with closing(batches):
                for batch in batches:
                    self._train_on(batch)
                    stop = budget.check(self.state.step) or signals.stop
                    self._after_step(stop)
                    stop = self._complete() or stop
                    if stop or self.state.epoch_step == 0:
                        break
        return stop

    def _train_on(self, batch: Any) -> None:
        state = self.state
        if state.epoch_step == 0:
            state.epoch_sums.clear()
        lr, epoch = self._plan.lr(state.step), state.epoch + 1
        sums = self._advance(batch, lr)
        self._recorder.add(Entry(state.step, epoch, batch.size, lr, sums))

    def _advance(self, batch: Any, lr: float) -> Any:
        """One step, and the counters after it."""
        state = self.state
        state.step += 1
        sums = self._step(batch, lr, state.step)
        state.epoch_step += 1
        if state.epoch_step == self._plan.steps_per_epoch:
            state.epoch, state.epoch_step = state.epoch + 1, 0
        return sums

    def _after_step(self, stop: Optional[Stop]) -> None:
        step, epoch_ended = self.state.step, self.state.epoch_step == 0
        finished = stop is not None and stop.state == "finished"
        now = (step, self.state.epoch, time.monotonic())
        log, validate, save = (rule.due(*now) for rule in (self._plan.log, self._plan.validate, self._plan.save))
        validate = (validate or finished) and self._data.val is not None
        if validate or save or stop or epoch_ended:
            # The epoch's sums start anew after its last step, so all of its rows are read before.
            self._record(everything=True)
            self._recorder.pause()
        elif log:
            self._record(everything=False)
        if validate:
            self._validate()
        if save and not stop:
            self._save()

    def _complete(self) -> Optional[Stop]:
        """Whether the description says that there is nothing more to do."""
        reason = self._early_stopping.reason(self.state.early_stopping)
        return Stop("stopped_early", EXIT_FINISHED, reason) if reason else None

    # Recording, validation, saving.

    def _record(self, everything: bool) -> None:
        rows = self._recorder.read(everything)
        if not rows:
            return
        self._emit("on_steps", rows, self._progress(rows[-1]["step"]))
        scalars = {"train/lr": rows[-1]["lr"], "perf/samples_per_s": rows[-1]["samples_per_s"]}
        if self._step.grad_norm is not None:
            scalars["train/grad_norm"] = float(self._step.grad_norm.asscalar())
        self._emit("on_scalars", scalars, rows[-1]["step"])
        bad_step = first_nonfinite(rows)
        if bad_step is not None:
            raise NonFiniteError(self._explain_nonfinite(bad_step))

    def _validate(self) -> None:
        state = self.state
        if state.validated_step == state.step:
            return
        with self._step.average.applied():
            values = self._evaluator.measure(self._data.val)
            self._values = {f"val/{name}": value for name, value in values.items() if name != "samples_per_s"}
            self._values.update({f"train/{name}": value for name, value in self._recorder.epoch_values().items()})
            self._note_best()
            state.validated_step = state.step
            validation = Validation(
                row={"step": state.step, "epoch": self._epoch_number(), "split": "val", **values},
                best=state.best,
                read_samples=lambda: self._evaluator.samples(self._data.samples),
                read_parameters=lambda: snapshot.copy_parameters(self._step.strategy.parameters),
            )
            self._emit("on_validation", validation, self._progress(state.step))

    def _note_best(self) -> None:
        state, plan = self.state, self._plan
        value = self._values[plan.monitor]
        sign = 1 if plan.direction == "max" else -1
        if math.isfinite(value) and (state.best is None or sign * value > sign * state.best["value"]):
            state.best = {"metric": plan.monitor, "value": value, "step": state.step}
        state.early_stopping = self._early_stopping.check(self._values, state.early_stopping, self._meter.direction)

    def _save(self) -> None:
        if self._store is None:
            return
        snapshot.require_finite(self._step, self.state.step)
        self._report_saves(self._store.poll())
        self._emit("on_checkpoint", self.state.step)
        validated = self.state.validated_step == self.state.step
        metric = self._values.get(self._plan.monitor) if validated else None
        self._store.save(snapshot.take(self._step, self.state, self._plan, metric))
        self._saved_step = self.state.step

    def _report_saves(self, outcome: Any) -> None:
        if outcome is not None and outcome.error:
            self._emit("on_message", f"the checkpoint of step {outcome.step} could not be written: {outcome.error}. "
                       "Training goes on; earlier checkpoints are kept.")  # fmt: skip

    # The end.

    def _finish(self, stop: Stop) -> Result:
        if self._saved_step != self.state.step:
            self._save()
        if self._store is not None:
            self._report_saves(self._store.wait())
        parameters = self._step.strategy.parameters
        last = snapshot.copy_parameters(parameters)
        values = dict(self._values)
        best = self._store.best() if self._store is not None else None
        if stop.exit_code == EXIT_FINISHED and self._data.test is not None:
            values.update(self._test(best, last))
        latest = self._store.latest() if self._store is not None else None
        recorder = self._recorder
        return Result(
            state=stop.state, exit_code=stop.exit_code, cause=stop.cause, step=self.state.step, epoch=self.state.epoch,
            best=self.state.best, metrics=values, checkpoint=None if latest is None else str(latest.path),
            weights_sha256=canonical_sha256(last), samples_per_s=recorder.samples / max(recorder.seconds, 1e-9),
        )  # fmt: skip

    def _test(self, best: Any, last: Mapping[str, Any]) -> Dict[str, float]:
        """Loss and metrics of the test split with the best weights, or the last where none were kept."""
        parameters = self._step.strategy.parameters
        if best is not None:
            snapshot.set_parameters(parameters, snapshot.weights_to_use(best), str(best.path))
        with self._step.average.applied() if best is None else nullcontext():
            values = self._evaluator.measure(self._data.test)
        snapshot.set_parameters(parameters, last, "the last weights")
        return {f"test/{name}": value for name, value in values.items() if name != "samples_per_s"}

    def _failed(self, error: BaseException, exit_code: int) -> Result:
        cause = f"{type(error).__name__}: {error}" if exit_code == EXIT_CRASHED else str(error)
        return Result(
            state="failed", exit_code=exit_code, cause=cause, step=self.state.step, epoch=self.state.epoch,
            best=self.state.best,
        )  # fmt: skip

    def _explain_nonfinite(self, bad_step: int) -> str:
        """Goes back to the last checkpoint before `bad_step` and repeats the steps up to it: they are the same steps."""
        said = f"the loss became non-finite at step {bad_step}"
        if self._store is not None:
            self._store.wait()
        start = self._store.latest() if self._store is not None else None
        if start is None or start.step >= bad_step:
            return said + "; without a checkpoint before it the layer cannot be named"
        self._emit("on_message", f"{said}; repeating it from step {start.step} to find the layer")
        self.restore(start)
        while True:
            batches = self._data.train.epoch(self.state.epoch, start=self.state.epoch_step)
            with closing(batches):
                for batch in batches:
                    if self.state.step == bad_step - 1:
                        self._step.seed_random(bad_step)
                        return f"{said}: {first_nonfinite_layer(self._step.strategy.network, batch.data)}"
                    self._advance(batch, self._plan.lr(self.state.step))
                    if self.state.epoch_step == 0:
                        break

    def _progress(self, step: int) -> Progress:
        return Progress(step=step, epoch=self._epoch_number(), total_steps=self._plan.total_steps)

    def _epoch_number(self) -> int:
        """The epoch that the last finished step belongs to, from 1."""
        return self.state.epoch + (self.state.epoch_step > 0)

    def _emit(self, event: str, *values: Any) -> None:
        for callback in self._callbacks:
            getattr(callback, event)(*values)
