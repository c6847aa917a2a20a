"""Chooses `dataset.batch_size=auto` by the memory of the devices, the same on all workers and in all resumes.

It begins with the power of 2 that gives 16 steps an epoch and is halved while the estimate exceeds half of the free
memory. Batches are not tried until memory is exhausted: a CPU process is then killed without a message. A resumed run
takes the number from the checkpoint.
"""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from typing import TYPE_CHECKING, List, Optional

import numpy as np

from mxtrain.config.groups import Description
from mxtrain.config.rules import batch_divisions
from mxtrain.data.spec import samples_per_step
from mxtrain.model.graph.trace import NotTraceable, trace
from mxtrain.runtime.memory import resident_memory, usable_memory
from mxtrain.training.estimate import activation_bytes, shown_memory

if TYPE_CHECKING:
    from mxnet import Context, gluon

    from mxtrain.checkpoint import Checkpoint
    from mxtrain.data.signature import Signature
    from mxtrain.kvstore.store import Store

log = logging.getLogger("mxtrain")
SHARE_OF_MEMORY = 0.5
"""Share of the free memory that the estimate for a step may take: it can be off by a factor of two."""
TRACED_SAMPLES = 2


def largest_fitting(batch_size: int, divisor: int, bytes_per_sample: float, available: float) -> int:
    """Halves a batch until it fits.

    Args:
        batch_size: to begin with.
        divisor: the result is a multiple of it, and not smaller.
        bytes_per_sample: that a step takes for one of the samples that are computed at once.
        available: bytes for all of these.

    >>> largest_fitting(128, 1, 100.0, 4000.0)
    32
    """
    while batch_size > divisor and batch_size * bytes_per_sample > available:
        batch_size = max(batch_size // 2 // divisor, 1) * divisor
    return batch_size


def is_automatic(description: Description) -> bool:
    """Returns True if the run chooses its batch size."""
    dataset = description.dataset
    return dataset.batch_unit[0] == "batch_size" and dataset.batch_size == "auto"


def fit_batch_size(
    description: Description, network: gluon.Block, signature: Signature, devices: List[List[Context]]
) -> int:
    """Returns the batch size of `description`, or less of it, if an estimate says that its steps take more than half
    of the free memory of a device."""
    batch_size = samples_per_step(description.dataset)
    shape = description.task.training_shapes(description, signature)
    try:
        traced = trace(network, shape, batch_size=TRACED_SAMPLES, training=True)
    # Without a graph there is no estimate, so the batch stays as the number of samples suggests.
    except NotTraceable:
        return batch_size
    divisions = batch_divisions(description)
    _, parts, replicas, _ = divisions.values()
    # Parts of gradient accumulation run one after the other, so only one of them is in memory.
    per_sample = activation_bytes(traced, description.amp.low_operators) / TRACED_SAMPLES / parts
    first = devices[0][0]
    if first.device_type == "gpu":
        free = min(_free_gpu_memory(device) for stages in devices for device in stages)
        per_sample /= description.cluster.workers * replicas
    else:
        free = max(usable_memory() - resident_memory(), 0)  # all workers of a host share its memory
        if description.cluster.launcher != "local":
            per_sample /= description.cluster.workers
    fitting = largest_fitting(batch_size, math.prod(divisions.values()), per_sample, SHARE_OF_MEMORY * free)
    if fitting < batch_size:
        log.info(
            "dataset.batch_size=%d instead of %d: a step with %d samples is estimated to take %s, more than half of "
            "the %s that are free",
            fitting,
            batch_size,
            batch_size,
            shown_memory(per_sample * batch_size),
            shown_memory(free),
        )
    return fitting


def agree_batch_size(local: int, workers: Store, checkpoint: Optional[Checkpoint]) -> int:
    """Returns the batch size of the checkpoint, which all workers have; without one the smallest of all workers.
    Collective then: a worker that comes late has a checkpoint, and the others do not wait for it here."""
    if checkpoint is None:
        return int(workers.gather_rows(np.array([[float(local)]])).min())
    recorded = int(checkpoint.state["run"]["batch_size"])
    if recorded != local:
        log.info("dataset.batch_size=%d, as chosen when this run began (auto would now choose %d)", recorded, local)
    return recorded


def with_fixed_batch_size(description: Description, batch_size: int) -> Description:
    """Returns the description with this batch size."""
    dataset = description.dataset.model_copy(update={"batch_size": batch_size})
    return replace(description, dataset=dataset)


def _free_gpu_memory(device: Context) -> float:
    from mxtrain.engine.backend import mx

    return float(mx.context.gpu_memory_info(device.device_id)[0])
