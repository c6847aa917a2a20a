"""Estimates memory and time of training before the first step, from the shapes in the graph and the machine's speed.

Memory is twice the outputs of all operators for a batch, plus what the process has before the first step. Measured
growth over outputs: 1.98 for ResNet-20 and LeNet, 1.9 to 3.3 for small networks, 0.6 for translation, whose batches are
shorter than the longest text. Time is measured only if an epoch takes 20 s or more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Collection, Optional, Sequence

from mxtrain.engine.limits import measure_limits
from mxtrain.model.graph.trace import NotTraceable, Trace, trace
from mxtrain.model.graph.work import FLOAT_BYTES, Work, work_by_operator
from mxtrain.parallel.layout import Layout
from mxtrain.parallel.objective import Objective
from mxtrain.runtime.memory import resident_memory, usable_memory

if TYPE_CHECKING:
    from mxnet import Context

ARRAYS_PER_OUTPUT = 2
"""An operator's output is kept for the backward pass, and its gradient is as large."""
ASSUMED_FLOPS = 100e9
"""Operations per second of a CPU, to decide if an epoch is long enough to measure the machine."""
SAID_FROM_S, SAID_FROM_BYTES = 20.0, 1 << 30
"""Runs that need less are not worth a sentence."""


@dataclass(frozen=True)
class Estimate:
    """An estimate of what training takes.

    Attributes:
        step_bytes: memory that a step takes for activations and their gradients, on all devices together.
        epoch_s: seconds of an epoch; None if negligible.
        process_bytes: memory of this process before the first step.
        on_cpu: whether the devices are CPUs, whose memory is that of the process.
    """

    step_bytes: float
    epoch_s: Optional[float]
    process_bytes: int
    on_cpu: bool

    @property
    def total_bytes(self) -> float:
        """Returns the bytes that training needs: on a CPU with those of this process, on GPUs without the weights."""
        return self.step_bytes + (self.process_bytes if self.on_cpu else 0)

    @property
    def sentence(self) -> str:
        """Returns the estimate as text; empty if it is negligible."""
        if self.epoch_s is None and self.step_bytes < SAID_FROM_BYTES:
            return ""
        location = "" if self.on_cpu else " on all devices, besides the weights"
        time = "" if self.epoch_s is None else f", and {shown_time(self.epoch_s)} an epoch"
        return f"estimate: training takes about {shown_memory(self.total_bytes)} of memory{location}{time}"

    @property
    def exceeds_memory(self) -> bool:
        """Returns True if the process would need more memory than it may have."""
        return self.on_cpu and self.step_bytes + self.process_bytes > usable_memory()


def shown_memory(size: float) -> str:
    """Returns a rounded number of bytes as text, e.g. `800 MiB`, `1.5 GiB`."""
    unit, number = ("GiB", size / 2**30) if size >= 2**30 else ("MiB", size / 2**20)
    return f"{float(f'{number:.2g}'):g} {unit}"


def shown_time(seconds: float) -> str:
    """Returns a rounded duration as text, e.g. `40 s`, `3 min`, `1.5 h`."""
    for unit, size, limit in (("s", 1, 90), ("min", 60, 90 * 60)):
        if seconds < limit:
            return f"{float(f'{max(seconds / size, 1):.1g}'):.0f} {unit}"
    return f"{float(f'{seconds / 3600:.2g}'):g} h"


def estimate_training(
    objective: Objective, layout: Layout, steps_per_epoch: int, num_samples: int, measures: bool = False
) -> Optional[Estimate]:
    """Estimates memory and time of this process; measures the machine for a fraction of a second if an epoch is long.

    Args:
        objective: network, shapes, and the share of a batch.
        layout: the devices.
        steps_per_epoch: of training.
        num_samples: of an epoch: a batch has at most all of them.
        measures: measures the machine also if an epoch is short.

    Returns:
        The estimate; None where the network cannot be traced.
    """
    precision = objective.precision
    taken = min(num_samples / (objective.global_batch_size or objective.batch_size), 1.0)
    batch_size = max(round(objective.batch_size * taken), 1)
    try:
        traced = trace(objective.network, objective.input_shape, batch_size=batch_size, training=True)
    except NotTraceable:
        return None
    # Parts of a batch are computed one after the other, so only one part is in memory at a time.
    step_bytes = activation_bytes(traced, precision.low_operators) / layout.num_parts
    if layout.segments is not None:
        step_bytes *= layout.segments.share
    works = work_by_operator(traced, precision.low_operators)
    total = sum(works.values(), Work())
    devices = [device for stages in layout.devices for device in stages]
    epoch_s = None
    if measures or total.flops / ASSUMED_FLOPS * steps_per_epoch > SAID_FROM_S:
        low = sum(work.flops for name, work in works.items() if name in precision.low_operators)
        epoch_s = steps_per_epoch * _step_s(total, low, devices, precision.dtype)
    return Estimate(step_bytes, epoch_s, resident_memory(), devices[0].device_type.startswith("cpu"))


def activation_bytes(traced: Trace, low_precision: Collection[str]) -> float:
    """Returns the bytes of the outputs of all operators and of their gradients.

    Args:
        traced: the network, for some number of samples.
        low_precision: operators whose outputs have 16 bits.
    """
    outputs = [node for node in traced.nodes if node.op != "null" and node.shape is not None]
    sizes = [math.prod(node.shape or ()) * (0.5 if node.op in low_precision else 1.0) for node in outputs]
    return ARRAYS_PER_OUTPUT * FLOAT_BYTES * sum(sizes)


def _step_s(total: Work, low_flops: float, devices: Sequence[Context], dtype: str) -> float:
    limits = measure_limits(devices, dtype, quick=True)
    seconds = (total.flops - low_flops) / limits.flops + low_flops / limits.low_flops + total.moved / limits.bytes_per_s
    return seconds / len(devices)
