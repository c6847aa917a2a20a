"""Servers of tables in threads of this process, for tests."""

from __future__ import annotations

import socket
import threading
from types import SimpleNamespace
from typing import Any, List

from in_threads import Rendezvous, ThreadStore

from mxtrain.engine.backend import native_operators
from mxtrain.kvstore.server.table_server import TableServer
from mxtrain.kvstore.table_client import TableClient
from mxtrain.kvstore.table_wire import Connection
from mxtrain.kvstore.world import ALONE, World

OPEN: List[Servers] = []
"""All of a test, which closes them."""


class Servers:
    """Some servers of a run with this optimizer.

    Args:
        optimizer: a description of one.
        count: of servers.
        lazy: what `optimizer.lazy_update` is.

    Attributes:
        raised: what went wrong in them.
    """

    def __init__(self, optimizer: Any, count: int = 2, lazy: bool = False):
        described = optimizer.model_copy(update={"lazy_update": lazy})
        description: Any = SimpleNamespace(optimizer=described, config={"optimizer": optimizer.model_dump()})
        native_operators()  # once: servers are processes, and each asks for them in one thread
        self.servers = [TableServer(description) for _ in range(count)]
        self.raised: List[BaseException] = []
        self._threads: List[threading.Thread] = []
        self._connections: List[Connection] = []
        OPEN.append(self)

    def connection(self, server: TableServer, rank: int) -> Connection:
        here, there = socket.socketpair()

        def serve() -> None:
            try:
                server.answer(Connection(there), rank)
            except BaseException as error:
                self.raised.append(error)
                there.close()

        self._threads.append(threading.Thread(target=serve, daemon=True))
        self._threads[-1].start()
        self._connections.append(Connection(here))
        return self._connections[-1]

    def close(self) -> None:
        for connection in self._connections:
            connection.close()
        for thread in self._threads:
            thread.join(10)

    def client(self, rank: int = 0) -> TableClient:
        return TableClient(*([self.connection(server, rank) for server in self.servers] for _ in range(2)))


class ServedStore(ThreadStore):
    """A worker whose tables are there."""

    def __init__(self, servers: Servers, world: World = ALONE, rendezvous: Any = None):
        super().__init__(world, rendezvous or Rendezvous(1))
        self._client = servers.client(world.rank)

    def connect_tables(self) -> TableClient:
        return self._client
