"""Updates whose work and state are divided among workers (ZeRO-1). Imports MXNet.

    summed gradients, equal on all workers -> each worker updates the parameters of its buckets
        -> each bucket's weights travel from its owner to all others

A parameter is never divided, so optimizers that look at the norm of a whole parameter compute the same. Gradients are
summed as without division, and the norm of all of them is known to each worker: all bits stay the same.

Source: Rajbhandari et al., ZeRO, https://arxiv.org/abs/1910.02054, section 5.1; whole parameters as in PyTorch's
ZeroRedundancyOptimizer. Reasons: docs/decisions/0153-sharded-optimizer-state.md.
"""

from __future__ import annotations

from typing import Callable, Collection, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from mxtrain.engine.backend import nd
from mxtrain.kvstore.joined_store import HostOrDevice, JoinedStore
from mxtrain.kvstore.reduction import Reduction
from mxtrain.kvstore.world import least_loaded
from mxtrain.optimizer.updater import Updater
from mxtrain.types.annotations import Json, JsonObject


def divide(sizes: Sequence[int], num_workers: int) -> List[int]:
    """Returns the owner of each bucket: the largest first, each to the worker with the least so far.

    Args:
        sizes: number of elements of each bucket.
        num_workers: number of workers.
    """
    order = sorted(range(len(sizes)), key=lambda index: -sizes[index])
    owners = dict(zip(order, least_loaded([sizes[index] for index in order], num_workers)))
    return [owners[index] for index in range(len(sizes))]


class ShardedUpdater:
    """Has the interface of `Updater`, but holds the optimizer state of this worker's parameters only.

    Args:
        store: store that connects the workers; their number must not change.
        build: builds the updater of some parameters.
        weights: structural name -> parameter to train.
        reductions: the gradients of a step, whose buckets are divided.
    """

    def __init__(
        self,
        store: JoinedStore,
        build: Callable[[Mapping[str, nd.NDArray]], Updater],
        weights: Mapping[str, nd.NDArray],
        reductions: Sequence[Reduction],
    ):
        self.names = list(weights)
        self._store, self._build, self._weights = store, build, weights
        self._buckets = store.buckets_of(reductions)
        self._owners = divide([bucket.flat.size for bucket in self._buckets], store.world.size)
        # Once the gradients are applied, their buckets are free to carry weights.
        self._views = [bucket.views() for bucket in self._buckets]
        owned = {name for owner, views in zip(self._owners, self._views) if owner == store.world.rank for name in views}
        self._own = [index for index, name in enumerate(self.names) if name in owned]
        self._updater = build({self.names[index]: weights[self.names[index]] for index in self._own})
        self._stand_ins = [
            {} if owner == store.world.rank else self._stand_ins_of(list(views))
            for owner, views in zip(self._owners, self._views)
        ]

    @property
    def accepts_factor(self) -> bool:
        """See `Updater`."""
        return self._updater.accepts_factor

    def update(self, gradients: Sequence[nd.NDArray], lr: float, factor: Optional[nd.NDArray] = None) -> None:
        """Updates all parameters once. Collective; asynchronous. Arguments as for `Updater.update`."""
        self._updater.update([gradients[index] for index in self._own], lr, factor)
        rank = self._store.world.rank
        for owner, views in zip(self._owners, self._views):
            for name in views if owner == rank else ():
                self._weights[name].copyto(views[name])
        self._store.send_from(self._owners, [bucket.flat for bucket in self._buckets])
        for owner, views in zip(self._owners, self._views):
            for name in views if owner != rank else ():
                views[name].copyto(self._weights[name])

    def freeze(self, names: Collection[str]) -> None:
        """See `Updater`."""
        self._updater.freeze(names)

    def skip(self) -> None:
        """See `Updater`."""

    def synchronize(self, own_arrays: Sequence[nd.NDArray] = ()) -> bool:
        """See `Updater`."""
        return self._updater.synchronize(own_arrays)

    def scalars(self) -> Dict[str, float]:
        """See `Updater`."""
        return self._updater.scalars()

    summary = scalars

    def _stand_ins_of(self, names: Sequence[str]) -> Dict[str, HostOrDevice]:
        """Returns arrays with the names, shapes and types of other workers' state, which take no memory."""
        stand_ins: Dict[str, HostOrDevice] = {}
        for name in names:  # one at a time, to need memory for the state of one parameter only
            state = self._build({name: self._weights[name]}).arrays()
            stand_ins.update((key, np.broadcast_to(np.zeros((), a.dtype), a.shape)) for key, a in state.items())
        return stand_ins

    def save_state(self) -> Tuple[Mapping[str, HostOrDevice], Mapping[str, Json]]:
        """Returns the state of all parameters on rank 0, named and shaped as by `Updater`. Collective; waits.

        A run with another number of workers, or without division, continues from it.
        """
        gathered: Dict[str, HostOrDevice] = {}
        own = self._updater.arrays()
        for owner, views, stand_ins in zip(self._owners, self._views, self._stand_ins):
            arrays = stand_ins or {name: array for name, array in own.items() if name.rpartition(":")[0] in views}
            # Sorted, because all workers must send in the same order.
            arrays = {name: arrays[name] for name in sorted(arrays)}
            gathered.update(self._store.arrays_of(owner, arrays, "optimizer"))
        numbers = self._updater.numbers()
        own_counts = numbers["update_counts"]
        counts = self._store.total([own_counts.get(name, 0) for name in self.names]).astype(int).tolist()
        # The count of the whole optimizer, which is the largest one, may be that of a parameter of another worker.
        attributes = numbers["attributes"]
        attributes = {**attributes, "num_update": max([attributes["num_update"], *counts])}
        return gathered, {**numbers, "update_counts": dict(zip(self.names, counts)), "attributes": attributes}

    def load_state(self, arrays: Mapping[str, np.ndarray], values: JsonObject, source: str) -> None:
        """See `Updater`; takes the state of all parameters.

        Raises:
            CheckpointError: the state belongs to another optimizer or another network.
        """
        others = {*self.names} - {*self._updater.names}
        own_arrays = {name: array for name, array in arrays.items() if name.rpartition(":")[0] not in others}
        counts = {name: count for name, count in values["update_counts"].items() if name not in others}
        self._updater.load_state(own_arrays, {**values, "update_counts": counts}, source)
