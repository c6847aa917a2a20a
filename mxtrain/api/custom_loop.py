"""Custom training loops with the loaders, networks, steps, evaluation and checkpoints of a run.

>>> with mxtrain.session("model=mlp", dir="outputs/own") as s:
...     for batch in s.train_batches():
...         s.step(batch)

A loss function takes the place of network, loss and meter in the executor; reduction, clipping and update stay in
`TrainingStep`, so a function with the task's arithmetic gives the same bits. Several networks share one namespace of
parameters and one strategy, so checkpoints have one form. With several workers the script itself runs in each, because
functions cannot be sent to other processes.
"""

from __future__ import annotations

import functools
import logging
import os
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Dict,
    Iterator,
    List,
    Literal,
    Mapping,
    Optional,
    Union,
)

import numpy as np
from typing_extensions import Unpack

from mxtrain.api.arguments import AnyPath, override_of_dir, read_call
from mxtrain.api.run import Run
from mxtrain.callback.action import learning_rate
from mxtrain.callback.protocol import BY_HAND, Progress, Result, Validation
from mxtrain.cluster.launch import worker_script
from mxtrain.cluster.launch.group import find_role
from mxtrain.cluster.launch.store_server import serve
from mxtrain.cluster.launch.worker_script import run_in_workers
from mxtrain.cluster.member import find_world
from mxtrain.composing.environment import compose_and_check
from mxtrain.composing.objects import Objects
from mxtrain.composing.parts import SessionParts, with_parts
from mxtrain.errors import (
    EXIT_NON_FINITE,
    EXIT_SIGINT,
    EXIT_SIGTERM,
    ConfigError,
    MxtrainError,
    NonFiniteError,
    PeersLost,
)
from mxtrain.kvstore.store import Store
from mxtrain.kvstore.world import ALONE
from mxtrain.training.state import NOT_MEASURED, LoopValues
from mxtrain.types import Batch

if TYPE_CHECKING:
    from mxnet import gluon
    from mxnet.ndarray import NDArray

    from mxtrain.composing.composer import Composed
    from mxtrain.config.groups import Description
    from mxtrain.parallel.loss_function import LossFunction
    from mxtrain.training.build import BuiltRun
    from mxtrain.training.custom_steps import CustomSteps
    from mxtrain.training.runner import NextStep, Steps
    from mxtrain.types.annotations import Config

CUSTOM: Mapping[str, Config] = {
    "task": {"_target_": "mxtrain.task.custom_loop.CustomLoop"},
    "loss": {"_target_": "mxtrain.loss.losses.SoftmaxCrossEntropy"},
    "metric": {},
}
"""Configuration groups of a loop with its own loss functions."""


@with_parts(SessionParts)
@contextmanager
def session(
    *overrides: str,
    dir: Optional[AnyPath] = None,
    config_dir: Optional[AnyPath] = None,
    task: str = "",
    callbacks: Any = None,
    **parts: Unpack[SessionParts],
) -> Iterator[Session]:
    """Opens a run for a training loop of your own.

    The run directory has the same content as that of `train`. After an interruption, the same loop continues the run
    with bitwise equal results.

    Args:
        overrides: as on the command line.
        dir: the run directory; default: ``outputs/DATE/TIME``.
        config_dir: folder with further groups and options.
        task: as the override ``task=``; ``"custom"`` takes any dataset and network and leaves the objective to loss
            functions. It has no metrics, and no validation except `Session.evaluate`.
        callbacks: as for `train`.
        **parts: as for `train`. ``model`` may be a dict of several networks for ``task="custom"``, each a
            block or a pair of a block and the shape of one sample of its input; then ``optimizer`` a dict of such.

    Raises:
        ConfigError: the description, an object or the data are wrong, or the store does not support custom steps.

    >>> with mxtrain.session("model=mlp", dir="outputs/own") as s:
    ...     for batch in s.train_batches():
    ...         s.step(batch)
    ...     print(s.evaluate())
    """
    is_custom = task == "custom"
    call = read_call(session, overrides, config_dir, {**parts, "callbacks": callbacks})
    objects = call.objects
    if not is_custom and isinstance(objects.values.get("model"), Mapping):
        raise ConfigError('session: several networks have no loss that a task knows. Give task="custom".')
    chosen_task = [f"task={task}"] if task and not is_custom else []
    # First, so that overrides of the caller replace them.
    defaults = ["trainer.monitor=val/loss", "early_stopping=off", "trainer.test=false"] if is_custom else []
    words = [*defaults, *call.overrides, *chosen_task, *override_of_dir(dir, "session")]
    worker = worker_script.running
    if worker is not None:
        words = worker.take_overrides()  # of the worker's command line, which the first process has written
    with ExitStack() as stack:
        if worker is not None:
            stack.callback(worker.leave_cluster)
        composer = stack.enter_context(call.composer(CUSTOM if is_custom else None))
        composed, description = compose_and_check(composer, words)
        member = find_role(description)
        if description.kvstore.distributed:
            require_custom_steps(description, objects)
            if member is None:
                raise SystemExit(run_in_workers(composed, description, [*call.flags, *words]))
            if member.role != "worker":
                raise SystemExit(serve(member.role, lambda: description, description.cluster.start_timeout))
        opened = _open_session(
            stack,
            composed,
            description,
            is_custom,
            Run(
                Path(os.path.abspath(composed.run_dir)), "last", trust_code=True, config_dir=config_dir, objects=objects
            ),
        )
        try:
            with opened.run_loop():
                yield opened
        finally:
            if worker is not None and opened.result is not None:
                worker.exit_code = opened.result.exit_code


def require_custom_steps(description: Description, objects: Objects) -> None:
    """Raises a `ConfigError` if the store of several workers does not support custom steps."""
    if description.kvstore.servers_update:
        raise ConfigError(
            f"session: the servers of {description.kvstore.setting} update by the optimizer of the task. "
            "Type kvstore=dist_sync or kvstore=horovod."
        )
    if description.kvstore.independent_steps:
        raise ConfigError("session: kvstore.sync_every counts the steps of the task's loss. Leave it out.")
    if description.kvstore.shards_optimizer:
        raise ConfigError("session: kvstore.shard_optimizer divides the updates of the task's loss. Leave it out.")
    if description.kvstore.serves_tables:
        raise ConfigError("session: kvstore.tables=servers needs the loss of a task. Type kvstore.tables=workers.")
    if description.kvstore.compresses_by != "none" and isinstance(objects.values.get("model"), Mapping):
        raise ConfigError(
            f"session: kvstore.compression={description.kvstore.compresses_by} with several networks: checkpoints have "
            "the residuals of one step only. Type kvstore.compression=none."
        )


def _open_session(stack: ExitStack, composed: Composed, description: Description, is_custom: bool, run: Run) -> Session:
    """Builds the run and its session. The run directory is locked until `stack` is closed."""
    from mxtrain.cluster.launch.hydra_run import run_composed
    from mxtrain.cluster.launch.job import begin_run, command_of
    from mxtrain.cluster.launch.run import claim
    from mxtrain.cluster.launch.run_dir_rollback import RunDirRollback
    from mxtrain.training.custom_steps import CustomSteps

    run_dir = run.path
    steps = CustomSteps(is_custom)
    if find_world().rank > 0:  # only the first worker uses the run directory
        logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
        return Session(run, description, begin_run(description, run_dir, BY_HAND, loop=steps), steps)  # type: ignore[arg-type]  # it is built
    rollback = RunDirRollback(composed.run_dir, str(composed.hydra.output_subdir))
    command = command_of(composed.hydra)
    if is_custom:
        chosen = {name: option for name, option in command.choices.items() if name not in CUSTOM}
        command = replace(command, choices={**chosen, "task": "custom", "loss": "custom"})
    # Hydra calls `build`, and only takes a result, so the run is passed through this list.
    built: List[BuiltRun] = []

    def build(config: object) -> Result:
        built.append(begin_run(description, run_dir, command, resume_point, steps))  # type: ignore[arg-type]  # it is built
        return Result("running", 0, "", step=0, epoch=0)

    try:
        resume_point = stack.enter_context(claim(composed.run_dir, description))
        run_composed(composed, composed.run_dir, build)
    except MxtrainError:
        rollback.restore()
        raise
    return Session(run, description, built[0], steps)


class Session:
    """A run in a custom loop; created by `session`."""

    def __init__(self, run: Run, description: Description, built: BuiltRun, steps: CustomSteps):
        self.path, self.description, self._run = run.path, description, run
        self._built, self._custom_steps = built, steps
        # A generator: it yields each step to take, and receives the result of the step before.
        self._runner_steps: Steps = built.runner.steps(built.info)
        self._current_step: Optional[NextStep] = None
        self._sums: Dict[str, List[NDArray]] = {}
        self._lr: Optional[float] = None
        self._is_save_requested = False
        self._rows: Dict[int, Dict[str, Any]] = {}
        self._measured = NOT_MEASURED
        self._scalars: Dict[str, float] = {}
        self.result: Optional[Result] = None
        """Result of the run; None until it has ended."""

    def __repr__(self) -> str:
        return f"Session({str(self.path)!r}, step={self.step_number})"

    @property
    def network(self) -> gluon.Block:
        """Returns the network; with several networks, a block with an attribute for each.

        With ``parallel.stages`` its parameters are on several devices.
        """
        return self._custom_steps.first.strategy.objective.network

    @property
    def step_number(self) -> int:
        """Returns the number of finished steps, including the current batch once `step` was called for it."""
        return self._built.runner.state.step + bool(self._sums)

    @property
    def total_steps(self) -> Optional[int]:
        """Returns the number of steps of the whole run; None if only time limits it."""
        return self._custom_steps.plan.total_steps

    @property
    def epoch(self) -> int:
        """Returns the number of the epoch of the current batch, from 1."""
        return self._built.runner.state.epoch + 1

    @property
    def ends_epoch(self) -> bool:
        """Returns True if the current batch is the last one of its epoch."""
        return self._built.runner.state.epoch_step + 1 == self._custom_steps.plan.steps_per_epoch

    @property
    def lr(self) -> float:
        """Learning rate of the schedule for the current batch."""
        return self._custom_steps.plan.lr(self._built.runner.state.step)

    def train_batches(self) -> Iterator[Batch]:
        """Yields the remaining training batches of all epochs; `step` must be called for each.

        Between two batches the run logs, validates and saves according to its description.

        Yields:
            Batches with ``inputs`` and ``targets``, tuples of arrays on the first device, ``size`` and ``index_B``.

        Raises:
            NonFiniteError: the loss or the weights became non-finite.
            KeyboardInterrupt: the run was interrupted, and saved a checkpoint.
        """
        while self._advance():
            assert self._current_step is not None
            yield self._current_step.batch

    def step(
        self,
        batch: Batch,
        loss: Optional[LossFunction] = None,
        *,
        network: Optional[str] = None,
        lr: Optional[float] = None,
    ) -> StepLoss:
        """Takes one optimizer step: forward, backward, sum over replicas, clip, update.

        Args:
            batch: from `train_batches`; the function gets each replica's part of it.
            loss: function of (network, batch) that returns the loss of each sample (B,), or the loss and the weight of
                each; the network is a block, or has each of several as an attribute. Its operations are recorded, and
                random numbers of ``mx.nd.random`` are the same after a resume. Or a block such as
                ``gluon.loss.L1Loss()``, which is called with the outputs of the network and the targets. Default: the
                loss of the task.
            network: name of the network to update, if there are several.
            lr: learning rate; default: that of the schedule.

        Returns:
            The mean loss; `float()` of it waits for the device.

        Raises:
            ConfigError: the placement does not support a loss function, or the function returns something else.
        """
        if self._current_step is None:
            raise ConfigError("s.step: there is no batch. Call it within `for batch in s.train_batches()`.")
        if loss is None and self._custom_steps.is_custom:
            raise ConfigError('s.step: with task="custom" it needs loss=FUNCTION(network, batch).')
        name = self._custom_steps.find_name(network)
        training_step = self._custom_steps.steps[name]
        rate = self.lr * self._custom_steps.relative_lr[name] if lr is None else learning_rate(lr, "s.step(lr=")
        if loss is not None:
            training_step.strategy.network_on(0)  # rejects placements before anything is computed
            self._built.runner.can_repeat = False
            self._custom_steps.meter.has_metrics = self._custom_steps.is_custom
        try:
            sums = training_step(batch, rate, self._current_step.step, loss)
        except PeersLost as lost:  # the loop's own code cannot take the step again
            raise MxtrainError(f"a worker was lost ({lost}); the loop continues from its last checkpoint") from lost
        self._sums.setdefault(name, []).append(sums)
        self._measured = NOT_MEASURED
        self._lr = rate if self._lr is None else self._lr
        return StepLoss(sums, training_step.strategy.objective.meter.weighted, batch.global_size)

    def evaluate(
        self,
        loss: Optional[Callable[[Any, Batch], Any]] = None,
        split: Literal["val", "test"] = "val",
        name: str = "",
    ) -> Dict[str, float]:
        """Evaluates a split with the current weights (the moving average if there is one).

        Values of "val" are written to metrics.jsonl, in one row per step. If the run validates after this step, it uses
        the task's values instead of measuring again.

        Args:
            loss: function as for `step`, which is averaged over the samples; default: loss and metrics of the task.
            split: "val", or "test" if the dataset has one; its values are returned and not recorded.
            name: the value of `loss` is called ``custom/NAME``. Default: the name of the function; with
                ``task="custom"`` it is ``loss``.

        Raises:
            ConfigError: there is no such split, or nothing to measure.
        """
        if loss is None and self._custom_steps.is_custom:
            raise ConfigError('s.evaluate: with task="custom" it needs loss=FUNCTION(network, batch).')
        loader = getattr(self._custom_steps.data, split, None) if split in ("val", "test") else None
        if loader is None:
            raise ConfigError(f"s.evaluate(split={split!r}): there is no such split.")
        is_loss = self._custom_steps.is_custom and not name
        metric = "loss" if is_loss else f"custom/{name or getattr(loss, '__name__', type(loss).__name__)}"
        workers = self._custom_steps.first.store if split == "val" else Store()  # each worker has the whole test split
        if self.result is not None:  # after the end workers are disconnected, so each measures all samples
            workers = Store()
            self._custom_steps.data.share(ALONE)
        with self._custom_steps.first.average.applied():
            if loss is None:
                steps = self._custom_steps
                evaluator = steps.build_test_evaluator(None) if split == "test" else steps.evaluator
                values: Mapping[str, float] = evaluator.measure(loader, workers=workers)
            else:
                values = {metric: self._mean_loss(loss, loader, workers)}
        if split == "val":
            self._record_validation(values, is_custom_loss=loss is not None)
        return {key: value for key, value in values.items() if key != "samples_per_s"}

    def _record_validation(self, values: Mapping[str, float], is_custom_loss: bool) -> None:
        """Stores values of the validation split for the row of the last step, and for a validation after it."""
        state = self._built.runner.state
        if not is_custom_loss and 0 < state.validated_step == self.step_number:
            return  # the run has validated after that step
        epoch = self.epoch if self._sums else state.epoch_number
        row = self._rows.setdefault(self.step_number, {"step": self.step_number, "epoch": epoch, "split": "val"})
        row.update(values)
        if self._sums:
            earlier = self._measured
            if is_custom_loss:
                self._measured = LoopValues(earlier.values, {**earlier.more, **values})
            else:
                self._measured = LoopValues(values, earlier.more)

    def save(self) -> None:
        """Requests a checkpoint after the current step, in addition to those of ``checkpoint.*``."""
        self._is_save_requested = True

    def log(self, **values: Union[float, NDArray]) -> None:
        """Records your own values for TensorBoard as ``custom/NAME``, after the step of the current batch."""
        self._scalars.update({f"custom/{name}": float(np.asarray(_on_host(one))) for name, one in values.items()})

    def load(self) -> Run:
        """Returns the run, to evaluate, predict and read its history after the loop has ended."""
        return self._run

    # Exchange with the runner, a generator that yields each batch and receives the result of its step.

    @contextmanager
    def run_loop(self) -> Iterator[None]:
        """Context around the user's loop that ends the run when the loop is left."""
        try:
            yield
        except BaseException as error:
            self._end(error)
            raise
        self._end(None)

    def _advance(self) -> bool:
        """Advances to the next batch. Returns False at the end of the run."""
        if self.result is not None:
            return False
        try:
            if self._current_step is None:
                self._current_step = next(self._runner_steps)
            else:
                self._current_step = self._send_result()
            return True
        except StopIteration as end:
            self._close(end.value)
        self._raise_failure()
        return False

    def _send_result(self) -> NextStep:
        """Sends the result of the current step to the runner; returns the next one.

        Raises:
            ConfigError: `step` was not called for the batch.
            StopIteration: the run has ended; its value is the `Result`.
        """
        from mxtrain.training.runner import StepResult

        assert self._current_step is not None
        if not self._sums:
            raise ConfigError("s.step was not called for the last batch. Call it for each batch of s.train_batches().")
        notify = functools.partial(self._notify_callbacks, self._rows, self._scalars, self._current_step.step)
        tell = notify if self._rows or self._scalars else None
        result = StepResult(
            self._custom_steps.meter.join(self._sums), self._lr or 0.0, self._is_save_requested, tell, self._measured
        )
        self._sums, self._lr, self._is_save_requested, self._rows, self._scalars = {}, None, False, {}, {}
        self._measured = NOT_MEASURED
        return self._runner_steps.send(result)

    def _notify_callbacks(self, rows: Mapping[int, Dict[str, Any]], scalars: Mapping[str, float], step: int) -> None:
        """Passes values of the user's loop to callbacks: rows of validations by step, and scalars of this step."""
        callbacks, progress = self._custom_steps.context.callbacks, Progress(step, self.epoch - 1, self.total_steps)
        state = self._built.runner.state
        for number, row in rows.items():
            if number == step == state.validated_step:
                continue  # the validation has written these values
            callbacks.notify("on_validation", Validation(row, state.best, lambda: [], lambda: {}), progress)
        if scalars:
            callbacks.notify("on_scalars", scalars, step)

    def _end(self, error: Optional[BaseException]) -> None:
        """Ends the run after the user's code has left the loop, with its exception if there is one."""
        from mxtrain.training.runner import LoopClosed

        if self.result is not None or self._current_step is None:
            self._runner_steps.close()
            return
        try:
            if error is None and self._sums:
                self._send_result()
            self._runner_steps.throw(error or LoopClosed())
        except StopIteration as end:
            self._close(end.value)
        if error is None:
            self._raise_failure()

    def _close(self, result: Result) -> None:
        self.result, self._current_step = result, None

    def _raise_failure(self) -> None:
        assert self.result is not None
        code, cause = self.result.exit_code, self.result.cause
        if code in (EXIT_SIGINT, EXIT_SIGTERM):
            raise KeyboardInterrupt(cause)
        if self.result.state == "failed":
            raise NonFiniteError(cause) if code == EXIT_NON_FINITE else MxtrainError(cause)

    def _mean_loss(self, loss: Callable[[Any, Batch], Any], loader: Any, workers: Store) -> float:
        from mxtrain.engine.backend import mx
        from mxtrain.parallel.loss_function import evaluate_loss

        network = self._custom_steps.first.strategy.network_on(0)
        mx.random.seed(self.description.trainer.seed)  # safe for resuming: each training step seeds again
        total = weight = 0.0
        for batch in loader.epoch():
            losses = [one.asnumpy().astype(np.float64) for one in evaluate_loss(loss, network, batch)]
            total += float(losses[0].sum())
            weight += float(losses[1].sum()) if len(losses) > 1 else batch.size
        total, weight = workers.total([total, weight])
        return float(total / weight) if weight else 0.0


class StepLoss:
    """Mean loss of a step. The device may still be computing it; `float()` waits for the value."""

    def __init__(self, sums: NDArray, weighted: bool, size: int):
        self._sums, self._weighted, self._size = sums, weighted, size

    def __float__(self) -> float:
        sums = self._sums.asnumpy()
        weight = float(sums[1]) if self._weighted else self._size
        return float(sums[0]) / weight if weight else 0.0

    def __repr__(self) -> str:
        return f"{float(self):.6g}"


def _on_host(value: Any) -> Any:
    return value.asnumpy() if hasattr(value, "asnumpy") else value
