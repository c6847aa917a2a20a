"""A process that has imported everything and forks for each run, so that a run starts without imports.

    client -- arguments, environment, open files --> server -- fork --> run
       ^------ exit code ------------------------------/                 |
       ^------ process id ------------------------------------------------/

MXNet is imported before the fork, but no operation has run: its engine, which has threads, starts with the first one. A
run is a process of its own, in its own session, and does not end with the server or the client.

Source of the fork without handlers: POSIX.1-2024, _Fork; glibc has it since 2.34.
Reasons: docs/decisions/0155-fork-server.md.
"""

from __future__ import annotations

import atexit
import ctypes
import importlib
import json
import math
import os
import select
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Collection, Dict, List, Mapping, NamedTuple, Optional, Sequence

from mxtrain.cluster.member import FORK_SERVER_FD
from mxtrain.cluster.process import start_child, state_of
from mxtrain.cluster.stopping import WARNINGS
from mxtrain.config.search_path import module_command
from mxtrain.engine.collection import collection_paused
from mxtrain.errors import EXIT_FINISHED

if TYPE_CHECKING:
    from mxtrain.types.annotations import JsonObject

MAX_ORDER_BYTES = 1 << 20
MAX_NAMES_BYTES = 1 << 15
"""Largest size of the names of modules that a run reports: half of the default capacity of a pipe."""
OWN_MODULES = "mxtrain."
POLL_S = 0.1
"""Seconds between two looks at a run whose server has died."""
_TASKS = Path("/proc/self/task")
_MAPS = Path("/proc/self/maps")


class Order(NamedTuple):
    """A run, as the client describes it."""

    arguments: List[str]
    """Arguments of the command line, without the program."""
    environment: Dict[str, str]


# The server.


def take_connection() -> socket.socket:
    """Returns the server's end of the connection."""
    return socket.socket(fileno=int(os.environ.pop(FORK_SERVER_FD)))


def can_fork() -> bool:
    """Returns True if the C library has a fork that calls no handlers."""
    return hasattr(ctypes.CDLL(None), "_Fork")


def serve(connection: socket.socket) -> Order:
    """Forks for each order; returns it in the fork. The server itself never returns: it ends with its client."""
    stop_blas_threads()
    pid = 0
    while True:
        message, files, _, _ = socket.recv_fds(connection, MAX_ORDER_BYTES, 2)
        if pid:  # its id is freed only now, so that the client cannot have signalled another process
            os.waitpid(pid, 0)
        if not message or len(os.listdir(_TASKS)) > 1:
            # Without clean-up, which belongs to the runs. With further threads a fork could find locks held for ever.
            os._exit(EXIT_FINISHED)
        names, reported = os.pipe()
        pid = fork()
        if not pid:
            os.close(names)
            os.set_blocking(reported, False)
            atexit.register(_report_modules, reported, frozenset(sys.modules))
            return _become(connection, json.loads(message), files)
        for file in (*files, reported):  # one of the files locks the run
            os.close(file)
        connection.send(json.dumps({"code": _wait_for_end(pid)}).encode())
        _import_reported(names)


def _report_modules(file: int, before: Collection[str]) -> None:
    """Writes the names of mxtrain's modules that a run has imported since it was forked."""
    names = [name for name in list(sys.modules) if name.startswith(OWN_MODULES) and name not in before]
    with suppress(OSError):  # the server has died, or the pipe holds less
        os.write(file, "\n".join(names).encode()[:MAX_NAMES_BYTES])


def _import_reported(file: int) -> None:
    """Imports the modules that a run has reported, so that further runs need not. A killed run has reported none."""
    os.set_blocking(file, False)  # a process that the run has left behind may keep the pipe open
    with open(file, "rb", buffering=0) as pipe, collection_paused(freeze=True):
        for name in (pipe.read(MAX_NAMES_BYTES) or b"").decode().split():
            with suppress(Exception):  # the name is cut off, or the import fails as in the run, which has said so
                importlib.import_module(name)
    stop_blas_threads()


def _become(connection: socket.socket, order: JsonObject, files: Sequence[int]) -> Order:
    """Makes a fork the process of a run."""
    os.setsid()
    output, kept = files
    for standard in (1, 2):
        os.dup2(output, standard)
    os.close(output)
    os.set_inheritable(kept, True)
    for number in WARNINGS:  # the server ignores them
        signal.signal(number, signal.SIG_DFL)
    sys.argv[1:] = order["arguments"]
    # From now on the client may send signals.
    connection.send(json.dumps({"pid": os.getpid()}).encode())
    connection.close()
    return Order(**order)


def _wait_for_end(pid: int) -> int:
    """Waits for the end of a run, without freeing its id; returns its exit code, negative for a signal."""
    end = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert end is not None
    return end.si_status if end.si_code == os.CLD_EXITED else -end.si_status


def fork() -> int:
    """Forks as `os.fork` does, but without the handlers that C libraries have registered with pthread_atfork.

    MXNet's handlers would start its engine here, and limit the child to one thread. The C library's would release
    locks, so this process must have a single thread.

    Raises:
        OSError: there is no memory for another process.
    """
    python, libc = ctypes.pythonapi, ctypes.PyDLL(None, use_errno=True)
    python.PyOS_BeforeFork()
    pid: int = libc._Fork()
    if pid == 0:
        python.PyOS_AfterFork_Child()
    else:
        python.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(ctypes.get_errno(), "fork failed")
    return pid


def stop_blas_threads() -> None:
    """Ends the threads of all OpenBLAS libraries in this process; each starts them again at the next use.

    That is what OpenBLAS's own handler does before a fork.
    """
    paths = {line.split(maxsplit=5)[5] for line in _MAPS.read_text().splitlines() if "openblas" in line}
    for path in paths:
        with suppress(OSError, AttributeError):  # another file of this name
            ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW).blas_thread_shutdown_()


# The client.


class ForkedProcess:
    """A run that a fork server has started; used like a `subprocess.Popen`.

    Args:
        pid: its process id.
        connection: the client's end of the connection.
    """

    def __init__(self, pid: int, connection: socket.socket) -> None:
        self.pid, self._connection = pid, connection
        self._code: Optional[int] = None

    def wait(self, timeout: Optional[float] = None) -> int:
        """Waits for the end of the run; returns its exit code, negative for a signal.

        Raises:
            subprocess.TimeoutExpired: it still runs after `timeout` seconds.
        """
        end_s = math.inf if timeout is None else time.monotonic() + timeout
        if self._code is None:
            if not select.select([self._connection], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("fork", timeout or 0.0)
            code = receive(self._connection).get("code")
            if code is None:  # the server was killed, and nobody knows the exit code
                code = -signal.SIGKILL
                while state_of(self.pid) not in ("", "Z"):
                    if time.monotonic() >= end_s:
                        raise subprocess.TimeoutExpired("fork", timeout or 0.0)
                    time.sleep(POLL_S)
            self._code = int(code)
        return self._code

    def send_signal(self, number: int) -> None:
        """Sends a signal, if the run has not ended."""
        if self._code is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Sends SIGTERM."""
        self.send_signal(signal.SIGTERM)


class ForkServer:
    """Starts runs with a fork server, which begins with the first run and loads what that one needs.

    Args:
        folder: working folder of the runs; None: the one of this process.
    """

    def __init__(self, folder: Optional[Path] = None) -> None:
        self._folder = folder
        self._process: Optional[subprocess.Popen[bytes]] = None
        self._connection: Optional[socket.socket] = None
        self._has_served = False
        self._is_useless = not can_fork()

    def start(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        variables: Mapping[str, str],
        output: int,
        kept: int,
    ) -> Optional[ForkedProcess]:
        """Starts a run; returns None if the server cannot. The run then has to start as a new process.

        Args:
            arguments: arguments of the command line, without the program.
            environment: variables that all runs share.
            variables: further ones of this run.
            output: open file for its output.
            kept: open file that it keeps.
        """
        if self._is_useless:
            return None
        message: JsonObject = {}
        order = {"arguments": list(arguments), "environment": {**environment, **variables}}
        try:
            with suppress(OSError):  # the server has ended
                if self._connection is None:
                    self._start_server(arguments, environment)
                assert self._connection is not None
                socket.send_fds(self._connection, [json.dumps(order).encode()], [output, kept])
                message = receive(self._connection)
        except BaseException:
            self._stop_server()
            # The fork may be there already: it sends its id before anything else.
            pid = receive(self._connection).get("pid")
            if pid is not None:
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGTERM)
            raise
        if "pid" in message:
            self._has_served = True
            assert self._connection is not None
            return ForkedProcess(int(message["pid"]), self._connection)
        # A server that has served before was killed: the next run starts another.
        self._is_useless = not self._has_served
        self.close()
        return None

    def _start_server(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = start_child(
                [*module_command("mxtrain"), *arguments],
                cwd=self._folder,
                env={**environment, FORK_SERVER_FD: str(theirs.fileno())},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )

    def _stop_server(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def close(self) -> None:
        """Ends the server. A run that it has started goes on."""
        self._stop_server()
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def receive(connection: Optional[socket.socket]) -> JsonObject:
    """Returns the next message of a server or its fork; empty if both have ended."""
    if connection is None:
        return {}
    try:
        message: JsonObject = json.loads(connection.recv(MAX_ORDER_BYTES) or b"{}")
    except ConnectionError:
        return {}
    return message
