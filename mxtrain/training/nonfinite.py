"""Finds where non-finite numbers began, by doing the steps since the last checkpoint again: they are the same."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Callable, Iterator, List, Sequence, Tuple

import numpy as np

from mxtrain.engine.backend import all_finite, autograd
from mxtrain.errors import PeersLost
from mxtrain.training.snapshot import first_nonfinite_parameter
from mxtrain.training.step import TrainingStep

if TYPE_CHECKING:
    from mxnet import gluon, nd

    from mxtrain.training.evaluate import Outputs
    from mxtrain.types import Batch

NAMED_BY_ONE = (
    "the same command with kvstore=local cluster.workers=1 and no other setting of kvstore names the step and the layer"
)


class Diagnosis:
    """Explains a non-finite loss or weight.

    Args:
        step: one optimizer update.
        repeat: (what was found, its step) -> the batches from the last checkpoint before that step on, as often as the
            run is advanced; none where there is no such checkpoint.
        advance: trains on such a batch, and returns the number of the step.
        count: the number of the last finished step.
    """

    def __init__(
        self, step: TrainingStep, repeat: Callable[[str, int], Iterator[Batch]], advance: Callable[[Batch], int],
        count: Callable[[], int],
    ):  # fmt: skip
        self._step, self._repeat, self._advance, self._count = step, repeat, advance, count
        self._workers = step.store

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
            return f"{said}; where servers hold tables the layer cannot be named"
        for batch in self._repeat(said, bad_step):
            if self._count() == bad_step - 1:
                self._step.seed_random(bad_step)
                return f"{said}: {first_nonfinite_layer(self._step.strategy.gather(), *batch.inputs)}"
            self._advance(batch)
        return said + "; without a checkpoint before it the layer cannot be named"

    def explain_weights(self, name: str) -> str:
        """The step in which the weights became non-finite, as a sentence. `name`: of the first one that is now."""
        last = self._count()
        if self._workers.world.size > 1:
            said = f"the weights became non-finite in step {last} or before; the first is '{name}'"
            return f"{said}; {self._explain_together(said, last)}"
        for batch in self._repeat(f"the weights are non-finite after step {last}", last):
            step = self._advance(batch)
            found = first_nonfinite_parameter(self._step)
            if found or step == last:
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
                    return f"{at}{', '.join(map(str, ranks))} (all) were the first non-finite ones; {NAMED_BY_ONE}"
                if ranks:
                    return f"{at}{', '.join(map(str, ranks))} alone were non-finite, from its data or its machine"
                if self._advance(batch) == bad_step:
                    break
        return NAMED_BY_ONE

    def _ranks_with_nonfinite_gradients(self, batch: Batch) -> List[int]:
        """The workers whose own gradients, not yet summed, are non-finite. Collective."""
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
    hooks = [block.register_forward_hook(_watch(name, found)) for name, block in leaves(network)]
    # A hybridized network runs as one cached graph, in which no child is called and no hook runs.
    hybrid = hasattr(network, "hybridize")
    if hybrid:
        network.hybridize(False)
    try:
        with autograd.train_mode():
            output = network(*inputs)
    finally:
        for hook in hooks:
            hook.detach()
    if found:
        return f"the first layer with a non-finite output is '{found[0][0]}' ({found[0][1]})"
    if np.isfinite(output.asnumpy()).all():
        return "every layer's output is finite: the loss function overflowed"
    return "the network's own output is non-finite, outside of any layer"


def leaves(block: gluon.Block, prefix: str = "") -> List[Tuple[str, gluon.Block]]:
    """All blocks without children, with their structural names, in the order of registration."""
    if not block._children:
        return [(prefix.rstrip(".") or "network", block)]
    return [leaf for name, child in block._children.items() for leaf in leaves(child, f"{prefix}{name}.")]


def _watch(name: str, found: List[Tuple[str, str]]) -> Callable[[gluon.Block, Sequence[nd.NDArray], Outputs], None]:
    def hook(block: gluon.Block, inputs: Sequence[nd.NDArray], outputs: Outputs) -> None:
        outputs = outputs if isinstance(outputs, (list, tuple)) else [outputs]
        if not found and not all(np.isfinite(output.asnumpy()).all() for output in outputs):
            found.append((name, type(block).__name__))

    return hook
