"""The supervisor's side of a ring of workers: its members, generation by generation, and how they find each other.

    workers ask, by their heartbeats -> all that are left have asked -> a place for each -> a server joins them

Gloo exchanges its addresses through an HTTP server that keeps a few bytes under a name. Each generation has a server of
its own, so that no member of an earlier one interferes.
"""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from typing import Any, Dict, List, Optional, Sequence

from mxtrain.cluster.process import Process
from mxtrain.runtime.network import LOOPBACK

MAX_BYTES = 1 << 16
"""The largest size of one value; Gloo's addresses have some hundreds."""


class Ring:
    """The workers that sum together.

    Args:
        host: the address on which the servers listen.
        interface: the network interface over which workers sum; None: the one that leads to `host`.
    """

    def __init__(self, host: str = LOOPBACK, interface: Optional[str] = None):
        self._host, self._interface = host, interface
        self._control = KeyValueServer(host, writable=False)
        self._rendezvous: Optional[KeyValueServer] = None
        self._members: List[Process] = []
        self.generation = 0
        """The generation of the last ring that was formed; 0: none yet."""

    @property
    def address(self) -> str:
        """host:port, for the workers."""
        return f"{self._host}:{self._control.port}"

    def begin(self) -> None:
        """Called when all workers are started anew."""
        self.generation, self._members = 0, []
        self._control.values.clear()

    def tend(self, workers: Sequence[Process]) -> None:
        """Forms the next ring, when all that are left of this one have asked for it.

        Args:
            workers: all that were started and not given up.
        """
        asking = [w for w in workers if w.exit_code is None and self.asks(w)]
        if not asking:
            return
        left = [worker for worker in workers if worker.exit_code is None and not self.is_newcomer(worker)]
        if left and all(worker in asking for worker in left):
            self._form(asking)
        elif self.generation:
            self._control.values["/mxtrain/wanted"] = str(self.generation + 1).encode()

    def is_newcomer(self, worker: Process) -> bool:
        """Returns True if it has not been in a ring yet, while others have."""
        return self.generation > 0 and worker not in self._members

    def asks(self, worker: Process) -> bool:
        """Returns True if it has asked for the next ring."""
        return bool(worker.last_heartbeat["generation"] > self.generation)

    def close(self) -> None:
        """Ends the servers."""
        self._control.close()
        if self._rendezvous is not None:
            self._rendezvous.close()

    def _form(self, workers: List[Process]) -> None:
        if self._rendezvous is not None:
            self._rendezvous.close()
        self._rendezvous = KeyValueServer(self._host)
        self.generation += 1
        self._members = list(workers)
        workers = sorted(workers, key=lambda worker: int(worker.spec.number))
        hosts = [worker.host for worker in workers]
        names = list(dict.fromkeys(hosts))
        on_host: Counter[str] = Counter()
        places: Dict[str, Dict[str, str]] = {}
        for rank, (worker, host) in enumerate(zip(workers, hosts)):
            local_rank = on_host[host]
            on_host[host] += 1
            beside = [name for name in names if hosts.count(name) > local_rank]
            places[str(worker.spec.number)] = {
                "HOROVOD_RANK": str(rank), "HOROVOD_SIZE": str(len(workers)), "HOROVOD_HOSTNAME": host,
                "HOROVOD_LOCAL_RANK": str(local_rank), "HOROVOD_LOCAL_SIZE": str(hosts.count(host)),
                "HOROVOD_CROSS_RANK": str(beside.index(host)), "HOROVOD_CROSS_SIZE": str(len(beside)),
            }  # fmt: skip
        variables = {
            "HOROVOD_GLOO_RENDEZVOUS_PORT": str(self._rendezvous.port),
            "HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo",
            "HOROVOD_FUSION_THRESHOLD": "0",  # our buckets as they are: the order of sums must not depend on time
        }  # fmt: skip
        if self._interface is not None:
            variables["HOROVOD_GLOO_IFACE"] = self._interface
        word = {"generation": self.generation, "places": places, "variables": variables}
        self._control.values["/mxtrain/next"] = json.dumps(word).encode()


class KeyValueServer:
    """Keeps bytes under a path for whoever is the same user on this machine; a value that was set stays.

    Args:
        host: the address on which it listens.
        writable: True if other processes may set values.
    """

    def __init__(self, host: str, writable: bool = True):
        self.values: Dict[str, bytes] = {}
        lock = threading.Lock()
        values, only_own = self.values, host == LOOPBACK

        class Handler(BaseHTTPRequestHandler):
            timeout = 5

            def do_GET(self) -> None:
                value = values.get(self.path)
                self._answer(404 if value is None else 200, value or b"")

            def do_PUT(self) -> None:
                length = self.headers.get("Content-Length", "")
                if not writable or not length.isdigit() or int(length) > MAX_BYTES:
                    self._answer(403)
                    return
                value = self.rfile.read(int(length))
                with lock:
                    is_new = values.setdefault(self.path, value) == value
                self._answer(200 if is_new else 409)

            def do_DELETE(self) -> None:
                self._answer(200)  # Gloo is done with it; the server ends with its generation

            def _answer(self, code: int, value: bytes = b"") -> None:
                self.send_response(code)
                self.send_header("Content-Length", str(len(value)))
                self.end_headers()
                self.wfile.write(value)

            def log_message(self, *_: object) -> None:
                """Prints nothing."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def server_bind(self) -> None:
                TCPServer.server_bind(self)  # HTTPServer's asks for the name of the address, and may wait for that

            def handle_error(self, request: object, client_address: object) -> None:
                """Ignores the error: a client went away."""

            def verify_request(self, request: object, client_address: Any) -> bool:
                return not only_own or peer_user(*client_address[:2]) == os.getuid()

        self._server = Server((host, 0), Handler)
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        """Ends it."""
        self._server.shutdown()
        self._server.server_close()


def peer_user(address: str, port: int) -> Optional[int]:
    """The user id of the process on this machine that has a TCP connection from `address`:`port`; None: not known, or
    it has hung up. The kernel says of such a connection, which has no inode any more, that it is root's."""
    reversed_hex = "".join(f"{int(part):02X}" for part in reversed(address.split(".")))
    wanted = f"{reversed_hex}:{port:04X}"
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[1] == wanted and fields[9] != "0":
            return int(fields[7])
    return None
