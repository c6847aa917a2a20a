"""Ends a run: saves the last checkpoint, validates, and builds the result."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, Mapping, Optional

from mxtrain.callback.protocol import Result
from mxtrain.checkpoint import Checkpoint, canonical_sha256
from mxtrain.checkpoint.average import weights_to_use
from mxtrain.checkpoint.ranking import should_warn_unmoved, unmoved_warning
from mxtrain.cluster.heartbeat import HEARTBEAT
from mxtrain.cluster.stopping import PassInterrupted, Stop
from mxtrain.errors import EXIT_CRASHED, EXIT_FINISHED, EXIT_SIGINT
from mxtrain.training import resume, snapshot
from mxtrain.training.context import RunContext
from mxtrain.training.evaluate import BreakableLoader
from mxtrain.training.recorder import Recorder
from mxtrain.training.state import TrainState

if TYPE_CHECKING:
    import numpy as np

    from mxtrain.types.annotations import Json


class RunFinalizer:
    """Ends a run.

    Args:
        run: objects of the run.
    """

    def __init__(self, run: RunContext):
        self._step, self._plan, self._data = run.step, run.plan, run.data
        self._build_test_evaluator = run.build_test_evaluator
        self._saving, self._signals, self._callbacks = run.saving, run.signals, run.callbacks
        self._workers = run.step.store

    def finish(self, stop: Stop, state: TrainState, recorder: Recorder) -> Result:
        """Ends a run after training: waits for the last save, evaluates the test split, and returns the result."""
        saving = self._saving
        remark = unmoved_warning(self._plan.monitor, self._plan.direction, state.unmoved)
        if remark and not should_warn_unmoved(state.unmoved, state.step, self._plan.total_steps):
            self._callbacks.notify("on_message", f"{remark}.")
        # The last save may still be in progress, and its failure changes the exit code.
        saving.synchronize()
        saving.require_in_place()
        self._step.synchronize()
        values, best = {**state.values, **self._step.summary()}, saving.best()
        sha256 = self._sha256()
        measured = self._measured(state)
        # The supervisor must not take workers that wait for rank 0 to measure the test split for a hang.
        HEARTBEAT.waits = self._workers.world.rank > 0
        if stop.exit_code == EXIT_FINISHED and self._data.test is not None and not HEARTBEAT.waits:
            try:
                values.update(self._test(best, state.step))
                measured["test"] = {"step": best.step if best else state.step, "part": self._data.test.coverage}
            except PassInterrupted:
                # Training is complete and saved. The same command evaluates the split when it is repeated.
                stop = self._signals.stop or stop
        if saving.failure and saving.saved_step == state.step:
            stop = self._without_last_checkpoint(stop, state.step)
        # If the best step was not saved, `saving.best()` is another checkpoint and must not be reported as the best.
        is_kept = best is not None and state.best is not None and best.step == state.best["step"]
        return self._result(
            stop,
            state,
            recorder,
            metrics=values,
            measured=measured,
            best_checkpoint=str(best.path) if best is not None and is_kept else None,
            weights_sha256=sha256,
        )

    def _sha256(self) -> str:
        """Returns the hash of the weights; empty on workers that do not read tables on servers."""
        if self._step.strategy.remote.names and self._workers.world.rank:
            return ""
        return canonical_sha256(snapshot.held_parameters(self._step.strategy))

    def _measured(self, state: TrainState) -> Dict[str, Dict[str, Json]]:
        """Returns the step and the evaluated part of the split of the last validation, by split."""
        if not state.validated_step:
            return {}
        part = self._data.val.coverage if self._data.val is not None else ""
        return {
            name: {"step": state.validated_step, "part": part if name == "val" else ""} for name in ("train", "val")
        }

    def _without_last_checkpoint(self, stop: Stop, step: int) -> Stop:
        """Returns a stop that reports the failed write of the last checkpoint: such a run must not report success."""
        outcome = stop.cause or "training is complete"
        cause = (
            f"{outcome}, but the checkpoint of its last step {step} could not be written: "
            f"{self._saving.failure}. Free some space and repeat the same command: it continues from the previous one"
        )
        if stop.exit_code == EXIT_FINISHED:
            return Stop("failed", EXIT_CRASHED, cause)
        return replace(stop, cause=cause)

    def _test(self, best: Optional[Checkpoint], step: int) -> Dict[str, float]:
        """Returns loss and metrics of the test split with the best weights, or with the last if none were kept."""
        strategy = self._step.strategy
        assert self._data.test is not None
        last = None if best is None else self._last_weights(step)
        # A checkpoint contains the validated weights, i.e. the moving average if there is one, so no average is applied
        # below.
        if best is not None:
            snapshot.set_parameters(strategy, weights_to_use(best), str(best.path))
        evaluator = self._build_test_evaluator(None if best is None else best.state.get("states") or {})
        try:
            with self._step.average.applied() if best is None else nullcontext():
                values = evaluator.measure(BreakableLoader(self._data.test, self._signals))
        finally:
            if last is not None:
                snapshot.set_parameters(strategy, last, "the last weights")
        return {f"test/{name}": value for name, value in values.items() if name != "samples_per_s"}

    def _last_weights(self, step: int) -> Mapping[str, np.ndarray]:
        """Returns the weights of the last step; reads large tables from its checkpoint instead of copying them."""
        latest = self._saving.latest() if self._step.strategy.rows else None
        if latest is not None and latest.step == step:
            return latest.arrays("model")
        return snapshot.copy_parameters(self._step.strategy)

    def failed(self, cause: str, exit_code: int, state: TrainState, recorder: Recorder) -> Result:
        """Returns the result of a run that could not continue."""
        return self._result(Stop("failed", exit_code, cause), state, recorder, metrics=dict(state.values))

    def interrupted(self, state: TrainState, recorder: Recorder) -> Result:
        """Returns the result of a run that a `KeyboardInterrupt` in user code ended.

        Saves nothing, since the step may be incomplete.
        """
        stop = Stop("interrupted", EXIT_SIGINT, f"KeyboardInterrupt raised after step {state.step}")
        return self._result(stop, state, recorder, metrics=dict(state.values))

    def _result(self, stop: Stop, state: TrainState, recorder: Recorder, **fields: Any) -> Result:
        try:
            latest = self._saving.latest()
        except Exception:  # the run directory was deleted: report why the run ended instead
            latest = None
        return Result(
            state=stop.state,
            exit_code=stop.exit_code,
            cause=stop.cause,
            step=state.step,
            epoch=state.epoch,
            best=state.best,
            checkpoint=None if latest is None else str(latest.path),
            samples_per_s=recorder.samples / recorder.seconds if recorder.seconds else 0.0,
            **fields,
        )

    def ended_before(self, stop: Stop, state: TrainState, run_dir: Path) -> Optional[Result]:
        """Returns the result of a run that status.json reports as complete; None if there is work left.

        Args:
            stop: reason why the run would end at once.
            state: counters of the run.
            run_dir: directory of the run.
        """
        sha256 = self._sha256()
        is_first = self._workers.world.rank == 0  # the others may not see the run directory
        status = resume.read_end(run_dir, stop.state, state.step, sha256) if is_first else {}
        (has_ended,) = self._workers.total([is_first and status is not None])
        if not has_ended or status is None:
            return None
        self._callbacks.notify("on_message", resume.already_finished_message(run_dir, stop.cause, state.step))
        return resume.ended_result(
            status,
            state=stop.state,
            exit_code=stop.exit_code,
            cause=stop.cause,
            step=state.step,
            epoch=state.epoch,
            best=state.best,
            weights_sha256=sha256,
        )
