"""Large embedding tables on servers: the network has only the rows of one batch, and no worker has a whole table.

    reading thread, ahead of time:  distinct ids of a batch -> pull their current rows
    before the forward pass:        refresh rows that have changed since -> the network's parameter
    after the backward pass:        push ids and gradients -> the servers update

Legend: K distinct ids of this worker's share, C capacity of the network's parameter in rows, U units, S units of all
tables that share an id column.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Collection, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from mxtrain.checkpoint import require_same_arrays
from mxtrain.checkpoint.pieces import write_rows
from mxtrain.engine.backend import gluon, nd
from mxtrain.errors import ConfigError
from mxtrain.kvstore.store import Reduction
from mxtrain.kvstore.table_client import PulledRows, ServedArray, TableClient
from mxtrain.kvstore.table_wire import TableGroup, TableShare, columns_of
from mxtrain.model.graph.id_inputs import tables_of
from mxtrain.model.prepare import parameter_seed
from mxtrain.parallel.base import RemoteTables
from mxtrain.parallel.row_tables import IdInput, RowTables
from mxtrain.types import Batch, Shapes, Stateful

if TYPE_CHECKING:
    from mxtrain.annotations import Config, Json, JsonObject
    from mxtrain.kvstore.store import Store


class ServedInput(IdInput):
    """An id input of the network, and the tables on servers that are indexed by it."""

    def _take_out(self) -> Dict[str, nd.NDArray]:
        standing = {name: table.compact(self.capacity) for name, table in self._blocks.items()}
        self.dtype = np.dtype(next(iter(standing.values())).dtype).name
        columns = columns_of([table.units for table in self._blocks.values()])
        self.columns = dict(zip(self._blocks, columns))
        """(begin, end) of each table's columns in rows that travel, by its structural name."""
        self.client: Optional[TableClient] = None
        self.group = 0
        return {
            name: ServedArray(self._connected, (0, array), (table.num_rows, table.units), self.dtype)  # type: ignore[misc]  # in its place
            for array, (name, table) in enumerate(self._blocks.items())
        }  # fmt: skip

    def _connected(self) -> TableClient:
        assert self.client is not None, "the servers have not been told of the tables"
        return self.client

    def bind(self, client: TableClient, group: int) -> None:
        """Connects this input's tables to a group of tables on the servers."""
        self.client, self.group = client, group
        for array in self.tables.values():
            array.move_to(group)

    def describe(self, multipliers: Mapping[str, Tuple[float, float]], seed: int) -> TableGroup:
        """Returns the description of the tables that is sent to the servers."""
        shares = []
        for name, table in self._blocks.items():
            lr_mult, wd_mult = multipliers[name]
            shares.append(TableShare(
                name=name, units=table.units, scale=table.scale, seed=parameter_seed(seed, name), lr_mult=lr_mult,
                wd_mult=wd_mult,
            ))  # fmt: skip
        return TableGroup(num_rows=self.num_rows, tables=shares)

    def fill_with(
        self, id_K: np.ndarray, row_KS: np.ndarray, copies: Dict[str, Sequence[nd.NDArray]], trains: bool
    ) -> None:  # fmt: skip
        """Writes rows into the network's parameters. Asynchronous. See `IdInput.fill`."""
        for name, rows in (self.rows if trains else self._held).items():
            rows.set(id_K)
            if len(id_K):
                begin, end = self.columns[name]
                given = nd.array(row_KS[:, begin:end], dtype=self.dtype)
                for copy in copies[name]:
                    given.copyto(copy[: len(id_K)])

    def restore(self) -> None:
        """Does nothing: the network keeps the rows of the last batch, because no worker has the whole table."""


class ServedTables(RowTables, RemoteTables):
    """The tables of a network whose rows are on servers. See `RowTables`."""

    inputs: List[ServedInput]  # type: ignore[assignment]

    @property
    def remote(self) -> RemoteTables:
        return self

    @property
    def names(self) -> Collection[str]:  # type: ignore[override]  # read only
        return self.tables

    def place(self, copies: Dict[str, Sequence[nd.NDArray]], reductions: Sequence[Reduction]) -> None:
        super().place(copies, reductions)
        self._reductions = [reduction for reduction in reductions if reduction.name in self.tables]
        if len(self._reductions) == len(reductions):
            raise ConfigError(
                "kvstore.tables=servers: nothing but tables is trained here, and workers are joined by their other "
                "parameters. Add a bias to the network, or type kvstore.tables=workers."
            )

    def _build_input(self, *given: Any) -> IdInput:
        return ServedInput(*given)

    def connect(
        self, store: Store, optimizer: Config, multipliers: Mapping[str, Tuple[float, float]], steps_per_epoch: int,
        seed: int,
    ) -> None:  # fmt: skip
        self.client, self._store = store.connect_tables(), store
        self.wait_for_all()  # `set_up` discards earlier tables, for which no worker may have pending requests
        groups = [one.describe(multipliers, seed) for one in self.inputs]
        for number, one in enumerate(self.inputs):
            one.bind(self.client, number)
        self.client.set_up(
            {"optimizer": dict(optimizer), "workers": store.world.size, "waits": not store.updates,
             "steps_per_epoch": steps_per_epoch, "dtype": self.inputs[0].dtype, "groups": groups},
            is_first=store.world.rank == 0,
        )  # fmt: skip
        self.wait_for_all()  # until worker 0 has set up the servers
        self.client.read_server_notes()

    def look_ahead(self, batch: Batch) -> Batch:
        batch = super().look_ahead(batch)
        if batch.ids is None or self.client.moves_all:
            return batch
        pulled = {
            one.number: self.client.pull(one.group, batch.ids[one.number][0], ahead=True)
            for one in self.inputs if self._is_within(one, batch.ids[one.number][0])
        }  # fmt: skip
        return replace(batch, rows=pulled)

    @staticmethod
    def _is_within(one: IdInput, id_K: np.ndarray) -> bool:
        """Returns True if there are such rows. Errors are raised at the batch's own step."""
        return not len(id_K) or 0 <= id_K[0] <= id_K[-1] < one.num_rows

    def _of_all(self, own_K: np.ndarray, num_samples: int, width: int) -> np.ndarray:
        return own_K  # the servers sum the gradients of all workers

    def _fill(self, one: IdInput, id_K: np.ndarray, batch: Batch, trains: bool) -> None:
        assert isinstance(one, ServedInput)
        one.require_room(id_K)
        if not self._is_within(one, id_K):
            next(iter(one.rows.values())).set(id_K)  # raises
        pulled: Optional[PulledRows] = (batch.rows or {}).get(one.number)
        if pulled is not None:  # rows that were pulled ahead of time may be outdated by later updates
            self.client.refresh(one.group, id_K, pulled)
        elif len(id_K):
            pulled = self.client.pull(one.group, id_K)
        one.fill_with(id_K, np.zeros((0, 0)) if pulled is None else pulled.row_KS, self._copies, trains)

    def gradients(self) -> List[nd.NDArray]:
        return [
            nd.add_n(*[one.as_in_context(reduction.replicas[0].context) for one in reduction.replicas])
            if len(reduction.replicas) > 1 else reduction.replicas[0]
            for reduction in self._reductions
        ]  # fmt: skip

    def push(self, gradients: Sequence[nd.NDArray], lr: float, factor: Optional[nd.NDArray]) -> None:
        gradient_of = {reduction.name: gradient for reduction, gradient in zip(self._reductions, gradients)}
        scalar = 1.0 if factor is None else float(factor.asnumpy()[0])
        for one in self.inputs:
            if not any(name in gradient_of for name in one.tables):
                continue
            id_K = next(iter(one.rows.values())).id_K
            row_KS = np.zeros((len(id_K), sum(end - begin for begin, end in one.columns.values())), one.dtype)
            for name, (begin, end) in one.columns.items():
                if name in gradient_of and len(id_K):
                    row_KS[:, begin:end] = gradient_of[name][: len(id_K)].asnumpy()
            self.client.push(one.group, id_K, row_KS, lr, scalar)

    @property
    def is_first(self) -> bool:
        """Returns True if this worker writes to the servers, i.e. has rank 0."""
        return self._store.world.rank == 0

    def wait_for_all(self) -> None:
        """Barrier over all workers."""
        self._store.total([0.0])

    def synchronize(self) -> None:
        self.client.synchronize()

    def summed_gradients(self) -> Dict[str, np.ndarray]:
        found = {}
        for one in self.inputs:
            id_K, gradient_KS = self.client.last(one.group)
            for name, (begin, end) in one.columns.items():
                if self._copies[name][0].grad is None:
                    continue  # the table is frozen
                found[name] = np.zeros(one.tables[name].shape, one.dtype)
                found[name][id_K] = gradient_KS[:, begin:end]
        return found

    def first_nonfinite(self) -> str:
        notes = [note for one in self.inputs for note in self.client.notes(one.group, looks=True)]
        return next((note["nonfinite"] for note in notes if note["nonfinite"]), "")

    def optimizer_state(self, updater: Stateful) -> OptimizerState:
        return OptimizerState(self, updater)


class OptimizerState:
    """Optimizer state of which a part is on servers, in the format of a run without servers.

    A checkpoint can therefore be continued with tables on servers or on workers.

    Args:
        tables: tables on servers.
        updater: updater of all other parameters.
    """

    def __init__(self, tables: ServedTables, updater: Any):
        self._tables, self._updater = tables, updater

    def save_state(self) -> Tuple[Mapping[str, Any], Mapping[str, Json]]:
        """See `Stateful`. Arrays on servers are read only while the checkpoint is written."""
        arrays, numbers = self._updater.save_state()
        counts = dict(numbers.get("update_counts", {}))
        for one in self._tables.inputs:
            note, *_ = self._tables.client.notes(one.group)
            counts.update(note["numbers"]["update_counts"])
        return {**arrays, **self._arrays()}, {**numbers, "update_counts": counts} if numbers else numbers

    def _arrays(self) -> Dict[str, ServedArray]:
        found = {}
        for one in self._tables.inputs:
            note, *_ = self._tables.client.notes(one.group)
            for array, (name, width) in enumerate(note["state"].items(), start=len(one.tables)):
                shape = (one.num_rows, *width)
                found[name] = ServedArray(lambda: self._tables.client, (one.group, array), shape, one.dtype)
        return found

    def load_state(self, arrays: Mapping[str, np.ndarray], values: JsonObject, source: str) -> None:
        """See `Stateful`. Worker 0 writes to the servers. Collective.

        Raises:
            CheckpointError: the state belongs to another network or optimizer.
        """
        tables = self._tables.tables
        rest = {name: array for name, array in arrays.items() if name.rpartition(":")[0] not in tables}
        counts = {name: count for name, count in values["update_counts"].items() if name not in tables}
        if self._tables.is_first:
            own = self._arrays()
            given = {name: array for name, array in arrays.items() if name not in rest}
            require_same_arrays(own, given, "the checkpoint's optimizer state")  # type: ignore[arg-type]  # has shapes
            for name, array in own.items():
                write_rows(given[name], array)  # type: ignore[arg-type]  # takes slices
        self._updater.load_state(rest, {**values, "update_counts": counts}, source)
        if self._tables.is_first:
            for one in self._tables.inputs:
                own = {name: count for name, count in values["update_counts"].items() if name in one.tables}
                numbers = {"update_counts": own, "attributes": values["attributes"], "cum_counts": {}}
                self._tables.client.restore_numbers(one.group, numbers)
        self._tables.wait_for_all()


def build_row_tables(
    network: gluon.Block, input_shape: Shapes, predict_shape: Shapes, num_samples: int, workers: Store
) -> RowTables:  # fmt: skip
    """Builds the tables that are computed with the rows of a batch, on workers or on servers. See `RowTables`."""
    kind = ServedTables if any(table.remote_rows for table in tables_of(network)) else RowTables
    return kind(network, input_shape, predict_shape, num_samples, workers)
