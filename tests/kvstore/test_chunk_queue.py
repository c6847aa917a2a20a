"""The queue of chunks of `cluster.balance=dynamic`, and its server and clients over sockets."""

from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Iterator, List, Tuple

import pytest

from mxtrain.errors import PeersLost
from mxtrain.kvstore import chunk_wire
from mxtrain.kvstore.chunk_client import ChunkClient, holds_first_group
from mxtrain.kvstore.chunk_wire import Ended, Exchange, Interval, Take
from mxtrain.kvstore.server.chunk_queue import ChunkQueue
from mxtrain.kvstore.server.chunk_server import ChunkServer
from mxtrain.kvstore.table_wire import Connection, Header, TableServerLost


def take(serial: int = 0, begin: int = 0, end: int = 3, pause: bool = False) -> Take:
    return Take(interval=Interval(serial=serial, epoch=0, begin=begin, end=end), pause=pause)


def test_chunks_are_given_in_order_and_the_interval_ends_with_the_last_update() -> None:
    queue, request = ChunkQueue(2), take(begin=1, end=4)
    given = []
    for rank in (0, 1, 0, 0):
        chunk = queue.take(rank, request).chunk
        assert chunk is not None and queue.finish(rank, chunk)
        given.append(chunk)
    assert given == [2, 3, 4, 5]
    assert (queue.take(0, request).chunk, queue.take(1, request).chunk) == (6, 7)
    taken = queue.take(1, request)
    assert taken.chunk is None and taken.has_ended
    assert queue.finish(0, 6) and not queue.finish(0, 6) and not queue.finish(0, 7)
    with pytest.raises(ValueError, match="before the end of another"):
        queue.take(0, take(serial=1, begin=4, end=5))
    assert queue.finish(1, 7)
    assert queue.wait_for_end(request) == Ended(end=4, live=[0, 1])
    assert queue.take(0, take(serial=1, begin=4, end=5)).chunk == 8


def test_a_worker_gets_one_of_the_last_chunks_only_when_it_is_idle() -> None:
    queue, request = ChunkQueue(2), take(end=4)
    assert [queue.take(0, request).chunk for _ in range(2)] == [0, 1]
    kept_back = queue.take(0, request)  # six are left for two workers, and two wait already
    assert kept_back.chunk is None and not kept_back.has_ended
    assert queue.take(1, request).chunk == 2
    assert queue.finish(0, 0) and queue.take(0, request).chunk == 3
    assert queue.take(0, request).chunk is None and queue.finish(0, 1) and queue.finish(0, 3)
    assert queue.take(0, request).chunk == 4


def test_chunks_of_a_lost_worker_are_taken_by_others() -> None:
    queue, request = ChunkQueue(3), take(end=4)
    for rank, chunk in ((0, 0), (1, 1), (1, 2), (2, 3)):
        assert queue.take(rank, request).chunk == chunk
    assert queue.finish(1, 1)
    queue.leave(1)
    assert queue.finish(0, 0) and queue.take(0, request).chunk == 2
    # The update of the lost worker arrives after another one has taken its chunk.
    assert not queue.finish(1, 2)
    assert queue.finish(0, 2) and queue.finish(2, 3)
    for chunk in range(4, 12):
        assert queue.take(0, request).chunk == chunk and queue.finish(0, chunk)
    assert queue.wait_for_end(request) == Ended(end=4, live=[0, 2])


def test_an_update_that_arrives_before_its_chunk_is_given_to_another_worker_counts() -> None:
    queue, request = ChunkQueue(2), take(end=1)
    assert queue.take(1, request).chunk == 0 and queue.take(0, request).chunk == 1
    queue.leave(1)
    assert queue.finish(1, 0) and queue.finish(0, 1)
    assert queue.wait_for_end(request) == Ended(end=1, live=[0])


def test_a_worker_that_waits_for_the_end_is_told_of_chunks_to_take_again() -> None:
    queue, request = ChunkQueue(2), take(end=1)
    assert queue.take(0, request).chunk == 0 and queue.take(1, request).chunk == 1
    assert queue.finish(0, 0)
    with ThreadPoolExecutor() as pool:
        waits = pool.submit(queue.wait_for_end, request)
        time.sleep(0.02)
        assert not waits.done()
        queue.leave(1)
        assert waits.result(5) == Ended()
    assert queue.take(0, request).chunk == 1 and queue.finish(0, 1)
    assert queue.wait_for_end(request).end == 1


@pytest.mark.parametrize("num_taken, end", [(0, 0), (1, 1), (2, 1), (3, 2)])
def test_a_pause_ends_the_interval_after_the_last_step_that_has_begun(num_taken: int, end: int) -> None:
    queue = ChunkQueue(2)
    for expected in range(num_taken):
        assert queue.take(0, take()).chunk == expected and queue.finish(0, expected)
    while True:
        chunk = queue.take(1, take(pause=True)).chunk
        if chunk is None:
            break
        assert queue.finish(1, chunk)
    assert queue.wait_for_end(take()) == Ended(end=end, live=[0, 1])


def test_a_worker_that_is_gone_is_noticed_while_it_waits() -> None:
    queue = ChunkQueue(2)
    queue.take(0, take())
    with pytest.raises(TableServerLost):
        queue.wait_for_end(take(), is_gone=lambda: True)
    with pytest.raises(TableServerLost):
        queue.exchange(0, b"", is_gone=lambda: True)


def test_an_exchange_ends_without_a_worker_that_is_lost_meanwhile() -> None:
    queue = ChunkQueue(2)
    with ThreadPoolExecutor() as pool:
        waits = pool.submit(queue.exchange, 0, b"here")
        time.sleep(0.02)
        assert not waits.done()
        queue.leave(1)
        assert waits.result(5) == {0: b"here"}
    assert queue.exchange(0, b"alone") == {0: b"alone"}


def test_exchanges_are_not_mixed_and_not_kept() -> None:
    """A slow worker still gets the bytes of its own exchange; a server keeps those of the last one."""
    queue = ChunkQueue(3)

    def exchange(rank: int) -> List[bytes]:
        answers = []
        for number in range(20):
            time.sleep(0.002 * (rank == 2))
            answers.append(b"".join(queue.exchange(rank, b"%d,%d;" % (number, rank)).values()))
        return [b"".join(sorted(answer.split(b";"))) for answer in answers]

    with ThreadPoolExecutor() as pool:
        found = list(pool.map(exchange, range(3)))
    assert found == [[b"%d,0%d,1%d,2" % (number, number, number) for number in range(20)]] * 3
    assert len(queue._complete) == 1 and not queue._given


class Server:
    """A server of chunks, with a connection for each worker."""

    def __init__(self, workers: int):
        self.queue = ChunkQueue(workers)
        self._server = ChunkServer(self.queue, lambda: True)
        self.threads: List[threading.Thread] = []
        self.connections = [self.connect(rank) for rank in range(workers)]
        self.clients = [ChunkClient(connection, workers) for connection in self.connections]

    def connect(self, rank: int) -> Connection:
        listening = socket.create_server(("127.0.0.1", 0))
        client = socket.create_connection(listening.getsockname())
        served, _ = listening.accept()
        listening.close()
        self.threads.append(threading.Thread(target=self._server.answer, args=[Connection(served), rank]))
        self.threads[-1].start()
        return Connection(client)


@pytest.fixture
def server() -> Iterator[Server]:
    opened = Server(3)
    yield opened
    for connection in opened.connections:
        connection.close()
    for thread in opened.threads:
        thread.join(5)
        assert not thread.is_alive()


def train(server: Server, rank: int, lost_after: int, sleep_s: float) -> Tuple[List[int], int]:
    """Takes chunks of one epoch like a worker. Returns the computed chunks and the end of the interval."""
    client, computed = server.clients[rank], []
    client.begin(epoch=0, begin=0, end=20)
    while True:
        for chunk in client.chunks():
            if len(computed) == lost_after:
                client.close()
                return computed, -1
            time.sleep(sleep_s)
            if server.queue.finish(rank, chunk):
                computed.append(chunk)
        end = client.finish()
        if end is not None:
            return computed, end


def test_each_chunk_is_computed_once_though_a_worker_is_slow_and_another_is_lost(server: Server) -> None:
    with ThreadPoolExecutor() as pool:
        ways = [(99, 0.001), (99, 0.01), (5, 0.001)]
        futures = [pool.submit(train, server, rank, *way) for rank, way in enumerate(ways)]
        (fast, end), (slow, slow_end), (lost, _) = (future.result(20) for future in futures)
    assert sorted([*fast, *slow, *lost]) == list(range(60))
    assert len(lost) == 5 and len(slow) < 20 < len(fast)
    assert end == slow_end == 20
    assert server.clients[0].live == server.clients[1].live == [0, 1]
    with ThreadPoolExecutor() as pool:
        words = [pool.submit(server.clients[rank].exchange, bytes([rank])) for rank in (0, 1)]
        assert [word.result(5) for word in words] == [[b"\0", b"\1"]] * 2


def test_a_worker_lost_in_an_exchange_is_an_error_for_the_others(server: Server) -> None:
    for client in server.clients:
        client.begin(0, 0, 0)
        assert list(client.chunks()) == []
    with ThreadPoolExecutor() as pool:
        ends = [pool.submit(client.finish) for client in server.clients]
        assert [end.result(5) for end in ends] == [0, 0, 0]
        words = [pool.submit(server.clients[rank].exchange, b"12", [1]) for rank in (0, 1)]
        server.clients[2].close()
        for word in words:
            with pytest.raises(PeersLost, match="worker 2 was lost"):
                word.result(5)


def test_a_cancelled_worker_stops_asking(server: Server) -> None:
    client = server.clients[0]
    client.begin(0, 0, 1)
    chunks = client.chunks()
    assert next(chunks) == 0
    client.cancel()
    assert list(chunks) == [] and not client.taken


def test_messages_that_are_too_long_or_unknown_end_the_server_of_the_worker() -> None:
    for header, payload, words in (
        (Header(99), b"", "kind 99"),
        (Header(chunk_wire.TAKE, count=1 << 40), b"", "bytes of JSON"),
        (Header(chunk_wire.TAKE, count=2), b"{}", "interval"),
        (Header(chunk_wire.EXCHANGE, count=20), b'{"num_bytes":5000000000}'[:20], "EOF|Invalid JSON"),
    ):
        with pytest.raises(ValueError, match=words):
            answered(header, payload)
    with pytest.raises(ValueError):
        Exchange(num_bytes=1 << 33)


def answered(header: Header, payload: bytes) -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    client = Connection(socket.create_connection(listening.getsockname()))
    served = Connection(listening.accept()[0])
    listening.close()
    try:
        client.send(header, payload)
        ChunkServer(ChunkQueue(1), lambda: False).answer(served, 0)
    finally:
        client.close()
        served.close()


def test_workers_find_the_server_that_holds_the_first_group(server: Server) -> None:
    extra = server.connect(0)
    assert holds_first_group(extra)
    extra.close()
    server.threads[-1].join(5)
    assert server.queue.live == {0, 1, 2}  # asking is not taking part
