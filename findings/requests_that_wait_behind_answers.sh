#!/usr/bin/env bash
# uvicorn 0.54.0 with httptools
# Guess: a client that sends requests without waiting for answers is read no further while requests of its connection
# wait (flow control: reading is paused when a request comes in behind one that is being answered).
# What happened: each answer that ends resumes reading although others still wait, so each answer lets more requests in
# than it takes from the queue: it grows with the number of answers. Here a client of the loopback sends 5 times 20
# requests, at most 100.
# Source: uvicorn/protocols/http/httptools_impl.py, on_response_complete. Exit code 0 as long as this is so.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q uvicorn==0.54.0 httptools==0.9.0
cd "$folder"
venv/bin/python -W ignore - <<'PYTHON'
import asyncio
import gc
import importlib.metadata

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
turn = asyncio.Semaphore(0)


async def application(scope, receive, send):
    """Answers a request when it is told to."""
    await turn.acquire()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


async def main():
    """Returns the number of requests that wait after each 20 requests that are sent; one answer is given after each."""
    server = uvicorn.Server(uvicorn.Config(application, port=0, http="httptools", lifespan="off", log_level="error"))
    task = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    waiting, paused = [], []
    for _ in range(5):
        writer.write(REQUEST * 20)
        await writer.drain()
        await asyncio.sleep(0.2)
        protocol = next(protocol for protocol in gc.get_objects() if isinstance(protocol, HttpToolsProtocol))
        waiting.append(len(protocol.pipeline))
        paused.append(protocol.flow.read_paused)
        turn.release()
        await asyncio.sleep(0.2)
    for _ in range(100):
        turn.release()
    answers = await asyncio.wait_for(reader.readexactly(100), 10)
    assert answers.startswith(b"HTTP/1.1 200")
    await asyncio.sleep(0.5)
    writer.close()
    server.should_exit = True
    await task
    return waiting, paused


waiting, paused = asyncio.run(main())
print(
    f"uvicorn {importlib.metadata.version('uvicorn')}: requests that wait after 20, 40, 60, 80, 100 were sent, one answered after each 20"
)
print(f"  {waiting}, reading paused: {paused}")
assert all(paused) and waiting == [19, 38, 57, 76, 95]
PYTHON
