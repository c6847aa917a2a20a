"""Finds where non-finite numbers began, by doing the steps since the last checkpoint again: they are the same."""

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

    from mxtrain.annotations import Returned
    from mxtrain.parallel.base import Strategy
    from mxtrain.training.evaluate import Outputs
    from mxtrain.types import Batch

NAMED_BY_ONE = (
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


class Diagnosis:
    """Explains a non-finite loss or weight.

    Args:
        step: one optimizer update.
        repeat: (what was found, its step) -> the batches from the last checkpoint before that step on, as often as the
            run is advanced; none where there is no such checkpoint.
        advance: trains on such a batch, and returns the number of the step.
        count: the number of the last finished step.
        keep: (batch or None if it is not known, number of its step, what happened, its weights or None for the present
            ones) -> writes the step for `mxtrain replay`.
    """

    def __init__(
        self, step: TrainingStep, repeat: Callable[[str, int], Iterator[Batch]], advance: Callable[[Batch], int],
        count: Callable[[], int], keep: Keep = lambda *known: None,
    ):  # fmt: skip
        self._step, self._repeat, self._advance, self._count = step, repeat, advance, count
        self._workers, self._keep = step.store, keep

    def explain_loss(self, bad_step: int, together: bool) -> str:
        """Finds the layer whose output or gradient made the loss of a step non-finite.

        Args:
            bad_step: its number.
            together: whether all workers ask, after the same step.
        """
        said = f"the loss became non-finite at step {bad_step}"
        if self._workers.world.size > 1:
            return f"{said}; {self._explain_together(said, bad_step) if together else NAMED_BY_ONE}"
        if self._step.strategy.remote.names:
            self._keep(None, bad_step, said, None)
            return f"{said}; where servers hold tables the layer cannot be named"
        for batch in self._repeat(said, bad_step):
            if self._count() == bad_step - 1:
                self._keep(batch, bad_step, said, None)
                self._step.seed_random(bad_step)
                return f"{said}: {first_nonfinite_layer(self._step.strategy.gather(), *batch.inputs)}"
            self._advance(batch)
        return said + "; without a checkpoint before it the layer cannot be named"

    def explain_weights(self, name: str) -> str:
        """Returns the step in which the weights became non-finite, as a sentence. `name`: of the first one that is
        now."""
        last = self._count()
        if self._workers.world.size > 1:
            said = f"the weights became non-finite in step {last} or before; the first is '{name}'"
            return f"{said}; {self._explain_together(said, last)}"
        for batch in self._repeat(f"the weights are non-finite after step {last}", last):
            before = copy_small_parameters(self._step.strategy)
            step = self._advance(batch)
            found = first_nonfinite_parameter(self._step)
            if found or step == last:
                self._keep(batch, step, f"the weights became non-finite in step {step}", before)
                return (
                    f"the weights became non-finite in step {step}, while the loss was finite; the first is "
                    f"'{found or name}'"
                )
        return f"the weights became non-finite in step {last} or before; the first is '{name}'"

    def _explain_together(self, said: str, bad_step: int) -> str:
        """Finds whose gradients were non-finite first. Collective: all workers have the same numbers, so all come
        here."""
        if self._workers.updates:
            return NAMED_BY_ONE  # no step is the same again
        with suppress(PeersLost):
            for batch in self._repeat(said, bad_step):
                ranks = self._ranks_with_nonfinite_gradients(batch)
                at = f"in step {self._count() + 1} the gradients of worker{'s' * (len(ranks) > 1)} "
                if len(ranks) == self._workers.world.size:
                    self._keep(batch, self._count() + 1, said, None)
                    return f"{at}{', '.join(map(str, ranks))} (all) were the first non-finite ones; {NAMED_BY_ONE}"
                if self._workers.world.rank in ranks:
                    self._keep(batch, self._count() + 1, said, None)
                if ranks:
                    return f"{at}{', '.join(map(str, ranks))} alone were non-finite, from its data or its machine"
                if self._advance(batch) == bad_step:
                    break
        return NAMED_BY_ONE

    def _ranks_with_nonfinite_gradients(self, batch: Batch) -> List[int]:
        """Returns the workers whose own gradients, not yet summed, are non-finite. Collective."""
        world = self._workers.world
        self._step.seed_random(self._count() + 1, world.rank)
        self._step.strategy.forward_backward(batch)
        own = [replica for reduction in self._step.strategy.reductions for replica in reduction.replicas]
        flags = self._workers.total([float(rank == world.rank and not all_finite(own)) for rank in range(world.size)])
        return [rank for rank, flag in enumerate(flags) if flag]


def first_nonfinite_layer(network: gluon.Block, *inputs: nd.NDArray) -> str:
    """Runs `network` on `inputs` in training mode, layer by layer, and describes the first bad output.

    Returns: a clause such as "the first layer with a non-finite output is 'features.3' (BatchNorm)".
    """
    if not all(np.isfinite(array.asnumpy()).all() for array in inputs):
        return "the input batch itself is non-finite"
    found: List[Tuple[str, str]] = []

    def watch(name: str, block: gluon.Block, outputs: Sequence[nd.NDArray]) -> None:
        if not found and not all(np.isfinite(output.asnumpy()).all() for output in outputs):
            found.append((name, type(block).__name__))

    with autograd.train_mode():
        output = watch_layers(network, inputs, watch)
    if found:
        return f"the first layer with a non-finite output is '{found[0][0]}' ({found[0][1]})"
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
    """Runs a network layer by layer; returns the statistics of each layer's outputs, in the order of computation, and
    the outputs. A layer that is used several times has a line for each use. Call it in training mode."""
    found: List[LayerStatistics] = []

    def watch(name: str, block: gluon.Block, outputs: Sequence[nd.NDArray]) -> None:
        found.append(statistics_of(name, type(block).__name__, outputs))

    return found, tuple(as_list(watch_layers(network, inputs, watch)))


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
