"""A worker's client for embedding tables on servers. Row `id` is on server `id % servers`.

The loader's thread requests the rows of a batch ahead (`pull`, over its own connections) while earlier steps compute.
Before the step of the batch, `refresh` fetches the rows that have changed since: by this worker's own updates and, with
a synchronous store, by the updates of all workers.

Legend: K ids, S units of all tables of a group together.
"""

from __future__ import annotations

import json
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterator, List, Mapping, Sequence, Tuple

import numpy as np

from mxtrain.kvstore import table_wire
from mxtrain.kvstore.table_wire import Connection, Header, TableServerLost, TableSetUp

LOST_WAIT_S = 10.0
"""Wait before a worker fails because a server was lost, so that the supervisor reports the server first."""


@dataclass
class PulledRows:
    """Rows at a certain version.

    Attributes:
        row_KS: rows of all tables of a group, concatenated along the units.
        versions: for each server, the number of updates that its rows include.
    """

    row_KS: np.ndarray
    versions: List[int]


class TableClient:
    """Reads and updates tables on servers for one worker.

    Args:
        connections: connection to each server, in the same order on all workers.
        ahead: connection to each server for the loader's thread. With its own connections it does not wait for answers
            to the training thread.
    """

    def __init__(self, connections: Sequence[Connection], ahead: Sequence[Connection]):
        self._connections, self._ahead = list(connections), list(ahead)
        self._lock, self._ahead_lock = threading.Lock(), threading.Lock()
        self._waits, self._dtype = False, "float32"
        self._widths: List[int] = []
        self._pushes: List[int] = []
        self.moves_all = True
        """True if an update changes all rows, so that rows cannot be requested in advance."""

    @property
    def num_servers(self) -> int:
        return len(self._connections)

    def summary(self) -> Dict[str, float]:
        """Returns the megabytes that this worker has sent and received so far, by TensorBoard tag."""
        connections = [*self._connections, *self._ahead]
        return {
            "perf/tables_sent_MB": sum(connection.sent for connection in connections) / 1e6,
            "perf/tables_received_MB": sum(connection.received for connection in connections) / 1e6,
        }

    def set_up(self, settings: Mapping[str, Any], is_first: bool) -> None:
        """Defines the tables; worker 0 sends the definition to the servers.

        All workers must then wait for worker 0, for example at a barrier, before they pull or push.

        Args:
            settings: fields of `TableSetUp` except for `number` and `servers`.
            is_first: True on worker 0.
        """
        set_ups = [
            TableSetUp(number=number, servers=self.num_servers, **settings) for number in range(self.num_servers)
        ]
        first = set_ups[0]
        self._waits, self._dtype = first.waits, first.dtype
        self._widths = [sum(table.units for table in group.tables) for group in first.groups]
        self._pushes = [0] * len(first.groups)
        if is_first:
            blobs = [message.model_dump_json().encode() for message in set_ups]
            self._exchange(
                lambda s: (Header(table_wire.SET_UP, count=len(blobs[s])), blobs[s]), lambda s, c, header: None
            )

    def read_server_notes(self) -> None:
        """Asks the servers whether an update changes all rows, and sets `moves_all`. Call it after `set_up` and waiting
        for worker 0."""
        self.moves_all = any(note["moves_all"] for note in self.notes(0)) if self._widths else True

    # A step.

    def pull(self, group: int, id_K: np.ndarray, ahead: bool = False) -> PulledRows:
        """Reads rows of a group of tables.

        Args:
            group: number of the group.
            id_K: ids in ascending order.
            ahead: True in the loader's thread: returns the current rows. Otherwise the servers first wait for all
                updates that this worker took part in.
        """
        parts = self._parts(id_K)
        rows = PulledRows(np.empty((len(id_K), self._widths[group]), self._dtype), [0] * self.num_servers)
        # Any version will do ahead of time, because `refresh` replaces all rows that have changed since.
        min_updates = 0 if ahead else self._min_updates(group)

        def take(server: int, connection: Connection, header: Header) -> None:
            rows.row_KS[parts[server][0]] = connection.read_array((header.count, rows.row_KS.shape[1]), self._dtype)
            rows.versions[server] = header.version

        self._exchange(
            lambda s: (Header(table_wire.PULL, group, count=len(parts[s][1]), least=min_updates), parts[s][1]),
            take,
            ahead,
        )
        return rows

    def refresh(self, group: int, id_K: np.ndarray, pulled: PulledRows) -> None:
        """Updates rows that were pulled ahead, in place, to the version after all updates of this worker."""
        parts, min_updates = self._parts(id_K), self._min_updates(group)

        def take(server: int, connection: Connection, header: Header) -> None:
            position_M = connection.read_array((header.count,), "<i4")
            row_MS = connection.read_array((header.count, pulled.row_KS.shape[1]), self._dtype)
            pulled.row_KS[parts[server][0][position_M]] = row_MS

        def request(server: int) -> Tuple[Any, ...]:
            # Sending the ids again costs 4 bytes per row; otherwise a server would have to remember the requests of all
            # workers.
            local_K = parts[server][1]
            version = pulled.versions[server]
            header = Header(table_wire.REFRESH, group, count=len(local_K), version=version, least=min_updates)
            return header, local_K

        self._exchange(request, take)

    def push(self, group: int, id_K: np.ndarray, gradient_KS: np.ndarray, lr: float, factor: float) -> None:
        """Sends this worker's gradients; does not wait. With a synchronous store all workers must push in each step.

        Args:
            group: number of the group.
            id_K: ids in ascending order.
            gradient_KS: gradients of the mean loss over the global batch; with an asynchronous store, over this
                worker's share.
            lr: learning rate.
            factor: factor of the sum over workers before the update.
        """
        self._pushes[group] += 1
        with self._lock, explain_lost_server():
            for connection, (position, local) in zip(self._connections, self._parts(id_K)):
                header = Header(table_wire.PUSH, group, count=len(local), lr=lr, factor=factor)
                connection.send(header, local, np.ascontiguousarray(gradient_KS[position]))

    def synchronize(self) -> None:
        """Waits until the servers have applied all gradients of this worker, by refreshing no rows."""
        for group in range(len(self._widths)):
            self.refresh(
                group,
                np.zeros(0, np.int64),
                PulledRows(np.zeros((0, self._widths[group]), self._dtype), [0] * self.num_servers),
            )

    # Checkpoints.

    def read(self, group: int, array: int, begin: int, end: int, width: Tuple[int, ...], dtype: str) -> np.ndarray:
        """Reads rows [begin, end) of an array (a table, or optimizer state) of a group, after all updates so far.

        Args:
            group: number of the group.
            array: number of the array in the group.
            begin, end: range of rows.
            width: shape of a row.
            dtype: dtype of the array.
        """
        array_rows = np.empty((end - begin, *width), dtype)
        firsts = self._firsts(begin)

        def request(server: int) -> Tuple[Any, ...]:
            first = firsts[server]
            count = len(range(first, end, self.num_servers))
            return (Header(table_wire.READ, group, array, count, first // self.num_servers, self._min_updates(group)),)

        def take(server: int, connection: Connection, header: Header) -> None:
            rows = connection.read_array((header.count, *width), dtype)
            array_rows[firsts[server] - begin :: self.num_servers] = rows

        self._exchange(request, take)
        return array_rows

    def write(self, group: int, array: int, begin: int, values: np.ndarray) -> None:
        """Replaces the rows of an array from `begin` on; does not wait."""
        with self._lock, explain_lost_server():
            for connection, first in zip(self._connections, self._firsts(begin)):
                rows = np.ascontiguousarray(values[first - begin :: self.num_servers])
                header = Header(table_wire.WRITE, group, array, len(rows), first // self.num_servers)
                connection.send(header, rows)

    def notes(self, group: int, looks: bool = False) -> List[Dict[str, Any]]:
        """Returns the notes of all servers about their rows; see `GroupShard.note`."""
        server_notes: List[Dict[str, Any]] = [{} for _ in self._connections]

        def take(server: int, connection: Connection, header: Header) -> None:
            server_notes[server] = json.loads(bytes(connection.read(header.count)))

        self._exchange(lambda s: (Header(table_wire.NOTE, group, int(looks), least=self._min_updates(group)),), take)
        return server_notes

    def restore_numbers(self, group: int, numbers: Mapping[str, Any]) -> None:
        """Sends the optimizer's numbers of a checkpoint, and waits until all earlier writes are done too."""
        text = json.dumps(numbers).encode()
        self._exchange(lambda s: (Header(table_wire.COUNT, group, count=len(text)), text), lambda s, c, header: None)

    def last(self, group: int) -> Tuple[np.ndarray, np.ndarray]:
        """Returns ids and gradients of the last update; with a synchronous store, summed over all workers."""
        ids: List[np.ndarray] = []
        gradients: List[np.ndarray] = []

        def take(server: int, connection: Connection, header: Header) -> None:
            local = connection.read_array((header.count,), "<i4").astype(np.int64)
            ids.append(local * self.num_servers + server)
            gradients.append(connection.read_array((header.count, self._widths[group]), self._dtype))

        self._exchange(lambda s: (Header(table_wire.LAST, group, least=self._min_updates(group)),), take)
        return np.concatenate(ids), np.concatenate(gradients)

    def close(self) -> None:
        """Closes all connections."""
        for connection in (*self._connections, *self._ahead):
            connection.close()

    # The connections.

    def _min_updates(self, group: int) -> int:
        return self._pushes[group] if self._waits else 0

    def _parts(self, id_K: np.ndarray) -> List[Tuple[np.ndarray, np.ndarray]]:
        """Returns for each server the positions of its ids in `id_K`, and their row numbers on the server."""
        local_K, server_K = np.divmod(id_K, self.num_servers)
        local_K = local_K.astype("<i4")
        parts = []
        for server in range(self.num_servers):
            position = np.flatnonzero(server_K == server)
            parts.append((position, local_K[position]))
        return parts

    def _firsts(self, begin: int) -> List[int]:
        """Returns for each server its first row from `begin` on."""
        return [begin + (server - begin) % self.num_servers for server in range(self.num_servers)]

    def _exchange(
        self,
        message: Callable[[int], Tuple[Any, ...]],
        take: Callable[[int, Connection, Header], None],
        ahead: bool = False,
    ) -> None:
        """Sends a message to each server before it reads the first answer, so that the servers work in parallel.

        Args:
            message: server -> header and payloads.
            take: reads the answer of a server from its connection.
            ahead: True to use the connections of the loader's thread.
        """
        connections = self._ahead if ahead else self._connections
        with self._ahead_lock if ahead else self._lock, explain_lost_server():
            for server, connection in enumerate(connections):
                header, *payload = message(server)
                connection.send(header, *payload)
            for server, connection in enumerate(connections):
                take(server, connection, connection.receive())


@contextmanager
def explain_lost_server() -> Iterator[None]:
    """Converts a broken connection into an error with advice, after `LOST_WAIT_S`."""
    try:
        yield
    except TableServerLost as error:
        time.sleep(LOST_WAIT_S)
        raise TableServerLost(
            f"a server that holds rows of tables or gives chunks of data has gone: {error}. The same command goes on "
            "from the last checkpoint."
        ) from error


class ServedArray:
    """A table on the servers, or an array of its optimizer state, that is read and written by slices of rows.

    Args:
        client: returns the client; called at the first access, since the client is created later.
        place: (number of the group, number of the array).
        shape: (R, ...), shape of the whole array.
        dtype: name of a NumPy dtype.
    """

    def __init__(self, client: Callable[[], TableClient], place: Tuple[int, int], shape: Tuple[int, ...], dtype: str):
        self._client, self._place = client, place
        self.shape, self.dtype = shape, np.dtype(dtype)

    def move_to(self, group: int) -> None:
        """Sets the number of the group if it was unknown at construction."""
        self._place = (group, self._place[1])

    @property
    def context(self) -> Any:
        """Returns the context of arrays pulled from it."""
        from mxtrain.engine.backend import mx

        return mx.cpu()

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> ServedPiece:
        begin, end, _ = rows.indices(len(self))
        group, array = self._place
        return ServedPiece(self._client().read(group, array, begin, end, self.shape[1:], self.dtype.name))

    def __setitem__(self, rows: slice, values: np.ndarray) -> None:
        begin, end, _ = rows.indices(len(self))
        assert values.shape == (end - begin, *self.shape[1:])
        group, array = self._place
        self._client().write(group, array, begin, np.ascontiguousarray(values, self.dtype))

    def asnumpy(self) -> np.ndarray:
        """Reads all rows into a NumPy array."""
        return self[:].asnumpy()


@dataclass
class ServedPiece:
    """Rows that were read, with the `asnumpy` of an NDArray."""

    rows: np.ndarray

    def asnumpy(self) -> np.ndarray:
        return self.rows
