"""An HTTP server on loopback with faults that are asked for: it breaks off, lies, stalls, sends wrong bytes."""

from __future__ import annotations

import re
import threading
from collections import defaultdict
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ContextManager, DefaultDict, Dict, Iterator, List, Tuple, TypeVar


class FaultyServer(ThreadingHTTPServer):
    """Serves `files`; each request for a path takes the next of its `faults`, the last of which stays if it ends in !.

    Attributes:
        files: path -> content.
        faults: path -> names of faults.
        requests: path and Range of each request.
        head: path -> status and headers of the answers to HEAD, if they are others than 200 with none, or 404.
        released: stalled responses end when it is set.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: Dict[str, bytes] = {}
        self.faults: DefaultDict[str, List[str]] = defaultdict(list)
        self.requests: List[Tuple[str, str]] = []
        self.head: Dict[str, Tuple[int, Dict[str, str]]] = {}
        self.released, self.stalled = threading.Event(), threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that break off are part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    server: FaultyServer

    def log_message(self, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        there = self.path in self.server.files
        status, headers = self.server.head.get(self.path, (200 if there else 404, {}))
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def do_GET(self) -> None:
        server, path = self.server, self.path
        given = self.headers.get("Range", "")
        server.requests.append((path, given))
        faults = server.faults[path]
        fault = (faults[0] if faults[:1] and faults[0].endswith("!") else faults.pop(0) if faults else "").rstrip("!")
        if path not in server.files:
            return self.send_error(404)
        content = server.files[path]
        if fault.isdigit():
            return self.send_error(int(fault))
        if fault == "silent":
            return self.connection.close()
        if fault == "redirect":
            server.files["/moved" + path] = content
            self.send_response(302)
            self.send_header("Location", f"{server.url}/moved{path}")
            return self.end_headers()
        start = int(re.match(r"bytes=(\d+)-", given).group(1)) if given and fault != "ignore_range" else 0
        if start >= len(content) > 0:
            return self.send_error(416)
        body = content[start:]
        self.send_response(206 if start else 200)
        if start:
            shown = start + 1 if fault == "other_piece" else start
            self.send_header("Content-Range", f"bytes {shown}-{len(content) - 1}/{len(content)}")
        length = len(body) + {"lie_long": 7, "lie_short": -7}.get(fault, 0)
        if fault != "no_length":
            self.send_header("Content-Length", str(length))
        self.end_headers()
        if fault == "wrong":
            body = bytes(byte ^ 1 for byte in body)
        self.wfile.write(body[: len(body) // 2] if fault in ("break", "stall") else body)
        self.wfile.flush()
        if fault == "stall":
            server.stalled.set()
            server.released.wait(60)


Served = TypeVar("Served", bound=ThreadingHTTPServer)


@contextmanager
def served(server: Served) -> Iterator[Served]:
    """Serves in a thread; at the end handlers that wait for `released` go on."""
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.released.set()
        server.shutdown()
        server.server_close()
        thread.join()


def serving() -> ContextManager[FaultyServer]:
    return served(FaultyServer())
