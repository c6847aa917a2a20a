"""Measures real steps of a placement in this process, from which `mxtrain.parallel.forecast` predicts other placements.

open the data, build the network -> forward and backward passes of rising numbers of samples -> whole steps
"""

from __future__ import annotations

import collections
import functools
import itertools
import math
import time
from contextlib import closing
from statistics import mean
from typing import TYPE_CHECKING, Callable, Deque, Dict, Generator, Iterator, List, Sequence, Tuple

from mxtrain.config.groups import Description
from mxtrain.data.loading.loader import Consumer
from mxtrain.engine.backend import mx, nd
from mxtrain.engine.trace import EngineTrace, Operation
from mxtrain.errors import ConfigError
from mxtrain.kvstore.world import ALONE
from mxtrain.model.graph.work import FLOAT_BYTES
from mxtrain.parallel.spec import count_own_gpus
from mxtrain.parallel.usage import UPDATE, kind_of
from mxtrain.runtime.memory import peak_memory, resident_memory
from mxtrain.training.build import build_step, open_inputs
from mxtrain.training.recorder import STEPS_AHEAD

if TYPE_CHECKING:
    from mxtrain.parallel.layout import StageCost
    from mxtrain.training.step import TrainingStep
    from mxtrain.types import Batch
    from mxtrain.types.annotations import JsonObject

MIN_REPEATS, MAX_REPEATS = 2, 40
ROUNDS = 4
"""Numbers of samples, and steps and passes, are measured in turn, so that drift of the machine affects all alike."""
WARM_UP = 6
"""Number of steps before the first that is timed: the allocator still gets memory from the system in these."""
TRACED_STEPS = 3
TYPICAL = 0.05
"""Relative difference from the mean number of elements below which a batch is taken at once."""


def probe_placement(description: Description, num_sizes: int, seconds: float) -> JsonObject:
    """Measures a placement.

    Args:
        description: description of a run in one process.
        num_sizes: number of sizes of a part of a batch whose passes are measured: a batch, half of it, and so on.
        seconds: time for each measurement, after the passes that compile.

    Returns:
        A probe of `mxtrain.parallel.placement_profile`, without what its description says.

    Raises:
        ConfigError, DataError: the run cannot start, or its samples depend on its weights.
    """
    inputs = open_inputs(description, ALONE)
    description = inputs.description  # with a number as the batch size
    data, store = inputs.build_loaders(ALONE), description.kvstore.build(ALONE)
    if data.train.states:
        raise ConfigError("plan: the samples of this task depend on the weights, so steps cannot be measured alone.")
    objective = inputs.build_objective(ALONE)
    strategy = description.parallel.build(objective, description.trainer.grad_accumulation, store)
    step = build_step(description, inputs.network, inputs.signature, len(data.train), strategy, store, inputs.teachers)
    consumer = Consumer([strategy], store, strategy.look_ahead)
    with closing(full_batches(data.train.epoch, data.train.batch_size, consumer)) as batches:
        batch = next(batches)
        sizes = halved_sizes(batch.size, description.trainer.grad_accumulation, num_sizes)
        # The optimizer's state is made by the first update, so that all following peaks hold it.
        step(batch.slice(0, sizes[0]) if sizes else batch, 0.0, 1)
        nd.waitall()
        base_bytes = resident_memory()
        # Before the passes: MXNet keeps the memory of each number of samples that it has computed.
        measured, mean_elements = time_steps(step, batches, seconds)
        passes = time_passes(step, typical_batch(batches, mean_elements), sizes, seconds) if sizes else []
        operations = _trace_steps(step, batches)
    layout, values = strategy.layout, strategy.values
    cut, size = layout.cut, layout.microbatch_size(objective.batch_size)
    return {
        "batch_size": batch.size,
        "base_bytes": base_bytes,
        "passes": passes,
        "steps_per_epoch": len(data.train),
        "kind": layout.devices[0][0].device_type,
        "num_gpus": 0 if layout.devices[0][0].device_type == "cpu" else count_own_gpus(mx.context.num_gpus()),
        **measured,
        "compute_s": compute_times(operations, [str(device) for devices in layout.devices for device in devices]),
        "parameter_bytes": FLOAT_BYTES * sum(math.prod(values[name].shape) for name in strategy.trainable),
        "stages": [] if cut is None else [_stage_json(stage, size) for stage in cut.stages],
    }


def halved_sizes(batch_size: int, parts: int, count: int) -> List[int]:
    """Returns up to `count` numbers of samples that can be divided into parts, each about half of the next one.

    >>> halved_sizes(24, 2, 4)
    [2, 6, 12, 24]
    """
    return sorted({parts * max(1, batch_size // parts // 2**power) for power in range(count)})


def _stage_json(stage: StageCost, microbatch_size: int) -> JsonObject:
    return {
        "forward": stage.forward_s,
        "backward": stage.backward_s,
        "parameter_bytes": stage.parameter_bytes,
        "activation_bytes": stage.activation_bytes / stage.held,
        "sample_bytes": stage.input_bytes / microbatch_size,
    }


def full_batches(epoch: Callable, batch_size: int, consumer: Consumer) -> Generator[Batch, None, None]:
    """Yields the batches of one epoch after the other, without the smaller last one of each."""
    for number in itertools.count():
        found = False
        with closing(epoch(number, 0, consumer)) as batches:
            for batch in batches:
                if batch.size == batch_size or not found:
                    yield batch
                found = True


def _compute(step: TrainingStep, batch: Batch) -> None:
    """Computes the forward and backward passes of a batch, and waits for them."""
    step.strategy.forward_backward(batch, step.scaling.scale)
    nd.waitall()


def time_passes(step: TrainingStep, batch: Batch, sizes: Sequence[int], seconds: float) -> List[JsonObject]:
    """Returns the seconds of the forward and backward passes of numbers of samples."""
    computed = {size: functools.partial(_compute, step, batch.slice(0, size)) for size in sizes}
    for compute in computed.values():
        compute()  # compiles
    times = _in_turn(list(computed.values()), seconds)
    return [{"samples": size, "seconds": mean(found)} for size, found in zip(sizes, times)]


def count_elements(batch: Batch) -> int:
    """Returns the number of elements of all inputs of a batch."""
    return sum(array.size for array in batch.inputs)


def typical_batch(batches: Iterator[Batch], mean_elements: float) -> Batch:
    """Returns the batch whose number of elements is nearest to a mean, of up to `MAX_REPEATS` batches.

    The samples of texts, for example, are padded to the longest one of each batch, so that batches differ in size.
    """
    best = next(batches)
    for batch in itertools.islice(batches, MAX_REPEATS - 1):
        if abs(count_elements(best) - mean_elements) <= TYPICAL * mean_elements:
            break
        best = min(best, batch, key=lambda one: abs(count_elements(one) - mean_elements))
    return best


def time_steps(step: TrainingStep, batches: Iterator[Batch], seconds: float) -> Tuple[Dict[str, float], float]:
    """Returns the seconds of a whole step and of its passes alone with the peak of memory in bytes, and the mean number
    of elements of a batch."""
    numbers = itertools.count(2)
    queued: Deque[nd.NDArray] = collections.deque()
    elements: List[int] = []

    def take() -> None:
        """Takes a step as in training: it returns when the step that is `STEPS_AHEAD` earlier is finished."""
        batch = next(batches)
        elements.append(count_elements(batch))
        queued.append(step(batch, 0.0, next(numbers)))
        if len(queued) > STEPS_AHEAD:
            queued.popleft().wait_to_read()

    for _ in range(WARM_UP):
        take()

    step_times, passes_times = [], []
    for _ in range(ROUNDS):
        step_times += _repeat(take, 2 * seconds / ROUNDS)
        nd.waitall()
        queued.clear()
        passes_times += _repeat(lambda: _compute(step, next(batches)), seconds / 2 / ROUNDS)
        for _ in range(STEPS_AHEAD):
            take()
    times = {"step_s": mean(step_times), "passes_s": mean(passes_times), "step_peak_bytes": peak_memory()}
    return times, mean(elements)


def _trace_steps(step: TrainingStep, batches: Iterator[Batch]) -> List[Operation]:
    trace = EngineTrace()
    trace.start()
    for number in range(TRACED_STEPS):
        step(next(batches), 0.0, 1000 + number)
    return trace.stop([device for devices in step.strategy.layout.devices for device in devices])


def compute_times(operations: Sequence[Operation], devices: Sequence[str]) -> List[float]:
    """Returns the seconds of a step in which each device computes, without updates."""
    busy_s = dict.fromkeys(devices, 0.0)
    for operation in operations:
        if kind_of(operation.name) != UPDATE:
            busy_s[operation.device] += (operation.end_s - operation.begin_s) / TRACED_STEPS
    return list(busy_s.values())


def _in_turn(calls: Sequence[Callable[[], None]], seconds: float) -> List[List[float]]:
    """Returns the seconds of repeated calls, of each for about `seconds` in all."""
    times: List[List[float]] = [[] for _ in calls]
    for _ in range(ROUNDS):
        for call, found in zip(calls, times):
            found += _repeat(call, seconds / ROUNDS)
    return times


def _repeat(call: Callable[[], None], seconds: float) -> List[float]:
    times: List[float] = []
    while len(times) < MIN_REPEATS or sum(times) < seconds and len(times) < MAX_REPEATS:
        begin_s = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin_s)
    return times
