"""Groups the gradients of many parameters into few flat arrays, since each message has a fixed cost."""

from __future__ import annotations

from typing import Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np

from mxtrain.engine.backend import nd
from mxtrain.kvstore.reduction import Reduction

BUCKET_BYTES = 4 << 20
"""The size of a full bucket: messages are few, and the first leaves while backward still runs."""
WINDOW_BYTES = 32 << 20
"""Size of the buckets that are on their way at the same time if later ones use the memory of earlier ones. A link of 1
Gbit/s carries them in 0.27 s, so delays of some milliseconds do not leave it idle."""


class Bucket:
    """The concatenated gradients of some parameters that are updated on the same device.

    Args:
        members: `mxtrain.parallel.base.Reduction`s with the same owner, device and dtype.
        flat: memory of the bucket, (N,), on the owner's device; None: a new array.

    Attributes:
        names: names of the parameters.
        flat: gradients, (N,), on the owner's device; the same array in every step.
    """

    def __init__(self, members: Sequence[Reduction], flat: Optional[nd.NDArray] = None):
        self.names = [member.name for member in members]
        self._owner = members[0].owner
        self._shapes = [member.replicas[self._owner].shape for member in members]
        # Views share memory and engine dependencies with the gradients; creating them in every step would be slow.
        self._rows = [[gradient.reshape((-1,)) for gradient in member.replicas] for member in members]
        own = [rows[self._owner] for rows in self._rows]
        ends = np.cumsum([row.size for row in own]).tolist()
        self._begins = [0, *ends[:-1]]
        # One array for the lifetime of a key, by which MXNet's engine orders the rounds of the key.
        self.flat = nd.zeros((ends[-1],), ctx=own[0].context, dtype=own[0].dtype) if flat is None else flat
        self._parts = [self.flat[begin:end] for begin, end in zip(self._begins, ends)]

    def collect(self) -> None:
        """Writes the sums over this worker's replicas into `flat`. Asynchronous."""
        # Single copies: MXNet's concat takes 10 times as long, and its split 30 times.
        for rows, part in zip(self._rows, self._parts):
            if len(rows) == 1:
                rows[0].copyto(part)
            else:
                nd.add_n(*[row.as_in_context(part.context) for row in rows], out=part)

    def hand_out(self) -> None:
        """Writes `flat` into the owner's gradients. Asynchronous."""
        for rows, part in zip(self._rows, self._parts):
            part.copyto(rows[self._owner])

    def views(self) -> Dict[str, nd.NDArray]:
        """Returns the part of `flat` of each parameter, in its shape."""
        return {name: part.reshape(shape) for name, shape, part in zip(self.names, self._shapes, self._parts)}

    def split(self, flat: np.ndarray) -> Dict[str, np.ndarray]:
        """Splits a host array (N,) into the parts of the parameters, in their shapes."""
        parts = np.split(flat, self._begins[1:])
        return {name: part.reshape(shape) for name, shape, part in zip(self.names, self._shapes, parts)}


class InPlaceBucket(Bucket):
    """A bucket whose memory is that of a single gradient with a single replica."""

    def __init__(self, member: Reduction):
        super().__init__([member], member.replicas[0].reshape((-1,)))

    def collect(self) -> None:
        """Does nothing: the gradient is in `flat`."""

    def hand_out(self) -> None:
        """Does nothing: the sum is in the gradient."""


class BucketWindow:
    """Memory of buckets that are summed one after the other: that of a bucket serves again `length` buckets later.

    Args:
        bucket_bytes: size of a full bucket.

    Attributes:
        length: number of buckets that are on their way at the same time.
    """

    def __init__(self, bucket_bytes: int):
        self._bucket_bytes = bucket_bytes
        self.length = max(WINDOW_BYTES // bucket_bytes, 4)
        self._arrays: Dict[Tuple[int, str, str], nd.NDArray] = {}
        self._views: Dict[Tuple[int, str, str, int], nd.NDArray] = {}

    def make_buckets(self, reductions: Sequence[Reduction], divisible: bool) -> List[Bucket]:
        """Groups gradients of one replica, starting with the last parameters.

        Args:
            reductions: gradients, each of one replica.
            divisible: True to fill buckets with parts of gradients, so that all but the last have the same size; False
                for the groups of `make_buckets`, in which a large gradient is a bucket of its own, and needs no memory.
        """
        ordered = list(reductions)[::-1]
        if divisible:
            groups = _fill(ordered, self._bucket_bytes)
        else:
            runs = in_buckets([one.replicas[0] for one in ordered], max_bytes=self._bucket_bytes)
            groups = [[ordered[index] for index in run] for run in runs]
        buckets: Dict[int, Bucket] = {}
        # The largest first, so that its array is long enough for all buckets of the same place.
        for number in sorted(range(len(groups)), key=lambda number: -_size(groups[number])):
            group = groups[number]
            if len(group) == 1 and not divisible:
                buckets[number] = InPlaceBucket(group[0])
            else:
                buckets[number] = Bucket(group, self._take(number % self.length, _size(group), group[0].replicas[0]))
        return [buckets[number] for number in range(len(groups))]

    def _take(self, place: int, size: int, like: nd.NDArray) -> nd.NDArray:
        """Returns an array (size,) for the buckets at a place of the window: the same object in each call.

        Views of all sizes share a variable of MXNet's engine, which therefore orders the sums at a place.
        """
        kind = place, str(like.context), str(like.dtype)
        if (*kind, size) not in self._views:
            if kind not in self._arrays or self._arrays[kind].size < size:
                self._arrays[kind] = nd.zeros((size,), ctx=like.context, dtype=like.dtype)
            self._views[(*kind, size)] = self._arrays[kind][:size]
        return self._views[(*kind, size)]


def _size(group: Sequence[Reduction]) -> int:
    return sum(one.replicas[0].size for one in group)


def _fill(reductions: Sequence[Reduction], max_bytes: int) -> List[List[Reduction]]:
    """Cuts gradients of one replica into parts, and groups these so that only the last group of a device and dtype is
    not full."""
    last: Dict[Tuple[str, str], List[Reduction]] = {}
    groups: List[List[Reduction]] = []
    for one in reductions:
        kind = str(one.replicas[0].context), str(one.replicas[0].dtype)
        row, begin = one.replicas[0].reshape((-1,)), 0
        while begin < row.size:
            room = _length(row, max_bytes) - _size(last.get(kind, []))
            if kind not in last or not room:
                last[kind], room = [], _length(row, max_bytes)
                groups.append(last[kind])
            part = row[begin : begin + room]
            last[kind].append(Reduction(one.name, [part], 0))
            begin += part.size
    return groups


def pieces_of(array: nd.NDArray, max_bytes: int = BUCKET_BYTES) -> Iterator[nd.NDArray]:
    """Yields views of consecutive parts of an array, (N,), of at most `max_bytes` each."""
    row = array.reshape((-1,))
    length = _length(row, max_bytes)
    for begin in range(0, row.size, length):
        yield row[begin : begin + length]


def _length(array: nd.NDArray, max_bytes: int) -> int:
    return max(max_bytes // np.dtype(array.dtype).itemsize, 1)


def make_buckets(reductions: Sequence[Reduction], max_bytes: int = BUCKET_BYTES) -> List[Bucket]:
    """Groups all gradients into buckets, starting with the last parameters, whose gradients backward computes first.

    Workers with the same description create the same buckets.
    """
    gradients = [reduction.replicas[reduction.owner] for reduction in reductions]
    order = list(range(len(reductions)))[::-1]
    owners = [reduction.owner for reduction in reductions]
    runs = in_buckets([gradients[i] for i in order], [owners[i] for i in order], max_bytes)
    return [Bucket([reductions[order[i]] for i in run]) for run in runs]


def in_buckets(
    arrays: Sequence[nd.NDArray], owners: Optional[Sequence[int]] = None, max_bytes: int = BUCKET_BYTES
) -> List[List[int]]:
    """Returns the indices of the arrays of each bucket: in order, of one device, dtype and (if given) owner."""
    groups: Dict[Tuple[int, str, str], List[int]] = {}
    filled: Dict[Tuple[int, str, str], int] = {}
    ordered: List[List[int]] = []
    for index, array in enumerate(arrays):
        kind = (owners[index] if owners else 0, str(array.context), str(array.dtype))
        num_bytes = array.size * np.dtype(array.dtype).itemsize
        if kind not in groups or filled[kind] + num_bytes > max_bytes:
            groups[kind] = []
            ordered.append(groups[kind])
            filled[kind] = 0
        groups[kind].append(index)
        filled[kind] += num_bytes
    return ordered
