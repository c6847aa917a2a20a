"""Learning-rate range test: trains a copy at rising rates until the loss diverges, and returns the losses.

Source: Smith, https://arxiv.org/abs/1506.01186, with an exponential instead of a linear rise.
"""

from __future__ import annotations

import itertools
from collections import deque
from contextlib import closing
from typing import TYPE_CHECKING, Deque, Generator, Iterator, List, Tuple

import pydantic
from typing_extensions import Annotated

from mxtrain.config.groups import Description
from mxtrain.errors import ConfigError, DataError, LoaderError, MxtrainError
from mxtrain.kvstore.world import ALONE
from mxtrain.lr_scheduler.schedules import RangeTest
from mxtrain.terminal.progress import SILENT, WorkProgress
from mxtrain.training.lr_range import LearningRateCurve, read_curve
from mxtrain.types import PositiveFloat, Spec
from mxtrain.workflows.output_file import OutputFolder

if TYPE_CHECKING:
    from mxnet.ndarray import NDArray

    from mxtrain.data.loading.loader import BatchLoader, Consumer
    from mxtrain.training.plan import RunData
    from mxtrain.training.step import TrainingStep
    from mxtrain.types import Batch


class LrFindSettings(Spec):
    """Settings of `lr_find`, besides overrides."""

    start: PositiveFloat = 1e-6
    """First learning rate."""
    end: PositiveFloat = 10.0
    """Last learning rate."""
    steps: Annotated[int, pydantic.Field(ge=10)] = 100
    """Steps from one to the other, unless the loss diverges before."""
    output: OutputFolder = "lr_find"
    """Folder for curve.png, curve.csv and curve.json, which are replaced."""

    @pydantic.model_validator(mode="after")
    def _rises(self) -> LrFindSettings:
        if self.start >= self.end:
            raise ValueError(f"start={self.start:g} must be below end={self.end:g}")
        return self


def range_test(
    description: Description, settings: LrFindSettings, progress: WorkProgress = SILENT
) -> LearningRateCurve:
    """Trains in this process, with the placement of the description and one worker, and writes no files.

    The learning rate rises by a constant factor per step, in place of the schedule. Callbacks, loggers, checkpoints and
    limits of the run's length are not used, and nothing is validated.

    Args:
        description: description of the run.
        settings: first and last rate, and the number of steps; `output` is not used.
        progress: shows the steps.

    Raises:
        ConfigError: the description cannot be trained, or has several workers, see `cluster.launch.range_test`.
        DataError: the data cannot be read.
        MxtrainError: the loss of the first step is not finite.
    """
    description.trainer.require_one_run("lr_find")
    if description.kvstore.distributed:
        raise ConfigError("lr_find: this process is one worker. Type kvstore=local, or use the command for several.")
    rate = RangeTest(start=settings.start, end=settings.end, num_steps=settings.steps).build(0.0, 1, None)
    rates: List[float] = []
    losses: List[float] = []
    with progress:
        progress.begin("building the network", 0)
        step, data = _build(description)
        progress.begin("steps of rising learning rate:", settings.steps)
        try:
            for number, loss in _losses(step, data.train, [rate(index) for index in range(settings.steps)]):
                rates.append(rate(number))
                losses.append(loss)
                progress.advance(1)
                if read_curve(rates, losses).diverged:
                    break
        except LoaderError as error:
            raise DataError(str(error)) from error
    return checked_curve(rates, losses, settings)


def checked_curve(rates: List[float], losses: List[float], settings: LrFindSettings) -> LearningRateCurve:
    """Smooths the losses. Raises an `MxtrainError` if the first one is not finite."""
    curve = read_curve(rates, losses)
    if not curve.smoothed:
        raise MxtrainError(
            f"lr_find: the loss is no finite number in the first step already, at a learning rate of {settings.start:g}"
        )
    return curve


def _build(description: Description) -> Tuple[TrainingStep, RunData]:
    # Imports MXNet: only from here on.
    from mxtrain.training.build import build_step, open_inputs

    inputs = open_inputs(description, ALONE)
    description = inputs.description  # with a number as the batch size
    data, store = inputs.build_loaders(ALONE), description.kvstore.build(ALONE)
    objective = inputs.build_objective(ALONE)
    strategy = description.parallel.build(objective, description.trainer.grad_accumulation, store)
    states = {**data.train.states, **inputs.teachers}
    step = build_step(description, inputs.network, inputs.signature, len(data.train), strategy, store, states)
    return step, data


def _losses(step: TrainingStep, loader: BatchLoader, rates: List[float]) -> Iterator[Tuple[int, float]]:
    """Takes steps at these rates; yields the index and the loss of each.

    Losses are read a few steps late, so that the device always has a next step to compute.
    """
    from mxtrain.data.loading.loader import Consumer
    from mxtrain.metric.meter import read_vectors
    from mxtrain.training.recorder import STEPS_AHEAD

    meter = step.strategy.objective.meter
    pending: Deque[Tuple[int, NDArray]] = deque()
    indices = itertools.count()

    def read_oldest() -> Tuple[int, float]:
        size, sums = pending.popleft()
        return next(indices), float(meter.values(read_vectors([sums])[0], size)["loss"])

    consumer = Consumer([step.strategy], step.store, step.strategy.look_ahead)
    with closing(_batches(loader, consumer)) as batches:
        for number, (lr, batch) in enumerate(zip(rates, batches), start=1):
            pending.append((batch.global_size, step(batch, lr, number)))
            if len(pending) > STEPS_AHEAD:
                yield read_oldest()
    while pending:
        yield read_oldest()


def _batches(loader: BatchLoader, consumer: Consumer) -> Generator[Batch, None, None]:
    """Yields the batches of one epoch after the other, endlessly."""
    for epoch in itertools.count():
        with closing(loader.epoch(epoch, 0, consumer)) as batches:
            yield from batches
