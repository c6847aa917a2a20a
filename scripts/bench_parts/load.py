"""HTTP clients that load a server. They use little processor time: one thread, sockets and a selector, no event loop.

A client that costs as much as the server measures itself.
"""

from __future__ import annotations

import contextlib
import random
import re
import select
import selectors
import socket
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Callable, Deque, Dict, List, Optional, Tuple

MAX_OPEN = 256
"""Connections of an open loop; further requests wait for one, which counts as latency."""
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_LAST_CHUNK = b"0\r\n\r\n"
_CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)
_CLOSES = re.compile(rb"\r\nconnection: *close", re.IGNORECASE)


@dataclass
class Load:
    """Answers that clients have received.

    Attributes:
        seconds: latency of each answer. It begins when the request was due, also if the client was late to send it.
        statuses: number of answers by HTTP status; 0 = the connection broke.
        took_s: seconds from the first request to the last answer.
    """

    seconds: List[float] = field(default_factory=list)
    statuses: Dict[int, int] = field(default_factory=dict)
    took_s: float = 0.0

    @property
    def speed(self) -> float:
        """Answers a second."""
        return self.statuses.get(200, 0) / self.took_s


class Connection:
    """A connection that is kept open for several requests."""

    def __init__(self, port: int) -> None:
        self.port, self.due = port, 0.0
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self.unsent: memoryview = memoryview(b"")
        self._answer, self._wanted, self._is_chunked = bytearray(), 0, False
        self.status, self.closes = 0, False

    def send(self, body: bytes, due: float) -> None:
        """Begins a request that was due at a time."""
        self.due, self.unsent = due, memoryview(body)
        self._answer, self._wanted, self.status, self.closes = bytearray(), 0, 0, False
        self.go_on()

    def go_on(self) -> None:
        """Sends what the socket takes of the rest of the request."""
        with contextlib.suppress(BlockingIOError):
            self.unsent = self.unsent[self.socket.send(self.unsent) :]

    def receive(self) -> bool:
        """Reads what has arrived; returns True if the answer is complete.

        Raises:
            OSError: the connection broke.
        """
        some = self.socket.recv(1 << 18)
        if not some:
            raise ConnectionResetError
        self._answer += some
        if not self._wanted:
            head = self._answer.find(b"\r\n\r\n")
            if head < 0:
                return False
            found = bytes(self._answer[:head])
            length = _LENGTH.search(found)
            self._is_chunked = length is None
            assert length is not None or _CHUNKED.search(found) is not None, "an answer without a length"
            self._wanted = head + 4 + (int(length[1]) if length is not None else len(_LAST_CHUNK))
            self.status, self.closes = int(found[9:12]), _CLOSES.search(found) is not None
        is_open = self._is_chunked and not self._answer.endswith(_LAST_CHUNK)
        return len(self._answer) >= self._wanted and not is_open


class LoadGenerator:
    """Sends the same request again and again.

    Args:
        body: the whole HTTP request.
        port: port of a server on which connections are opened, and used once, before anything is measured.
        connections: number of these connections.
    """

    def __init__(self, body: bytes, port: int = 0, connections: int = 0) -> None:
        self._body, self._load = body, Load()
        self._selector = selectors.EpollSelector()
        self._free: Dict[int, List[Connection]] = {}
        self._num_busy = 0
        self._free[port] = [self._connect(port) for _ in range(connections)]
        for _ in range(connections):
            self._ask(port, 0.0)
        while self._num_busy:
            self._wait(None)
        self._load = Load()

    def keep_asking(self, port: int, clients: int, seconds: float = 0.0, count: int = 0) -> Load:
        """A closed loop: each client asks again as soon as it is answered.

        Args:
            port: port of the server.
            clients: number of clients.
            seconds: time after which no further request is sent.
            count: number of requests; 0 = as many as fit into `seconds`.
        """
        begin, sent = time.perf_counter(), clients
        for _ in range(clients):
            self._ask(port, time.perf_counter())
        while self._num_busy:
            for _ in range(self._wait(None)):
                now = time.perf_counter()
                if sent < count if count else now - begin < seconds:
                    sent += 1
                    self._ask(port, now)
        return self._end(begin)

    def ask_at_rate(
        self, choose: Callable[[], int], rate: float, goes_on: Callable[[float], bool], seed: Optional[int] = 0
    ) -> Load:
        """An open loop: requests become due whether others are answered or not.

        Args:
            choose: returns the port for the next request.
            rate: requests a second.
            goes_on: is given the seconds since the beginning; False ends the loop after the open requests.
            seed: seed of exponentially distributed times between requests; None = equal times.
        """
        draw, begin = random.Random(seed), time.perf_counter()
        due = begin
        waiting: Deque[Tuple[int, float]] = deque()
        while goes_on(time.perf_counter() - begin):
            due += 1 / rate if seed is None else draw.expovariate(rate)
            while True:
                left = due - time.perf_counter()
                self._wait(0)
                self._ask_waiting(waiting)
                if left <= 0:
                    break
                # The selector itself waits for whole milliseconds only, and naps would take a core from the server.
                select.select([self._selector], [], [], left)
            waiting.append((choose(), due))
            self._ask_waiting(waiting)
        while self._num_busy or waiting:
            self._wait(None)
            self._ask_waiting(waiting)
        return self._end(begin)

    def _ask_waiting(self, waiting: Deque[Tuple[int, float]]) -> None:
        while waiting and self._num_busy < MAX_OPEN:
            self._ask(*waiting.popleft())

    def _ask(self, port: int, due: float) -> None:
        self._num_busy += 1
        free = self._free.setdefault(port, [])
        try:
            connection = free.pop() if free else self._connect(port)
        except OSError:
            self._note(0, due)
            return
        try:
            connection.send(self._body, due)
        except OSError:
            self._close(connection)
            self._note(0, due)
            return
        self._watch(connection)

    def _connect(self, port: int) -> Connection:
        connection = Connection(port)
        self._selector.register(connection.socket, selectors.EVENT_READ, connection)
        return connection

    def _watch(self, connection: Connection) -> None:
        """Asks the selector for the events that the connection needs."""
        if len(connection.unsent):
            self._selector.modify(connection.socket, selectors.EVENT_READ | selectors.EVENT_WRITE, connection)

    def _wait(self, seconds: Optional[float]) -> int:
        """Handles events for at most so many seconds; returns how many requests have ended."""
        ended = 0
        for key, event in self._selector.select(seconds):
            connection: Connection = key.data
            try:
                if event & selectors.EVENT_WRITE:
                    connection.go_on()
                    if not len(connection.unsent):
                        self._selector.modify(connection.socket, selectors.EVENT_READ, connection)
                if not event & selectors.EVENT_READ or not connection.receive():
                    continue
            except OSError:
                free = self._free.get(connection.port, [])
                self._close(connection)
                if connection in free:
                    free.remove(connection)
                    continue
                connection.status = 0
            else:
                if connection.closes:
                    self._close(connection)
                else:
                    self._free[connection.port].append(connection)
            self._note(connection.status, connection.due)
            ended += 1
        return ended

    def _note(self, status: int, due: float) -> None:
        self._num_busy -= 1
        self._load.seconds.append(time.perf_counter() - due)
        self._load.statuses[status] = self._load.statuses.get(status, 0) + 1

    def _close(self, connection: Connection) -> None:
        self._selector.unregister(connection.socket)
        connection.socket.close()

    def _end(self, begin: float) -> Load:
        self._load.took_s = time.perf_counter() - begin
        for connections in self._free.values():
            for connection in connections:
                self._close(connection)
        self._selector.close()
        return self._load
