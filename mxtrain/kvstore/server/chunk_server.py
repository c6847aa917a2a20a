"""Answers the messages of `mxtrain.kvstore.chunk_wire`. Runs in the process of a server that updates parameters."""

from __future__ import annotations

from typing import Callable

from mxtrain.kvstore import chunk_wire
from mxtrain.kvstore.chunk_wire import Exchange, Exchanged, HeldGroup, Take, send_json
from mxtrain.kvstore.server.chunk_queue import ChunkQueue
from mxtrain.kvstore.table_wire import Connection, TableServerLost, read_json


class ChunkServer:
    """Connects workers with the queue of chunks.

    Args:
        queue: the chunks.
        holds_first: returns True if this server holds the first group of parameters.
    """

    def __init__(self, queue: ChunkQueue, holds_first: Callable[[], bool]):
        self._queue, self._holds_first = queue, holds_first

    def answer(self, connection: Connection, rank: int) -> None:
        """Answers the messages of one worker until its connection ends: then it is lost. Runs in a thread per worker.

        A worker that only asks which server holds the first group, and then leaves, is not lost.

        Raises:
            ValueError: a message is invalid.
        """
        has_taken_part = False
        connection.keep_alive()
        while True:
            try:
                header = connection.receive()
                text = read_json(connection, header)
                if header.kind == chunk_wire.HOLDS:
                    send_json(connection, header.kind, HeldGroup(first_group=self._holds_first()))
                    continue
                has_taken_part = True
                if header.kind == chunk_wire.TAKE:
                    taken = self._queue.take(rank, Take.model_validate_json(text))
                    send_json(connection, header.kind, taken)
                elif header.kind == chunk_wire.END:
                    ended = self._queue.wait_for_end(Take.model_validate_json(text), lambda: connection.is_closed)
                    send_json(connection, header.kind, ended)
                elif header.kind == chunk_wire.EXCHANGE:
                    self._exchange(connection, rank, Exchange.model_validate_json(text))
                else:
                    raise ValueError(f"a message of kind {header.kind} about chunks")
            except TableServerLost:
                connection.close()
                if has_taken_part:
                    self._queue.leave(rank)
                return

    def _exchange(self, connection: Connection, rank: int, request: Exchange) -> None:
        exchanged = self._queue.exchange(rank, bytes(connection.read(request.num_bytes)), lambda: connection.is_closed)
        asked = [other for other in sorted(exchanged) if request.ranks is None or other in request.ranks]
        sizes = [(other, len(exchanged[other])) for other in asked]
        send_json(
            connection,
            chunk_wire.EXCHANGE,
            Exchanged(ranks=sorted(exchanged), sizes=sizes),
            *(exchanged[other] for other in asked),
        )
