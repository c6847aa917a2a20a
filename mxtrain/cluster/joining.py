"""Connects processes that were started by another launcher, and limits their waits.

A supervisor of mxtrain limits the start of its processes itself. ps-lite resolves no names. If the scheduler or another
process is missing, it waits forever without a message and does not react to signals.

Host names are resolved here and retried until `cluster.start_timeout`, because a name of Kubernetes exists only when
its pod does. Servers and the scheduler count TCP connections in /proc/net/tcp, because ps-lite does not report when all
processes have connected.
"""

from __future__ import annotations

import errno
import os
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, List, Mapping, MutableMapping, Optional

from mxtrain.cluster.heartbeat import HEARTBEAT
from mxtrain.cluster.hosts import is_own_address
from mxtrain.cluster.member import Member
from mxtrain.cluster.supervisor import say
from mxtrain.errors import EXIT_CRASHED, ConfigError, MxtrainError
from mxtrain.runtime.network import ipv4_of

if TYPE_CHECKING:
    from mxtrain.kvstore.spec import KVStore
    from mxtrain.kvstore.store import Store
    from mxtrain.kvstore.world import World

FIRST_LINE_S, NEXT_LINE_S = 3.0, 30.0
"""Seconds until the first message about a wait, and between two messages."""
POLL_S = 0.25
_PROBE_S = 2.0
ADDRESS, PORT, NODE = "DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT", "DMLC_NODE_HOST"
_ESTABLISHED = "01"
"""State of a TCP connection in /proc/net/tcp."""


class NotJoined(MxtrainError):
    """The processes of a run have not found each other within `cluster.start_timeout`."""


class Wait:
    """Reports a wait, and ends it after a time.

    Args:
        text: what is waited for, as a sentence without its full stop.
        timeout_s: `cluster.start_timeout`.
    """

    def __init__(self, text: str, timeout_s: float):
        self._text, self._timeout_s = text, timeout_s
        self._begun = time.monotonic()
        self._next_line_s = FIRST_LINE_S

    def check(self, detail: str = "") -> None:
        """Prints a line if one is due.

        Args:
            detail: the present state, for the message.

        Raises:
            NotJoined: the time is over.
        """
        waited_s = time.monotonic() - self._begun
        text = f"{self._text}{detail and f' ({detail})'}"
        if waited_s > self._timeout_s:
            raise NotJoined(f"{text}: given up after cluster.start_timeout={self._timeout_s:g} s")
        if waited_s > self._next_line_s:
            self._next_line_s = waited_s + NEXT_LINE_S
            with suppress(OSError):  # the reader of stderr has ended
                say(f"{text}, for at most {self._timeout_s:g} s (cluster.start_timeout)")


def find_scheduler(member: Member, timeout_s: float, environ: MutableMapping[str, str] = os.environ) -> None:
    """Resolves the scheduler's name, and waits until it listens; as the scheduler, verifies that it can listen.

    ps-lite gets addresses: names in the environment are replaced.

    Args:
        member: role and rank of this process.
        timeout_s: `cluster.start_timeout`.
        environ: environment variables.

    Raises:
        ConfigError: a variable is missing or wrong, or another program uses the port.
        NotJoined: the name has no address, or nothing listens there, for the whole time.
    """
    # A supervisor limits the start itself, and Unix sockets have no port to wait for.
    if environ.get("DMLC_LOCAL") == "1" or HEARTBEAT.has_listener:
        return
    name = name_of(member)
    host, port = environ.get(ADDRESS, ""), environ.get(PORT, "")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ConfigError(
            f"{ADDRESS}={host} and {PORT}={port} in the environment of {name}: must be the scheduler's host and port."
        )
    if ":" in host:
        raise ConfigError(f"{ADDRESS}={host}: ps-lite needs an IPv4 address, or a name that has one.")
    address_of = f"{name} waits for an IPv4 address of"
    environ[ADDRESS] = _resolve(host, Wait(f"{address_of} the scheduler's host {host}", timeout_s))
    if environ.get(NODE):
        node = environ[NODE]
        environ[NODE] = _resolve(node, Wait(f"{address_of} {NODE}={node}", timeout_s))
    # A name of Kubernetes may lead to the pod of an earlier attempt for some seconds.
    is_name = environ[ADDRESS] != host
    if member.role == "scheduler":
        wait = Wait(f"{name} waits until {host} is an address of this machine", timeout_s)
        while is_name and not environ.get(NODE) and not is_own_address(environ[ADDRESS]):
            wait.check(environ[ADDRESS])
            _resolve_again(host, environ)
        # ps-lite would fail on the same address, with an error that names neither address nor reason.
        _require_free(environ.get(NODE) or environ[ADDRESS], int(port), environ[ADDRESS])
        return
    wait = Wait(f"{name} waits for the scheduler at {host}:{port}", timeout_s)
    while not _listens(environ[ADDRESS], int(port)):
        wait.check()
        _resolve_again(host, environ)


def name_of(member: Member) -> str:
    """Returns the name of a process in messages."""
    return f"worker {member.world.rank}" if member.role == "worker" else f"this {member.role}"


def connect_store(kvstore: KVStore, world: World, timeout_s: float) -> Store:
    """Builds a gradient store, which waits for the other processes of the run.

    The store is built in another thread, so that signals end this process and the time is limited. If a supervisor of
    mxtrain does both, it is built in this thread.

    Args:
        kvstore: description of the store.
        world: rank and number of workers.
        timeout_s: `cluster.start_timeout`.

    Raises:
        NotJoined: another process has not connected within this time.
    """
    if HEARTBEAT.has_listener or not kvstore.distributed:
        return kvstore.build(world)
    built: List[Store] = []
    failed: List[BaseException] = []

    def build() -> None:
        try:
            built.append(kvstore.build(world))
        except BaseException as error:
            failed.append(error)

    # Not "mxtrain-": a worker that gives up leaves it waiting until the process ends.
    thread = threading.Thread(target=build, name="connect", daemon=True)
    thread.start()
    name = name_of(Member("worker", world))
    wait = Wait(f"{name} waits for the other processes of the run ({_expected()})", timeout_s)
    while thread.is_alive():
        thread.join(POLL_S)
        if thread.is_alive():
            wait.check()
    if failed:
        raise failed[0]
    return built[0]


def _expected(environ: Mapping[str, str] = os.environ) -> str:
    if "DMLC_NUM_WORKER" not in environ:
        return "all workers"
    return f"{environ['DMLC_NUM_WORKER']} workers, {environ.get('DMLC_NUM_SERVER', '?')} servers, a scheduler"


class JoinWatch:
    """Ends a scheduler or server if other processes of its run do not connect; its main thread is inside MXNet.

    The kernel's list of TCP connections shows if all are connected: the scheduler has both ends of a connection to
    itself, and one from each process; a server gets connections to the workers only when all processes are known.

    Args:
        role: scheduler or server.
        timeout_s: `cluster.start_timeout`.
        environ: environment variables.
    """

    def __init__(self, role: str, timeout_s: float, environ: Mapping[str, str] = os.environ):
        self._is_local = environ.get("DMLC_LOCAL") == "1" or HEARTBEAT.has_listener
        self._role, self._timeout_s = role, timeout_s
        workers, servers = int(environ.get("DMLC_NUM_WORKER") or 0), int(environ.get("DMLC_NUM_SERVER") or 0)
        self._needed = 2 + workers + servers if role == "scheduler" else 1 + workers
        self._has_joined = self._is_local

    def has_joined(self) -> bool:
        """Returns True once all processes of the run are connected."""
        self._has_joined = self._has_joined or count_connections() >= self._needed
        return self._has_joined

    def start(self) -> None:
        """Watches in a thread until all processes are connected."""
        if not self._is_local:
            threading.Thread(target=self._watch, name="join-watch", daemon=True).start()

    def _watch(self) -> None:
        wait = Wait(f"this {self._role} waits for the other processes of the run ({_expected()})", self._timeout_s)
        while not self.has_joined():
            try:
                wait.check(f"{count_connections()} connections")
            except NotJoined as error:
                with suppress(OSError):
                    say(f"error: {error}")
                # The main thread is inside MXNet and cannot be interrupted.
                os._exit(EXIT_CRASHED)
            time.sleep(POLL_S)


def count_connections() -> int:
    """Returns the number of established TCP connections of this process, incoming and outgoing."""
    own = set()
    for link in Path("/proc/self/fd").glob("*"):
        with suppress(OSError):
            own.add(os.readlink(link))
    # The list has all connections of the network namespace; those of this process are found by their inodes.
    lines = Path("/proc/self/net/tcp").read_text().splitlines()[1:]
    fields = [line.split() for line in lines]
    return sum(words[3] == _ESTABLISHED and f"socket:[{words[9]}]" in own for words in fields)


def _resolve(host: str, wait: Wait) -> str:
    while True:
        try:
            return ipv4_of(host)
        except OSError as error:  # a name of Kubernetes exists only when its pod does
            wait.check(error.strerror or str(error))
            time.sleep(POLL_S)


def _resolve_again(host: str, environ: MutableMapping[str, str]) -> None:
    time.sleep(POLL_S)
    with suppress(OSError):
        environ[ADDRESS] = ipv4_of(host)


def _listens(address: str, port: int) -> bool:
    # The connection is closed without a message; ZeroMQ drops it.
    with suppress(OSError), socket.create_connection((address, port), timeout=_PROBE_S):
        return True
    return False


def _require_free(address: str, port: int, root: Optional[str]) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # Otherwise connections of an earlier run in TIME_WAIT would make the port look occupied.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                raise ConfigError(
                    f"the scheduler cannot listen on {address}: it is no address of this machine. Start the scheduler "
                    f"on the host of {ADDRESS}={root}, or set {NODE} to an address of this machine that leads there."
                ) from None
            reason = "another program listens there" if error.errno == errno.EADDRINUSE else error.strerror
            raise ConfigError(
                f"the scheduler cannot listen on {address}:{port}: {reason}. Set {PORT} to a free port, the same for "
                "all processes."
            ) from None
