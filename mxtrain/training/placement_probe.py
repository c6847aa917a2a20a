"""Measures real steps of a placement in this process, from which `mxtrain.parallel.forecast` predicts other placements.

open the data, build the network -> forward and backward passes of rising numbers of samples -> whole steps
"""

from __future__ import annotations

import functools
import itertools
import math
import re
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Callable, Dict, Generator, Iterator, List, Sequence

from mxtrain.config.groups import Description
from mxtrain.data.loading.loader import Consumer
from mxtrain.engine.backend import nd
from mxtrain.engine.trace import EngineTrace, Operation
from mxtrain.errors import ConfigError
from mxtrain.kvstore.world import ALONE
from mxtrain.model.graph.work import FLOAT_BYTES
from mxtrain.parallel.usage import UPDATE, kind_of
from mxtrain.runtime.memory import resident_memory
from mxtrain.training.build import build_step, open_inputs

if TYPE_CHECKING:
    from mxtrain.parallel.layout import StageCost
    from mxtrain.training.step import TrainingStep
    from mxtrain.types import Batch
    from mxtrain.types.annotations import JsonObject

MIN_REPEATS, MAX_REPEATS = 3, 40
STEPS_AHEAD = 3
"""Number of steps that are queued before they are waited for; in training, steps are queued ahead, too."""
TRACED_STEPS = 3


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
    with closing(_full_batches(data.train.epoch, data.train.batch_size, consumer)) as batches:
        batch = next(batches)
        sizes = sorted({-(-batch.size // 2**power) for power in range(num_sizes)})
        # The optimizer's state is made by the first update, so that all following peaks hold it.
        step(batch.slice(0, sizes[0]) if sizes else batch, 0.0, 1)
        nd.waitall()
        base_bytes = resident_memory()
        # Before the passes: MXNet keeps the memory of each number of samples that it has computed.
        measured = _time_steps(step, batches, seconds)
        passes = [_time_passes(step, batch, size, seconds) for size in sizes]
        operations = _trace_steps(step, batches)
    layout, values = strategy.layout, strategy.values
    cut, size = layout.cut, layout.microbatch_size(objective.batch_size)
    return {
        "batch_size": batch.size,
        "base_bytes": base_bytes,
        "passes": passes,
        "steps_per_epoch": len(data.train),
        "kind": layout.devices[0][0].device_type,
        **measured,
        "compute_s": _compute_times(operations, [str(device) for devices in layout.devices for device in devices]),
        "parameter_bytes": FLOAT_BYTES * sum(math.prod(values[name].shape) for name in strategy.trainable),
        "stages": [] if cut is None else [_stage_json(stage, size) for stage in cut.stages],
    }


def _stage_json(stage: StageCost, microbatch_size: int) -> JsonObject:
    return {
        "forward": stage.forward_s,
        "backward": stage.backward_s,
        "parameter_bytes": stage.parameter_bytes,
        "activation_bytes": stage.activation_bytes / stage.held,
        "sample_bytes": stage.input_bytes / microbatch_size,
    }


def _full_batches(epoch: Callable, batch_size: int, consumer: Consumer) -> Generator[Batch, None, None]:
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


def _time_passes(step: TrainingStep, batch: Batch, size: int, seconds: float) -> JsonObject:
    """Returns the seconds of the forward and backward passes of `size` samples, and the peak of memory in bytes."""
    compute = functools.partial(_compute, step, batch.slice(0, size))
    compute()  # compiles
    _reset_peak_memory()
    times = _repeat(compute, seconds)
    return {"samples": size, "seconds": _typical(times), "peak_bytes": peak_memory()}


def _time_steps(step: TrainingStep, batches: Iterator[Batch], seconds: float) -> Dict[str, float]:
    """Returns the seconds of a whole step and of its passes alone, and the peak of memory in bytes."""
    numbers = itertools.count(2)

    def take() -> None:
        step(next(batches), 0.0, next(numbers))

    for _ in range(2):
        take()
    nd.waitall()
    _reset_peak_memory()

    def take_some() -> None:
        for _ in range(STEPS_AHEAD):
            take()
        nd.waitall()

    step_s = _typical(_repeat(take_some, 2 * seconds)) / STEPS_AHEAD
    peak = peak_memory()
    passes_s = _typical(_repeat(functools.partial(_compute, step, next(batches)), seconds / 2))
    return {"step_s": step_s, "passes_s": passes_s, "step_peak_bytes": peak}


def _trace_steps(step: TrainingStep, batches: Iterator[Batch]) -> List[Operation]:
    trace = EngineTrace()
    trace.start()
    for number in range(TRACED_STEPS):
        step(next(batches), 0.0, 1000 + number)
    return trace.stop([device for devices in step.strategy.layout.devices for device in devices])


def _compute_times(operations: Sequence[Operation], devices: Sequence[str]) -> List[float]:
    """Returns the seconds of a step in which each device computes, without updates."""
    busy_s = dict.fromkeys(devices, 0.0)
    for operation in operations:
        if kind_of(operation.name) != UPDATE:
            busy_s[operation.device] += (operation.end_s - operation.begin_s) / TRACED_STEPS
    return list(busy_s.values())


def _repeat(call: Callable[[], None], seconds: float) -> List[float]:
    times: List[float] = []
    while len(times) < MIN_REPEATS or sum(times) < seconds and len(times) < MAX_REPEATS:
        begin_s = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin_s)
    return times


def _typical(times: Sequence[float]) -> float:
    """Returns the lower quartile: other programs make some passes slower, and nothing makes one faster."""
    return sorted(times)[len(times) // 4]


def _reset_peak_memory() -> None:
    """Resets the kernel's VmHWM (proc(5), clear_refs). If that is not permitted, peaks of earlier sizes remain."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory() -> int:
    """Returns the peak resident memory of this process in bytes since `_reset_peak_memory`; 0 if it is unknown."""
    try:
        found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    except OSError:
        return 0
    return 1024 * int(found[1]) if found else 0
