"""What every store that joins workers does with the one thing that its engine does: sum flat arrays over workers."""

from __future__ import annotations

import dataclasses
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np

from mxtrain.backend import mx, nd
from mxtrain.kvstore.buckets import Bucket, make_buckets
from mxtrain.kvstore.store import Store
from mxtrain.kvstore.times import EVERY, FIRST_STEP, WorkerTimes
from mxtrain.sharing import World


class JoinedStore(Store):
    """A worker's connection to the others. A subclass says how flat arrays are summed."""

    def __init__(self, world: World):
        self.world = world
        self._buckets: Dict[int, Tuple[Sequence[Any], List[Bucket]]] = {}
        self._timed: Optional[Tuple[int, int, float]] = None
        self._buffers: Dict[Tuple[Any, ...], nd.NDArray] = {}

    def sum_in_place(self, arrays: Sequence[nd.NDArray]) -> None:
        """Sums flat arrays over workers. Asynchronous.

        Args:
            arrays: (N,) each, the same objects in every call in which the first of them is the same; the
                later ones are more urgent.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say how to sum.")

    def sum_copy(self, flat: nd.NDArray, purpose: str) -> nd.NDArray:
        """The sum of a flat array over workers as a new array. Asynchronous.

        Args:
            flat: (N,), on any device.
            purpose: what is summed; the same on all workers.
        """
        name = (purpose, str(flat.dtype), flat.size)  # the same on all workers, wherever the numbers are here
        if name not in self._buffers:
            self._buffers[name] = nd.zeros(flat.shape, ctx=mx.cpu(), dtype=flat.dtype)
        buffer = self._buffers[name]
        flat.copyto(buffer)
        self.sum_in_place([buffer])
        return buffer.copyto(flat.context)

    def exact_sum(self, flat: nd.NDArray) -> nd.NDArray:
        """The sum of a flat float64 array over workers, in float64, as a new array. Asynchronous."""
        return self.sum_copy(flat, "exact")

    def wait_for(self, arrays: Sequence[nd.NDArray]) -> None:
        """Waits for what was summed.

        Raises:
            PeersLost: another worker has gone, where the others can go on without it.
        """
        for array in arrays:
            array.wait_to_read()

    def read(self, array: nd.NDArray) -> np.ndarray:
        """A host copy of what was summed. Waits for it.

        Raises:
            PeersLost: another worker has gone, where the others can go on without it.
        """
        return array.asnumpy()

    def begin_step(self, step: int, size: int) -> None:
        self._timed = None
        if self.world.size > 1 and step % EVERY == FIRST_STEP:
            nd.waitall()
            self._timed = (step, size, time.monotonic())

    def reduce(self, reductions: Sequence[Any]) -> None:
        buckets = self.buckets_of(reductions)
        for bucket in buckets:
            bucket.collect()
        if self._timed is None:
            self._reduce_buckets(buckets)
            return
        flats = [bucket.flat for bucket in buckets]
        known = self._tell_times(flats)
        all_done = time.monotonic()
        self._reduce_buckets(buckets)
        self.wait_for(flats)
        self.times = dataclasses.replace(known, exchange_s=time.monotonic() - all_done)

    def _tell_times(self, flats: Sequence[nd.NDArray]) -> WorkerTimes:
        """All workers' times and sizes, when the last one has computed its gradients."""
        assert self._timed is not None
        step, size, began = self._timed
        self.wait_for(flats)
        own = np.zeros((self.world.size, 2))
        own[self.world.rank] = time.monotonic() - began, size
        found = self.total(own.ravel().tolist()).reshape((-1, 2))
        return WorkerTimes(step, found[:, 0].tolist(), found[:, 1].astype(int).tolist(), 0.0)

    def _reduce_buckets(self, buckets: Sequence[Bucket]) -> None:
        if buckets[0].flat.dtype == np.float64:  # `verify`
            for bucket in buckets:
                self.exact_sum(bucket.flat).copyto(bucket.flat)
        else:
            self.sum_in_place([bucket.flat for bucket in buckets])
        for bucket in buckets:
            bucket.hand_out()

    def buckets_of(self, reductions: Sequence[Any]) -> List[Bucket]:
        """The buckets of these gradients, made when they are first seen."""
        if id(reductions) not in self._buckets:
            # The reductions are kept, too: as long as they live, nothing else has their id.
            self._buckets[id(reductions)] = (reductions, make_buckets(reductions))
        return self._buckets[id(reductions)][1]

    def meet(self, arrays: Sequence[nd.NDArray]) -> None:
        first = arrays[0].context
        dtype = max((array.dtype for array in arrays), key=lambda dtype: np.dtype(dtype).itemsize)
        rows = [array.as_in_context(first).astype(dtype, copy=False).reshape((-1,)) for array in arrays]
        flat = nd.concat(*rows, dim=0)
        flat = self.exact_sum(flat) if dtype == np.float64 else self.sum_copy(flat, "meet")
        begin = 0
        for array in arrays:
            part = flat[begin : begin + array.size].reshape(array.shape)
            part.astype(array.dtype, copy=False).copyto(array)
            begin += array.size

    def total_later(self, values: Sequence[float]) -> Callable[[], np.ndarray]:
        found = self.sum_copy(nd.array(values, ctx=mx.cpu()), "total")
        return lambda: self.read(found)

    def total(self, values: Sequence[float]) -> np.ndarray:
        return self.read(self.exact_sum(nd.array(values, ctx=mx.cpu(), dtype="float64")))
