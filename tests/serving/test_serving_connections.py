"""Times and sizes of connections, with a clock and a transport of the test's own; and connections that linger."""

from __future__ import annotations

import asyncio
from typing import Any, Callable, Dict, List, Tuple
from unittest.mock import Mock

import pytest
import uvicorn
from uvicorn.server import ServerState

from mxtrain.serving.connections import (
    ConnectionLimits,
    HeadJoiningTransport,
    LimitedProtocol,
    limited_protocol,
)

MAX_HEAD_BYTES = 1 << 16


class Clock:
    """An event loop of which only the time passes."""

    def __init__(self) -> None:
        self.now = 0.0
        self._calls: List[Tuple[float, Any, Callable[..., Any], Tuple[Any, ...]]] = []

    def call_later(self, seconds: float, call: Callable[..., Any], *arguments: Any) -> Any:
        handle = asyncio.Handle(call, arguments, self)  # type: ignore[arg-type]
        self._calls.append((self.now + seconds, handle, call, arguments))
        return handle

    def call_soon(self, call: Callable[..., Any], *arguments: Any) -> Any:
        return self.call_later(0.0, call, *arguments)

    def create_task(self, coroutine: Any, **named: Any) -> Any:
        coroutine.close()
        return Mock()

    def get_debug(self) -> bool:
        return False

    def sleep(self, seconds: float) -> None:
        end = self.now + seconds
        while due := [one for one in self._calls if one[0] <= end]:
            first = min(due, key=lambda one: one[0])
            self._calls.remove(first)
            self.now = first[0]
            if not first[1].cancelled():
                first[2](*first[3])
        self.now = end


class Transport:
    """A transport of which nothing is sent."""

    def __init__(self) -> None:
        self.state, self.unread, self.sent, self.is_reading = "open", 0, b"", True

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def get_write_buffer_size(self) -> int:
        return self.unread

    def is_closing(self) -> bool:
        return self.state != "open"

    def write(self, data: bytes) -> None:
        self.sent += data

    def close(self) -> None:
        self.state = "closed"

    def abort(self) -> None:
        self.state = "aborted"

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True


async def answer(scope: Any, receive: Any, send: Any) -> None:
    """Answers by path: /late sends its body later, /refused reads no body, /large has a large one."""
    path, headers = scope["path"], []
    if path == "/refused":
        headers = [(b"connection", b"close")]
    else:
        while (await receive()).get("more_body"):
            pass
    body = b"x" * 30_000_000 if path == "/large" else b"ok"
    headers.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": 415 if path == "/refused" else 200, "headers": headers})
    if path == "/late":
        await scope["state"]["event"].wait()
    await send({"type": "http.response.body", "body": body})


class Connections:
    """Connections with the clock of the test."""

    def __init__(self, **changed: Any) -> None:
        self.clock, self.counts, self.state = Clock(), [], ServerState()
        limits: Dict[str, Any] = {
            "header_s": 2.0,
            "idle_s": 10.0,
            "write_s": 5.0,
            "max_unread": 100.0,
            "max_connections": 3,
            "count": self.counts.append,
            **changed,
        }
        self.kind = limited_protocol(ConnectionLimits(**limits))
        self.config = uvicorn.Config(
            answer, http=self.kind, ws="none", lifespan="off", log_config=None, timeout_keep_alive=10_000
        )
        self.config.load()

    def open(self) -> Tuple[LimitedProtocol, Transport]:
        protocol: Any = self.kind(config=self.config, server_state=self.state, app_state={}, _loop=self.clock)
        transport = Transport()
        protocol.connection_made(transport)
        return protocol, transport


def test_a_head_has_so_many_seconds_from_the_beginning_of_a_connection() -> None:
    connections = Connections()
    silent, slow = connections.open()[1], connections.open()
    for character in b"GET / HTTP/1.1\r\nX: ":
        slow[0].data_received(bytes([character]))
        connections.clock.sleep(0.1)
    assert (silent.state, slow[1].state) == ("open", "open")
    connections.clock.sleep(0.2)
    assert (silent.state, slow[1].state) == ("closed", "closed")


def test_a_client_that_does_not_read_is_aborted_at_the_end_of_its_time() -> None:
    connections = Connections()
    _, transport = connections.open()
    transport.unread = 5
    connections.clock.sleep(2.1)
    assert transport.state == "aborted"


def test_an_answered_connection_may_be_idle_longer_than_a_head_may_take() -> None:
    connections = Connections()
    protocol, transport = connections.open()
    protocol.data_received(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    connections.clock.sleep(5.0)  # the time of the answer does not count
    protocol.cycle.response_complete = True
    protocol.on_response_complete()
    connections.clock.sleep(9.9)
    assert transport.state == "open"
    protocol.data_received(b"GET /")  # the next head begins
    connections.clock.sleep(1.9)
    assert transport.state == "open"
    connections.clock.sleep(0.2)
    assert transport.state == "closed"


def test_heads_of_earlier_requests_do_not_count() -> None:
    connections = Connections()
    protocol, transport = connections.open()
    for _ in range(3):
        protocol._wait(2.0)
        protocol._head_bytes += MAX_HEAD_BYTES  # what a complete head would have added
    protocol._wait(2.0)
    protocol.data_received(b"GET / HTTP/1.1\r\nX: " + b"x" * (MAX_HEAD_BYTES - 100))
    assert transport.state == "open"
    protocol.data_received(b"x" * 100)
    assert transport.state == "closed" and transport.sent.startswith(b"HTTP/1.1 431 ")


def test_a_body_in_pieces_may_be_larger_than_a_head() -> None:
    protocol, transport = Connections().open()
    protocol.data_received(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % (3 * MAX_HEAD_BYTES))
    for _ in range(3):
        protocol.data_received(b"x" * MAX_HEAD_BYTES)
    assert (transport.state, transport.sent) == ("open", b"")


def test_longest_waiting_connections_are_closed_for_new_ones() -> None:
    connections = Connections()
    opened = [connections.open()[1] for _ in range(5)]  # `connection_lost` is called later
    assert [one.state for one in opened] == ["aborted", "aborted", "open", "open", "open"]
    assert connections.counts == [1, 2, 3, 4, 5]


def test_new_connection_is_closed_if_all_are_busy() -> None:
    connections = Connections(max_connections=1)
    busy, transport = connections.open()
    busy._end_wait()
    refused = connections.open()[1]
    assert (transport.state, refused.state) == ("open", "aborted")
    assert not connections.kind.waiting  # type: ignore[attr-defined]


@pytest.mark.parametrize("unread, state", [([5, 5, 5], "aborted"), ([9, 8, 7], "open"), ([9, 8, 8], "aborted")])
def test_a_client_must_read_some_of_its_answer_in_each_interval(unread: List[int], state: str) -> None:
    connections = Connections(header_s=1e9)
    protocol, transport = connections.open()
    transport.unread = unread[0]
    protocol.pause_writing()
    for transport.unread in unread[1:]:
        connections.clock.sleep(5.0)
    assert transport.state == state


def test_a_client_that_has_read_its_answer_has_no_limit() -> None:
    connections = Connections(header_s=1e9)
    for end in (lambda one: one.resume_writing(), lambda one: one.connection_lost(None)):
        protocol, transport = connections.open()
        transport.unread = 7
        protocol.pause_writing()
        end(protocol)
        before, transport.unread = transport.state, 9
        connections.clock.sleep(20.0)
        assert transport.state == before
        assert not connections.kind.unread  # type: ignore[attr-defined]


def test_unread_answers_are_limited_together() -> None:
    connections = Connections(header_s=1e9, max_unread=100.0)
    opened = [connections.open() for _ in range(3)]
    for (protocol, transport), unread in zip(opened, (40, 60, 61)):
        transport.unread = unread
        protocol.pause_writing()
        states = [one.state for _, one in opened]
        # 40 + 60 are allowed; then the first one, whose client has read nothing for the longest time, and the second.
        assert states == (["aborted", "aborted", "open"] if unread == 61 else ["open"] * 3)
    assert list(connections.kind.unread) == [opened[2][0]]  # type: ignore[attr-defined]
    alone = Connections(header_s=1e9, max_unread=10.0)
    protocol, transport = alone.open()
    transport.unread = 50
    protocol.pause_writing()
    assert transport.state == "open"


def test_heads_are_sent_with_their_bodies() -> None:
    clock, inner, lingers = Clock(), Transport(), [False]
    transport: Any = HeadJoiningTransport(inner, clock, lambda: lingers[0])  # type: ignore[arg-type]
    head = b"HTTP/1.1 200 OK\r\n\r\n"
    transport.write(head)
    assert inner.sent == b""
    transport.write(b"body")
    assert inner.sent == head + b"body"
    transport.write(head)
    clock.sleep(0)
    assert inner.sent == head + b"body" + head
    transport.write(head)
    lingers[0] = True
    transport.close()
    assert inner.sent.endswith(head + head) and inner.state == "open"
    lingers[0] = False
    transport.close()
    assert inner.state == "closed"


# With sockets.


async def ask(connections: Connections, use: Callable[..., Any]) -> Any:
    state = {"event": asyncio.Event()}  # it never comes

    def build() -> Any:
        return connections.kind(config=connections.config, server_state=connections.state, app_state=state)

    server = await asyncio.get_running_loop().create_server(build, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    try:
        return await asyncio.wait_for(use(reader, writer), 20)
    finally:
        writer.close()
        server.close()


PATIENT = {"header_s": 30.0, "idle_s": 30.0, "write_s": 30.0}


@pytest.mark.parametrize("method, path", [("GET", "/late"), ("HEAD", "/refused")])
def test_a_head_waits_for_no_body(method: str, path: str) -> None:
    async def use(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        return await reader.readuntil(b"\r\n\r\n")

    found = asyncio.run(ask(Connections(**PATIENT), use))
    assert found.startswith(b"HTTP/1.1 200" if path == "/late" else b"HTTP/1.1 415")


def test_a_refused_body_is_discarded_and_no_further_request_is_answered() -> None:
    async def use(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(b"POST /refused HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n12345")
        found = await reader.readuntil(b"ok")
        writer.write(b"67890GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        return found + await reader.read()

    found = asyncio.run(ask(Connections(**PATIENT), use))
    assert found.count(b"HTTP/1.1 ") == 1 and found.startswith(b"HTTP/1.1 415") and found.endswith(b"ok")


def test_few_pipelined_requests_are_parsed_at_once() -> None:
    async def use(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Tuple[int, bytes]:
        writer.write(b"GET /first HTTP/1.1\r\nHost: x\r\n\r\n" * 600)
        longest, found = 0, b""
        while found.count(b"HTTP/1.1 200") < 600 or not found.endswith(b"ok"):
            longest = max(longest, *(len(one.pipeline) for one in connections.state.connections))
            found += await reader.read(4096)
        return longest, found

    connections = Connections(**PATIENT)
    longest, found = asyncio.run(ask(connections, use))
    assert longest < 4 + 2048 / 31 and found.count(b"ok") == 600
