"""Locates the first non-finite numbers by repeating, bit for bit, the steps since the last checkpoint."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Callable, Iterator, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from mxtrain.engine.backend import all_finite, autograd
from mxtrain.errors import PeersLost
from mxtrain.parallel.stage import as_list
from mxtrain.training.replay_bundle import MAX_WEIGHT_BYTES
from mxtrain.training.snapshot import copy_parameters, first_nonfinite_parameter
from mxtrain.training.step import TrainingStep

if TYPE_CHECKING:
    from mxnet import gluon, nd

    from mxtrain.parallel.base import Strategy
    from mxtrain.training.evaluate import Outputs
    from mxtrain.types import Batch
    from mxtrain.types.annotations import Returned

REPEAT_ON_ONE_WORKER = (
    "the same command with kvstore=local cluster.workers=1 and no other setting of kvstore names the step and the layer"
)


Keep = Callable[[Optional["Batch"], int, str, Optional[Mapping[str, np.ndarray]]], None]


def num_parameter_bytes(strategy: Strategy) -> int:
    """Returns the size of all parameters."""
    return sum(int(np.prod(array.shape)) * np.dtype(array.dtype).itemsize for array in strategy.values.values())


def copy_small_parameters(strategy: Strategy) -> Optional[Mapping[str, np.ndarray]]:
    """Returns copies of the parameters if a replay bundle can hold them; otherwise None."""
    small = num_parameter_bytes(strategy) <= MAX_WEIGHT_BYTES and not strategy.remote.names
    return copy_parameters(strategy) if small else None


class NonFiniteDiagnosis:
    """Explains a non-finite loss or weight.

    Args:
        step: training step.
        repeat: function (message, step) -> batches from the last checkpoint before that step; the caller must call
            `advance` between two batches. Yields nothing if there is no such checkpoint.
        advance: function that trains on a batch and returns the number of the step.
        count: function that returns the number of the last finished step.
        keep: function (batch, step, message, weights) that writes the step for `mxtrain replay`. The batch is None if
            it is unknown; weights are None to write the current ones.
    """

    def __init__(
        self,
        step: TrainingStep,
        repeat: Callable[[str, int], Iterator[Batch]],
        advance: Callable[[Batch], int],
        count: Callable[[], int],
        keep: Keep = lambda *arguments: None,
    ):
        self._step, self._repeat, self._advance, self._count = step, repeat, advance, count
        self._workers, self._keep = step.store, keep

    def explain_loss(self, bad_step: int, together: bool) -> str:
        """Finds the layer whose output or gradient made the loss of a step non-finite.

        Args:
            bad_step: number of the step.
            together: True if all workers call this after the same step.
        """
        message = f"the loss became non-finite at step {bad_step}"
        if self._workers.world.size > 1:
            return f"{message}; {self._explain_together(message, bad_step) if together else REPEAT_ON_ONE_WORKER}"
        if self._step.strategy.remote.names:
            self._keep(None, bad_step, message, None)
            return f"{message}; where servers hold tables the layer cannot be named"
        for batch in self._repeat(message, bad_step):
            if self._count() == bad_step - 1:
                self._keep(batch, bad_step, message, None)
                # The forward pass must draw the same dropout masks as the failed step.
                self._step.seed_random(bad_step)
                return f"{message}: {first_nonfinite_layer(self._step.strategy.gather(), *batch.inputs)}"
            self._advance(batch)
        return message + "; without a checkpoint before it the layer cannot be named"

    def explain_weights(self, name: str) -> str:
        """Returns a sentence that names the step in which the weights became non-finite.

        Args:
            name: name of the first parameter that is non-finite now.
        """
        last = self._count()
        if self._workers.world.size > 1:
            message = f"the weights became non-finite in step {last} or before; the first is '{name}'"
            return f"{message}; {self._explain_together(message, last)}"
        for batch in self._repeat(f"the weights are non-finite after step {last}", last):
            # Copied before each step, because only the check after it tells whether this is the bad step.
            weights_before = copy_small_parameters(self._step.strategy)
            step = self._advance(batch)
            parameter = first_nonfinite_parameter(self._step)
            if parameter or step == last:
                self._keep(batch, step, f"the weights became non-finite in step {step}", weights_before)
                return (
                    f"the weights became non-finite in step {step}, while the loss was finite; the first is "
                    f"'{parameter or name}'"
                )
        return f"the weights became non-finite in step {last} or before; the first is '{name}'"

    def _explain_together(self, message: str, bad_step: int) -> str:
        """Finds the workers whose gradients were non-finite first. Collective: all workers see the same bad number."""
        if self._workers.independent_steps:
            return REPEAT_ON_ONE_WORKER  # steps cannot be repeated exactly
        with suppress(PeersLost):
            for batch in self._repeat(message, bad_step):
                ranks = self._ranks_with_nonfinite_gradients(batch)
                place = f"in step {self._count() + 1} the gradients of worker{'s' * (len(ranks) > 1)} "
                if len(ranks) == self._workers.world.size:
                    self._keep(batch, self._count() + 1, message, None)
                    names = ", ".join(map(str, ranks))
                    return f"{place}{names} (all) were the first non-finite ones; {REPEAT_ON_ONE_WORKER}"
                if self._workers.world.rank in ranks:
                    self._keep(batch, self._count() + 1, message, None)
                if ranks:
                    return f"{place}{', '.join(map(str, ranks))} alone were non-finite, from its data or its machine"
                if self._advance(batch) == bad_step:
                    break
        return REPEAT_ON_ONE_WORKER

    def _ranks_with_nonfinite_gradients(self, batch: Batch) -> List[int]:
        """Returns the ranks of the workers whose gradients, before the reduction, are non-finite. Collective."""
        world = self._workers.world
        self._step.seed_random(self._count() + 1, world.rank)
        self._step.strategy.forward_backward(batch)
        # Gradients are read before the reduction: one sum spreads a NaN to all workers.
        gradients = [replica for reduction in self._step.strategy.reductions for replica in reduction.replicas]
        is_bad = not all_finite(gradients)
        # Each worker has its own position in the sum, which therefore identifies it.
        flags = self._workers.total([float(rank == world.rank and is_bad) for rank in range(world.size)])
        return [rank for rank, flag in enumerate(flags) if flag]


def first_nonfinite_layer(network: gluon.Block, *inputs: nd.NDArray) -> str:
    """Runs `network` on `inputs` in training mode, layer by layer, and describes the first bad output.

    Returns:
        A clause such as "the first layer with a non-finite output is 'features.3' (BatchNorm)".
    """
    if not all(np.isfinite(array.asnumpy()).all() for array in inputs):
        return "the input batch itself is non-finite"
    nonfinite: List[Tuple[str, str]] = []

    def check(name: str, block: gluon.Block, outputs: Sequence[nd.NDArray]) -> None:
        if not nonfinite and not all(np.isfinite(output.asnumpy()).all() for output in outputs):
            nonfinite.append((name, type(block).__name__))

    # Training mode without recording: batch norms use the batch, and no graph keeps all outputs in memory.
    with autograd.train_mode():
        output = watch_layers(network, inputs, check)
    if nonfinite:
        return f"the first layer with a non-finite output is '{nonfinite[0][0]}' ({nonfinite[0][1]})"
    if all(np.isfinite(array.asnumpy()).all() for array in as_list(output)):
        return "every layer's output is finite: the loss function overflowed"
    return "the network's own output is non-finite, outside of any layer"


@dataclass(frozen=True)
class LayerStatistics:
    """Statistics of an array: all values of a layer's outputs, or the gradient of a parameter.

    Attributes:
        name: structural name.
        kind: class of the layer.
        shapes: shapes of its outputs.
        smallest, largest, mean: of the finite values; NaN if there are none.
        nonfinite: share of values that are infinite or NaN.
    """

    name: str
    kind: str
    shapes: Tuple[Tuple[int, ...], ...]
    smallest: float
    largest: float
    mean: float
    nonfinite: float


def statistics_of(name: str, kind: str, arrays: Sequence[nd.NDArray]) -> LayerStatistics:
    """Returns the statistics of some arrays together."""
    values = np.concatenate([array.asnumpy().astype(np.float64).ravel() for array in arrays])
    finite = values[np.isfinite(values)]
    smallest, largest, mean = (finite.min(), finite.max(), finite.mean()) if finite.size else (np.nan,) * 3
    share = 1 - finite.size / values.size if values.size else 0.0
    shapes = tuple(tuple(array.shape) for array in arrays)
    return LayerStatistics(name, kind, shapes, float(smallest), float(largest), float(mean), share)


def layer_statistics(network: gluon.Block, inputs: Sequence[nd.NDArray]) -> Tuple[List[LayerStatistics], Outputs]:
    """Runs a network layer by layer; returns the statistics of each layer's outputs, and the network's outputs.

    The statistics are in the order of computation; a layer that is used several times occurs once per use. Must be
    called in training mode.
    """
    statistics: List[LayerStatistics] = []

    def collect(name: str, block: gluon.Block, outputs: Sequence[nd.NDArray]) -> None:
        statistics.append(statistics_of(name, type(block).__name__, outputs))

    return statistics, tuple(as_list(watch_layers(network, inputs, collect)))


def watch_layers(
    network: gluon.Block, inputs: Sequence[nd.NDArray], watch: Callable[[str, gluon.Block, Sequence[nd.NDArray]], None]
) -> Returned:
    """Runs a network and calls `watch` with name, block and outputs of each block without children."""

    def hook_of(name: str) -> Callable[[gluon.Block, Sequence[nd.NDArray], Returned], None]:
        return lambda block, inputs, outputs: watch(name, block, as_list(outputs))

    hooks = [block.register_forward_hook(hook_of(name)) for name, block in leaves(network)]
    # A hybridized network runs as one cached graph, in which no child is called and no hook runs.
    if hasattr(network, "hybridize"):
        network.hybridize(False)
    try:
        return network(*inputs)
    finally:
        for hook in hooks:
            hook.detach()


def leaves(block: gluon.Block, prefix: str = "") -> List[Tuple[str, gluon.Block]]:
    """Returns all blocks without children, with their structural names, in the order of registration."""
    if not block._children:
        return [(prefix.rstrip(".") or "network", block)]
    return [leaf for name, child in block._children.items() for leaf in leaves(child, f"{prefix}{name}.")]
