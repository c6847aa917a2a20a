"""Time limits of connections, with a server in this process."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, Awaitable, Callable, List

import pytest
import uvicorn
from uvicorn.server import ServerState

from mxtrain.serving.connections import ConnectionLimits, LimitedProtocol, limited_protocol

REQUEST = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
Client = Callable[[asyncio.StreamReader, asyncio.StreamWriter, ServerState], Awaitable[None]]


def serve(
    client: Client, body: bytes = b"ok", answer_s: float = 0.0, header_s: float = 60.0, idle_s: float = 60.0,
    write_s: float = 60.0,
) -> None:  # fmt: skip
    """Connects a client to a server that answers after some time."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(answer_s)
        headers = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def run() -> None:
        limits = ConnectionLimits(header_s, idle_s, write_s, 1e9, 9, lambda count: None)
        config = uvicorn.Config(app, http=limited_protocol(limits), ws="none", lifespan="off", log_config=None)
        config.load()
        state, protocol = ServerState(), config.http_protocol_class
        server = await asyncio.get_running_loop().create_server(
            lambda: protocol(config=config, server_state=state, app_state={}),
            "127.0.0.1",
            0,  # type: ignore[call-arg]
        )
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        try:
            await asyncio.wait_for(client(reader, writer, state), 20)
        finally:
            writer.transport.abort()
            server.close()

    asyncio.run(run())


async def read_answer(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    return await reader.readexactly(2)


def test_the_limit_of_a_head_ends_with_the_head() -> None:
    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, state: ServerState) -> None:
        writer.write(REQUEST)
        assert await read_answer(reader) == b"ok"

    serve(client, answer_s=0.2, header_s=0.1)


def test_an_incomplete_head_is_cut_off() -> None:
    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, state: ServerState) -> None:
        writer.write(REQUEST[:9])
        assert await reader.read() == b""

    serve(client, header_s=0.1)


def test_the_head_of_a_further_request_has_the_time_of_a_head() -> None:
    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, state: ServerState) -> None:
        writer.write(REQUEST)
        await read_answer(reader)
        writer.write(REQUEST[:9])
        await asyncio.sleep(0.25)
        writer.write(REQUEST[9:])
        assert await read_answer(reader) == b"ok"
        assert await reader.read() == b""  # no further request

    serve(client, idle_s=0.1)


def test_a_client_that_does_not_read_is_cut_off() -> None:
    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, state: ServerState) -> None:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(REQUEST)
        while not state.connections:
            await asyncio.sleep(0.01)
        while state.connections:
            await asyncio.sleep(0.01)

    serve(client, b"x" * (1 << 24), write_s=0.1)


@pytest.mark.parametrize("unread, ended", [(0, "close"), (1, "abort")])
def test_unread_answers_are_not_waited_for(unread: int, ended: str) -> None:
    calls: List[str] = []
    transport = SimpleNamespace(get_write_buffer_size=lambda: unread, close=lambda: calls.append("close"),
                                abort=lambda: calls.append("abort"))  # fmt: skip
    LimitedProtocol._give_up(SimpleNamespace(transport=transport))  # type: ignore[arg-type]
    assert calls == [ended]
