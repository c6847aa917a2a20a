"""The training step. Start reading here: every strategy, store and precision goes through this module.

    batch -> forward and backward -> reduce over replicas [-> confirm] [-> unscale] [-> divide by the weight]
        -> clip -> update [-> prune] [-> synchronise] -> publish -> average

Nothing here waits for a device: each call queues work in MXNet's engine and returns. The only exception is dynamic loss
scaling (float16), which must read the gradients before it continues.

Reasons: docs/decisions/0032-loss-normalisation.md.
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
    from mxtrain.kvstore.sharded_updater import ShardedUpdater
    from mxtrain.kvstore.store import Store
    from mxtrain.optimizer.ema import Average
    from mxtrain.optimizer.updater import Updater
    from mxtrain.parallel.loss_function import LossFunction


class TrainingStep:
    """One optimizer update from one global batch.

    Args:
        strategy: computes gradients of the mean loss.
        store: sums gradients over replicas and workers.
        updater: applies the optimizer to the canonical parameters.
        average: moving average of the parameters.
        clip_global_norm: largest L2 norm of all gradients together; None = no clipping.
        scaling: scales the loss, and skips steps whose gradients overflow.
        random_seed: seed of random numbers in the network and the optimizer. None if there are none: seeding takes a
            millisecond, which would slow down a small network.
        states: name -> further state that training changes.
    """

    def __init__(
        self,
        strategy: Strategy,
        store: Store,
        updater: Union[Updater, RemoteUpdater, ShardedUpdater],
        average: Average,
        clip_global_norm: Optional[float],
        random_seed: Optional[int],
        scaling: Optional[NoScaling] = None,
        states: Optional[Mapping[str, Stateful]] = None,
    ):
        self.strategy = strategy
        self.store = store
        self.updater = updater
        self.average = average
        self.scaling = scaling or NoScaling()
        self._states = dict(states or {})
        self._limit = None if clip_global_norm is None else GradientLimit(clip_global_norm)
        self.random_seed = random_seed
        # Moving statistics of batch norms have no gradient; forward passes change them.
        trainable = set(strategy.trainable)
        self._statistics = [name for name in strategy.values if role_of(name) in STATISTICS and name not in trainable]
        self._saved_statistics: Dict[str, nd.NDArray] = {}
        self.grad_norm: Optional[nd.NDArray] = None
        self._frozen: FrozenSet[str] = frozenset()
        self._pruned: Dict[str, Dict[str, nd.NDArray]] = {}
        self._synchronization = store.build_synchronization(
            strategy.values, strategy.reductions, self._statistics, updater, strategy.publish
        )
        self.gradient_sum = GradientSum(strategy.trainable)
        """Sum of the gradients of previous batches, if an action requests several batches per update."""

    def __call__(self, batch: Batch, lr: float, step: int, loss_function: Optional[LossFunction] = None) -> nd.NDArray:
        """Takes a step.

        Args:
            batch: this worker's share of the global batch.
            lr: learning rate.
            step: number of the step, from 1.
            loss_function: computes the loss instead of the task's network and loss.

        Returns:
            The meter's sums over the batch, computed with the weights before the update.
        """
        world = self.store.world
        # Seeded by rank: workers have different samples, so their dropout masks must differ, too.
        self.seed_random(step, world.rank)
        # The copy enters the engine before the forward pass, because cuDNN writes moving statistics in that pass
        # already.
        self._save_statistics()
        self.store.begin_step(step, batch.size)
        reductions = self.strategy.reductions
        # The reduction writes the sum into the owner's array; the arrays of other replicas are not read again.
        gradients = [reduction.replicas[reduction.owner] for reduction in reductions]
        with self._rollback_on_peer_loss():
            sums = self.strategy.forward_backward(batch, self.scaling.scale, loss_function)
            self.store.reduce(reductions)
            # No weight has changed yet, so the loss of a worker only costs this step.
            self.store.membership.confirm([sums, *gradients])
        tables = self.strategy.remote
        # A strategy without tables on servers returns an empty list, so that the step needs no branch for servers.
        row_gradients = tables.gradients()
        # Must precede all changes of weights and state, so that a step with an overflow has no effect.
        if not self.scaling.unscale(gradients):
            self._restore_statistics()
            return sums
        weight = self.strategy.objective.meter.weight(sums)
        num_samples = batch.global_size
        # Batches are added before the division by their weight: the mean of the means of batches would be another
        # number. A batch that does not end an update returns here.
        if self.gradient_sum.is_in_use:
            self.gradient_sum.add(gradients, weight, num_samples)
            if self.gradient_sum.is_open:
                return sums
            weight, num_samples = self.gradient_sum.close(gradients)
        factor = None if weight is None else division_by_weight(weight, num_samples)
        # Clip after unscaling and dividing: the limit applies to the gradient of the mean loss.
        if self._limit is not None:
            self.grad_norm, factor = self._limit([*self._unfrozen(gradients), *row_gradients], factor)
        # Gradients of rows on servers are not in `gradients`; their message contains the factor instead.
        row_factor = factor
        # If the optimizer multiplies while it reads gradients, a separate pass over them is not needed.
        if factor is not None and not self.updater.accepts_factor:
            multiply(gradients, factor)
            factor = None
        if world.size > 1:
            self.seed_random(step)  # an optimizer must draw the same numbers on all workers
        if batch.size or not self.store.servers_update:
            self.updater.update(gradients, lr, *([] if factor is None else [factor]))
            tables.push(row_gradients, lr, row_factor)  # must be last, because it waits for the gradients
        else:
            # Servers that update must not get an empty gradient. Without them, a worker without samples still applies
            # the sum of the other workers' gradients.
            self.updater.skip()
        # Masks follow the update and precede the copies, so that every checkpoint, validation and replica has pruned
        # weights.
        self.apply_pruning()
        synchronized = self._synchronization.after_update(batch.size, batch.global_size)
        # A step changes trainable parameters only; a synchronisation changes statistics, too.
        self.strategy.publish(None if synchronized else self.strategy.trainable)
        self.average.update(step)
        return sums

    def _unfrozen(self, gradients: List[nd.NDArray]) -> List[nd.NDArray]:
        """Returns the gradients of parameters that are not frozen; only these count for the norm."""
        if not self._frozen:
            return gradients
        names = self.strategy.trainable
        return [gradient for name, gradient in zip(names, gradients) if name not in self._frozen] or gradients

    def freeze(self, names: Collection[str]) -> None:
        """Excludes these trainable parameters from all further updates. Not supported if servers update."""
        if set(names) != self._frozen:
            self._frozen = frozenset(names)
            self.updater.freeze(self._frozen)  # type: ignore[union-attr]  # a RemoteUpdater has none

    def prune(self, owner: str, masks: Mapping[str, np.ndarray]) -> None:
        """Sets elements of trainable parameters and of their moving averages to 0, now and after each update.

        Args:
            owner: name of the caller; replaces the masks that the same owner set before.
            masks: structural name -> mask of the parameter's shape, 1 for kept elements and 0 for pruned ones.
        """
        values, averages = self.strategy.values, self.average.arrays
        self._pruned[owner] = {
            name: nd.array(array, ctx=values[name].context, dtype=values[name].dtype) for name, array in masks.items()
        }
        self.apply_pruning()
        for name, mask in self._pruned[owner].items():
            if name in averages:
                averages[name] *= mask.as_in_context(averages[name].context)
        self.strategy.publish(list(masks))

    def apply_pruning(self) -> None:
        """Sets the pruned elements to 0 again. Does not publish the parameters."""
        for masks in self._pruned.values():
            for name, mask in masks.items():
                self.strategy.values[name] *= mask

    def add_states(self, states: Mapping[str, Stateful]) -> None:
        """Adds further state that training changes; the names are those in checkpoints."""
        self._states.update(states)

    @property
    def states(self) -> Dict[str, Stateful]:
        """Returns all state besides parameters that training changes; the names are those in checkpoints."""
        recurrent = {} if self.strategy.recurrent_state is None else {"carried": self.strategy.recurrent_state}
        optimizer = self.strategy.remote.optimizer_state(self.updater)
        return {
            "optimizer": optimizer,
            "ema": self.average,
            "scaling": self.scaling,
            **recurrent,
            **self._synchronization.states,
            **self._states,
        }

    def synchronize(self) -> None:
        """Makes parameters, statistics and moving averages of all workers equal. Collective, after the same step.

        This only has an effect if workers take independent steps. Between two synchronisations of local SGD no further
        step can follow: use `synchronized` instead.
        """
        self.strategy.remote.synchronize()  # must precede the barrier in the following calls
        statistics = [self.strategy.values[name] for name in self._statistics]
        if self.updater.synchronize([*statistics, *self.average.arrays.values()]):
            self.strategy.publish()
        if self._synchronization.apply():
            self.strategy.publish()

    @contextmanager
    def synchronized(self) -> Iterator[None]:
        """Synchronises for the duration of the context. Afterwards each worker continues from its own weights."""
        self.synchronize()
        try:
            yield
        finally:
            if self._synchronization.undo():
                self.strategy.publish()

    def scalars(self) -> Dict[str, float]:
        """Returns values for loggers since the last call, by TensorBoard tag."""
        return {**self.scaling.scalars(), **self.updater.scalars(), **self._synchronization.scalars()}

    def summary(self) -> Dict[str, float]:
        """Returns values of servers and of local SGD over the lifetime of this process, by TensorBoard tag."""
        return {**self.updater.summary(), **self.strategy.remote.summary(), **self._synchronization.scalars()}

    def wait_for_save(self) -> None:
        """Waits until worker 0 has written a checkpoint, if it reads state on servers while it writes. Collective."""
        if self.strategy.remote.names and self.store.servers_update:
            self.store.total([0.0])  # a barrier: otherwise other workers would continue and change that state

    def _save_statistics(self) -> None:
        """Copies the moving statistics if the step may fail or be skipped, which must undo its forward pass."""
        if self.store.membership.elastic or self.scaling.skips:
            self._saved_statistics = {name: self.strategy.values[name].copy() for name in self._statistics}

    @contextmanager
    def _rollback_on_peer_loss(self) -> Iterator[None]:
        try:
            yield
        except PeersLost:
            # MXNet skips writes to outputs of a failed sum, such as the statistics, until all errors of the sum are
            # drained.
            self.store.membership.drain()
            self._restore_statistics()
            raise

    def _restore_statistics(self) -> None:
        for name, saved in self._saved_statistics.items():
            saved.copyto(self.strategy.values[name])
        # Only the canonical arrays were saved, so the other replicas must get them again.
        self.strategy.publish(list(self._saved_statistics))

    def seed_random(self, step: int, rank: int = 0) -> None:
        """Seeds MXNet's generators, so that random numbers depend only on the seed, the step and the worker."""
        if self.random_seed is not None:
            mx.random.seed(seed_of_step(self.random_seed, step, rank))


def seed_of_step(seed: int, step: int, rank: int = 0) -> int:
    """Returns the seed of MXNet's generators for a step of a worker."""
    # Knuth's multiplicative hash: consecutive steps and seeds must not share a random stream.
    return (seed * 2654435761 + step * 40503 + rank * 69069 + 12345) % (2**31)


def division_by_weight(weight: nd.NDArray, num_samples: int) -> nd.NDArray:
    """Returns the factor (1,) that converts gradients of the mean over samples to gradients of sum(loss) / sum(weight).

    Gradients are first computed for the mean over samples, so that thresholds of compression and loss scales mean the
    same for every task. The factor is 0 if the sum of weights is 0. Never waits for the device.

    Args:
        weight: sum of the sample weights, (1,): of all workers if gradients are summed, of this worker if servers
            update.
        num_samples: number of samples that the gradients were divided by.
    """
    # The product with (weight > 0) gives 0 for a batch without weight; a Python condition would wait for the device.
    factor: nd.NDArray = num_samples / nd.maximum(weight, 1e-12) * (weight > 0)
    return factor.reshape((1,))
