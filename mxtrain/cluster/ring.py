"""The supervisor's side of an elastic ring of workers (Horovod with Gloo): membership and rendezvous.

    workers ask for the next generation in their heartbeats -> all remaining members have asked -> ranks -> rendezvous

Gloo exchanges addresses through an HTTP key-value server. Each generation of the ring has its own server, so that
members of an earlier generation cannot interfere.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from typing import Any, Dict, List, Optional, Sequence, Tuple

from mxtrain.cluster.process import Process
from mxtrain.runtime.network import LOOPBACK

MAX_BYTES = 1 << 16
"""The largest size of one value; Gloo's addresses have some hundreds."""
_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, _ESTABLISHED = 4, 20, 1, 1
"""Numbers of the kernel's headers netlink.h, sock_diag.h and tcp_states.h."""


class Ring:
    """The workers that all-reduce gradients together.

    Args:
        host: the address on which the servers listen.
        interface: the network interface for the all-reduce; None: the one that leads to `host`.
        elastic: False if the members cannot go on without a lost one.
    """

    def __init__(self, host: str = LOOPBACK, interface: Optional[str] = None, elastic: bool = True):
        self.elastic = elastic
        self._host, self._interface = host, interface
        self._control = KeyValueServer(host, writable=False)
        self._rendezvous: Optional[KeyValueServer] = None
        self._members: List[Process] = []
        self.generation = 0
        """The generation of the last ring that was formed; 0: none yet."""

    @property
    def address(self) -> str:
        """Returns host:port of the control server, for the workers."""
        return f"{self._host}:{self._control.port}"

    def begin(self) -> None:
        """Resets the ring. Called before all workers are started again."""
        self.generation, self._members = 0, []
        self._control.values.clear()

    def update(self, workers: Sequence[Process], waits: bool = False) -> None:
        """Forms the next generation once all remaining members of the current one have asked for it.

        Args:
            workers: all workers that were started and not given up.
            waits: True if a lost worker is replaced first, so that the number of workers stays the same.
        """
        asking = [w for w in workers if w.exit_code is None and self.asks(w)]
        if not asking:
            return
        remaining = [worker for worker in workers if worker.exit_code is None and not self.is_newcomer(worker)]
        if remaining and all(worker in asking for worker in remaining):
            if not waits:
                self._form(asking)
        elif self.generation:
            # A newcomer waits. Rank 0 polls this value, and all members then leave the ring between two steps.
            self._control.values["/mxtrain/wanted"] = str(self.generation + 1).encode()

    def is_newcomer(self, worker: Process) -> bool:
        """Returns True if a ring exists and the worker has not been a member yet."""
        return self.generation > 0 and worker not in self._members

    def asks(self, worker: Process) -> bool:
        """Returns True if the worker has asked for the next generation."""
        return bool(worker.last_heartbeat["generation"] > self.generation)

    def close(self) -> None:
        """Stops the servers."""
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
            cross_hosts = [name for name in names if hosts.count(name) > local_rank]
            places[str(worker.spec.number)] = {
                "HOROVOD_RANK": str(rank),
                "HOROVOD_SIZE": str(len(workers)),
                "HOROVOD_HOSTNAME": host,
                "HOROVOD_LOCAL_RANK": str(local_rank),
                "HOROVOD_LOCAL_SIZE": str(hosts.count(host)),
                "HOROVOD_CROSS_RANK": str(cross_hosts.index(host)),
                "HOROVOD_CROSS_SIZE": str(len(cross_hosts)),
            }
        variables = {
            "HOROVOD_GLOO_RENDEZVOUS_PORT": str(self._rendezvous.port),
            "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_CPU_OPERATIONS": "gloo",
            # Without fusion Horovod reduces our buckets as they are. Fusion depends on timing, and so would the order
            # of the sums and their last bits.
            "HOROVOD_FUSION_THRESHOLD": "0",
        }
        if self._interface is not None:
            variables["HOROVOD_GLOO_IFACE"] = self._interface
        reply = {"generation": self.generation, "places": places, "variables": variables}
        self._control.values["/mxtrain/next"] = json.dumps(reply).encode()


class KeyValueServer:
    """HTTP server of bytes by path. A value that was set cannot be changed.

    On the loopback address it serves only processes of the same user.

    Args:
        host: the address on which it listens.
        writable: whether other processes may set values.
    """

    def __init__(self, host: str, writable: bool = True):
        self.values: Dict[str, bytes] = {}
        lock = threading.Lock()
        values, only_own = self.values, host == LOOPBACK

        class Handler(BaseHTTPRequestHandler):
            # A client that sends nothing must not occupy its thread forever.
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
                    # The first value stays; Horovod's own server would let anyone overwrite the addresses of others.
                    is_new = values.setdefault(self.path, value) == value
                self._answer(200 if is_new else 409)

            def do_DELETE(self) -> None:
                self._answer(200)  # Gloo deletes its keys at the end; this server ends with its generation anyway

            def _answer(self, code: int, value: bytes = b"") -> None:
                self.send_response(code)
                self.send_header("Content-Length", str(len(value)))
                self.end_headers()
                self.wfile.write(value)

            def log_message(self, *_: object) -> None:
                """Prints nothing."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            # With the default of 5, ten workers that connect at the same time formed a ring in 8 to 12 s: the kernel
            # drops further connections, and tries them again after 1 s.
            request_queue_size = 1024

            def server_bind(self) -> None:
                TCPServer.server_bind(self)  # HTTPServer.server_bind also looks up the host name, which may block

            def handle_error(self, request: object, client_address: object) -> None:
                """Ignores the error: a client went away."""

            def verify_request(self, request: Any, client_address: object) -> bool:
                return not only_own or peer_user(request) == os.getuid()

        self._server = Server((host, 0), Handler)
        self.port = int(self._server.server_address[1])
        # A short polling interval, because `shutdown` waits for the end of one.
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        """Stops the server."""
        self._server.shutdown()
        self._server.server_close()


def peer_user(connection: socket.socket) -> Optional[int]:
    """Returns the user id of the process on this machine at the other end of a TCP connection over IPv4.

    Returns None if it is unknown or that end is closed: the kernel lists closed connections under root. The first way
    needs the kernel's sock_diag, the second one /proc.
    """
    try:
        client, server = connection.getpeername(), connection.getsockname()
    except OSError:  # that end has reset the connection
        return None
    # /proc/net/tcp takes 5 ms, because the kernel walks through its whole table, and a ring of 3 workers makes
    # 116 requests.
    user = _ask_kernel(client, server)
    return _read_table(client, server) if user is None else user


def _ask_kernel(client: Tuple[str, int], server: Tuple[str, int]) -> Optional[int]:
    """Returns the user of the open socket of a client, or None if the kernel does not answer (sock_diag(7))."""
    own, other = (socket.inet_aton(host) + bytes(12) for host, _ in (client, server))
    any_interface, any_cookie = 0, 0xFFFFFFFF
    query = struct.pack("=BBBBI", socket.AF_INET, socket.IPPROTO_TCP, 0, 0, 0xFFFFFFFF)
    query += struct.pack("!HH", client[1], server[1]) + own + other
    query += struct.pack("=III", any_interface, any_cookie, any_cookie)
    header = struct.pack("=IHHII", 16 + len(query), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 0, 0)
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as kernel:
            kernel.settimeout(1.0)
            kernel.send(header + query)
            answer, sender = kernel.recvfrom(1 << 13)
    except OSError:  # a sandbox without it
        return None
    if sender[0] != 0 or len(answer) < 88 or struct.unpack_from("=H", answer, 4)[0] != _SOCK_DIAG_BY_FAMILY:
        return None
    state, user, inode = answer[17], *struct.unpack_from("=II", answer, 80)
    return user if state == _ESTABLISHED and inode else None


def _read_table(client: Tuple[str, int], server: Tuple[str, int]) -> Optional[int]:
    """Returns the user of the open socket of a client according to /proc/net/tcp, or None."""

    def hexadecimal(address: Tuple[str, int]) -> str:
        return "".join(f"{int(part):02X}" for part in reversed(address[0].split("."))) + f":{address[1]:04X}"

    try:
        table = Path("/proc/net/tcp").read_text()
    except OSError:  # an error here would end the server, and workers would wait for it
        return None
    addresses = [hexadecimal(client), hexadecimal(server)]
    for line in table.splitlines()[1:]:
        fields = line.split()
        if fields[1:3] == addresses and fields[9] != "0":
            return int(fields[7])
    return None
