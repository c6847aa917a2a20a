"""Gives the chunks of an epoch to workers, one at a time, in order (`cluster.balance=dynamic`).

A chunk is given to one worker and is finished when the servers have applied its gradient. The unfinished chunks of a
lost worker are given to others. An interval of steps ends when all of its chunks are finished.

This is the idea of the dynamic data sharding of DLRover and of tf.data service. Reasons:
docs/decisions/0151-dynamic-data-shards.md.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from typing import Callable, Deque, Dict, Optional, Set

from mxtrain.kvstore.chunk_wire import Ended, Interval, Take, Taken
from mxtrain.kvstore.table_wire import TableServerLost

RETRY_S = 0.1
"""A worker that must finish its earlier chunks first is answered after this time, so that it can stop asking."""
CHECK_S = 0.2
"""Seconds between checks whether a worker that waits is still there."""


class ChunkQueue:
    """The chunks of the current interval, and the workers that are left. Thread-safe.

    Args:
        workers: number of workers at the start, and of chunks in each step.
    """

    def __init__(self, workers: int):
        self.live: Set[int] = set(range(workers))
        """Workers that have not been lost."""
        self._shares = workers
        self._changed = threading.Condition()
        self._interval: Optional[Interval] = None
        self._next = self._end = 0
        self._returned: Deque[int] = deque()
        self._taken: Dict[int, Set[int]] = defaultdict(set)
        self._ended, self._ended_serial = Ended(), -1
        self._rounds: Dict[int, int] = dict.fromkeys(range(workers), 0)
        self._given: Dict[int, Dict[int, bytes]] = defaultdict(dict)
        self._complete: Dict[int, Dict[int, bytes]] = {}

    # Chunks.

    def take(self, rank: int, request: Take) -> Taken:
        """Gives a worker its next chunk.

        Raises:
            ValueError: the interval begins before the previous one has ended.
        """
        with self._changed:
            self._begin(request)
            # The last chunks go to workers that are idle: one that still computes would let the others wait for it.
            self._changed.wait_for(lambda: not self._keeps_back(rank), RETRY_S)
            if self._keeps_back(rank):
                return Taken(has_ended=False)
            if self._returned:
                chunk = self._returned.popleft()
            elif self._next < self._end:
                chunk, self._next = self._next, self._next + 1
            else:
                return Taken()
            self._taken[rank].add(chunk)
            return Taken(chunk=chunk, has_ended=False)

    def finish(self, rank: int, chunk: int) -> bool:
        """Notes that the gradient of a chunk has arrived. Returns True if it must be applied: not if the worker counts
        as lost and another one computes the chunk."""
        with self._changed:
            if chunk in self._taken[rank]:
                self._taken[rank].remove(chunk)
            elif chunk in self._returned:
                # The last message of a lost worker may arrive after its connection was closed.
                self._returned.remove(chunk)
            else:
                return False
            self._note_end()
            return True

    def wait_for_end(self, request: Take, is_gone: Callable[[], bool] = lambda: False) -> Ended:
        """Waits until the interval has ended, or has chunks that can be taken.

        Args:
            request: request of the worker.
            is_gone: returns True if the worker no longer waits.

        Raises:
            TableServerLost: the worker is gone.
        """
        with self._changed:
            self._begin(request)
            serial = request.interval.serial
            self._wait(lambda: bool(self._returned) or self._has_ended(serial), is_gone)
            return self._ended if self._has_ended(serial) else Ended()

    def leave(self, rank: int) -> None:
        """Counts a worker as lost, and gives its unfinished chunks to others."""
        with self._changed:
            self.live.discard(rank)
            self._returned.extend(sorted(self._taken.pop(rank, ())))
            self._note_end()
            self._complete_exchanges()

    def _begin(self, request: Take) -> None:
        """Begins the interval of a request if it is a new one, and ends it early if the worker asks for that."""
        interval, current = request.interval, self._interval
        if current is None or interval.serial > current.serial:
            if current is not None and not self._has_ended(current.serial):
                raise ValueError(f"an interval of steps begins before the end of another: {interval}")
            self._interval = interval
            self._next, self._end = interval.begin * self._shares, interval.end * self._shares
            self._note_end()
        if request.pause and self._interval is not None and interval.serial == self._interval.serial:
            # A step that has begun is finished, so that checkpoints lie between two steps.
            self._end = min(self._end, -(-self._next // self._shares) * self._shares)
            self._note_end()

    def _keeps_back(self, rank: int) -> bool:
        left = len(self._returned) + self._end - self._next
        return left > 0 and len(self._taken[rank]) > left // (2 * len(self.live))

    def _note_end(self) -> None:
        is_done = self._next >= self._end and not self._returned and not any(self._taken.values())
        if self._interval is not None and is_done and not self._has_ended(self._interval.serial):
            # Kept as it is now: a worker that is lost later is unknown to all workers until the next interval.
            self._ended = Ended(end=self._end // self._shares, live=sorted(self.live))
            self._ended_serial = self._interval.serial
        self._changed.notify_all()

    def _has_ended(self, serial: int) -> bool:
        return self._ended_serial >= serial

    # Exchanges of all workers.

    def exchange(self, rank: int, given: bytes, is_gone: Callable[[], bool] = lambda: False) -> Dict[int, bytes]:
        """Waits until all workers have given their bytes; returns those of all, by rank, the same for all workers.

        Workers that are lost before they gave theirs are left out.

        Raises:
            TableServerLost: the worker is gone.
        """
        with self._changed:
            number = self._rounds[rank]
            self._rounds[rank] += 1
            self._given[number][rank] = given
            self._complete_exchanges()
            self._wait(lambda: number in self._complete, is_gone)
            complete = self._complete[number]
            # Bytes may be those of all weights. A worker gives bytes again only when it has the last answer.
            for old in [other for other in self._complete if other < number]:
                del self._complete[old]
            return complete

    def _wait(self, is_over: Callable[[], bool], is_gone: Callable[[], bool]) -> None:
        # The thread of a worker that waits does not read its connection, and would not notice that it has ended.
        while not self._changed.wait_for(is_over, CHECK_S):
            if is_gone():
                raise TableServerLost("a worker is lost")

    def _complete_exchanges(self) -> None:
        for number in [number for number, given in self._given.items() if self.live <= set(given)]:
            self._complete[number] = self._given.pop(number)
        self._changed.notify_all()
