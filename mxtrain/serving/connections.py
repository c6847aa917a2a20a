"""HTTP connections with time limits: slow and silent clients (slowloris) are disconnected.

uvicorn limits neither the time nor the size of a request's head, and its limit on connections rejects all new clients
as soon as enough idle connections are open. Here, the connection that has been idle longest is closed instead.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Callable, Dict, Optional, Type, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 1 << 16
"""Of the request line and the header fields."""
MAX_JOINED_BYTES = 1 << 16
"""Larger bodies are not copied behind their head."""
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
        max_connections: number of open connections.
        count: called with the number of open connections when it changes.
    """

    header_s: float
    idle_s: float
    max_connections: int
    count: Callable[[int], object]


def limited_protocol(limits: ConnectionLimits) -> Type[HttpToolsProtocol]:
    """Returns a class of connections with these limits, for uvicorn's `http` setting."""
    waiting: Dict[LimitedProtocol, None] = {}  # connections without a request, longest-waiting first
    return type("ServedConnection", (LimitedProtocol,), {"limits": limits, "waiting": waiting})


class HeadJoiningTransport:
    """Sends the head of an answer together with its body, which uvicorn writes separately.

    Each write is a system call that wakes the client, and it gives up Python's global lock.

    Args:
        transport: transport of the connection; everything but writing is left to it.
        loop: event loop of the transport.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop, self._head = transport, loop, b""

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
        self._transport.close()

    def _send_head(self) -> None:
        if self._head:
            head, self._head = self._head, b""
            self._transport.write(head)


class LimitedProtocol(HttpToolsProtocol):
    """A connection with limits. `limited_protocol` builds the subclass that is used."""

    limits: ConnectionLimits
    waiting: Dict[LimitedProtocol, None]

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._timer: Optional[asyncio.TimerHandle] = None
        self._head_bytes = 0
        self._has_begun = False  # True if bytes of the next request have arrived

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(cast(asyncio.Transport, HeadJoiningTransport(transport, self.loop)))
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
        super().connection_lost(exc)
        self.limits.count(len(self.connections))

    def data_received(self, data: bytes) -> None:
        if self._timer is not None:
            self._head_bytes += len(data)
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
        self.scope["mxtrain.abort"] = self.transport.abort
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
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
