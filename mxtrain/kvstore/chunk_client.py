"""A worker's connection to the server that gives chunks of the data to workers (`cluster.balance=dynamic`)."""

from __future__ import annotations

import threading
from collections import deque
from typing import Deque, Dict, Iterator, List, Optional, Sequence, Type, TypeVar

from mxtrain.errors import PeersLost
from mxtrain.kvstore import chunk_wire
from mxtrain.kvstore.chunk_wire import Ended, Exchange, Exchanged, HeldGroup, Interval, Take, Taken, send_json
from mxtrain.kvstore.table_client import explain_lost_server
from mxtrain.kvstore.table_wire import Connection, Header, read_json
from mxtrain.types import Spec

Answer = TypeVar("Answer", bound=Spec)


class ChunkClient:
    """Takes chunks for one worker, and exchanges bytes with the other workers.

    `chunks` is called in the thread that reads data, everything else in the main thread; while an interval is read, the
    main thread only calls `pause`.

    Args:
        connection: connection to the server that holds the first group of parameters.
        shares: number of chunks in each step: workers at the start.
    """

    def __init__(self, connection: Connection, shares: int):
        self.shares = shares
        self.live: List[int] = list(range(shares))
        """Workers that had not been lost at the end of the last interval."""
        self.taken: Deque[int] = deque()
        """Chunks that were received from the server and that the loader has not yielded yet, oldest first."""
        self._connection = connection
        self._lock = threading.Lock()
        self._interval = Interval(serial=0, epoch=0, begin=0, end=0)
        self._pauses = self._is_cancelled = False

    def begin(self, epoch: int, begin: int, end: int) -> None:
        """Begins an interval: the steps from `begin` up to `end` of an epoch. All workers call it alike."""
        self._interval = Interval(serial=self._interval.serial + 1, epoch=epoch, begin=begin, end=end)
        self._pauses = False

    def chunks(self) -> Iterator[int]:
        """Yields the chunks that this worker computes, until none is left at present."""
        self._is_cancelled = False
        while not self._is_cancelled:
            taken = self._ask(chunk_wire.TAKE, Taken)
            if taken.chunk is not None:
                self.taken.append(taken.chunk)
                yield taken.chunk
            elif taken.has_ended:
                return

    def pause(self) -> None:
        """Ends the interval of all workers after the last step that one of them has begun."""
        self._pauses = True

    def cancel(self) -> None:
        """Ends `chunks`, whose chunks are not computed."""
        self._is_cancelled = True
        self.taken.clear()

    def finish(self) -> Optional[int]:
        """Waits until all workers have finished the interval; returns the step after its last one.

        Returns None if chunks of a lost worker can be taken.
        """
        ended = self._ask(chunk_wire.END, Ended)
        if ended.end is not None:
            self.live = ended.live
        return ended.end

    def exchange(self, given: bytes, ranks: Optional[Sequence[int]] = None) -> List[bytes]:
        """Returns the bytes of the workers `ranks` (default: all that are left) in this order. Collective; waits.

        Raises:
            PeersLost: a worker was lost that had finished the last interval.
        """
        request = Exchange(num_bytes=len(given), ranks=None if ranks is None else list(ranks))
        with self._lock, explain_lost_server():
            send_json(self._connection, chunk_wire.EXCHANGE, request, given)
            answer = Exchanged.model_validate_json(read_json(self._connection, self._connection.receive()))
            found: Dict[int, bytes] = {rank: bytes(self._connection.read(size)) for rank, size in answer.sizes}
        lost = sorted(set(self.live) - set(answer.ranks))
        if lost:
            raise PeersLost(f"worker {lost[0]} was lost while all workers validated, saved or stopped together")
        return [found[rank] for rank in sorted(found)]

    def close(self) -> None:
        """Closes the connection."""
        self._connection.close()

    def _ask(self, kind: int, answer: Type[Answer]) -> Answer:
        with self._lock, explain_lost_server():
            send_json(self._connection, kind, Take(interval=self._interval, pause=self._pauses))
            return answer.model_validate_json(read_json(self._connection, self._connection.receive()))


def holds_first_group(connection: Connection) -> bool:
    """Returns True if the server of a connection holds the first group of parameters."""
    connection.send(Header(chunk_wire.HOLDS))
    return HeldGroup.model_validate_json(read_json(connection, connection.receive())).first_group
