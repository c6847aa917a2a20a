"""The loop around the step: epochs, validation, saving, stopping.

    for each batch:  step -> record -> [validate] -> [save] -> [stop]

It knows nothing of devices, precision or stores: those are the step's.
"""

from __future__ import annotations

import math
import tempfile
import time
from contextlib import closing, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence

from mxtrain.checkpoint import canonical_sha256
from mxtrain.checkpoint.archive import pack, unpack
from mxtrain.checkpoint.contents import read_checkpoint, write_contents
from mxtrain.cluster.stragglers import Stragglers
from mxtrain.engine.backend import operators_in_use
from mxtrain.errors import AGREED, EXIT_CRASHED, EXIT_FINISHED, MxtrainError, NonFiniteError, PeersLost
from mxtrain.process.heartbeat import HEARTBEAT
from mxtrain.process.stopping import Agreement, BreakableLoader, BrokenOff, Budget, SignalStop, Stop
from mxtrain.trainer import nonfinite, resume, snapshot
from mxtrain.trainer.cadence import Cadence
from mxtrain.trainer.evaluate import Evaluator
from mxtrain.trainer.plan import Plan, RunData
from mxtrain.trainer.profiling import Profiling
from mxtrain.trainer.recorder import STEPS_AHEAD, Entry, Recorder, first_nonfinite
from mxtrain.trainer.saving import Saving
from mxtrain.trainer.state import TrainState
from mxtrain.trainer.step import TrainingStep
from mxtrain.trainer.watchers import Watchers, describe_error
from mxtrain.types import Artifact, Callback, Progress, Result, RunInfo, Validation

NAMED_BY_ONE = "the same command with kvstore=local cluster.workers=1 names the step and the layer"


class Runner:
    """Trains until the description is complete, a budget is used up, or something stops it.

    Args:
        step: one optimizer update.
        plan: lengths and cadences.
        data: loaders.
        evaluator: measures the validation split.
        meter: of the training sums.
        store: where checkpoints go (`CheckpointStore`).
        early_stopping: its description.
        callbacks: who watches.
        profiling: looks at the engine now and then, or None.
        stragglers: looks at the workers, or None.
    """

    def __init__(
        self, step: TrainingStep, plan: Plan, data: RunData, evaluator: Evaluator, meter: Any, store: Any,
        early_stopping: Any, callbacks: Sequence[Callback], profiling: Optional[Profiling] = None,
        stragglers: Optional[Stragglers] = None,
    ):  # fmt: skip
        self.state = TrainState()
        self._step, self._plan, self._data, self._evaluator = step, plan, data, evaluator
        self._meter, self._early_stopping = meter, early_stopping
        self._watchers = Watchers(callbacks)
        self._profiling = profiling
        self._saving = Saving(store, self._watchers)
        self._signals = SignalStop(plan.grace_s)
        self._workers = step.store
        self._stragglers = stragglers or Stragglers()
        self._agreement = Agreement(step.store, STEPS_AHEAD)
        self._broken_off: Optional[Stop] = None
        # A checkpoint may need all workers: one of them looks at the clock, for all.
        self._clock = Cadence(every_minutes=plan.save.every_minutes if step.store.world.rank == 0 else None)
        self._recorder = self._build_recorder()
        self._remarks: List[str] = []

    # Public: what a command asks for.

    def restore(self, checkpoint: Any) -> None:
        """Continues from a checkpoint instead of from the initial weights.

        Raises:
            CheckpointError: it does not fit.
        """
        self._rewind(checkpoint)
        if self._saving.holds(checkpoint):
            self._saving.saved_step = self.state.step
        if self._workers.updates:
            self._remarks.append(
                f"the servers go on from step {self.state.step}: what they had applied after it, if anything, is lost"
            )
        before = checkpoint.state["run"]
        if resume.other_monitor(before, self._plan.identity):
            self.state.early_stopping = {}
        workers = self._workers.world.size
        if "residual" in checkpoint.stems and before["workers"] != workers:
            self._remarks.append(
                f"what compression had left over of the gradients of {before['workers']} workers is split evenly over "
                f"{workers}: nothing of it is lost, but the numbers differ from those of an unbroken run"
            )
        if before.get("updates", False) != self._workers.updates and max(workers, before["workers"]) > 1:
            self._remarks.append(
                "servers updated by each worker's gradient alone (dist_async) "
                + ("until this step: from now on" if before.get("updates") else "only from this step on: until now")
                + " a step is one update by all workers' gradient"
            )
        if before.get("threads", snapshot.threads()) != snapshot.threads():
            self._remarks.append(
                f"{checkpoint.path.name} was computed with OMP_NUM_THREADS={before['threads'] or '(not set)'}, now it "
                f"is {snapshot.threads() or '(not set)'}: the last bits may differ from those of an unbroken run"
            )
        now = operators_in_use()
        if before.get("own_operators", now) != now:
            self._remarks.append(
                f"{checkpoint.path.name} was computed with {before['own_operators'] or 'MXNet'}'s operators, now with "
                f"{now or 'MXNet'}'s: the last bits, and what dropout draws, differ from those of an unbroken run"
            )

    def train(self, run: RunInfo) -> Result:
        """Runs to the end, saves, and measures the test split with the best weights.

        Args:
            run: what the callbacks are told.

        Raises:
            Exception: whatever a user's own code raised, after the callbacks were told.
        """
        came_late = self._workers.came_late  # then the others are in the loop, and wait there
        ended = None if came_late else self._ended_before(run)
        if ended is not None:
            self._workers.close()
            return ended
        started = time.monotonic()
        error: Optional[BaseException] = None
        with self._signals:
            try:
                self._watchers.notify("on_start", run)
                for remark in self._remarks:
                    self._say(remark)
                if self._plan.saves_midway and self._saving.saved_step != self.state.step and not came_late:
                    self._save()  # what a look back at a non-finite loss starts from
                result = self._finish(self._loop_through_losses())
            except MxtrainError as problem:
                result = self._failed(str(problem), problem.exit_code)
            except BaseException as problem:
                error = problem
                result = self._failed(describe_error(problem), EXIT_CRASHED)
            if self._profiling:
                self._profiling.break_off()
            HEARTBEAT.end()
            result = self._watchers.end(replace(result, wall_s=time.monotonic() - started), error)
        if result.exit_code in AGREED:
            self._workers.close()
        return result

    # The loop.

    def _loop_through_losses(self) -> Stop:
        """Goes on where other workers go or come, if the store can."""
        budget = Budget(self._plan.total_steps, self._plan.max_steps, self._plan.max_time)
        self._clock.start(self.state.step, self.state.epoch, time.monotonic())
        lost: Optional[PeersLost] = None
        has_changed = self._workers.came_late
        while True:
            try:
                if lost is not None:
                    self._regroup(lost)
                    has_changed = True
                snapshot.require_same_operators(self._step)
                snapshot.require_same_weights(self._step, self.state.step)
                if has_changed and self._plan.saves_midway:
                    self._save()  # one may have been due when the ring broke
                lost, has_changed = None, False
                stop = self._loop(budget)
                self._save_at_end()
                return stop
            except PeersLost as found:
                if not self._workers.elastic:
                    raise
                lost = found

    def _regroup(self, lost: PeersLost) -> None:
        """The workers that are there agree on the state of rank 0, after its last whole step."""
        before = self._workers.world
        self._workers.regroup()
        world = self._workers.world
        self._data.share(world)
        self._agreement = Agreement(self._workers, STEPS_AHEAD)
        self._stragglers.forget()
        if world.rank == 0:
            self._record(everything=True, together=False)
            self._recorder.pause()
            due = self._plan.validate.due(self.state.step, self.state.epoch, 0.0)
            self.state.validation_due = self.state.validation_due or due
            self._say(
                f"{lost}: {world.size} worker{'s' * (world.size > 1)} (before: {before.size}) go on after step "
                f"{self.state.step}. No step is lost or done twice; but shares are others from here on: the last bits "
                "differ from those of an undisturbed run, and more where dropout or a batch norm looks at a share"
            )
        if world.size > 1:
            # As at the start of a run, which is what those do who have just come.
            archive = self._workers.broadcast(self._pack() if world.rank == 0 else None)
            self._workers.broadcast(b"" if world.rank == 0 else None)
            if world.rank > 0:
                self._rewind(unpack(archive))
        self._workers.resume_from(self.state.step)

    def _pack(self) -> bytes:
        """All that a run is continued from."""
        with tempfile.TemporaryDirectory(prefix="mxtrain-") as folder:
            path = Path(folder) / "state"
            write_contents(snapshot.take(self._step, self.state, self._plan, None, with_residuals=False), path)
            return pack(read_checkpoint(path))

    def _loop(self, budget: Budget) -> Stop:
        for rule in (self._plan.log, self._plan.validate, self._plan.save):
            rule.start(self.state.step, self.state.epoch, 0.0)
        stop = self._reached()
        if self.state.validation_due or (stop is not None and stop.state == "finished"):
            if self._validate() and self._is_best():
                self._save()  # the checkpoint that this run goes on from does not know how good it is
        stop = self._last_word(stop)
        if stop is not None:
            return stop
        with closing(self._batches()) as batches:
            for batch in batches:
                self._train_on(batch)
                save = self._clock.due(self.state.step, self.state.epoch, time.monotonic())
                wish = self._agreement.after_step(self._signals.stop or budget.time_is_up(), save)
                stop = budget.steps_done(self.state.step) or wish
                self._after_step(stop)
                stop = self._last_word(stop)
                if stop is not None:
                    return stop
        raise AssertionError("batches never end")

    def _batches(self) -> Iterator[Any]:
        """The batches from where the run stands on, without end; each must be trained on before the next is taken."""
        while True:
            self._share_by_speed()
            with closing(self._data.train.epoch(self.state.epoch, start=self.state.epoch_step)) as batches:
                for batch in batches:
                    yield batch
                    if self.state.epoch_step == 0:
                        break

    def _share_by_speed(self) -> None:
        """At the begin of an epoch, the same on all workers."""
        world = self._stragglers.share(self._workers.world)
        if world is not self._workers.world:
            self._workers.world = world
            self._data.share(world)

    def _train_on(self, batch: Any) -> None:
        state = self.state
        if state.epoch_step == 0:
            state.epoch_sums.clear()
        lr, epoch = self._plan.lr(state.step), state.epoch + 1
        self._recorder.begin()
        self._profile(batch)
        sums = self._advance(batch, lr)
        self._watch_workers()
        HEARTBEAT.step, HEARTBEAT.batches = state.step, HEARTBEAT.batches + 1
        ends_epoch = state.epoch_step == 0 or state.step == self._plan.total_steps
        self._recorder.add(Entry(state.step, epoch, batch.global_size, lr, sums, self._step.grad_norm), ends_epoch)

    def _profile(self, batch: Any) -> None:
        if self._profiling is None:
            return
        for usage in self._profiling.step_begins(self.state.step + 1, batch):
            self._watchers.notify("on_usage", usage)
            self._watchers.notify("on_scalars", usage.scalars(), self.state.step)

    def _watch_workers(self) -> None:
        times = self._workers.times
        if times is None or not self._stragglers.note(times):
            return
        self._watchers.notify("on_usage", times)
        self._watchers.notify("on_scalars", times.scalars(), times.step)
        remark = self._stragglers.remark()
        if remark:
            self._say(remark)

    def _advance(self, batch: Any, lr: float) -> Any:
        """One step, and the counters after it."""
        state = self.state
        sums = self._step(batch, lr, state.step + 1)
        state.step += 1
        state.epoch_step += 1
        if state.epoch_step == self._plan.steps_per_epoch:
            state.epoch, state.epoch_step = state.epoch + 1, 0
        return sums

    def _after_step(self, stop: Optional[Stop]) -> None:
        step, epoch_ended = self.state.step, self.state.epoch_step == 0
        finished = stop is not None and stop.state == "finished"
        now = (step, self.state.epoch, 0.0)  # minutes are the agreement's
        log, validate, save = (rule.due(*now) for rule in (self._plan.log, self._plan.validate, self._plan.save))
        save = save or self._agreement.saves
        validate = validate or finished
        if log or validate or save or stop:
            self._saving.require_in_place()
        if self._profiling and (validate or save or stop):
            self._profiling.break_off()
        if validate or save or stop or epoch_ended:
            # The epoch's sums start anew after its last step, so all of its rows are read before.
            self._record(everything=True)
            self._recorder.pause()
        elif log:
            self._record(everything=False)
        is_best = validate and self._validate() and self._is_best()
        if (save and not stop) or is_best:
            self._save()
            self._clock.start(step, self.state.epoch, time.monotonic())

    def _reached(self) -> Optional[Stop]:
        """The limit of steps that was reached before. Time begins with the first step: each process makes one."""
        return Budget(self._plan.total_steps, self._plan.max_steps, None).steps_done(self.state.step)

    def _last_word(self, stop: Optional[Stop]) -> Optional[Stop]:
        """Why the run ends here, after the validation: a broken off one comes first, then early stopping."""
        if self.state.validation_due:
            return self._broken_off or self._signals.stop
        reason = self._early_stopping.reason(self.state.early_stopping)
        return Stop("stopped_early", EXIT_FINISHED, reason) if reason else stop

    # Recording, validation, saving.

    def _record(self, everything: bool, together: bool = True) -> None:
        """Tells what is done; `together`: all workers do, after the same step."""
        rows = self._recorder.read(everything)
        if not rows:
            return
        self._watchers.notify("on_steps", rows, self._progress(rows[-1]["step"]))
        for step, values in self._recorder.points:
            self._watchers.notify("on_scalars", values, step)
        scalars = {**self._recorder.scalars, **self._step.scaling.scalars(), **self._workers.scalars()}
        self._watchers.notify("on_scalars", scalars, rows[-1]["step"])
        bad_step = first_nonfinite(rows)
        if bad_step is not None:
            raise NonFiniteError(self._explain_loss(bad_step, together))

    def _validate(self) -> bool:
        """Measures the validation split, unless that was done at this step. A signal breaks it off; it stays due.

        Returns:
            Whether it was measured now.
        """
        state = self.state
        if state.validated_step == state.step or self._data.val is None:
            return False
        state.validation_due = True  # until it is done, whatever comes between
        self._step.synchronize()
        snapshot.require_same_weights(self._step, state.step)
        with self._step.average.applied():
            try:
                values = self._evaluator.measure(BreakableLoader(self._data.val, self._signals), workers=self._workers)
            except BrokenOff:
                self._broken_off = self._agreement.now(self._signals.stop)
                return False
            found = {f"val/{name}": value for name, value in values.items() if name != "samples_per_s"}
            trained = {f"train/{name}": value for name, value in self._recorder.epoch_values().items()}
            state.values = self._workers.agree({**found, **trained})
            self._note_best()
            state.validated_step, state.validation_due = state.step, False
            part = {"part": self._data.val.coverage} if self._data.val.coverage else {}
            validation = Validation(
                row={"step": state.step, "epoch": self._epoch_number(), "split": "val", **values, **part},
                best=state.best,
                read_samples=self._show_samples,
                read_parameters=lambda: snapshot.copy_parameters(self._step.strategy),
            )
            self._watchers.notify("on_validation", validation, self._progress(state.step))
        return True

    def _show_samples(self) -> List[Artifact]:
        return self._data.samples.artifacts(self._evaluator) if self._data.samples is not None else []

    def _note_best(self) -> None:
        state, plan = self.state, self._plan
        value = state.values[plan.monitor]
        sign = 1 if plan.direction == "max" else -1
        if math.isfinite(value) and (state.best is None or sign * value > sign * state.best["value"]):
            state.best = {"metric": plan.monitor, "value": value, "step": state.step}
        state.early_stopping = self._early_stopping.check(state.values, state.early_stopping, self._meter.direction)

    def _is_best(self) -> bool:
        """Whether the weights were just found to be the best so far, and are to be kept whatever the cadence says."""
        best = self.state.best
        return self._plan.keeps_best and best is not None and best["step"] == self.state.step

    def _save(self) -> None:
        self._step.synchronize()
        bad = snapshot.first_nonfinite_parameter(self._step)
        if bad:
            raise NonFiniteError(self._explain_weights(bad))
        self._watchers.notify("on_checkpoint", self.state.step)
        validated = self.state.validated_step == self.state.step
        metric = self.state.values.get(self._plan.monitor) if validated else None
        self._saving.save(snapshot.take(self._step, self.state, self._plan, metric))

    # The end.

    def _finish(self, stop: Stop) -> Result:
        saving = self._saving
        if self._profiling:
            self._profiling.end()
        saving.synchronize()
        saving.require_in_place()
        self._step.synchronize()
        last = snapshot.copy_parameters(self._step.strategy)
        values, best = {**self.state.values, **self._workers.summary()}, saving.best()
        measured = self._measured()
        HEARTBEAT.waits = self._workers.world.rank > 0
        if stop.exit_code == EXIT_FINISHED and self._data.test is not None and not HEARTBEAT.waits:
            try:
                values.update(self._test(best, last))
                measured["test"] = {"step": best.step if best else self.state.step, "part": self._data.test.coverage}
            except BrokenOff:
                stop = self._signals.stop or stop  # all is trained and saved; the same command measures it
        if saving.failure and saving.saved_step == self.state.step:
            stop = self._without_last_checkpoint(stop)
        is_kept = best is not None and self.state.best is not None and best.step == self.state.best["step"]
        return self._result(
            stop, metrics=values, measured=measured, best_checkpoint=str(best.path) if is_kept else None,
            weights_sha256=canonical_sha256(last),
        )  # fmt: skip

    def _measured(self) -> Dict[str, Dict[str, Any]]:
        """Which weights the values of the last validation are of, and of how much of the split."""
        if not self.state.validated_step:
            return {}
        part = self._data.val.coverage if self._data.val is not None else ""
        return {name: {"step": self.state.validated_step, "part": part if name == "val" else ""}
                for name in ("train", "val")}  # fmt: skip

    def _save_at_end(self) -> None:
        """All workers gather what compression has left over: where one of them is lost, the others can still go on."""
        if self._plan.save_on_end and self._saving.saved_step != self.state.step:
            self._save()

    def _without_last_checkpoint(self, stop: Stop) -> Stop:
        """The weights of the last step are not on the disk: whoever counts on them must not read of success."""
        done = stop.cause or "training is complete"
        cause = (
            f"{done}, but the checkpoint of its last step {self.state.step} could not be written: "
            f"{self._saving.failure}. Make room and give the same command again: it goes on from the one before"
        )
        if stop.exit_code == EXIT_FINISHED:
            return Stop("failed", EXIT_CRASHED, cause)
        return replace(stop, cause=cause)

    def _test(self, best: Any, last: Mapping[str, Any]) -> Dict[str, float]:
        """Loss and metrics of the test split with the best weights, or the last where none were kept."""
        strategy = self._step.strategy
        if best is not None:
            snapshot.set_parameters(strategy, snapshot.weights_to_use(best), str(best.path))
        try:
            with self._step.average.applied() if best is None else nullcontext():
                values = self._evaluator.measure(BreakableLoader(self._data.test, self._signals))
        finally:
            snapshot.set_parameters(strategy, last, "the last weights")
        return {f"test/{name}": value for name, value in values.items() if name != "samples_per_s"}

    def _failed(self, cause: str, exit_code: int) -> Result:
        return self._result(Stop("failed", exit_code, cause), metrics=dict(self.state.values))

    def _result(self, stop: Stop, **known: Any) -> Result:
        try:
            latest = self._saving.latest()
        except Exception:  # the run directory is gone: what is told of the end is the cause, not this
            latest = None
        recorder = self._recorder
        return Result(
            state=stop.state, exit_code=stop.exit_code, cause=stop.cause, step=self.state.step, epoch=self.state.epoch,
            best=self.state.best, checkpoint=None if latest is None else str(latest.path),
            samples_per_s=recorder.samples / recorder.seconds if recorder.seconds else 0.0, **known,
        )  # fmt: skip

    def _ended_before(self, run: RunInfo) -> Optional[Result]:
        """The result of a run that has nothing left to do and said so in status.json; None where there is work."""
        state = self.state
        if self._saving.saved_step != state.step or state.validation_due:
            return None
        stop = self._last_word(self._reached())
        if stop is None:
            return None
        sha256 = canonical_sha256(snapshot.copy_parameters(self._step.strategy))
        is_first = self._workers.world.rank == 0  # the others may not see the run directory
        status = resume.read_end(run.run_dir, stop.state, state.step, sha256) if is_first else {}
        (ended,) = self._workers.total([is_first and status is not None])
        if not ended or status is None:
            return None
        self._say(resume.nothing_left(run.run_dir, stop.cause, state.step))
        return resume.ended_result(
            status, state=stop.state, exit_code=stop.exit_code, cause=stop.cause, step=state.step, epoch=state.epoch,
            best=state.best, weights_sha256=sha256,
        )  # fmt: skip

    # What is wrong with non-finite numbers: the steps since the last checkpoint are repeated; they are the same steps.

    def _explain_loss(self, bad_step: int, together: bool) -> str:
        said = f"the loss became non-finite at step {bad_step}"
        if self._workers.world.size > 1:
            return f"{said}; {self._explain_together(said, bad_step) if together else NAMED_BY_ONE}"
        for batch in self._repeat(said, bad_step):
            if self.state.step == bad_step - 1:
                self._step.seed_random(bad_step)
                return f"{said}: {nonfinite.first_nonfinite_layer(self._step.strategy.gather(), *batch.inputs)}"
            self._advance(batch, self._plan.lr(self.state.step))
        return said + "; without a checkpoint before it the layer cannot be named"

    def _explain_weights(self, name: str) -> str:
        last = self.state.step
        if self._workers.world.size > 1:
            said = f"the weights became non-finite in step {last} or before; the first is '{name}'"
            return f"{said}; {self._explain_together(said, last)}"
        for batch in self._repeat(f"the weights are non-finite after step {last}", last):
            self._advance(batch, self._plan.lr(self.state.step))
            found = snapshot.first_nonfinite_parameter(self._step)
            if found or self.state.step == last:
                name, last = found or name, self.state.step
                return f"the weights became non-finite in step {last}, while the loss was finite; the first is '{name}'"
        return f"the weights became non-finite in step {last} or before; the first is '{name}'"

    def _explain_together(self, said: str, bad_step: int) -> str:
        """Whose gradients were non-finite first. Collective: all workers have the same numbers, so all come here."""
        if self._workers.updates:
            return NAMED_BY_ONE  # no step is the same again
        with suppress(PeersLost):
            for batch in self._repeat(said, bad_step):
                ranks = self._ranks_with_nonfinite_gradients(batch)
                at = f"in step {self.state.step + 1} the gradients of worker{'s' * (len(ranks) > 1)} "
                if len(ranks) == self._workers.world.size:
                    return f"{at}{', '.join(map(str, ranks))} (all) were the first non-finite ones; {NAMED_BY_ONE}"
                if ranks:
                    return f"{at}{', '.join(map(str, ranks))} alone were non-finite, from its data or its machine"
                self._advance(batch, self._plan.lr(self.state.step))
                if self.state.step == bad_step:
                    break
        return NAMED_BY_ONE

    def _ranks_with_nonfinite_gradients(self, batch: Any) -> List[int]:
        """Before they are summed. Collective."""
        world = self._workers.world
        self._step.seed_random(self.state.step + 1, world.rank)
        self._step.strategy.forward_backward(batch)
        own = [replica for reduction in self._step.strategy.reductions for replica in reduction.replicas]
        flags = self._workers.total([float(rank == world.rank and not snapshot.all_finite(own))
                                     for rank in range(world.size)])  # fmt: skip
        return [rank for rank, flag in enumerate(flags) if flag]

    def _repeat(self, said: str, bad_step: int) -> Iterator[Any]:
        """The batches from the last checkpoint before `bad_step` on; none where there is no such checkpoint."""
        start = self._saving.latest()
        if self._workers.world.size > 1:  # rank 0 keeps the checkpoints
            start = unpack(self._workers.broadcast(pack(start) if self._workers.world.rank == 0 else None))
        if start is None or start.step >= bad_step:
            return
        if self._profiling:
            self._profiling.break_off()
        self._say(f"{said}; repeating it from step {start.step} to find where it began")
        self._rewind(start)
        with closing(self._batches()) as batches:
            yield from batches

    def _rewind(self, checkpoint: Any) -> None:
        self.state = snapshot.restore(checkpoint, self._step)
        self._recorder = self._build_recorder()

    def _build_recorder(self) -> Recorder:
        return Recorder(self._meter, self.state.epoch_sums, self.state.window_sums, self._plan.log.every_steps or 1)

    def _say(self, text: str) -> None:
        self._watchers.notify("on_message", text)

    def _progress(self, step: int) -> Progress:
        return Progress(step=step, epoch=self.state.epoch, total_steps=self._plan.total_steps)

    def _epoch_number(self) -> int:
        """The epoch that the last finished step belongs to, from 1."""
        return self.state.epoch + (self.state.epoch_step > 0)
