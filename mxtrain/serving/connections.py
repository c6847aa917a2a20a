"""HTTP connections with limits of time and memory.

Slow and silent clients (slowloris) are disconnected: uvicorn limits neither the time nor the size of a request's head,
and its limit on connections rejects all new clients as soon as enough idle connections are open. Here, the connection
that has been idle longest is closed instead.

Reading pauses for clients that send without reading, because uvicorn parses all pipelined requests that arrive and
keeps an object for each. If a client reads nothing of its answer for a time, the connection is aborted.

A client that sends a long rejected body gets the answer. The connection ends only after the rest of the body was read
and discarded, because closing a socket with unread data resets it and destroys the answer.

Pipelined requests are not rejected, because clients of benchmarks send them, nor are bursts of requests that can be
answered.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Callable, Dict, Optional, Type, cast

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 1 << 16
"""Limit of the request line and the header fields."""
MAX_JOINED_BYTES = 1 << 16
"""Larger bodies are not copied behind their head."""
MAX_PIPELINED = 4
"""Number of waiting requests of a connection at which parsing pauses."""
PARSED_BYTES = 1 << 11
"""Bytes that are parsed at once. They may contain some further requests."""
LINGER_S = 10.0
"""Seconds for which the rest of a refused body is read and discarded."""
_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: application/json\r\ncontent-length: 49\r\n"
    b'connection: close\r\n\r\n{"error": "the head of the request is too large"}'
)


@dataclass(frozen=True)
class ConnectionLimits:
    """Limits of connections, see `ServeSettings`.

    Attributes:
        header_s: seconds for the head of a request.
        idle_s: seconds between two requests.
        write_s: seconds in which a client must read a part of its answer.
        max_unread: bytes of unread answers of all connections together. Beyond it, the connection whose client has not
            read for the longest time is aborted.
        max_connections: number of open connections.
        count: called with the number of open connections when it changes.
    """

    header_s: float
    idle_s: float
    write_s: float
    max_unread: float
    max_connections: int
    count: Callable[[int], object]


def limited_protocol(limits: ConnectionLimits) -> Type[HttpToolsProtocol]:
    """Returns a class of connections with these limits, for uvicorn's `http` setting."""
    # `waiting` holds connections without a request, `unread` those whose answer is not read, longest-waiting first.
    return type("ServedConnection", (LimitedProtocol,), {"limits": limits, "waiting": {}, "unread": {}})


class HeadJoiningTransport:
    """Sends the head of an answer together with its body, which uvicorn writes separately.

    Each write is a system call, which wakes the client and releases the GIL.

    Args:
        transport: transport of the connection; everything but writing is left to it.
        loop: event loop of the transport.
        linger: called before the transport is closed; True if it stays open for reading.
    """

    def __init__(
        self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, linger: Callable[[], bool]
    ) -> None:
        self._transport, self._loop, self._linger, self._head = transport, loop, linger, b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Writes bytes, but holds a head back until the next write or the next turn of the loop."""
        if self._head:
            if len(data) <= MAX_JOINED_BYTES:
                data, self._head = self._head + data, b""
            self._send_head()
        elif data.startswith(b"HTTP/1.1 ") and data.endswith(b"\r\n\r\n"):
            self._head = data
            self._loop.call_soon(self._send_head)
            return
        self._transport.write(data)

    def close(self) -> None:
        """Closes the connection after everything was sent."""
        self._send_head()
        if not self._linger():
            self._transport.close()

    def _send_head(self) -> None:
        if self._head:
            head, self._head = self._head, b""
            self._transport.write(head)


class LimitedFlow(FlowControl):
    """Ignores requests to resume reading until all received bytes are parsed.

    Args:
        transport: transport of the connection.
        holds_bytes: function that returns True while received bytes wait to be parsed.
    """

    def __init__(self, transport: asyncio.Transport, holds_bytes: Callable[[], bool]) -> None:
        super().__init__(transport)
        self._holds_bytes = holds_bytes

    def resume_reading(self) -> None:
        """Resumes reading unless received bytes wait to be parsed."""
        if not self._holds_bytes():
            super().resume_reading()


class LimitedProtocol(HttpToolsProtocol):
    """A connection with limits. `limited_protocol` builds the subclass that is used."""

    limits: ConnectionLimits
    waiting: Dict[LimitedProtocol, None]
    unread: Dict[LimitedProtocol, None]

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._timer: Optional[asyncio.TimerHandle] = None
        self._head_bytes = 0
        self._has_begun = False  # True if bytes of the next request have arrived
        self._held = b""  # bytes that are parsed later
        self._is_holding = False  # True while nothing is read because of them
        self._write_timer: Optional[asyncio.TimerHandle] = None
        self._is_lingering = False

    def connection_made(self, transport: asyncio.Transport) -> None:
        joining = cast(asyncio.Transport, HeadJoiningTransport(transport, self.loop, self._linger))
        super().connection_made(joining)
        self.flow = LimitedFlow(joining, lambda: bool(self._held))
        self.limits.count(len(self.connections))
        if len(self.connections) > self.limits.max_connections:
            oldest = next(iter(self.waiting), self)
            oldest._end_wait()  # `connection_lost` comes later: until then, a further client must not pick it again
            oldest.transport.abort()
            if oldest is self:
                return
        self._has_begun = True  # a new connection must send a request within `header_s`, not `idle_s`
        self._wait(self.limits.header_s)

    def connection_lost(self, exc: Optional[Exception]) -> None:
        self._end_wait()
        self._end_write_wait()
        self._held = b""
        super().connection_lost(exc)
        self.limits.count(len(self.connections))

    def data_received(self, data: bytes) -> None:
        if self._is_lingering:
            return
        self._held += data
        self._parse_held()

    def _parse_held(self) -> None:
        """Parses received bytes until too many requests wait."""
        while self._held and len(self.pipeline) < MAX_PIPELINED:
            data, self._held = self._held[:PARSED_BYTES], self._held[PARSED_BYTES:]
            self._parse(data)
            if self.transport.is_closing() or self._is_lingering:
                self._held = b""
                return
        if self._held:
            self._is_holding = True
            self.flow.pause_reading()
        elif self._is_holding:  # only then: a body that is larger than its buffer has paused reading for itself
            self._is_holding = False
            self.flow.resume_reading()

    def _parse(self, data: bytes) -> None:
        self._head_bytes += len(data)  # and of bodies, until `_wait` for the next head
        super().data_received(data)
        if self._timer is None or self.transport.is_closing():
            return
        if not self._has_begun:  # an incomplete head: most heads are complete at once and need no timer
            self._has_begun = True
            self._wait(self.limits.header_s)
        elif self._head_bytes > MAX_HEAD_BYTES:
            self.transport.write(_TOO_LARGE)
            self.transport.close()

    def on_headers_complete(self) -> None:
        self._end_wait()
        # ASGI has no message to disconnect a client that does not read its stream.
        self.scope["mxtrain.abort"] = self.transport.abort
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        if self._is_lingering:
            return
        super().on_response_complete()
        if self._held:
            self.loop.call_soon(self._parse_held)
        if not self.transport.is_closing() and self.cycle.response_complete:
            self._has_begun = False
            self._wait(self.limits.idle_s)

    def _wait(self, seconds: float) -> None:
        self._end_wait()
        self._head_bytes = 0
        self.waiting[self] = None
        self._timer = self.loop.call_later(seconds, self._give_up)

    def _end_wait(self) -> None:
        self.waiting.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        if self.transport.get_write_buffer_size():  # the client does not read its answer: `close` would wait for it
            self.transport.abort()
        else:
            self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.unread[self] = None
        self._wait_for_reading()
        unread_bytes = sum(one.transport.get_write_buffer_size() for one in self.unread)
        for one in [*self.unread]:
            if unread_bytes <= self.limits.max_unread or one is self:
                return
            unread_bytes -= one.transport.get_write_buffer_size()
            one._end_write_wait()
            one.transport.abort()

    def resume_writing(self) -> None:
        self._end_write_wait()
        super().resume_writing()

    def _wait_for_reading(self) -> None:
        size = self.transport.get_write_buffer_size()
        self._write_timer = self.loop.call_later(self.limits.write_s, self._require_reading, size)

    def _require_reading(self, size_before: int) -> None:
        # A buffer that shrinks belongs to a slow client, which gets the same time again.
        if self.transport.get_write_buffer_size() >= size_before:
            self.transport.abort()
        else:
            self._wait_for_reading()

    def _end_write_wait(self) -> None:
        self.unread.pop(self, None)
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _linger(self) -> bool:
        """Begins to discard the rest of a body. Returns False if there is none, or if discarding has begun."""
        if self._is_lingering or self.cycle is None or not self.cycle.more_body or self.cycle.disconnected:
            return False
        self._is_lingering = True
        self._end_wait()
        self._held = b""
        # The client sees the end of its answer while the rest of its body is still read.
        if self.transport.can_write_eof():
            self.transport.write_eof()
        FlowControl.resume_reading(self.flow)
        self.loop.call_later(LINGER_S, self.transport.close)
        return True
