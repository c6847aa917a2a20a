"""The processes of a parameter server that don't train: scheduler and servers.

With DMLC_ROLE set, `import mxnet` runs the server and exits, with a command handler that unpickles messages. So MXNet
is imported before DMLC_ROLE is set, and the handler here accepts only commands in JSON of a fixed form.
"""

from __future__ import annotations

import ctypes
import math
import os
import signal
import sys
import threading
import traceback
from typing import TYPE_CHECKING, Callable, Optional, Union

from mxtrain.cluster.joining import JoinWatch
from mxtrain.cluster.member import wait_until_needed
from mxtrain.cluster.stopping import EXIT_CODES, SHUTDOWN_TIMEOUT_S, ending_signals
from mxtrain.errors import EXIT_CRASHED, EXIT_FINISHED, ConfigError, MxtrainError
from mxtrain.kvstore.wire import ServerCommand, read_command

if TYPE_CHECKING:
    import mxnet as mx

    from mxtrain.config.groups import Description  # a server that only sums starts without it
    from mxtrain.kvstore.server.chunk_server import ChunkServer
    from mxtrain.kvstore.server.table_server import TableServer
    from mxtrain.kvstore.server.update_server import UpdateServer
    from mxtrain.kvstore.table_wire import TableCall


def serve(role: str, description_of: Callable[[], Description], start_timeout_s: float = math.inf) -> int:
    """Serves as a scheduler or server until all workers are done; returns the exit code.

    Args:
        role: scheduler or server.
        description_of: returns the run's description; called only by servers that update parameters.
        start_timeout_s: seconds within which all processes must connect, if this one has no supervisor.
    """
    watch = JoinWatch(role, start_timeout_s)
    _end_with_workers(watch.has_joined)
    if role == "scheduler" and os.environ.get("DMLC_NODE_HOST"):
        # ps-lite would listen on every interface, or where its own name leads (to itself: loopback), whatever the
        # node's address is.
        os.environ.pop("DMLC_USE_KUBERNETES", None)
        os.environ["DMLC_PS_ROOT_URI"] = os.environ["DMLC_NODE_HOST"]
    os.environ.pop("DMLC_ROLE", None)
    # MXNet reads it at import. More threads would take cores from workers on the same host.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from mxtrain.engine.backend import mx

    wait_until_needed()
    os.environ["DMLC_ROLE"] = role
    os.umask(0o077)  # other users cannot connect to Unix sockets, which ps-lite creates in /tmp
    watch.start()
    store = mx.kv.create("dist_sync")
    serving = Serving(store, description_of)
    # Kept in a variable, because ctypes frees a callback without references while C++ may still call it.
    controller = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(serving.receive)
    mx.base.check_call(mx.base._LIB.MXKVStoreRunServer(store.handle, controller, None))
    return EXIT_FINISHED


def _end_with_workers(has_joined: Callable[[], bool]) -> None:
    """Ignores the first ending signal, because workers need servers to save; the second one ends this process.

    A thread waits for the signals, because the main thread is inside MXNet. Threads that start later take no signals,
    but those that a library such as OpenBLAS started before do. Python writes signals to a pipe in any thread.
    """
    signals = set(ending_signals())
    reader, writer = os.pipe()
    os.set_blocking(writer, False)  # required by set_wakeup_fd
    for number in signals:
        signal.signal(number, lambda number, frame: None)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)

    def next_signal() -> int:
        while True:
            (number,) = os.read(reader, 1)
            if number in signals:
                return int(number)

    def wait() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
        first = next_signal()
        if not has_joined():
            os._exit(EXIT_CODES[first])
        print(f"{signal.Signals(first).name}: ending with the workers; once more quits at once", flush=True)
        os._exit(EXIT_CODES[next_signal()])

    threading.Thread(target=wait, name="mxtrain-signals", daemon=True).start()


class Serving:
    """Answers commands. Until one says that servers update, this server only sums.

    Args:
        store: MXNet's store.
        description_of: see `serve`.
    """

    def __init__(self, store: mx.kv.KVStore, description_of: Callable[[], Description]):
        self._store, self._description_of = store, description_of
        self._server: Optional[UpdateServer] = None

    def receive(self, command: int, body: Optional[bytes], _: object) -> None:
        """Carries out a command, which MXNet calls in its main thread."""
        server_command = read_command(body or b"") if command == 0 else None
        if server_command is None:
            print(f"refused the command {command} ({len(body or b'')} bytes): it is none of mxtrain's", flush=True)
            return
        with_exit(lambda: self._carry_out(server_command))

    def _carry_out(self, server_command: ServerCommand) -> None:
        if server_command.begin and self._server is None:
            self._server = self._begin()
        if server_command.set_up is not None and self._server is not None:
            self._server.set_up(server_command.set_up)
        if server_command.chunks is not None and self._server is not None:
            self._listen(server_command.chunks, self._server.build_chunk_server())
        if server_command.tables is not None:
            from mxtrain.kvstore.server.table_server import TableServer

            self._listen(server_command.tables, TableServer(self._description_of()))
        if server_command.end:
            # The scheduler may close its sockets before its last answer has left (ZMQ_LINGER is 0), and this process
            # would wait forever.
            last_resort = threading.Timer(SHUTDOWN_TIMEOUT_S, os._exit, [EXIT_FINISHED])
            last_resort.daemon = True
            last_resort.start()

    def _listen(self, call: TableCall, server: Union[ChunkServer, TableServer]) -> None:
        from mxtrain.kvstore.table_link import answer_call

        answer_call(call, lambda connection, rank: with_exit(lambda: server.answer(connection, rank)))

    def _begin(self) -> UpdateServer:
        description = self._description_of()
        if not description.kvstore.servers_update:
            raise ConfigError(
                f"{description.kvstore.setting} here, and worker 0 was started with a kvstore whose "
                "servers update. Start servers and workers with the same overrides."
            )
        from mxtrain.kvstore.server.update_server import UpdateServer

        server = UpdateServer(description)
        self._store._set_updater(lambda *call: with_exit(lambda: server.update(*call)))
        return server


def with_exit(work: Callable[[], None]) -> None:
    """Does work that MXNet's C++ calls, which would swallow an error: the process ends instead."""
    try:
        work()
    except BaseException as error:
        if isinstance(error, MxtrainError):
            print(error, flush=True)
        else:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(error.exit_code if isinstance(error, MxtrainError) else EXIT_CRASHED)
