"""An HTTP server for examples/own_code/http_tracker.py that notes what it gets, and can hang or fail."""

from __future__ import annotations

import json
import sys
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ContextManager, Dict, List, Tuple

from http_server import served

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "own_code"
if str(EXAMPLE) not in sys.path:
    sys.path.append(str(EXAMPLE))

from http_tracker import HttpTracker as HttpTracker  # noqa: E402


class TrackerServer(ThreadingHTTPServer):
    """Attributes:
    runs: id -> points, as (tag, step, value), in the order of arrival.
    closed: id -> states that were told.
    opened: what was told when a run was opened or continued.
    hangs_at: end of the paths that are never answered; "" for all.
    fails: number of requests that are answered with 500 and the key that came with them.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.runs: Dict[str, List[Tuple[str, int, float]]] = {}
        self.closed: Dict[str, List[Dict[str, Any]]] = {}
        self.opened: List[Dict[str, Any]] = []
        self.hangs_at: Any = None
        self.fails = 0
        self.hanging, self.released = threading.Event(), threading.Event()

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def points(self, remote_id: str = "run1") -> Dict[Tuple[str, int], float]:
        """The points of a run; fails if one came twice."""
        counts = Counter((tag, step) for tag, step, _ in self.runs[remote_id])
        assert max(counts.values()) == 1, [point for point, count in counts.items() if count > 1]
        return {(tag, step): value for tag, step, value in self.runs[remote_id]}

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that are killed are part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    server: TrackerServer

    def log_message(self, *args: Any) -> None:
        pass

    def do_POST(self) -> None:
        server = self.server
        content = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if server.hangs_at is not None and self.path.endswith(server.hangs_at):
            server.hanging.set()
            server.released.wait(120)
            return
        if server.fails:
            server.fails -= 1
            self.send_error(500, f"cannot take {self.headers['Authorization']}")
            return
        answer = {}
        if self.path == "/open":
            remote_id = content["id"] or f"run{len(server.runs) + 1}"
            server.opened.append(content)
            server.runs.setdefault(remote_id, [])
            server.closed.setdefault(remote_id, [])
            answer = {"id": remote_id}
        else:
            _, remote_id, what = self.path.split("/")
            if what == "points":
                server.runs[remote_id] += [(one["tag"], one["step"], one["value"]) for one in content]
            else:
                server.closed[remote_id].append(content)
        data = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def tracking() -> ContextManager[TrackerServer]:
    return served(TrackerServer())
