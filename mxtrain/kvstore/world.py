"""Assigns samples to workers, replicas and microbatches, and parameters to those that update them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import List, Sequence, Tuple

WORKER, RING, JOINS = "MXTRAIN_WORKER", "MXTRAIN_RING", "MXTRAIN_JOINS"
"""Environment variables of a worker: its initial rank; host:port of the supervisor's ring, if workers may join and
leave; the generation of the ring that a replacement of a lost worker must not enter."""


def bounds(count: int, num_shares: int, number: int) -> Tuple[int, int]:
    """Returns (begin, end) of share `number` of `count` items.

    Shares are consecutive. Their sizes differ by at most one, larger shares first; with fewer items than shares, the
    last ones are empty.
    """
    size, larger = divmod(count, num_shares)
    begin = number * size + min(number, larger)
    return begin, begin + size + (number < larger)


def least_loaded(sizes: Sequence[int], num_owners: int) -> List[int]:
    """Returns the owner of each item: in the order of the items, the owner with the smallest sum of sizes so far."""
    owners, loads = [], [0] * num_owners
    for size in sizes:
        owners.append(loads.index(min(loads)))
        loads[owners[-1]] += size
    return owners


@dataclass(frozen=True)
class World:
    """Rank of a worker and size of its group, and the shares of all workers."""

    rank: int = 0
    """This worker's number; rank 0 writes the run directory."""
    size: int = 1
    """Number of workers."""
    speeds: Tuple[float, ...] = ()
    """Speeds of all workers, to which their shares are proportional; empty: equal shares."""

    def share(self, count: int) -> Tuple[int, int]:
        """Returns (begin, end) of this worker's part of `count` items."""
        return self.share_of(self.rank, count)

    def share_of(self, rank: int, count: int) -> Tuple[int, int]:
        """Returns (begin, end) of a worker's part of `count` items."""
        if not self.speeds:
            return bounds(count, self.size, rank)
        # One formula for both ends on all workers, so that shares neither overlap nor leave gaps.
        ends = [round(count * sum(self.speeds[:r]) / sum(self.speeds)) for r in (rank, rank + 1)]
        return ends[0], ends[1]


ALONE = World()
"""A run of one worker."""
