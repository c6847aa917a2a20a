"""Runs a parameter server. It accepts only commands in JSON of a fixed form."""

from __future__ import annotations

import math
import os
import sys
import threading
import traceback
from typing import TYPE_CHECKING, Callable, Optional, Union

from mxtrain.cluster.node import run_node
from mxtrain.cluster.stopping import SHUTDOWN_TIMEOUT_S
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
        start_timeout_s: see `mxtrain.cluster.node.run_node`.
    """
    return run_node(role, Serving(description_of), start_timeout_s)


class Serving:
    """Answers commands. Until one says that servers update, this server only sums.

    Args:
        description_of: see `serve`.
    """

    def __init__(self, description_of: Callable[[], Description]):
        self._description_of = description_of
        self._server: Optional[UpdateServer] = None

    def __call__(self, store: mx.kv.KVStore, command: int, body: bytes) -> None:
        """See `mxtrain.cluster.node.run_node`."""
        server_command = read_command(body) if command == 0 else None
        if server_command is None:
            print(f"refused the command {command} ({len(body)} bytes): it is none of mxtrain's", flush=True)
            return
        with_exit(lambda: self._carry_out(store, server_command))

    def _carry_out(self, store: mx.kv.KVStore, server_command: ServerCommand) -> None:
        if server_command.begin and self._server is None:
            self._server = self._begin(store)
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

    def _begin(self, store: mx.kv.KVStore) -> UpdateServer:
        description = self._description_of()
        if not description.kvstore.servers_update:
            raise ConfigError(
                f"{description.kvstore.setting} here, and worker 0 was started with a kvstore whose "
                "servers update. Start servers and workers with the same overrides."
            )
        from mxtrain.kvstore.server.update_server import UpdateServer

        server = UpdateServer(description)
        store._set_updater(lambda *call: with_exit(lambda: server.update(*call)))
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
