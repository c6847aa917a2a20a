"""The training loop: epochs, validation, checkpoints and stopping.

    for each batch:  [actions] -> step -> record -> [validate -> actions] -> [save] -> [stop]

The loop does not know about devices, precision or stores; these belong to the training step.
"""

from __future__ import annotations

import logging
import shlex
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Callable, Generator, Iterator, List, Mapping, NamedTuple, Optional, Set, Tuple

from mxtrain.callback.protocol import Progress, Result, RunInfo
from mxtrain.checkpoint.sharing import receive_checkpoint, send_checkpoint
from mxtrain.cluster.heartbeat import HEARTBEAT
from mxtrain.cluster.stopping import Budget, Stop
from mxtrain.config.cadence import Cadence
from mxtrain.data.loading.loader import Consumer
from mxtrain.engine.backend import operators_in_use
from mxtrain.errors import (
    AGREED_EXIT_CODES,
    EXIT_BUDGET,
    EXIT_CRASHED,
    EXIT_FINISHED,
    MxtrainError,
    NonFiniteError,
    PeersLost,
)
from mxtrain.kvstore.times import EVERY
from mxtrain.training import elastic, resume, snapshot
from mxtrain.training.agreement import Agreement
from mxtrain.training.callback_list import describe_error
from mxtrain.training.context import Monitors, RunContext
from mxtrain.training.nonfinite import NonFiniteDiagnosis, num_parameter_bytes
from mxtrain.training.recorder import STEPS_AHEAD, Entry, Recorder, first_nonfinite
from mxtrain.training.replay_bundle import ReplayWriter
from mxtrain.training.run_finalizer import RunFinalizer
from mxtrain.training.state import NOT_MEASURED, LoopValues, TrainState
from mxtrain.training.validation import Validator
from mxtrain.types import Batch

if TYPE_CHECKING:
    import numpy as np
    from mxnet.ndarray import NDArray

    from mxtrain.checkpoint import Checkpoint
    from mxtrain.early_stopping.spec import StoppingRule
    from mxtrain.kvstore.chunk_client import ChunkClient
    from mxtrain.metric.meter import Meter


class NextStep(NamedTuple):
    """The next step to take: its batch, learning rate, and number from 1."""

    batch: Batch
    lr: float
    step: int


class StepResult(NamedTuple):
    """The result of a step."""

    sums: NDArray
    """The meter's sums over the batch."""
    lr: float
    saves: bool = False
    """True to save a checkpoint after this step, regardless of the cadence."""
    after_rows: Optional[Callable[[], None]] = None
    """Called after the metric rows of all steps up to this one are written, to report more to the callbacks."""
    measured: LoopValues = NOT_MEASURED
    """Values of the validation split after this step."""


MET = StepResult(sums=None, lr=0.0)  # type: ignore[arg-type]
"""Stands for a step when workers that take chunks meet: all have finished the same steps."""


class LoopClosed(Exception):
    """Thrown into `Runner.steps` by a caller that takes no more steps."""


Steps = Generator[NextStep, StepResult, Result]
Loop = Generator[NextStep, StepResult, Stop]


class Runner:
    """Runs the training loop until all steps are done, a budget is used up, or a signal, rule or action stops it.

    Args:
        context: objects that the runner shares with the validator and the finalizer.
        meter: meter of the training step.
        early_stopping: rule of early stopping.
        monitors: monitors of devices and workers.
        checkpoint: checkpoint to continue from; None = train from the initial weights.

    Attributes:
        context: as given.
        monitors: as given.
        state: counters and values of the run so far.
        remarks: sentences about what differs from the run that is continued; shown when the run begins.

    Raises:
        CheckpointError: the checkpoint does not fit the run.
    """

    def __init__(
        self,
        context: RunContext,
        meter: Meter,
        early_stopping: StoppingRule,
        monitors: Monitors,
        checkpoint: Optional[Checkpoint] = None,
    ):
        self.state = TrainState()
        self.context, self.monitors = context, monitors
        self._step, self._plan, self._data = context.step, context.plan, context.data
        self._saving, self._signals, self._callbacks = context.saving, context.signals, context.callbacks
        self._actions = context.actions
        self._meter, self._early_stopping = meter, early_stopping
        self._profiling, self._stragglers = monitors.profiling, monitors.stragglers
        self._next_table = 0
        self._gpu_memory = monitors.gpu_memory
        self._workers = context.step.store  # here it connects workers; the step also sums gradients by it
        self._agreement = self._build_agreement()
        # Saving may be a collective, so all workers must save at the same step: only rank 0 looks at the clock.
        self._clock = Cadence(every_minutes=context.plan.save.every_minutes if self._workers.world.rank == 0 else None)
        self._recorder = self._build_recorder()
        self._validator = Validator(context, meter.direction, early_stopping)
        self._diagnosis = NonFiniteDiagnosis(
            context.step, self._repeat, self._train_again, lambda: self.state.step, self._keep_step
        )
        self._replay: Optional[ReplayWriter] = None
        self._finalizer = RunFinalizer(context)
        strategy = self._step.strategy
        self._consumer = Consumer([strategy], self._workers, strategy.look_ahead, self._workers.chunks)
        self._lost: Set[int] = set()
        self._saves_when_met = False
        self.remarks: List[str] = []
        self.can_repeat = True
        """False if steps are taken by a caller's own functions, so that they cannot be done again to explain them."""
        if checkpoint is not None:
            self._restore(checkpoint)

    def _restore(self, checkpoint: Checkpoint) -> None:
        """Continues from a checkpoint of this or another run, and collects remarks about what differs."""
        self._rewind(checkpoint)
        if self._saving.holds(checkpoint):
            self._saving.saved_step = self.state.step
        if resume.monitor_changed(checkpoint.state["run"], self._plan.identity):
            self.state.early_stopping = {}
        self.remarks += resume.remarks(
            checkpoint, self._workers.world.size, self._workers.servers_update, snapshot.threads(), operators_in_use()
        )

    def train(self, run: RunInfo) -> Result:
        """Trains to the end, saves, and evaluates the test split with the best weights.

        Args:
            run: facts about the run for callbacks.

        Raises:
            Exception: an exception of the user's own code, after the callbacks were notified.
        """
        steps = self.steps(run)
        try:
            next_step = next(steps)
            while True:
                try:
                    sums = self._step(next_step.batch, next_step.lr, next_step.step)
                except BaseException as problem:
                    next_step = steps.throw(problem)
                else:
                    next_step = steps.send(StepResult(sums, next_step.lr))
        except StopIteration as end:
            return end.value

    def steps(self, run: RunInfo) -> Steps:
        """Does the same as `train`, but lets the caller compute the steps.

        Yields each `NextStep`, must be sent its `StepResult`, and returns the result. The caller must throw the
        exception of a failed step into the generator; `LoopClosed` ends the run early.
        """
        # A worker that joined late must not return here: the others are already in the loop, and wait for it.
        joined_late = self._workers.membership.joined_late
        previous_result = None if joined_late else self._previous_result(run.run_dir)
        if previous_result is not None:
            self._workers.close()
            return previous_result
        started = time.monotonic()
        world = self._workers.world
        self._replay = ReplayWriter(run.run_dir, dict(self._plan.identity), world.rank, world.size)
        error: Optional[BaseException] = None
        all_workers_end = True
        with self._signals:
            try:
                self._callbacks.notify("on_start", run)
                for remark in self.remarks:
                    self._say(remark)
                if self._plan.saves_midway and self._saving.saved_step != self.state.step and not joined_late:
                    self._save()  # `NonFiniteDiagnosis` repeats steps from this checkpoint after a non-finite loss
                stop = yield from self._loop_and_regroup()
                if self._profiling:
                    self._profiling.end()
                result = self._finalizer.finish(stop, self.state, self._recorder)
            except MxtrainError as problem:
                result = self._finalizer.failed(str(problem), problem.exit_code, self.state, self._recorder)
            except KeyboardInterrupt:  # from a callback or a caller's step; signals do not raise it during training
                all_workers_end = False
                result = self._finalizer.interrupted(self.state, self._recorder)
            except BaseException as problem:
                error = problem
                message = describe_error(problem, self._plan.less_memory)
                result = self._finalizer.failed(message, EXIT_CRASHED, self.state, self._recorder)
            self._discard_profile_at_end()
            HEARTBEAT.end()
            result = self._callbacks.end(replace(result, wall_s=time.monotonic() - started), error)
            # The other workers wait for this one below: a supervisor counts a worker that ends long after them as hung.
            self._saving.close(self._signals.seconds_left)
        # Closing waits for the other workers, which only arrive here if all workers end the run together.
        if all_workers_end and result.exit_code in AGREED_EXIT_CODES:
            self._workers.close()
        return result

    # The loop.

    def _loop_and_regroup(self) -> Loop:
        """Runs the loop. If workers may join and leave, restarts it with the new group each time they do."""
        budget = self._plan.budget()
        self._clock.start(self.state.step, self.state.epoch, time.monotonic())
        lost: Optional[PeersLost] = None
        has_changed = self._workers.membership.joined_late
        while True:
            try:
                if lost is not None:
                    self._regroup(lost)
                    has_changed = True
                # Checked again for each group: a new worker may run on a host without the others' compiler.
                snapshot.require_same_operators(self._step)
                with self._step.synchronized():
                    snapshot.require_same_weights(self._step, self.state.step)
                if has_changed and self._plan.saves_midway:
                    self._save()  # a checkpoint may have been due when the worker was lost
                lost, has_changed = None, False
                stop = yield from self._loop(budget)
                self._save_at_end()
                return stop
            except PeersLost as error:
                if not self._workers.membership.elastic:
                    raise
                lost = error

    def _regroup(self, lost: PeersLost) -> None:
        """Forms a new group of the remaining and new workers, which all take the state of rank 0."""
        previous_world = self._workers.world
        self._workers.membership.regroup()
        world = self._workers.world
        self._data.share(world)
        # Pending votes and measured speeds belong to the previous group.
        self._agreement = self._build_agreement()
        self._stragglers.forget()
        if world.rank == 0:
            # Rank 0 alone records here, so an explanation of a non-finite loss must not use collectives.
            self._record(everything=True, together=False)
            self._recorder.pause()
            # The loss of a worker may have interrupted the validation of the last step, which is then made up for.
            is_due = self._plan.validate.due(self.state.step, self.state.epoch, 0.0)
            self.state.validation_due = self.state.validation_due or is_due
            self._say(elastic.remark(lost, previous_world.size, world.size, self.state.step))
        # Residuals stay with their workers: to collect them is collective, and rank 0 alone takes this snapshot.
        shared_checkpoint = elastic.share_state(
            self._workers, lambda: snapshot.take(self._step, self.state, self._plan, None, with_residuals=False)
        )
        if shared_checkpoint is not None:
            self._rewind(shared_checkpoint)
        self._workers.membership.resume_from(self.state.step)

    def _loop(self, budget: Budget) -> Loop:
        """Yields each step to take, and records, validates and saves after it; returns the reason to stop."""
        for rule in (self._plan.log, self._plan.validate, self._plan.save, self._plan.keep):
            rule.start(self.state.step, self.state.epoch, 0.0)
        stop = self._stop_at_step_limit()
        is_due = self.state.validation_due or (stop is not None and stop.state == "finished")
        if is_due and self._validator.finds_best(self.state, self._recorder, self._agreement):
            self._save()  # the checkpoint that this run continued from was written before its validation
        stop = self._resolve_stop(stop)
        if stop is not None:
            return stop
        chunks = self._workers.chunks
        with closing(self._batches() if chunks is None else self._chunks(chunks)) as batches:
            for batch in batches:
                try:
                    result = MET if batch is None else (yield from self._take_step(batch))
                except LoopClosed:
                    self._record(everything=True)
                    return Stop("interrupted", EXIT_BUDGET, "the loop was left before its last step")
                save = self._clock.due(self.state.step, self.state.epoch, time.monotonic()) or result.saves
                # The call comes first, because `or` would skip it and keep the request for the next step.
                save = self._signals.take_save_request() or save
                if chunks is not None and batch is not None:
                    # Other workers are at other steps: they validate, save and stop together when they meet.
                    self._saves_when_met = self._saves_when_met or save
                    if self._saves_when_met or self._signals.stop or budget.time_is_up() or self._action_stop():
                        chunks.pause()
                    if self._plan.log.due(self.state.step, self.state.epoch, 0.0):
                        self._record(everything=False, together=False)
                    continue
                save, self._saves_when_met = save or self._saves_when_met, False
                # Called after every step, also without a request: the votes of all workers are summed together.
                requested_stop = self._agreement.after_step(self._signals.stop or budget.time_is_up(), save)
                # The step limit comes first, so that a signal during the last step does not make a finished run
                # interrupted.
                stop = budget.steps_done(self.state.step) or requested_stop or self._action_stop()
                measured = result.measured
                if stop is not None and stop.exit_code == EXIT_FINISHED:
                    self._actions.at_end(self.state)
                    if self._actions:  # actions may have changed the weights, so measure again
                        measured = measured._replace(values={})
                self._record_validate_save(stop, result.after_rows, measured)
                stop = self._resolve_stop(stop)
                if stop is not None:
                    return stop
        raise AssertionError("batches never end")

    def _take_step(self, batch: Batch) -> Generator[NextStep, StepResult, StepResult]:
        """Yields a step to take, and counts it."""
        lr, epoch = self._begin_step(batch)
        try:
            result = yield NextStep(batch, lr, self.state.step + 1)
        except Exception as problem:
            if not isinstance(problem, (MxtrainError, LoopClosed)):
                reason = f"step {self.state.step + 1} failed: {describe_error(problem, '')}"
                self._keep_step(batch, self.state.step + 1, reason)
            raise
        self._count_step(batch, result.lr, epoch, result.sums)
        return result

    def _batches(self) -> Generator[Batch, None, None]:
        """Yields batches from the current position of the run, endlessly.

        The caller must count each step before it takes the next batch, because `epoch_step` ends an epoch.
        """
        while True:
            self._share_by_speed()
            with closing(self._data.train.epoch(self.state.epoch, self.state.epoch_step, self._consumer)) as batches:
                for batch in batches:
                    yield batch
                    every = self._workers.balance_every
                    is_due = every is not None and self.state.step % every == 0
                    # With new shares, the loader starts again at the next batch of the epoch.
                    if self.state.epoch_step == 0 or (is_due and self._share_by_speed()):
                        break

    def _chunks(self, chunks: ChunkClient) -> Generator[Optional[Batch], None, None]:
        """Yields the chunks that this worker takes, and None after each interval that all workers have finished.

        Within an interval `state.step` is the step of this worker's last chunk; at its end it is the last finished step
        of all workers. The caller must count each step before it takes the next batch.
        """
        while True:
            state = self.state
            origin, begin = state.step - state.epoch_step, state.epoch_step
            if begin == 0:
                state.epoch_sums.clear()
            chunks.begin(state.epoch, begin, self._plan.next_meeting(state.step, origin) - origin)
            end: Optional[int] = None
            while end is None:
                with closing(self._data.train.epoch(state.epoch, begin, self._consumer)) as batches:
                    try:
                        for batch in batches:
                            # A chunk of a lost worker may be of an earlier step; it counts for the present one.
                            state.step = max(origin + batch.number, state.step - 1)
                            self._workers.begin_chunk(batch.chunk)
                            yield batch
                    finally:
                        chunks.cancel()  # the loader's thread may wait for a chunk
                end = self._workers.finish_interval()
            self._say_lost(chunks)
            state.step, state.epoch_step = origin + end, end
            if end == self._plan.steps_per_epoch:
                state.epoch, state.epoch_step = state.epoch + 1, 0
                self._recorder.end_epoch()
            yield None

    def _say_lost(self, chunks: ChunkClient) -> None:
        """Reports workers that were lost in the last interval, and divides validations among the others."""
        lost = sorted(set(range(chunks.shares)) - set(chunks.live) - self._lost)
        if lost:
            self._lost.update(lost)
            self._data.share(self._workers.world)
            names = ", ".join(f"worker {rank} was lost" for rank in lost)
            self._say(f"{names}; the others have computed the remaining chunks of the data, and go on")

    def _share_by_speed(self) -> bool:
        """Updates the workers' shares of a batch, the same on all workers. Returns True if they have changed."""
        times = self._workers.share_pace(self.state.step) if self._stragglers.by_speed else None
        if times is not None:
            self._stragglers.restart(times)
            self._callbacks.notify("on_scalars", times.scalars(), times.step)
        world = self._stragglers.share(self._workers.world)
        has_changed = world is not self._workers.world
        if has_changed:
            self._workers.world = world
            self._data.share(world)
        return has_changed

    def _begin_step(self, batch: Batch) -> Tuple[float, int]:
        """Prepares the next step; returns its learning rate and the number of its epoch, from 1."""
        state = self.state
        if state.epoch_step == 0 and self._workers.chunks is None:
            state.epoch_sums.clear()
        lr, epoch = self._actions.before_step(state, self._plan.lr(state.step)), state.epoch + 1
        self._recorder.begin()
        self._profile(batch)
        return lr, epoch

    def _count_step(self, batch: Batch, lr: float, epoch: int, sums: NDArray) -> None:
        """Counts a finished step and queues its row, which is read later, when the device has computed it."""
        state, is_chunk = self.state, batch.chunk >= 0
        if is_chunk:
            state.step += 1  # `_chunks` counts the steps of the epoch when all workers have finished them
        else:
            state.count_step(self._plan.steps_per_epoch)
        self._watch_workers()
        HEARTBEAT.step = state.step
        HEARTBEAT.begin_batch()
        entry = Entry(state.step, epoch, batch.global_size, lr, sums, self._step.grad_norm)
        self._recorder.add(entry, ends_epoch=state.epoch_step == 0 and not is_chunk)

    def _profile(self, batch: Batch) -> None:
        """Starts or ends a profile of the next steps if one is due, and reports its result to the callbacks."""
        if self._profiling is None:
            return
        for usage in self._profiling.before_step(self.state.step + 1, batch):
            self._callbacks.notify("on_usage", usage)
            self._callbacks.notify("on_scalars", usage.scalars(), self.state.step)

    def _discard_profile_at_end(self) -> None:
        """Discards an unfinished profile at the end of the run. Only warns about errors."""
        try:
            if self._profiling:
                self._profiling.discard()
        except Exception as problem:  # must not hide the error that ends the run, nor leave its state at "running"
            logging.getLogger("mxtrain").warning("the profile could not be ended: %s", problem)

    def _watch_workers(self) -> None:
        """Reports the times of all workers, if they are known for this step, and names workers that are slow."""
        times = self._workers.times
        if times is None or not self._stragglers.note(times):
            return
        if times.step >= self._next_table:
            self._callbacks.notify("on_usage", times)
            self._next_table = times.step + EVERY
        self._callbacks.notify("on_scalars", times.scalars(), times.step)
        remark = self._stragglers.remark()
        if remark:
            self._say(remark)

    def _record_validate_save(
        self, stop: Optional[Stop], after_rows: Optional[Callable[[], None]], measured: LoopValues
    ) -> None:
        """Reads rows, validates and saves after a step, as far as each is due.

        Args:
            stop: reason to stop after this step; None to continue.
            after_rows: see `StepResult`.
            measured: values of the validation split, if the step has measured them.
        """
        step, epoch_ended = self.state.step, self.state.epoch_step == 0
        finished = stop is not None and stop.state == "finished"
        position = (step, self.state.epoch, 0.0)  # no time: workers agree on intervals in minutes by `self._agreement`
        log, validate, save = (rule.due(*position) for rule in (self._plan.log, self._plan.validate, self._plan.save))
        keep = self._plan.keep.due(*position)
        save = save or self._agreement.saves
        validate = validate or finished
        if log or validate or save or keep or stop:
            # If the run directory was deleted, another run may be at that path now, so nothing is written there.
            self._saving.require_in_place()
        # A profile over a validation or a save would count their time as time of a step.
        if self._profiling and (validate or save or keep or stop):
            self._profiling.discard()
        if validate or save or keep or stop or epoch_ended or after_rows:
            # The sums of the epoch are reset after its last step, so all of its rows must be read now.
            self._record(everything=True)
            self._recorder.pause()
        elif log:
            self._record(everything=False)
        else:
            # With slow steps, displays would show nothing until log_interval; this row needs no wait.
            row = self._recorder.glance()
            if row is not None:
                self._callbacks.notify("on_glance", row, self._progress(row["step"]))
        is_best = validate and self._validator.finds_best(self.state, self._recorder, self._agreement, measured)
        if after_rows is not None:
            after_rows()
        # After a stop, `_save_at_end` saves instead, once validation and actions are done.
        if (save and not stop) or is_best:
            self._save()
            self._clock.start(step, self.state.epoch, time.monotonic())
        elif keep and not stop:
            self._save(in_memory=True)

    def _stop_at_step_limit(self) -> Optional[Stop]:
        """Returns the reason to stop if the step limit is already reached.

        Ignores the time limit, so that a run with a short limit that is resumed repeatedly takes a step each time.
        """
        return self._plan.budget(with_time=False).steps_done(self.state.step)

    def _resolve_stop(self, stop: Optional[Stop]) -> Optional[Stop]:
        """Returns the reason to stop, if any: first an interrupted validation, then early stopping, then `stop`."""
        if self.state.validation_due:
            return self._validator.interrupted_by or self._signals.stop
        reason = self._early_stopping.reason(self.state.early_stopping)
        return Stop("stopped_early", EXIT_FINISHED, reason) if reason else stop or self._action_stop()

    def _action_stop(self) -> Optional[Stop]:
        """Returns the stop that an action has requested, if any."""
        reason = self._actions.stop_reason
        return Stop("stopped_early", EXIT_FINISHED, reason) if reason else None

    # Recording, validation, saving.

    def _record(self, everything: bool, together: bool = True) -> None:
        """Reads finished rows and reports progress.

        Args:
            everything: True to wait for all rows; otherwise only rows that the device has finished are read.
            together: True if all workers call this after the same step.

        Raises:
            NonFiniteError: a loss is infinite or NaN.
        """
        rows = self._recorder.read(everything)
        if not rows:
            return
        progress = self._progress(rows[-1]["step"])
        self._callbacks.notify("on_steps", rows, progress)
        for step, values in self._recorder.points:
            self._callbacks.notify("on_scalars", values, step)
        scalars = {**self._recorder.scalars, **self._step.scalars()}
        for memory in progress.gpu_memory:
            scalars.update(memory.scalars())
        self._callbacks.notify("on_scalars", scalars, rows[-1]["step"])
        bad_step = first_nonfinite(rows)
        if bad_step is not None:
            raise NonFiniteError(self._diagnosis.explain_loss(bad_step, together))

    def _save(self, in_memory: bool = False) -> None:
        """Saves a checkpoint of the finished steps.

        Args:
            in_memory: True to keep it in memory only, for a restart by the supervisor.

        Raises:
            NonFiniteError: a parameter contains an infinite number or NaN.
        """
        with self._step.synchronized():
            self._save_synchronized(in_memory)

    def _save_synchronized(self, in_memory: bool) -> None:
        """Saves a checkpoint of weights that are equal on all workers; see `_save`."""
        # MXNet's ReLU turns NaN into 0, so the loss can be finite while weights are NaN; no checkpoint may contain
        # them.
        bad = snapshot.first_nonfinite_parameter(self._step)
        if bad:
            raise NonFiniteError(self._diagnosis.explain_weights(bad))
        # Rows must be on disk first: a resumed run removes rows after its checkpoint, and continues those before it.
        self._callbacks.notify("on_checkpoint", self.state.step)
        validated = self.state.validated_step == self.state.step and self._actions.ranks_validations
        metric = self.state.values.get(self._plan.monitor) if validated else None
        save = self._saving.keep_in_memory if in_memory else self._saving.save
        save(snapshot.take(self._step, self.state, self._plan, metric))
        self._step.wait_for_save()

    def _save_at_end(self) -> None:
        """Saves the last step. Called inside the elastic loop, so that the run survives the loss of a worker here."""
        if self._plan.save_on_end and self._saving.saved_step != self.state.step:
            self._save()

    def _previous_result(self, run_dir: Path) -> Optional[Result]:
        """Returns the result of a run that has nothing left to do, according to status.json; None if there is work."""
        if self._saving.saved_step != self.state.step or self.state.validation_due:
            return None
        stop = self._resolve_stop(self._stop_at_step_limit())
        return None if stop is None else self._finalizer.ended_before(stop, self.state, run_dir)

    # Repetition of earlier steps, bit for bit, with which `NonFiniteDiagnosis` locates non-finite numbers.

    def _train_again(self, batch: Batch) -> int:
        """Repeats a step without recording it; returns its number."""
        lr = self._actions.before_step(self.state, self._plan.lr(self.state.step))
        self._step(batch, lr, self.state.step + 1)
        self.state.count_step(self._plan.steps_per_epoch)
        return self.state.step

    def _repeat(self, message: str, bad_step: int) -> Iterator[Batch]:
        """Rewinds to the last checkpoint before `bad_step` and yields the batches from there; none if there is none."""
        if not self.can_repeat:
            return
        checkpoint = self._saving.latest()
        if self._workers.world.rank > 0:  # rank 0 keeps the checkpoints
            checkpoint = receive_checkpoint(self._workers.broadcast)
        elif self._workers.world.size > 1:
            send_checkpoint(self._workers.broadcast, checkpoint, self._step.strategy.remote.names)
        if checkpoint is None or checkpoint.step >= bad_step:
            return
        if self._profiling:
            self._profiling.discard()
        self._say(f"{message}; repeating it from step {checkpoint.step} to find where it began")
        self._rewind(checkpoint)
        with closing(self._batches()) as batches:
            yield from batches

    def _keep_step(
        self, batch: Optional[Batch], step: int, reason: str, weights: Optional[Mapping[str, np.ndarray]] = None
    ) -> None:
        """Writes a step for `mxtrain replay`.

        Only reports failures, which must not hide the error that ends the run.
        """
        strategy = self._step.strategy
        if self._replay is None or batch is not None and not batch.size:
            return
        try:
            latest = self._saving.latest()
            if batch is None or strategy.remote.names:  # this process has no weights of tables on servers
                folder = self._replay.write_reference(step, reason)
            else:
                folder = self._replay.write(
                    batch,
                    step,
                    self.state.epoch,
                    reason,
                    lambda: snapshot.copy_parameters(strategy) if weights is None else weights,
                    num_parameter_bytes(strategy),
                    None if latest is None else latest.path.name,
                )
            self._say(f"`python -m mxtrain replay {shlex.quote(str(folder))}` repeats step {step} layer by layer")
        except Exception as problem:
            self._say(f"step {step} could not be kept for `replay`: {problem}")

    def _rewind(self, checkpoint: Checkpoint) -> None:
        """Sets parameters, optimizer and counters to those of a checkpoint."""
        self.state = snapshot.restore(checkpoint, self._step)
        # The saved number counts batches of the size at that time, which checkpoint.changes may have changed.
        self.state.epoch_step = resume.epoch_step_of(checkpoint, int(self._plan.identity["batch_size"]))
        # The recorder changes lists of the state in place, so a new state needs a new recorder.
        self._recorder = self._build_recorder()

    def _build_recorder(self) -> Recorder:
        plan = self._plan
        log_interval = min(plan.log.every_steps or 1, plan.steps_per_epoch)
        return Recorder(self._meter, self.state.epoch_sums, self.state.window_sums, log_interval, plan.total_steps)

    def _build_agreement(self) -> Agreement:
        # Workers that take chunks agree at the end of an interval, where all of them are after the same step.
        return Agreement(self._workers, STEPS_AHEAD if self._workers.chunks is None else 0)

    def _say(self, text: str) -> None:
        self._callbacks.notify("on_message", text)

    def _progress(self, step: int) -> Progress:
        total = self._plan.total_steps
        return Progress(step=step, epoch=self.state.epoch, total_steps=total, gpu_memory=self._gpu_memory.read())
