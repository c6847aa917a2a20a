"""Base class of the synchronous stores over several workers. All operations use one primitive, `sum_in_place`."""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from typing import Callable, Deque, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np

from mxtrain.engine.backend import mx, nd
from mxtrain.kvstore.buckets import BUCKET_BYTES, Bucket, BucketWindow, make_buckets
from mxtrain.kvstore.compression import Build, Compressor, other_parameters, redistribute_residual
from mxtrain.kvstore.reduction import Reduction
from mxtrain.kvstore.store import Numbers, Store
from mxtrain.kvstore.times import WorkerTimes, is_paced, is_timed
from mxtrain.kvstore.world import World

HostOrDevice = Union[np.ndarray, nd.NDArray]
NUMBERS_PER_MESSAGE = 1 << 20
"""Length of the arrays in which `broadcast` sends a blob."""
NEGATIVE_ZERO = -0.0
"""Added to the numbers of another worker: x + -0.0 has the bits of x for all x, where -0.0 + 0.0 is 0.0."""


class JoinedStore(Store):
    """A worker's connection to the others. Subclasses implement `sum_in_place`.

    Args:
        world: rank and number of workers.
        compressor: builds the compressor of a bucket.
        bucket_bytes: size of a full bucket.
    """

    shards_optimizer = False
    """True if each worker updates a part of the parameters and sends it to the others."""
    sums_elements_alike = False
    """True if the sum of an element does not depend on its position in the message, as that of a ring does."""

    def __init__(self, world: World, compressor: Build = Compressor, bucket_bytes: int = BUCKET_BYTES):
        self.world = world
        self._bucket_bytes = bucket_bytes
        self._compressor = compressor
        self._buckets: Dict[int, Tuple[Sequence[Reduction], List[Bucket]]] = {}
        self._timed: Optional[Tuple[int, int, float]] = None
        self._waited_s = 0.0
        self._paced: Optional[Tuple[int, float]] = None
        self._pace: List[Tuple[int, float]] = []
        self._buffers: Dict[Tuple[str, str, int], nd.NDArray] = {}
        self._compressors: Dict[int, List[Compressor]] = {}
        self._window = BucketWindow(bucket_bytes)

    def sum_in_place(self, arrays: Sequence[nd.NDArray]) -> None:
        """Sums flat arrays over workers. Asynchronous.

        Args:
            arrays: arrays (N,), float32 or (with compression) float16. Calls with the same first array must pass the
                same list of array objects. Later arrays have a higher priority. Float16 may be rounded at each
                addition.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say how to sum.")

    def send_from(self, owners: Sequence[int], arrays: Sequence[nd.NDArray]) -> None:
        """Overwrites each flat array with that of the worker that owns it, on all workers. Asynchronous.

        Args:
            owners: rank of the owner of each array.
            arrays: arrays (N,), the same objects in each call.
        """
        for owner, array in zip(owners, arrays):
            if owner != self.world.rank:
                array[:] = 0
                nd.negative(array, out=array)  # `array[:] = -0.0` writes 0.0
        if arrays[0].dtype == np.float64:  # `verify`
            for array in arrays:
                self.exact_sum(array).copyto(array)
        else:
            self.sum_in_place(arrays)

    def arrays_of(self, rank: int, arrays: Mapping[str, HostOrDevice], purpose: str) -> Dict[str, HostOrDevice]:
        """Returns on rank 0 the arrays of worker `rank`, in host memory; {} on others. Collective; waits.

        Args:
            rank: worker whose arrays are returned; those of rank 0 are returned as they are.
            arrays: arrays of this worker, of at most 32 bits. Names, shapes and types are equal on all workers.
            purpose: name of the sums; the same on all workers.
        """
        if rank == 0 or not arrays:
            return dict(arrays) if self.world.rank == 0 else {}
        ends = np.cumsum([array.size for array in arrays.values()]).tolist()
        total = ends[-1]
        length = min(NUMBERS_PER_MESSAGE, total)
        whole = np.empty(total if self.world.rank == 0 else 0, np.float32)
        # In pieces, since a copy of a large embedding's state would be the peak of a worker's memory.
        for begin in range(0, total, length):
            piece = np.full(length, NEGATIVE_ZERO, np.float32)
            if rank == self.world.rank:
                for array, end in zip(arrays.values(), ends):
                    start, first, last = end - array.size, max(begin, end - array.size), min(begin + length, end)
                    if first < last:
                        part = array.reshape((-1,))[first - start : last - start]
                        piece[first - begin : last - begin] = part if isinstance(part, np.ndarray) else part.asnumpy()
            # Also on other workers: only a read notices that a peer is lost.
            summed = self.read(self.sum_copy(nd.array(piece, ctx=mx.cpu()), purpose))
            if self.world.rank == 0:
                whole[begin : begin + length] = summed[: total - begin]
        if self.world.rank:
            return {}
        parts = np.split(whole, ends[:-1])
        return {
            name: part.reshape(array.shape).astype(array.dtype, copy=False)
            for (name, array), part in zip(arrays.items(), parts)
        }

    def sum_copy(self, flat: nd.NDArray, purpose: str) -> nd.NDArray:
        """Returns the sum of a flat array over workers as a new array. Asynchronous.

        Args:
            flat: array (N,) on any device.
            purpose: name of the sum; the same on all workers.
        """
        name = (purpose, str(flat.dtype), flat.size)  # without the device, which may differ between workers
        if name not in self._buffers:
            # A key needs one array for its lifetime: with new ones, three workers added numbers of different steps
            # (training losses of 1.0 and 12.2 where 2.6 and 2.5 were right).
            self._buffers[name] = nd.zeros(flat.shape, ctx=mx.cpu(), dtype=flat.dtype)
        buffer = self._buffers[name]
        flat.copyto(buffer)
        self.sum_in_place([buffer])
        return buffer.copyto(flat.context)

    def gather(self, flat: nd.NDArray) -> nd.NDArray:
        """Sums arrays in which each worker has its numbers in its own row and 0 in all others."""
        if self._timed is None and self._paced is None:
            return self._gather_by_sum(flat)
        # In a timed step, this wait for the other workers must not count as computation.
        self.wait_for([flat])
        begin = time.monotonic()
        gathered = self._gather_by_sum(flat)
        self.wait_for([gathered])
        self._waited_s += time.monotonic() - begin
        return gathered

    def _gather_by_sum(self, flat: nd.NDArray) -> nd.NDArray:
        """Gathers flat arrays by a sum of arrays in which each worker fills its own row."""
        empty = nd.zeros_like(flat)
        rows = nd.concat(*[flat if r == self.world.rank else empty for r in range(self.world.size)], dim=0)
        return self.sum_copy(rows, "gather").reshape((self.world.size, -1))

    def exact_sum(self, flat: nd.NDArray) -> nd.NDArray:
        """Returns the sum of a float64 array (N,) over workers, in float64, as a new array. Asynchronous."""
        return self.sum_copy(flat, "exact")

    def wait_for(self, arrays: Sequence[nd.NDArray]) -> None:
        """Waits for summed arrays.

        Raises:
            PeersLost: another worker was lost, and the others can continue without it.
        """
        for array in arrays:
            array.wait_to_read()

    def wait_for_all(self) -> None:
        """Waits for all pending operations.

        Raises:
            PeersLost: another worker was lost, and the others can continue without it.
        """
        nd.waitall()

    def read(self, array: nd.NDArray) -> np.ndarray:
        """Waits for a summed array and returns a host copy.

        Raises:
            PeersLost: another worker was lost, and the others can continue without it.
        """
        return array.asnumpy()

    def begin_step(self, step: int, size: int) -> None:
        self._timed = self._paced = None
        if self.world.size == 1:
            return
        # The engine works ahead, so a step has a duration only if the host waits for it; an exchange of the times is
        # affordable in one of 50.
        timed, paced = is_timed(step), is_paced(step, self.balance_every)
        if timed or paced:
            self.wait_for_all()  # pending sums belong to earlier steps
            self._waited_s = 0.0
            now = time.monotonic()
            self._timed = (step, size, now) if timed else None
            self._paced = (size, now) if paced else None

    def share_pace(self, step: int) -> Optional[WorkerTimes]:
        if self.world.size == 1 or self.balance_every is None:
            return None
        # The median leaves out steps that other processes of a machine have disturbed.
        by_speed = sorted(self._pace, key=lambda paced: paced[1] / paced[0]) or [(0, 0.0)]
        size, seconds = by_speed[len(by_speed) // 2]
        self._pace = []
        rows = np.zeros((self.world.size, 2))
        rows[self.world.rank] = seconds, size
        all_seconds, sizes = self.total(rows.ravel().tolist()).reshape((-1, 2)).T
        if not all_seconds.all():
            return None
        return WorkerTimes(step, all_seconds.tolist(), sizes.astype(int).tolist(), 0.0)

    def reduce(self, reductions: Sequence[Reduction]) -> None:
        buckets = self.buckets_of(reductions)
        for bucket in buckets:
            bucket.collect()
        flats = [bucket.flat for bucket in buckets]
        if self._paced is not None:
            self.wait_for(flats)
            size, began = self._paced
            if size:
                self._pace.append((size, time.monotonic() - began - self._waited_s))
        if self._timed is None:
            self._sum_buckets(reductions)
            return
        times = self._share_times(flats)
        # Exchanging the times has waited for the slowest worker, so only the exchange of gradients follows.
        all_ready = time.monotonic()
        self._sum_buckets(reductions)
        self.wait_for(flats)
        self.times = dataclasses.replace(times, exchange_s=time.monotonic() - all_ready)

    def _share_times(self, flats: Sequence[nd.NDArray]) -> WorkerTimes:
        """Returns the times and sizes of all workers. Waits until the slowest one has computed its gradients."""
        assert self._timed is not None
        step, size, began = self._timed
        self.wait_for(flats)
        local_rows = np.zeros((self.world.size, 2))
        local_rows[self.world.rank] = time.monotonic() - began - self._waited_s, size
        # Each worker fills its own row, so all workers get equal times and derive equal shares from them.
        all_rows = self.total(local_rows.ravel().tolist()).reshape((-1, 2))
        return WorkerTimes(step, all_rows[:, 0].tolist(), all_rows[:, 1].astype(int).tolist(), 0.0)

    def _sum_buckets(self, reductions: Sequence[Reduction]) -> None:
        buckets = self.buckets_of(reductions)
        if buckets[0].flat.dtype == np.float64:  # `verify`
            for bucket in buckets:
                self.exact_sum(bucket.flat).copyto(bucket.flat)
        else:
            compressors = self.compressors_of(reductions)
            for compressor in compressors:
                compressor.compress()
            self.sum_in_place([compressor.payload for compressor in compressors])
            for compressor in compressors:
                compressor.decompress()
        for bucket in buckets:
            bucket.hand_out()

    def share_buckets(self, reductions: Sequence[Reduction], compress: bool = True) -> None:
        """Prepares sums by `reduce_in_turn`, for which the buckets of the gradients need no memory of their own.

        Args:
            reductions: gradients, each of one replica.
            compress: whether to use the compressor of the store.
        """
        # A compressor has a state for each bucket, and may depend on the values of a whole bucket.
        divisible = self.sums_elements_alike and (not compress or self._compressor is Compressor)
        buckets = self._window.make_buckets(reductions, divisible)
        self._buckets[id(reductions)] = (reductions, buckets)
        if not compress:
            self._compressors[id(reductions)] = [Compressor(bucket.flat, self.world) for bucket in buckets]

    def reduce_in_turn(self, reductions: Sequence[Reduction]) -> None:
        """Sums gradients like `reduce`, only as many buckets at the same time as the window holds. Asynchronous.

        Args:
            reductions: list that was given to `share_buckets`.
        """
        if self.buckets_of(reductions)[0].flat.dtype == np.float64:
            self.all_reduce([one.replicas[0] for one in reductions])
            return
        pending: Deque[Tuple[Bucket, Compressor]] = deque()
        for bucket, compressor in zip(self.buckets_of(reductions), self.compressors_of(reductions)):
            # A bucket hands out its sums before the next one writes to its memory. The engine waits for them, not the
            # host.
            if len(pending) == self._window.length:
                _finish(*pending.popleft())
            bucket.collect()
            compressor.compress()
            self.sum_in_place([compressor.payload])
            pending.append((bucket, compressor))
        while pending:
            _finish(*pending.popleft())

    def buckets_of(self, reductions: Sequence[Reduction]) -> List[Bucket]:
        """Returns the buckets of the gradients; creates them at the first call."""
        if id(reductions) not in self._buckets:
            # Keep a reference to the reductions, so that no other object can get their id.
            self._buckets[id(reductions)] = (reductions, make_buckets(reductions, self._bucket_bytes))
        return self._buckets[id(reductions)][1]

    def compressors_of(self, reductions: Sequence[Reduction]) -> List[Compressor]:
        """Returns the compressors of these gradients, one per bucket."""
        buckets = self.buckets_of(reductions)  # keeps a reference to the reductions
        if id(reductions) not in self._compressors:
            self._compressors[id(reductions)] = [self._compressor(bucket.flat, self.world) for bucket in buckets]
        return self._compressors[id(reductions)]

    def residuals(self, reductions: Sequence[Reduction]) -> Dict[str, np.ndarray]:
        arrays: Dict[str, np.ndarray] = {}
        for bucket, compressor in zip(self.buckets_of(reductions), self.compressors_of(reductions)):
            if compressor.residual is None:
                continue
            nothing = nd.zeros_like(compressor.residual)
            for rank in range(self.world.size):  # one rank at a time, to need memory for one residual only
                summed = self.sum_copy(compressor.residual if rank == self.world.rank else nothing, "residual")
                flat = self.read(summed)  # on all workers: only a read notices that a peer is lost
                if self.world.rank == 0:
                    parts = bucket.split(flat)
                    arrays.update({f"{name}:{rank}": part for name, part in parts.items()})
            for key, value in compressor.shared.items():
                arrays.update({f"{name}:{key}": value.asnumpy() for name in bucket.names})
        return arrays

    def restore_residuals(self, reductions: Sequence[Reduction], arrays: Mapping[str, np.ndarray]) -> None:
        if not arrays:
            return
        try:
            for bucket, compressor in zip(self.buckets_of(reductions), self.compressors_of(reductions)):
                if compressor.residual is None:
                    continue
                parts = [redistribute_residual(arrays, name, self.world).reshape((-1,)) for name in bucket.names]
                compressor.residual[:] = np.concatenate(parts)
                for key, value in compressor.shared.items():
                    # Parameters that share a bucket now may have had different scales before: take the safe one.
                    value[:] = np.min([arrays.get(f"{name}:{key}", np.ones(1)) for name in bucket.names])
        except (KeyError, ValueError) as error:
            raise other_parameters(error) from error

    def all_reduce(self, arrays: Sequence[nd.NDArray]) -> None:
        first = arrays[0].context
        dtype = max((array.dtype for array in arrays), key=lambda dtype: np.dtype(dtype).itemsize)
        rows = [array.as_in_context(first).astype(dtype, copy=False).reshape((-1,)) for array in arrays]
        flat = nd.concat(*rows, dim=0)
        flat = self.exact_sum(flat) if dtype == np.float64 else self.sum_copy(flat, "all_reduce")
        begin = 0
        for array in arrays:
            part = flat[begin : begin + array.size].reshape(array.shape)
            part.astype(array.dtype, copy=False).copyto(array)
            begin += array.size

    def votes_later(self, votes: Sequence[float], lag: int) -> Callable[[], np.ndarray]:
        return self._total_later(votes)

    def broadcast(self, blob: Optional[bytes]) -> bytes:
        if self.world.size == 1:
            return super().broadcast(blob)
        (size,) = self.total([len(blob or b"")]).astype(int)
        padded = (blob or b"") + b"\0" * (size % 2 if self.world.rank == 0 else 0)
        # Two bytes per number, which float32 represents exactly; the other workers add 0.
        numbers = np.frombuffer(padded, "<u2") if self.world.rank == 0 else np.zeros((size + 1) // 2)
        pieces: List[bytes] = []
        for begin in range(0, len(numbers), NUMBERS_PER_MESSAGE):
            piece = np.zeros(NUMBERS_PER_MESSAGE)
            part = numbers[begin : begin + NUMBERS_PER_MESSAGE]
            piece[: len(part)] = part
            pieces.append(self._total_later(piece)()[: len(part)].astype("<u2").tobytes())
        return b"".join(pieces)[:size]

    def _total_later(self, values: Numbers) -> Callable[[], np.ndarray]:
        """Starts a sum of integers over workers. The returned function waits for the result and returns it."""
        result = self.sum_copy(nd.array(values, ctx=mx.cpu()), "total")
        return lambda: self.read(result)

    def total(self, values: Numbers) -> np.ndarray:
        return self.read(self.exact_sum(nd.array(values, ctx=mx.cpu(), dtype="float64")))


def _finish(bucket: Bucket, compressor: Compressor) -> None:
    compressor.decompress()
    bucket.hand_out()
