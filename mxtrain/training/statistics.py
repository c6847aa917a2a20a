"""Recomputes batch-norm statistics, for weights that were trained with other statistics."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Dict, List

from mxtrain.cluster.heartbeat import HEARTBEAT
from mxtrain.data.loading.loader import Consumer
from mxtrain.engine.backend import STATISTICS, nd
from mxtrain.engine.parameter_names import role_of
from mxtrain.model.parameters import distinct_parameters

if TYPE_CHECKING:
    from mxtrain.data.loading.loader import BatchLoader
    from mxtrain.training.step import TrainingStep
    from mxtrain.types import Batch


def recompute_statistics(step: TrainingStep, loader: BatchLoader) -> None:
    """Replaces each moving mean and variance by its mean over the batches of one training epoch. Collective.

    Batches are weighted by their number of samples. Overwrites the gradients and the random state of the devices, but
    no parameters.

    Source: `torch.optim.swa_utils.update_bn`, which weighs all batches alike.
    """
    strategy = step.strategy
    parameters = distinct_parameters(strategy.objective.network)
    moving = {
        name: array
        for name, array in strategy.values.items()
        if role_of(name) in STATISTICS and parameters[name].lr_mult != 0
    }
    if not moving:
        return
    sums = {name: nd.zeros_like(array) for name, array in moving.items()}
    decay_of: Dict[int, Dict[str, nd.NDArray]] = {}
    total = 0
    with closing(loader.epoch(0, 0, Consumer([strategy], step.store, strategy.look_ahead))) as batches:
        for number, batch in enumerate(batches, start=1):
            # Each batch counts as progress, or the supervisor would end the run after cluster.step_timeout.
            HEARTBEAT.begin_batch()
            # A pass replaces a statistic by `decay * old + (1 - decay) * statistic of the batch`. The decay depends on
            # the momentum of the layer and the parts of the batch, so it is measured by passes from 0 and from 1.
            from_zeros = _statistics_after_pass(step, batch, number, moving, 0.0)
            # Batches of equal size are divided alike, so a second pass for each size is enough.
            if batch.global_size not in decay_of:
                from_ones = _statistics_after_pass(step, batch, number, moving, 1.0)
                decay_of[batch.global_size] = {name: from_ones[name] - zero for name, zero in from_zeros.items()}
            for name, value in from_zeros.items():
                # A pass from 0 leaves (1 - decay) * statistic, so the division yields the statistic of the batch alone.
                sums[name] += value / (1 - decay_of[batch.global_size][name]) * batch.global_size
            total += batch.global_size
            nd.waitall()  # wait after each batch: nothing else bounds the queue
    for name, array in moving.items():
        (sums[name] / total).copyto(array)
    strategy.publish(list(moving))


def _statistics_after_pass(
    step: TrainingStep, batch: Batch, number: int, moving: Dict[str, nd.NDArray], initial: float
) -> Dict[str, nd.NDArray]:
    """Returns the statistics after a forward pass that begins with all of them at `initial`."""
    names: List[str] = list(moving)
    for array in moving.values():
        array[:] = initial
    step.strategy.publish(names)
    step.seed_random(number, step.store.world.rank)
    step.strategy.forward_backward(batch)
    nd.waitall()  # MXNet's engine does not know that a backward pass writes statistics
    return {name: array.copy() for name, array in moving.items()}
