"""MXNet's parameter server as nothing but a sum over workers.

The servers keep no optimizer and no state that could be lost: a key's value is the sum of what the workers pushed last.
ps-lite hands waiting messages on in any order (its queue is last in, first out), and a server counts pushes, not
workers. So what may not overtake another is made to wait for it: keys are initialised behind a barrier, before any is
pushed, and each key has one array for good, by which MXNet's engine orders its rounds.
"""

from __future__ import annotations

import os
from typing import Any, Callable, Dict, List, Sequence, Tuple

import numpy as np

from mxtrain.backend import mx, nd
from mxtrain.kvstore.store import Store
from mxtrain.sharing import World


class DistStore(Store):
    """A worker's connection to the servers. Connecting waits until scheduler, servers and workers are all there.

    Args:
        kind: what MXNet calls it: dist_sync or dist_device_sync.
        world: of this worker.
        by_priority: for ps-lite's P3: keys one by one, the earlier ones more urgent, pushed and pulled in one call.
    """

    def __init__(self, kind: str, world: World, by_priority: bool = False):
        self.world, self._by_priority = world, by_priority
        self._store = create(kind)
        self._num_keys = 0
        self._calls: Dict[int, Tuple[Any, List[int], List[Any], List[Any]]] = {}
        self._buffers: Dict[Tuple[Any, ...], Tuple[int, nd.NDArray]] = {}

    def reduce(self, reductions: Sequence[Any]) -> None:
        if reductions[0].replicas[0].dtype == np.float64:  # `verify`
            self._reduce_exactly(reductions)
            return
        if id(reductions) not in self._calls:
            replicas = [list(reduction.replicas) for reduction in reductions]
            keys = self._init([arrays[0] for arrays in replicas])
            owners = [[reduction.replicas[reduction.owner]] for reduction in reductions]
            # The reductions, too: as long as they live, nothing else has their id.
            self._calls[id(reductions)] = (reductions, keys, replicas, owners)
        self._push_and_pull(*self._calls[id(reductions)][1:])

    def _push_and_pull(self, keys: List[int], values: List[Any], outs: List[Any]) -> None:
        """Both in one message, which is answered with exactly this round's sum."""
        if not self._by_priority:
            self._store.pushpull(keys, values, out=outs)
            return
        for number, (key, value, out) in enumerate(zip(keys, values, outs)):
            self._store.pushpull(key, value, out=out, priority=-number)

    def _reduce_exactly(self, reductions: Sequence[Any]) -> None:
        owners = [reduction.replicas[reduction.owner] for reduction in reductions]
        for reduction, owner in zip(reductions, owners):
            if len(reduction.replicas) > 1:
                nd.add_n(*[array.as_in_context(owner.context) for array in reduction.replicas]).copyto(owner)
        self.meet(owners)

    def meet(self, arrays: Sequence[nd.NDArray]) -> None:
        first = arrays[0].context
        dtype = max((array.dtype for array in arrays), key=lambda dtype: np.dtype(dtype).itemsize)
        rows = [array.as_in_context(first).astype(dtype, copy=False).reshape((-1,)) for array in arrays]
        flat = nd.concat(*rows, dim=0)
        flat = self._exact_sum(flat) if dtype == np.float64 else self._sum(flat, "meet")
        begin = 0
        for array in arrays:
            part = flat[begin : begin + array.size].reshape(array.shape)
            part.astype(array.dtype, copy=False).copyto(array)
            begin += array.size

    def total_later(self, values: Sequence[float]) -> Callable[[], np.ndarray]:
        return self._sum(nd.array(values, ctx=mx.cpu()), "total").asnumpy

    def total(self, values: Sequence[float]) -> np.ndarray:
        return self._exact_sum(nd.array(values, ctx=mx.cpu(), dtype="float64")).asnumpy()

    def _exact_sum(self, flat: nd.NDArray) -> nd.NDArray:
        """Of float64 over workers, as a new array.

        MXNet's servers compute in float32, whatever they are sent. So each worker's numbers travel in two halves, in
        places of their own, where the others add 0; all then add them up in the order of the ranks.
        """
        high = flat.astype("float32")
        low = flat - high.astype("float64")
        low = nd.where(low == low, low, nd.zeros_like(low))  # infinity less infinity is not a number
        halves = nd.concat(high, low.astype("float32"), dim=0)
        empty = nd.zeros_like(halves)
        places = nd.concat(*[halves if r == self.world.rank else empty for r in range(self.world.size)], dim=0)
        found = self._sum(places, "exact").astype("float64").reshape((self.world.size, 2, flat.size))
        return found.sum(axis=1).sum(axis=0)

    def _sum(self, flat: nd.NDArray, purpose: str) -> nd.NDArray:
        """Over workers, as a new array.

        Each key has a buffer of its own, for all of its time. MXNet orders the pushes and pulls of a key by the array
        that is pushed: with another array each time, a worker's next push may overtake the others' last one, and the
        server, which counts pushes and not workers, would add numbers of different steps.
        """
        name = (purpose, str(flat.dtype), flat.size)  # the same on all workers, wherever the numbers are here
        if name not in self._buffers:
            buffer = nd.zeros(flat.shape, ctx=mx.cpu(), dtype=flat.dtype)
            self._buffers[name] = (self._init([buffer])[0], buffer)
        key, buffer = self._buffers[name]
        flat.copyto(buffer)
        self._push_and_pull([key], [[buffer]], [[buffer]])
        return buffer.copyto(flat.context)

    def close(self) -> None:
        nd.waitall()
        del self._store  # a barrier; then rank 0 stops the servers

    def _init(self, arrays: Sequence[nd.NDArray]) -> List[int]:
        """New keys for arrays of these shapes. A barrier: returns when every worker has come here."""
        keys = list(range(self._num_keys, self._num_keys + len(arrays)))
        self._num_keys += len(arrays)
        self._store.init(keys, [nd.zeros_like(array) for array in arrays])
        return keys


def create(kind: str) -> Any:
    """MXNet's store, connected. Sockets in the file system are for this user only."""
    before = os.umask(0o077) if os.environ.get("DMLC_LOCAL") == "1" else None
    try:
        return mx.kv.create(kind)
    finally:
        if before is not None:
            os.umask(before)
