"""A store for MXNet's synchronous parameter server (`dist_sync`), used only as a sum over workers.

The servers run no optimizer and have no state that could be lost: the value of a key is the sum of the last pushes.
ps-lite delivers waiting messages in any order (its queue is last in, first out), and a server counts pushes, not
workers. So two orderings are enforced here: keys are initialised before a barrier, and pushed only after it; and each
key has one array for its lifetime, by which MXNet's engine orders the rounds of the key.

Reasons: docs/decisions/0011-worker-processes.md.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Dict, List, Optional, Sequence, Tuple

import numpy as np

from mxtrain.engine.backend import mx, nd
from mxtrain.kvstore.compression import Build, Compressor
from mxtrain.kvstore.joined_store import JoinedStore
from mxtrain.kvstore.table_link import join
from mxtrain.kvstore.table_wire import TableCall
from mxtrain.kvstore.wire import write_command
from mxtrain.kvstore.world import World

if TYPE_CHECKING:
    from mxtrain.kvstore.store import Store
    from mxtrain.kvstore.table_client import TableClient

MULTI_PRECISION = 1
"""MXNet's kSetMultiPrecision, a command that its servers answer themselves."""


class DistStore(JoinedStore):
    """A worker's connection to the servers. The constructor waits for scheduler, servers and all workers.

    Args:
        kind: MXNet's name of the store, "dist_sync" or "dist_device_sync".
        world: rank and number of workers.
        by_priority: whether to send keys one by one with priorities, later ones first, for ps-lite's P3.
        compressor: see `JoinedStore`.
    """

    sums_elements_alike = True

    def __init__(self, kind: str, world: World, by_priority: bool = False, compressor: Build = Compressor):
        super().__init__(world, compressor)
        self._by_priority = by_priority
        self._store = create(kind)
        self._tables: Optional[TableClient] = None
        self._num_keys = 0
        self._calls: Dict[int, Tuple[List[int], List[List[nd.NDArray]]]] = {}

    def sum_in_place(self, arrays: Sequence[nd.NDArray]) -> None:
        """Pushes arrays and pulls their sums, with one fixed array per key.

        MXNet orders the pushes and pulls of a key by the pushed array. With a new array in each round, the next push of
        a worker could overtake the last push of another one, and the server, which counts pushes and not workers, would
        add values of different steps.
        """
        if id(arrays[0]) not in self._calls:
            # Keep references to the arrays, so that no other object can get their ids.
            self._calls[id(arrays[0])] = (self._init(arrays), [[array] for array in arrays])
        keys, values = self._calls[id(arrays[0])]
        # Push and pull in one message, which is answered with exactly this round's sum.
        if not self._by_priority:
            self._store.pushpull(keys, values, out=values)
            return
        # Buckets begin with the last layers, so later keys have the first layers, which the next step needs first.
        for key, value in zip(keys, values):
            self._store.pushpull(key, value, out=value, priority=key)

    def exact_sum(self, flat: nd.NDArray) -> nd.NDArray:
        """Gathers the arrays of all workers and adds them in the order of the ranks, so that all get the same bits."""
        return self._gather_by_sum(flat).sum(axis=0)

    def _gather_by_sum(self, flat: nd.NDArray) -> nd.NDArray:
        """See `JoinedStore`. float64 is sent as two float32 halves, since MXNet's servers always add in float32."""
        if flat.dtype != np.float64:
            return super()._gather_by_sum(flat)
        high = flat.astype("float32")
        low = flat - high.astype("float64")
        low = nd.where(low == low, low, nd.zeros_like(low))  # infinity - infinity is NaN
        halves = super()._gather_by_sum(nd.concat(high, low.astype("float32"), dim=0))
        return halves.astype("float64").reshape((self.world.size, 2, flat.size)).sum(axis=1)

    def connect_tables(self) -> TableClient:
        if self._tables is None:
            self._tables = join_servers(self, self._store)
        return self._tables

    def _disconnect(self) -> None:
        if self._tables is not None:
            self._tables.close()
        stop_servers(self._store, self.world)
        del self._store

    def _init(self, arrays: Sequence[nd.NDArray]) -> List[int]:
        """Creates keys for arrays of these shapes. Returns only when all workers have called it."""
        keys = list(range(self._num_keys, self._num_keys + len(arrays)))
        self._num_keys += len(arrays)
        if self.world.rank == 0 and any(array.dtype == np.float16 for array in arrays):
            # Makes servers add float16 in float32; MXNet's own flag for this is never set. It is sent before rank 0
            # initialises the keys, so before any worker pushes.
            self._store._send_command_to_servers(MULTI_PRECISION, "")
        self._store.init(keys, [nd.zeros_like(array) for array in arrays])
        return keys


def join_servers(store: Store, connection: mx.kv.KVStore) -> TableClient:
    """Connects a worker to the servers for embedding tables. Collective."""

    def command(call: TableCall) -> None:
        connection._send_command_to_servers(0, write_command(tables=call))

    return join(store.world.rank, store.broadcast, command)


_CONNECTED: List[mx.kv.KVStore] = []
"""Connected stores. The destructor of a store waits for all other workers, so a worker whose start fails must not
release its store: it keeps the reference here until the process ends without destructors."""


def stop_servers(store: mx.kv.KVStore, world: World) -> None:
    """Ends the servers. The caller must delete the store next: a server ends when all workers have done so."""
    nd.waitall()
    _CONNECTED[:] = [other for other in _CONNECTED if other is not store]
    if world.rank == 0:
        store._send_command_to_servers(0, write_command(end=True))


def create(kind: str) -> mx.kv.KVStore:
    """Creates and connects MXNet's store of this kind.

    ps-lite creates Unix sockets in /tmp, with the permissions that the umask leaves: other users cannot connect.
    """
    previous_umask = os.umask(0o077) if os.environ.get("DMLC_LOCAL") == "1" else None
    try:
        _CONNECTED.append(mx.kv.create(kind))
        return _CONNECTED[-1]
    finally:
        if previous_umask is not None:
            os.umask(previous_umask)
