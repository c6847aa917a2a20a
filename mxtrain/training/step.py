"""The training step: the page to read first. Every strategy, store and precision goes through it.

    batch -> forward and backward -> reduce over replicas [-> confirm] [-> unscale] [-> divide by the weight]
        -> clip -> update [-> prune] -> publish -> average

Nothing here waits for a device: each line puts work into MXNet's engine and returns. Only a loss scale (float16) has to
look at the gradients before it goes on.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Collection, Dict, FrozenSet, Iterator, List, Mapping, Optional, Union

from mxtrain.amp.scaling import NoScaling
from mxtrain.engine.backend import STATISTICS, mx, nd
from mxtrain.engine.parameter_names import role_of
from mxtrain.errors import PeersLost
from mxtrain.optimizer.accumulation import GradientSum
from mxtrain.optimizer.clipping import GradientLimit, multiply
from mxtrain.parallel.base import Strategy
from mxtrain.types import Batch, Stateful

if TYPE_CHECKING:
    import numpy as np

    from mxtrain.kvstore.remote_updater import RemoteUpdater
    from mxtrain.kvstore.store import Store
    from mxtrain.optimizer.ema import Average
    from mxtrain.optimizer.updater import Updater


class TrainingStep:
    """One optimizer update from one global batch.

    Args:
        strategy: computes gradients of the mean loss.
        store: adds gradients up over replicas.
        updater: applies the optimizer to the canonical parameters.
        average: moving average of the parameters.
        clip_global_norm: largest L2 norm of all gradients together, or None.
        scaling: scales the loss, and says which steps are left out because a gradient overflowed.
        random_seed: seed of what the network and optimizer draw, or None if nothing random is in the graph:
            seeding costs a millisecond, which a small network's step would feel.
        states: by name, what the task changes in training besides parameters.
    """

    def __init__(
        self, strategy: Strategy, store: Store, updater: Union[Updater, RemoteUpdater], average: Average,
        clip_global_norm: Optional[float], random_seed: Optional[int], scaling: Optional[NoScaling] = None,
        states: Optional[Mapping[str, Stateful]] = None,
    ):  # fmt: skip
        self.strategy = strategy
        self.store = store
        self.updater = updater
        self.average = average
        self.scaling = scaling or NoScaling()
        self._states = dict(states or {})
        self._limit = None if clip_global_norm is None else GradientLimit(clip_global_norm)
        self._random_seed = random_seed
        # Batch norms' parameters without a gradient: they change in forward passes.
        trainable = set(strategy.trainable)
        self._statistics = [name for name in strategy.values if role_of(name) in STATISTICS and name not in trainable]
        self._kept: Dict[str, nd.NDArray] = {}
        self.grad_norm: Optional[nd.NDArray] = None
        self._frozen: FrozenSet[str] = frozenset()
        self._pruned: Dict[str, Dict[str, nd.NDArray]] = {}
        self.gradient_sum = GradientSum(strategy.trainable)
        """Gradients of the batches before, where an action asks for several batches an update."""

    def __call__(self, batch: Batch, lr: float, step: int) -> nd.NDArray:
        """Step number `step` (from 1): the meter's sums over the batch, before the update."""
        world = self.store.world
        # By rank: workers have different samples, so their dropout masks must differ, too.
        self.seed_random(step, world.rank)
        self._keep_statistics()
        self.store.begin_step(step, batch.size)
        self.strategy.loss_scale = self.scaling.scale
        reductions = self.strategy.reductions
        # The reduction leaves the sum in the owner's array; the arrays of other replicas are not read again.
        gradients = [reduction.replicas[reduction.owner] for reduction in reductions]
        with self._rollback_on_peer_loss():
            sums = self.strategy.forward_backward(batch)
            self.store.reduce(reductions)
            # Up to here no weight has changed: a worker that is lost costs this step alone.
            self.store.confirm([sums, *gradients])
        remote = self.strategy.remote
        rows = remote.gradients()
        # Before any weight or state changes, so that a step with an overflow leaves no trace.
        if not self.scaling.unscale(gradients):
            self._put_back_statistics()
            return sums
        weight = self.strategy.objective.meter.weight(sums)
        num_samples = batch.global_size
        if self.gradient_sum.takes_part:
            self.gradient_sum.add(gradients, weight, num_samples)
            if self.gradient_sum.is_open:
                return sums
            weight, num_samples = self.gradient_sum.close(gradients)
        factor = None if weight is None else division_by_weight(weight, num_samples)
        # After unscaling and dividing: the limit is one for the gradient of the mean.
        if self._limit is not None:
            self.grad_norm, factor = self._limit([*self._moving(gradients), *rows], factor)
        # Rows that servers hold are not among the gradients: these get the factor with the message.
        row_factor = factor
        # An optimizer that multiplies while it reads a gradient saves a pass over all of them.
        if factor is not None and not self.updater.multiplies:
            multiply(gradients, factor)
            factor = None
        if world.size > 1:
            self.seed_random(step)  # what an optimizer draws must be the same on all workers
        if batch.size or not self.store.updates:
            self.updater.update(gradients, lr, *([] if factor is None else [factor]))
            remote.push(rows, lr, row_factor)  # last: it waits for the gradients
        else:
            self.updater.skip()  # no samples, no update: elsewhere the sum of the others' gradients is one
        self.apply_pruning()
        self.strategy.publish(self.strategy.trainable)  # nothing else has changed here
        self.average.update(step)
        return sums

    def _moving(self, gradients: List[nd.NDArray]) -> List[nd.NDArray]:
        """The gradients of the parameters that are updated, whose norm is limited."""
        if not self._frozen:
            return gradients
        names = self.strategy.trainable
        return [one for name, one in zip(names, gradients) if name not in self._frozen] or gradients

    def freeze(self, names: Collection[str]) -> None:
        """Updates all trainable parameters but these from now on. Not where servers update."""
        if set(names) != self._frozen:
            self._frozen = frozenset(names)
            self.updater.freeze(self._frozen)  # type: ignore[union-attr]  # a RemoteUpdater has none

    def prune(self, owner: str, kept: Mapping[str, np.ndarray]) -> None:
        """Sets elements of trainable parameters, and of their moving averages, to 0: now and after each update.

        Args:
            owner: of these elements; those that it named before move freely again.
            kept: structural name -> 1 where an element stays, else 0, of the parameter's shape.
        """
        values, averages = self.strategy.values, self.average.arrays
        self._pruned[owner] = {
            name: nd.array(array, ctx=values[name].context, dtype=values[name].dtype) for name, array in kept.items()
        }  # fmt: skip
        self.apply_pruning()
        for name, keep in self._pruned[owner].items():
            if name in averages:
                averages[name] *= keep.as_in_context(averages[name].context)
        self.strategy.publish(list(kept))

    def apply_pruning(self) -> None:
        """Sets the pruned elements to 0 again; does not publish them."""
        for kept in self._pruned.values():
            for name, keep in kept.items():
                self.strategy.values[name] *= keep

    def add_states(self, states: Mapping[str, Stateful]) -> None:
        """Adds what else changes in training, by the names that checkpoints have for it."""
        self._states.update(states)

    @property
    def states(self) -> Dict[str, Stateful]:
        """All that training changes besides parameters, by the names that checkpoints have for it."""
        recurrent = {} if self.strategy.recurrent_state is None else {"carried": self.strategy.recurrent_state}
        optimizer = self.strategy.remote.optimizer_state(self.updater)
        return {"optimizer": optimizer, "ema": self.average, "scaling": self.scaling, **recurrent, **self._states}

    def synchronize(self) -> None:
        """Brings all workers to the same parameters, statistics and averages. Collective, after the same step.

        There is something to do only where servers update, and workers go on without each other.
        """
        self.strategy.remote.synchronize()  # before the barrier of what follows
        if self.updater.synchronize():
            statistics = [self.strategy.values[name] for name in self._statistics]
            self.store.average([*statistics, *self.average.arrays.values()])
            self.strategy.publish()

    def wait_for_save(self) -> None:
        """Called when worker 0 has written what it reads of all workers' state while it writes. Collective."""
        if self.strategy.remote.names and self.store.updates:
            self.store.total([0.0])  # until then others would go on and change it

    def _keep_statistics(self) -> None:
        """Copies the statistics, if a step may break off or be left out: it must then put back what forward changed."""
        if self.store.elastic or self.scaling.skips:
            self._kept = {name: self.strategy.values[name].copy() for name in self._statistics}

    @contextmanager
    def _rollback_on_peer_loss(self) -> Iterator[None]:
        try:
            yield
        except PeersLost:
            self.store.drain()
            self._put_back_statistics()
            raise

    def _put_back_statistics(self) -> None:
        for name, before in self._kept.items():
            before.copyto(self.strategy.values[name])
        self.strategy.publish(list(self._kept))

    def seed_random(self, step: int, rank: int = 0) -> None:
        """Seeds the generators, so that draws in `step` depend on the seed, the step and the worker alone."""
        if self._random_seed is not None:
            # A multiplicative hash (Knuth): neighbouring steps and seeds share no stream.
            mx.random.seed((self._random_seed * 2654435761 + step * 40503 + rank * 69069 + 12345) % (2**31))


def division_by_weight(weight: nd.NDArray, num_samples: int) -> nd.NDArray:
    """Returns the factor from gradients of a mean over samples to gradients of a mean over weights, sum(loss) /
    sum(weight), (1,).

    Until here they have the scale of a mean over samples, so that thresholds of compression and loss scales mean the
    same for every task. Where the weight is 0 the gradient is, too. Never waits for the device.

    Args:
        weight: sum of the sample weights, (1,): of all workers if gradients are summed, of this worker if servers
            update.
        num_samples: that the gradients were divided by.
    """
    factor: nd.NDArray = num_samples / nd.maximum(weight, 1e-12) * (weight > 0)
    return factor.reshape((1,))
