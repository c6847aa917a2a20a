"""Groups the gradients of many parameters into few flat arrays, since each message has a fixed cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Dict, List, Optional, Sequence, Tuple

import numpy as np

from mxtrain.engine.backend import nd

if TYPE_CHECKING:
    from mxtrain.kvstore.reduction import Reduction

BUCKET_BYTES = 4 << 20
"""The size of a full bucket: messages are few, and the first leaves while backward still runs."""


class Bucket:
    """The concatenated gradients of some parameters that are updated on the same device.

    Args:
        members: `mxtrain.parallel.base.Reduction`s with the same owner, device and dtype.

    Attributes:
        names: names of the parameters.
        flat: gradients, (N,), on the owner's device; the same array in every step.
    """

    def __init__(self, members: Sequence[Reduction]):
        self.names = [member.name for member in members]
        self._owner = members[0].owner
        self._shapes = [member.replicas[self._owner].shape for member in members]
        # Views share memory and engine dependencies with the gradients; creating them in every step would be slow.
        self._rows = [[gradient.reshape((-1,)) for gradient in member.replicas] for member in members]
        own = [rows[self._owner] for rows in self._rows]
        ends = np.cumsum([row.size for row in own]).tolist()
        self._begins = [0, *ends[:-1]]
        # One array for the lifetime of a key, by which MXNet's engine orders the rounds of the key.
        self.flat = nd.zeros((ends[-1],), ctx=own[0].context, dtype=own[0].dtype)
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
