"""Local SGD: workers take several steps on their own, then sum the differences of their weights.

    step                 gradient of the worker's share of the batch -> optimizer of the worker; nothing is sent
    every `sync_every`   outer gradient = sum over workers k of n_k / n * (global weights - weights of k)
                         -> outer optimizer -> global weights, from which all workers go on

n_k of n samples since the last synchronisation were those of worker k. Batch-norm statistics are averaged with the same
factors. The state of the workers' optimizers stays with them.

Sources: Stich, Local SGD Converges Fast and Communicates Little, https://arxiv.org/abs/1805.09767; McMahan et al., the
factors, https://arxiv.org/abs/1602.05629; Douillard et al., DiLoCo, https://arxiv.org/abs/2311.08105.
Reasons: docs/decisions/0150-local-sgd.md.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np

from mxtrain.checkpoint import require_same_arrays
from mxtrain.engine.backend import nd
from mxtrain.errors import CheckpointError
from mxtrain.kvstore.buckets import pieces_of
from mxtrain.kvstore.joined_store import JoinedStore
from mxtrain.kvstore.mxnet_store import MXNetStore
from mxtrain.kvstore.reduction import Reduction
from mxtrain.kvstore.store import Numbers, Store
from mxtrain.kvstore.synchronization import Synchronization
from mxtrain.types import Stateful

if TYPE_CHECKING:
    from mxtrain.types.annotations import Json, JsonObject

Arrays = Dict[str, nd.NDArray]
VOTE_EVERY_S = 1.0
"""Seconds between two votes of the workers. With one in each step, an MLP on links of 10 ms took 320 ms for a step with
Horovod, whose messages wait for one another."""
MAX_VOTE_STEPS = 100
"""Largest number of steps between two votes."""


@dataclass(frozen=True)
class OuterOptimizer:
    """SGD with Nesterov momentum, as PyTorch defines it. `lr=1, momentum=0` averages the workers' weights."""

    lr: float = 1.0
    momentum: float = 0.0

    def step(
        self,
        weight: nd.NDArray,
        gradient: nd.NDArray,
        velocity: Optional[nd.NDArray],
        out: nd.NDArray,
        advance: bool = True,
    ) -> None:
        """Writes the new weight to `out`, without further arrays. Asynchronous.

        Args:
            weight: weight before the step; not changed.
            gradient: outer gradient; not changed.
            velocity: velocity before the step, overwritten by that after it; None without momentum.
            out: array that shares no memory with the others.
            advance: False to leave the velocity as it is.
        """
        if velocity is None:
            nd._internal._mul_scalar(gradient, scalar=self.lr, out=out)
        else:
            nd._internal._mul_scalar(velocity, scalar=self.momentum, out=out)
            out += gradient
            if advance:
                out.copyto(velocity)
            out *= self.momentum
            out += gradient
            out *= self.lr
        nd.elemwise_sub(weight, out, out=out)


class LocalSGDStore(Store):
    """A store whose workers sum in no step, but from time to time: see `build_synchronization`.

    Args:
        joined: store that connects the workers.
        sync_every: steps between two synchronisations.
        outer: optimizer of the global weights.
    """

    independent_steps = True

    def __init__(self, joined: JoinedStore, sync_every: int, outer: OuterOptimizer):
        # The group never changes: what a worker has learned since the last synchronisation is lost with it, so all
        # restart from a checkpoint. Hence not the membership of the joined store.
        self._joined, self.world = joined, joined.world
        self._sync_every, self._outer = sync_every, outer
        self._replica_store = MXNetStore("local")
        self._reductions: List[Reduction] = []
        self._votes: List[float] = []
        self._vote_steps, self._steps_left, self._steps_since, self._voted_at = 1, 0, 0, time.monotonic()

    def build_synchronization(
        self,
        values: Mapping[str, nd.NDArray],
        reductions: Sequence[Reduction],
        statistics: Sequence[str],
        optimizer: Stateful,
        publish: Callable[[], None],
    ) -> LocalSGD:
        # A list of its own: of a worker's replicas, only the owner's gradient holds the sum.
        self._reductions = [Reduction(one.name, [one.replicas[one.owner]], 0) for one in reductions]
        return LocalSGD(
            self._joined, self._sync_every, self._outer, values, self._reductions, statistics, optimizer, publish
        )

    def reduce(self, reductions: Sequence[Reduction]) -> None:
        """Sums over this worker's replicas only."""
        self._replica_store.reduce(reductions)

    def all_reduce(self, arrays: Sequence[nd.NDArray]) -> None:
        self._joined.all_reduce(arrays)

    def gather(self, flat: nd.NDArray) -> nd.NDArray:
        return self._joined.gather(flat)

    def total(self, values: Numbers) -> np.ndarray:
        return self._joined.total(values)

    def votes_later(self, votes: Sequence[float], lag: int) -> Callable[[], np.ndarray]:
        """Collects the votes of several steps and sums them about once in `VOTE_EVERY_S` seconds.

        Rank 0 measures how many steps that are. The number travels with the votes, and all workers read it after the
        same step, so they agree on the steps in which they vote.
        """
        self._votes = [max(pair) for pair in zip(votes, self._votes or votes)]
        self._steps_left -= 1
        self._steps_since += 1
        if self._steps_left > 0:
            return lambda: np.zeros(len(votes))
        now = time.monotonic()
        steps = round(VOTE_EVERY_S * self._steps_since / max(now - self._voted_at, 1e-3))
        proposal = min(max(steps, 1), MAX_VOTE_STEPS) if self.world.rank == 0 else 0
        result = self._joined.votes_later([*self._votes, proposal], lag)
        self._votes, self._steps_left, self._steps_since, self._voted_at = [], self._vote_steps, 0, now

        def outcome() -> np.ndarray:
            *summed, self._vote_steps = result()
            return np.array(summed)

        return outcome

    def broadcast(self, blob: Optional[bytes]) -> bytes:
        return self._joined.broadcast(blob)

    def residuals(self, reductions: Sequence[Reduction]) -> Dict[str, np.ndarray]:
        return self._joined.residuals(self._reductions)

    def restore_residuals(self, reductions: Sequence[Reduction], arrays: Mapping[str, np.ndarray]) -> None:
        self._joined.restore_residuals(self._reductions, arrays)

    def _disconnect(self) -> None:
        self._joined._disconnect()


class LocalSGD(Synchronization):
    """Counts the steps of this worker and synchronises its weights with those of the others.

    Args:
        store: store that connects the workers.
        sync_every: steps between two synchronisations.
        outer: optimizer of the global weights.
        values: structural name -> canonical array.
        reductions: the gradient of each trainable parameter, whose array holds differences of weights during a
            synchronisation.
        statistics: structural names of the batch-norm statistics.
        optimizer: optimizer of this worker.
        publish: called after `values` were written to.
    """

    def __init__(
        self,
        store: JoinedStore,
        sync_every: int,
        outer: OuterOptimizer,
        values: Mapping[str, nd.NDArray],
        reductions: Sequence[Reduction],
        statistics: Sequence[str],
        optimizer: Stateful,
        publish: Callable[[], None],
    ):
        self._store, self._sync_every, self._outer = store, sync_every, outer
        self._reductions, self._optimizer, self._publish = reductions, optimizer, publish
        self._weights: Arrays = {one.name: values[one.name] for one in reductions}
        self._statistics: Arrays = {name: values[name] for name in statistics}
        self._global: Arrays = {name: weight.copy() for name, weight in self._weights.items()}
        self._velocity: Arrays = {}
        if outer.momentum:
            self._velocity = {name: nd.zeros_like(weight) for name, weight in self._weights.items()}
        self._held: Arrays = {}
        # Uncompressed sums of the weights' own arrays, for `apply`.
        self._shares = [Reduction(name, [weight], 0) for name, weight in self._weights.items()]
        store.share_buckets(self._reductions)
        store.share_buckets(self._shares, compress=False)
        self._count = self._size = self._global_size = 0
        self._seconds, self._payload_bytes = 0.0, 0

    @property
    def states(self) -> Mapping[str, Stateful]:
        return {"local_sgd": self}

    def after_update(self, size: int, global_size: int) -> bool:
        self._count += 1
        self._size += size
        self._global_size += global_size
        if self._count < self._sync_every:
            return False
        self._synchronize()
        return True

    def _synchronize(self) -> None:
        self._store.wait_for(list(self._weights.values()))  # so that steps do not count as time of the synchronisation
        began = time.monotonic()
        gradients = {one.name: one.replicas[0] for one in self._reductions}
        self._write_shares(gradients, self._weights)
        self._store.reduce_in_turn(self._reductions)
        if self._statistics:
            self._store.all_reduce(list(self._statistics.values()))
        # Waits, since a lost worker must end the run before its sums change any weight.
        self._store.wait_for([*gradients.values(), *self._statistics.values()])
        for name, gradient in gradients.items():
            weight = self._weights[name]
            self._outer.step(self._global[name], gradient, self._velocity.get(name), out=weight)
            weight.copyto(self._global[name])
        self._count = self._size = self._global_size = 0
        self._seconds = time.monotonic() - began
        payloads = [compressor.payload for compressor in self._store.compressors_of(self._reductions)]
        self._payload_bytes += _num_bytes([*payloads, *self._statistics.values()])

    def _write_shares(self, gradients: Arrays, weights: Arrays) -> None:
        """Writes this worker's share of the outer gradient to `gradients`, and scales its statistics."""
        factor = self._size / self._global_size
        for name, gradient in gradients.items():
            nd.elemwise_sub(self._global[name], weights[name], out=gradient)
            gradient *= factor
        for statistic in self._statistics.values():
            statistic *= factor

    def apply(self) -> bool:
        if not self._count or self._held:
            return False
        self._held = {name: array.copy() for name, array in {**self._weights, **self._statistics}.items()}
        # In the weights' arrays, since the next step may read a gradient that its backward pass does not write. From
        # the copies, because an operator that does not read an array ends oneDNN's own layout of it, in which it must
        # not be written to in parts.
        self._write_shares(self._weights, self._held)
        self._store.reduce_in_turn(self._shares)  # not compressed, which would change the residuals
        if self._statistics:
            self._store.all_reduce(list(self._statistics.values()))
        self._store.wait_for([*self._weights.values(), *self._statistics.values()])
        results: Dict[Tuple[str, str], nd.NDArray] = {}
        for name, weight in self._weights.items():
            arrays = [self._global[name], weight, *([self._velocity[name]] if self._velocity else [])]
            for start, share, *velocity in zip(*map(pieces_of, arrays)):
                kind = str(share.context), str(share.dtype)
                if kind not in results or results[kind].size < share.size:
                    results[kind] = nd.empty(share.shape, ctx=share.context, dtype=share.dtype)
                result = results[kind][: share.size]
                self._outer.step(start, share, velocity[0] if velocity else None, out=result, advance=False)
                result.copyto(share)
        return True

    def undo(self) -> bool:
        held, self._held = self._held, {}
        for name, array in {**self._weights, **self._statistics}.items():
            if name in held:
                held[name].copyto(array)
        return bool(held)

    def scalars(self) -> Dict[str, float]:
        """Returns the seconds of the last synchronisation, with the wait for the slowest worker, and the megabytes that
        this worker has sent in all of them, without headers."""
        if not self._payload_bytes:
            return {}
        return {"perf/sync_s": self._seconds, "perf/sync_sent_MB": self._payload_bytes / 1e6}

    # Checkpoints hold as the model what `apply` gives, and here what each worker had instead.

    def save_state(self) -> Tuple[Mapping[str, np.ndarray], Mapping[str, Json]]:
        """See `Stateful`. Collective; arrays of other workers are on rank 0 only.

        Returns:
            Arrays `velocity/<parameter>`, `optimizer/<parameter>:<position>:<rank>` for ranks from 1 on, and between
            synchronisations `global/<parameter>` and `local/<parameter or statistic>:<rank>`.
        """
        size = self._store.world.size
        arrays = {f"velocity/{name}": array.asnumpy() for name, array in self._velocity.items()}
        arrays.update(gather_named(self._store, "optimizer", _on_host(self._optimizer.save_state()[0]), range(1, size)))
        if self._count:
            local = _on_host(self._held or {**self._weights, **self._statistics})
            arrays.update(gather_named(self._store, "local", local, range(size)))
            arrays.update({f"global/{name}": array.asnumpy() for name, array in self._global.items()})
        sizes = self._store.total([self._size * (rank == self._store.world.rank) for rank in range(size)])
        values: Dict[str, Json] = {
            "workers": size,
            "count": self._count,
            "sizes": [int(value) for value in sizes],
            "global_size": self._global_size,
        }
        return arrays, values

    def load_state(self, arrays: Mapping[str, np.ndarray], values: JsonObject, source: str) -> None:
        """See `Stateful`. The model must have been loaded before.

        With another number of workers than before, all go on from the weights of the model, as after a synchronisation,
        with the optimizer state of rank 0.
        """
        self._held = {}
        rank, size = self._store.world.rank, self._store.world.size
        _load(self._velocity, _named(arrays, "velocity"), f"the velocity of the outer optimizer in {source}")
        for name, weight in self._weights.items():
            weight.copyto(self._global[name])
        self._count = self._size = self._global_size = 0
        if values["workers"] != size:
            return
        if rank:
            # The numbers are those of rank 0, from which the same arrays were loaded just before.
            numbers = self._optimizer.save_state()[1]
            self._optimizer.load_state(_named(arrays, "optimizer", rank), numbers, source)
        if not values["count"]:
            return
        if values["count"] >= self._sync_every:
            raise CheckpointError(
                f"{source} was written {values['count']} steps after a synchronisation, and kvstore.sync_every is "
                f"{self._sync_every} now. Type a larger number."
            )
        self._count, self._size, self._global_size = values["count"], values["sizes"][rank], values["global_size"]
        _load(self._global, _named(arrays, "global"), f"the global weights in {source}")
        own = {**self._weights, **self._statistics}
        _load(own, _named(arrays, "local", rank), f"the weights of worker {rank} in {source}")
        self._publish()


def gather_named(
    store: JoinedStore, kind: str, arrays: Mapping[str, np.ndarray], ranks: Sequence[int]
) -> Dict[str, np.ndarray]:
    """Returns on rank 0 the arrays of workers as `<kind>/<name>:<rank>`; {} on others. Collective; waits.

    Args:
        store: store that connects the workers.
        kind: first part of the names.
        arrays: arrays of this worker, of at most 32 bits; names and shapes are equal on all workers.
        ranks: workers whose arrays are gathered.
    """
    gathered: Dict[str, np.ndarray] = {}
    for rank in ranks:
        of_rank = store.arrays_of(rank, arrays, "local_sgd")
        gathered.update({f"{kind}/{name}:{rank}": np.asarray(array) for name, array in of_rank.items()})
    return gathered


def _on_host(arrays: Mapping[str, Union[nd.NDArray, np.ndarray]]) -> Dict[str, np.ndarray]:
    return {name: array if isinstance(array, np.ndarray) else array.asnumpy() for name, array in arrays.items()}


def _named(arrays: Mapping[str, np.ndarray], kind: str, rank: Optional[int] = None) -> Dict[str, np.ndarray]:
    """Returns the arrays of a kind (and rank) by the rest of their names."""
    end = "" if rank is None else f":{rank}"
    begin = len(kind) + 1
    return {
        name[begin : len(name) - len(end)]: array
        for name, array in arrays.items()
        if name.startswith(f"{kind}/") and name.endswith(end)
    }


def _load(target: Arrays, arrays: Mapping[str, np.ndarray], source: str) -> None:
    require_same_arrays(target, arrays, source)
    for name, array in target.items():
        nd.array(arrays[name], ctx=array.context, dtype=array.dtype).copyto(array)


def _num_bytes(arrays: Sequence[nd.NDArray]) -> int:
    return sum(array.size * np.dtype(array.dtype).itemsize for array in arrays)
