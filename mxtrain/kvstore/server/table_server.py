"""Server for rows of large embedding tables and their optimizer state. Workers pull rows and push gradients.

The server uses the same `Updater` as workers use for tables of their own. The update of a row does not depend on other
rows, so the results are equal wherever a row is. A synchronous store sums the gradients of all workers for a step in
the order of their ranks and applies the sum once; an asynchronous one applies each gradient on arrival.

Legend: R rows of this server, K rows of a message, M changed rows of a message, U units of a table, S units of all
tables of a group.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from contextlib import contextmanager
from typing import Any, Callable, Deque, Dict, Iterator, List, Sequence, Tuple

import numpy as np

from mxtrain.config.groups import Description
from mxtrain.config.sparse_tables import is_lazy
from mxtrain.config.specs import shown
from mxtrain.engine.backend import all_finite, mx, nd
from mxtrain.engine.sampled_rows import normal_rows
from mxtrain.errors import ConfigError
from mxtrain.kvstore import table_wire
from mxtrain.kvstore.table_wire import Connection, Header, TableGroup, TableServerLost, TableSetUp, read_json
from mxtrain.optimizer.rows import TouchedRows
from mxtrain.optimizer.updater import Updater

Gradients = Tuple[np.ndarray, np.ndarray, float, float]
"""Ids (K,), gradients (K, S), learning rate and factor of one worker's update."""


class GroupShard:
    """This server's rows of a group of tables, which share an id column.

    Args:
        group: the tables.
        set_up: settings of the run that worker 0 has sent.
        optimizer: an mxnet.optimizer.Optimizer that only this group uses.
        lazy: if True, rows without a gradient do not change.

    Attributes:
        version: number of updates so far.
    """

    def __init__(self, group: TableGroup, set_up: TableSetUp, optimizer: mx.optimizer.Optimizer, lazy: bool):
        self.num_rows = len(range(set_up.number, group.num_rows, set_up.servers))
        self._columns = table_wire.columns_of([table.units for table in group.tables])
        self._dtype, self._waits = set_up.dtype, set_up.waits
        self.width = self._columns[-1][1]
        self.tables: Dict[str, nd.NDArray] = {}
        for table in group.tables:
            shape = (group.num_rows, table.units)
            # The values are those of MXNet's initializer for the whole table, of which only this server's rows are
            # kept.
            drawn = normal_rows(table.seed, table.scale, shape, set_up.number, set_up.servers)
            self.tables[table.name] = nd.array(drawn, ctx=mx.cpu(), dtype=set_up.dtype)
            del drawn  # a table may take most of the memory: do not hold two copies while the next one is drawn
        self._first = next(iter(self.tables.values()))
        self._rows = {name: TouchedRows(array) for name, array in self.tables.items()}
        multipliers = {table.name: (table.lr_mult, table.wd_mult) for table in group.tables}
        self.trained = {name: array for name, array in self.tables.items() if multipliers[name][0]}
        self._updater = Updater(optimizer, self.trained, multipliers, self._rows, lazy)
        self._touched_R = np.zeros(self.num_rows, np.uint32)
        """Number of the last update that changed each row."""
        self.version = 0
        self._waiting: Dict[int, Deque[Gradients]] = {rank: deque() for rank in range(set_up.workers)}
        self._last: Tuple[np.ndarray, np.ndarray] = (np.zeros(0, np.int32), np.zeros((0, self.width), set_up.dtype))

    def pull(self, id_K: np.ndarray) -> np.ndarray:
        """Returns the rows with these ids, (K, S): the units of all tables side by side."""
        found = np.empty((len(id_K), self.width), self._dtype)
        if len(id_K):
            rows = TouchedRows(self._first)
            rows.set(id_K)
            for (begin, end), table in zip(self._columns, self.tables.values()):
                found[:, begin:end] = rows.gather(table).asnumpy()
        return found

    def changed(self, id_K: np.ndarray, since: int) -> np.ndarray:
        """Returns the positions in `id_K` of the rows that changed after update number `since`."""
        if self._updater.moves_all_rows:
            return np.arange(len(id_K) if self.version > since else 0)
        return np.flatnonzero(self._touched_R[id_K] > since)

    def push(self, rank: int, given: Gradients) -> None:
        """Takes a worker's gradients and updates: at once, or when all workers have sent theirs for the step."""
        if not self._waits:
            self._update(given)
            return
        self._waiting[rank].append(given)
        if all(self._waiting.values()):
            self._update(sum_in_order([self._waiting[rank].popleft() for rank in sorted(self._waiting)]))

    def _update(self, given: Gradients) -> None:
        id_K, gradient_KS, lr, factor = given
        for rows in self._rows.values():
            rows.set(id_K)
        if factor != 1.0 and not self._updater.accepts_factor:
            gradient_KS = gradient_KS * np.asarray(factor, self._dtype)
        given_KS = gradient_KS if len(id_K) else np.zeros((1, self.width), self._dtype)  # MXNet has no empty array
        gradients = [
            nd.array(given_KS[:, begin:end], ctx=mx.cpu(), dtype=self._dtype)
            for name, (begin, end) in zip(self.tables, self._columns)
            if name in self.trained
        ]
        scaled = factor != 1.0 and self._updater.accepts_factor
        self._updater.update(gradients, lr, *([nd.full((1,), factor, dtype=self._dtype)] if scaled else []))
        self.version += 1
        self._touched_R[id_K] = self.version
        self._last = id_K, gradient_KS * np.asarray(factor, self._dtype) if scaled else gradient_KS

    @property
    def last(self) -> Tuple[np.ndarray, np.ndarray]:
        """Ids (K,) and gradients (K, S) of the last update, for `verify`."""
        return self._last

    def arrays(self) -> List[nd.NDArray]:
        """Returns the arrays that READ and WRITE address by number: first the tables, then the optimizer state."""
        return [*self.tables.values(), *self._updater.arrays().values()]

    def note(self, checks_finite: bool) -> Dict[str, Any]:
        """Returns the state for a checkpoint, except arrays.

        Args:
            checks_finite: True to include the name of the first table with infinite or NaN values.
        """
        return {
            "state": {name: list(array.shape[1:]) for name, array in self._updater.arrays().items()},
            "numbers": self._updater.numbers(),
            "nonfinite": self._first_nonfinite() if checks_finite else "",
            "moves_all": self._updater.moves_all_rows,
        }

    def _first_nonfinite(self) -> str:
        return next((name for name, array in self.tables.items() if not all_finite([array])), "")

    def write(self, array: int, begin: int, given: np.ndarray) -> None:
        """Replaces rows of an array, from row `begin` on."""
        self.arrays()[array][begin : begin + len(given)] = given
        if array < len(self.tables):
            # Workers must see the rows as changed, although no update has been made.
            self._touched_R[begin : begin + len(given)] = self.version + 1

    def restore_numbers(self, numbers: Dict[str, Any]) -> None:
        """Restores the numbers of `note`."""
        self._updater.restore_numbers(numbers)


def sum_in_order(given: Sequence[Gradients]) -> Gradients:
    """Sums the gradients of several workers in the given order, so that the bits of the result do not depend on timing.

    Learning rate and factor are those of the first worker; all workers send the same ones.
    """
    if len(given) == 1:
        return given[0]
    _, first_KS, lr, factor = given[0]
    id_K = np.unique(np.concatenate([one[0] for one in given]))
    total = np.zeros((len(id_K), first_KS.shape[1]), first_KS.dtype)
    for own_K, gradient_KS, _, _ in given:
        total[np.searchsorted(id_K, own_K)] += gradient_KS
    return id_K, total, lr, factor


class TableServer:
    """Holds all table groups of a server and answers the messages of `mxtrain.kvstore.table_wire`.

    Args:
        description: description of the run.
    """

    def __init__(self, description: Description):
        self._description = description
        self._shards: List[GroupShard] = []
        self._changed = threading.Condition()

    def set_up(self, given: TableSetUp) -> None:
        """Draws the initial values of this server's rows. Earlier tables are discarded.

        Raises:
            ConfigError: worker 0 was started with another optimizer.
        """
        own = dict(self._description.config["optimizer"])
        odd = sorted(name for name in {*own, *given.optimizer} if own.get(name) != given.optimizer.get(name))
        if odd:
            raise ConfigError(
                f"optimizer.{odd[0]} is {shown(own.get(odd[0]))} here and {shown(given.optimizer.get(odd[0]))} at "
                "worker 0. Start servers and workers with the same overrides."
            )
        updates_per_epoch = given.steps_per_epoch * (1 if given.waits else given.workers)
        lazy = is_lazy(self._description)
        with self._changed:
            self._shards = []
            for group in given.groups:
                optimizer = self._description.optimizer.build(updates_per_epoch)
                self._shards.append(GroupShard(group, given, optimizer, lazy))

    def answer(self, connection: Connection, rank: int) -> None:
        """Answers the messages of one worker until it disconnects. Runs in a thread per worker."""
        kinds: Dict[int, Callable[[Connection, GroupShard, Header, int], None]] = {
            table_wire.PULL: self._pull,
            table_wire.REFRESH: self._refresh,
            table_wire.PUSH: self._push,
            table_wire.READ: self._read,
            table_wire.WRITE: self._write,
            table_wire.NOTE: self._note,
            table_wire.COUNT: self._count,
            table_wire.LAST: self._give_last,
        }
        # A worker sends one message after the other, so no lock is held between messages.
        while True:
            try:
                header = connection.receive()
                if header.kind == table_wire.SET_UP:
                    self.set_up(TableSetUp.model_validate_json(read_json(connection, header)))
                    connection.send(Header(table_wire.OK))
                    continue
                kinds[header.kind](connection, self._shards[header.group], header, rank)
            except TableServerLost:
                connection.close()
                return

    def _pull(self, connection: Connection, shard: GroupShard, header: Header, rank: int) -> None:
        id_K = read_ids(connection, shard, header)
        with self._at_least(shard, header):
            row_KS, version = shard.pull(id_K), shard.version
        connection.send(Header(table_wire.PULL, count=len(id_K), version=version), row_KS)

    def _refresh(self, connection: Connection, shard: GroupShard, header: Header, rank: int) -> None:
        id_K = read_ids(connection, shard, header)
        with self._at_least(shard, header):
            position_M = shard.changed(id_K, header.version)
            row_MS = shard.pull(id_K[position_M])
        connection.send(Header(table_wire.REFRESH, count=len(position_M)), position_M.astype("<i4"), row_MS)

    def _push(self, connection: Connection, shard: GroupShard, header: Header, rank: int) -> None:
        id_K = read_ids(connection, shard, header)
        gradient_KS = connection.read_array((len(id_K), shard.width), shard._dtype)
        with self._changed:
            shard.push(rank, (id_K, gradient_KS, header.lr, header.factor))
            self._changed.notify_all()

    def _read(self, connection: Connection, shard: GroupShard, header: Header, rank: int) -> None:
        with self._at_least(shard, header):
            rows = shard.arrays()[header.array][header.version : header.version + header.count].asnumpy()
        connection.send(Header(table_wire.READ, count=len(rows)), rows)

    def _write(self, connection: Connection, shard: GroupShard, header: Header, rank: int) -> None:
        with self._changed:
            array = shard.arrays()[header.array]
        if header.version < 0 or header.version + header.count > len(array):
            raise ValueError(f"rows up to {header.version + header.count} of an array of {len(array)} are written to")
        # Receive without the lock: other workers must not wait for this one's connection.
        given = connection.read_array((header.count, *array.shape[1:]), np.dtype(array.dtype).name)
        with self._changed:
            shard.write(header.array, header.version, given)

    def _note(self, connection: Connection, shard: GroupShard, header: Header, rank: int) -> None:
        with self._at_least(shard, header):
            text = json.dumps(shard.note(bool(header.array))).encode()
        connection.send(Header(table_wire.NOTE, count=len(text)), text)

    def _count(self, connection: Connection, shard: GroupShard, header: Header, rank: int) -> None:
        numbers = json.loads(bytes(read_json(connection, header)))
        with self._changed:
            shard.restore_numbers(numbers)
        connection.send(Header(table_wire.OK))

    def _give_last(self, connection: Connection, shard: GroupShard, header: Header, rank: int) -> None:
        with self._at_least(shard, header):
            id_K, gradient_KS = shard.last
        connection.send(Header(table_wire.LAST, count=len(id_K)), id_K.astype("<i4"), gradient_KS)

    @contextmanager
    def _at_least(self, shard: GroupShard, header: Header) -> Iterator[None]:
        """Holds the lock after waiting until at least `header.least` updates are done.

        A worker thereby reads its own updates: the rows include those of all steps that it has finished.
        """
        with self._changed:
            self._changed.wait_for(lambda: shard.version >= header.least)
            yield


def read_ids(connection: Connection, shard: GroupShard, header: Header) -> np.ndarray:
    """Reads the ids of a message, (K,) int64, strictly ascending.

    Raises:
        ValueError: an id is no row of this server, or ids are not in order.
    """
    # Check the count before the memory for it is allocated: an untrusted message must not fill the memory.
    if header.count > shard.num_rows:
        raise ValueError(f"{header.count} ids of {shard.num_rows} rows")
    id_K = connection.read_array((header.count,), "<i4").astype(np.int64)
    if len(id_K) and (id_K[0] < 0 or id_K[-1] >= shard.num_rows or (np.diff(id_K) <= 0).any()):
        raise ValueError("ids that are no rows, or not in order")
    return id_K
