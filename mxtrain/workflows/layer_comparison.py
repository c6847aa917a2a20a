"""Runs one batch through the networks of two checkpoints, and finds the first layer whose output differs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import List, Optional, Sequence, Tuple

import numpy as np

from mxtrain.config.groups import Description
from mxtrain.engine.backend import autograd, gluon, mx, nd
from mxtrain.model.parameters import distinct_parameters
from mxtrain.parallel.differences import largest_difference
from mxtrain.training.nonfinite import watch_layers
from mxtrain.training.repeated_step import batch_of_step, set_weights
from mxtrain.training.restored_run import RestoredRun
from mxtrain.training.trained import load_network
from mxtrain.types import Batch

NUM_SAMPLES = 16
"""Samples of a batch that are replayed at most: the outputs of all layers are held in memory."""


@dataclass(frozen=True)
class LayerOutput:
    """The outputs of a layer."""

    name: str
    kind: str
    arrays: Sequence[np.ndarray]


@dataclass(frozen=True)
class LayerComparison:
    """The first layer of two networks whose output differs.

    Attributes:
        step: step of the checkpoints; the batch is that of the next step.
        layer: structural name of the first layer whose output differs; "" if all are equal.
        kind: class of the layer.
        difference: largest absolute difference of its outputs; None if it exists in one network only, or its outputs
            have other shapes.
        num_layers: number of layers that were compared before it.
        same_batch: True if both runs train on the same batch next; None if that is unknown.
    """

    step: int
    layer: str
    kind: str
    difference: Optional[float]
    num_layers: int
    same_batch: Optional[bool]


def compare_layers(first: RestoredRun, second: RestoredRun) -> LayerComparison:
    """Runs the next training batch of the first run through both networks, in training mode and float32 on one device.

    Both draw the same random numbers, so that equal networks have equal outputs with dropout, too.

    Raises:
        ConfigError, DataError, LoaderError, CheckpointError: a network or its data cannot be restored.
    """
    batch, other = (
        batch_of_step(side.checkpoint, described(side), side.signature, side.checkpoint.step + 1)
        for side in (first, second)
    )
    same = is_same(batch, other)
    part = batch.slice(0, min(batch.size, NUM_SAMPLES))
    ones, twos = (outputs_of(side, part) for side in (first, second))
    layer, kind, difference, count = first_difference(ones, twos)
    return LayerComparison(first.checkpoint.step, layer, kind, difference, count, same)


def described(run: RestoredRun) -> Description:
    """Returns the description with the dataset that has the preprocessing of the run."""
    return replace(run.description, dataset=run.dataset)


def is_same(first: Batch, second: Batch) -> bool:
    """Returns True if two batches have the same inputs and targets."""
    ones, twos = ([*batch.inputs, *batch.targets] for batch in (first, second))
    return (
        first.size == second.size
        and len(ones) == len(twos)
        and all(
            one.shape == two.shape and np.array_equal(one.asnumpy(), two.asnumpy(), equal_nan=True)
            for one, two in zip(ones, twos)
        )
    )


def outputs_of(side: RestoredRun, batch: Batch) -> List[LayerOutput]:
    """Returns the outputs of all layers without children, in the order in which they are called."""
    network = load_network(side.checkpoint, described(side), side.signature)
    # The weights of training: `load_network` takes their moving average, where validation uses it.
    set_weights(distinct_parameters(network), side.checkpoint.arrays("model"), str(side.checkpoint.path))
    found: List[LayerOutput] = []

    def keep(name: str, block: gluon.Block, outputs: Sequence[nd.NDArray]) -> None:
        arrays = [one.asnumpy() for one in outputs if isinstance(one, nd.NDArray)]
        found.append(LayerOutput(name, type(block).__name__, arrays))

    mx.random.seed(0)
    with autograd.train_mode():
        watch_layers(network, batch.inputs, keep)
    return found


def first_difference(
    first: Sequence[LayerOutput], second: Sequence[LayerOutput]
) -> Tuple[str, str, Optional[float], int]:
    """Returns name, class and largest difference of the first layer that differs, and the number of equal layers
    before it. The name is empty if all are equal."""
    for count, one in enumerate(first):
        two = second[count] if count < len(second) else None
        if two is None or two.name != one.name or [a.shape for a in one.arrays] != [a.shape for a in two.arrays]:
            return one.name, one.kind, None, count
        worst = max((largest_difference(a, b) for a, b in zip(one.arrays, two.arrays)), default=0.0)
        # Not above a tolerance: equal descriptions give equal bits, so any difference counts.
        if worst > 0.0 or one.kind != two.kind:
            return one.name, one.kind, worst, count
    if len(second) > len(first):
        return second[len(first)].name, second[len(first)].kind, None, len(first)
    return "", "", 0.0, len(first)
