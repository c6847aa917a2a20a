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
from mxtrain.kvstore.reduction import Reduction
from mxtrain.kvstore.table_client import PulledRows, ServedArray, TableClient
from mxtrain.kvstore.table_wire import TableGroup, TableShare, columns_of
from mxtrain.model.graph.id_inputs import tables_of
from mxtrain.model.prepare import parameter_seed
from mxtrain.parallel.base import RemoteTables, TableUpdates
from mxtrain.parallel.row_tables import IdInput, RowTables
from mxtrain.types import Batch, Shapes, Stateful

if TYPE_CHECKING:
    from mxtrain.kvstore.store import Store
    from mxtrain.types.annotations import Json, JsonObject


class ServedInput(IdInput):
    """An id input of the network, and the tables on servers that are indexed by it."""

    def _replace_tables(self) -> Dict[str, nd.NDArray]:
        compact_tables = {name: table.compact(self.capacity) for name, table in self._blocks.items()}
        self.dtype = np.dtype(next(iter(compact_tables.values())).dtype).name
        columns = columns_of([table.units for table in self._blocks.values()])
        self.columns = dict(zip(self._blocks, columns))
        """Structural name -> (begin, end) of the table's columns in rows that are sent."""
        self.client: Optional[TableClient] = None
        self.group = 0
        return {
            name: ServedArray(self._connected, (0, array), (table.num_rows, table.units), self.dtype)  # type: ignore[misc]  # in its place
            for array, (name, table) in enumerate(self._blocks.items())
        }

    def _connected(self) -> TableClient:
        assert self.client is not None, "`connect` has not been called"
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
            shares.append(
                TableShare(
                    name=name,
                    units=table.units,
                    scale=table.scale,
                    seed=parameter_seed(seed, name),
                    lr_mult=lr_mult,
                    wd_mult=wd_mult,
                )
            )
        return TableGroup(num_rows=self.num_rows, tables=shares)

    def send_loaded(self, is_first: bool) -> None:
        """Writes the rows of `model.weights` to the servers on worker 0, and releases them on all workers."""
        for name, table in self._blocks.items():
            if is_first and table.loaded is not None:
                write_rows(table.loaded, self.tables[name])
            table.loaded = None

    def fill_with(
        self, id_K: np.ndarray, row_KS: np.ndarray, copies: Dict[str, Sequence[nd.NDArray]], trains: bool
    ) -> None:
        """Writes rows into the network's parameters. Asynchronous. See `IdInput.fill`."""
        for name, rows in (self.rows if trains else self._rows_evaluated).items():
            rows.set(id_K)
            if len(id_K):
                begin, end = self.columns[name]
                columns_KU = nd.array(row_KS[:, begin:end], dtype=self.dtype)
                for copy in copies[name]:
                    columns_KU.copyto(copy[: len(id_K)])

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

    def bind(self, copies: Dict[str, Sequence[nd.NDArray]], reductions: Sequence[Reduction]) -> None:
        super().bind(copies, reductions)
        self._reductions = [reduction for reduction in reductions if reduction.name in self.tables]
        if len(self._reductions) == len(reductions):
            raise ConfigError(
                "kvstore.tables=servers: nothing but tables is trained here, and workers are joined by their other "
                "parameters. Add a bias to the network, or type kvstore.tables=workers."
            )

    def _build_input(self, *arguments: Any) -> IdInput:
        return ServedInput(*arguments)

    def connect(self, store: Store, updates: TableUpdates) -> None:
        self.client, self._store = store.connect_tables(), store
        self.wait_for_all()  # `set_up` discards earlier tables, for which no worker may have pending requests
        groups = [id_input.describe(updates.multipliers, updates.seed) for id_input in self.inputs]
        for number, id_input in enumerate(self.inputs):
            id_input.bind(self.client, number)
        self.client.set_up(
            {
                "optimizer": dict(updates.optimizer),
                "workers": store.world.size,
                "waits": not store.servers_update,
                "steps_per_epoch": updates.steps_per_epoch,
                "dtype": self.inputs[0].dtype,
                "groups": groups,
            },
            is_first=self.is_first,
        )
        for id_input in self.inputs:
            id_input.send_loaded(self.is_first)
        self.wait_for_all()  # until worker 0 has set up the servers
        self.client.read_server_notes()

    def look_ahead(self, batch: Batch) -> Batch:
        batch = super().look_ahead(batch)
        # An update that moves all rows (lazy_update=false with decay or momentum) outdates all rows that were pulled
        # ahead.
        if batch.ids is None or self.client.moves_all:
            return batch
        pulled = {
            id_input.number: self.client.pull(id_input.group, batch.ids[id_input.number][0], ahead=True)
            for id_input in self.inputs
            if id_input.number in batch.ids and self._is_within(id_input, batch.ids[id_input.number][0])
        }
        return replace(batch, rows=pulled)

    @staticmethod
    def _is_within(id_input: IdInput, id_K: np.ndarray) -> bool:
        """Returns True if the table has rows for all ids. Errors are raised later, in the step of the batch."""
        return not len(id_K) or 0 <= id_K[0] <= id_K[-1] < id_input.num_rows

    def _of_all(self, own_K: np.ndarray, num_samples: int, id_input: IdInput) -> np.ndarray:
        return own_K  # the servers sum the gradients of all workers

    def _fill(self, id_input: IdInput, id_K: np.ndarray, batch: Batch, trains: bool) -> None:
        assert isinstance(id_input, ServedInput)
        id_input.require_room(id_K)
        if not self._is_within(id_input, id_K):
            next(iter(id_input.rows.values())).set(id_K)  # raises a DataError that names the id
        pulled: Optional[PulledRows] = (batch.rows or {}).get(id_input.number)
        if pulled is not None:  # rows that were pulled ahead of time may be outdated by later updates
            self.client.refresh(id_input.group, id_K, pulled)
        elif len(id_K):
            pulled = self.client.pull(id_input.group, id_K)
        id_input.fill_with(id_K, np.zeros((0, 0)) if pulled is None else pulled.row_KS, self._copies, trains)

    def gradients(self) -> List[nd.NDArray]:
        return [
            nd.add_n(*[array.as_in_context(reduction.replicas[0].context) for array in reduction.replicas])
            if len(reduction.replicas) > 1
            else reduction.replicas[0]
            for reduction in self._reductions
        ]

    def push(self, gradients: Sequence[nd.NDArray], lr: float, factor: Optional[nd.NDArray]) -> None:
        gradient_of = {reduction.name: gradient for reduction, gradient in zip(self._reductions, gradients)}
        scalar = 1.0 if factor is None else float(factor.asnumpy()[0])
        for id_input in self.inputs:
            if not any(name in gradient_of for name in id_input.tables):
                continue
            id_K = next(iter(id_input.rows.values())).id_K
            row_KS = np.zeros((len(id_K), sum(end - begin for begin, end in id_input.columns.values())), id_input.dtype)
            for name, (begin, end) in id_input.columns.items():
                if name in gradient_of and len(id_K):
                    # Waits for the gradients, so a worker never runs more than one step ahead of the devices.
                    row_KS[:, begin:end] = gradient_of[name][: len(id_K)].asnumpy()
            self.client.push(id_input.group, id_K, row_KS, lr, scalar)

    @property
    def is_first(self) -> bool:
        """Returns True if this worker writes to the servers, i.e. has rank 0."""
        return self._store.world.rank == 0

    def wait_for_all(self) -> None:
        """Waits until all workers have called it (barrier)."""
        self._store.total([0.0])

    def synchronize(self) -> None:
        self.client.synchronize()

    def summed_gradients(self) -> Dict[str, np.ndarray]:
        gradient_of = {}
        for id_input in self.inputs:
            id_K, gradient_KS = self.client.last(id_input.group)
            for name, (begin, end) in id_input.columns.items():
                if self._copies[name][0].grad is None:
                    continue  # the table is frozen
                gradient_of[name] = np.zeros(id_input.tables[name].shape, id_input.dtype)
                gradient_of[name][id_K] = gradient_KS[:, begin:end]
        return gradient_of

    def first_nonfinite(self) -> str:
        notes = [note for id_input in self.inputs for note in self.client.notes(id_input.group, looks=True)]
        return next((note["nonfinite"] for note in notes if note["nonfinite"]), "")

    def optimizer_state(self, updater: Stateful) -> OptimizerState:
        return OptimizerState(self, updater)

    def summary(self) -> Dict[str, float]:
        return self.client.summary()


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
        for id_input in self._tables.inputs:
            note, *_ = self._tables.client.notes(id_input.group)
            counts.update(note["numbers"]["update_counts"])
        return {**arrays, **self._arrays()}, {**numbers, "update_counts": counts} if numbers else numbers

    def _arrays(self) -> Dict[str, ServedArray]:
        arrays = {}
        for id_input in self._tables.inputs:
            note, *_ = self._tables.client.notes(id_input.group)
            for array, (name, width) in enumerate(note["state"].items(), start=len(id_input.tables)):
                shape = (id_input.num_rows, *width)
                arrays[name] = ServedArray(lambda: self._tables.client, (id_input.group, array), shape, id_input.dtype)
        return arrays

    def load_state(self, arrays: Mapping[str, np.ndarray], values: JsonObject, source: str) -> None:
        """See `Stateful`. Worker 0 writes to the servers. Collective.

        Raises:
            CheckpointError: the state belongs to another network or optimizer.
        """
        tables = self._tables.tables
        local_arrays = {name: array for name, array in arrays.items() if name.rpartition(":")[0] not in tables}
        counts = {name: count for name, count in values["update_counts"].items() if name not in tables}
        if self._tables.is_first:
            served = self._arrays()
            served_arrays = {name: array for name, array in arrays.items() if name not in local_arrays}
            require_same_arrays(served, served_arrays, "the checkpoint's optimizer state")  # type: ignore[arg-type]  # has shapes
            for name, array in served.items():
                write_rows(served_arrays[name], array)  # type: ignore[arg-type]  # takes slices
        self._updater.load_state(local_arrays, {**values, "update_counts": counts}, source)
        if self._tables.is_first:
            for id_input in self._tables.inputs:
                served = {name: count for name, count in values["update_counts"].items() if name in id_input.tables}
                numbers = {"update_counts": served, "attributes": values["attributes"], "cum_counts": {}}
                self._tables.client.restore_numbers(id_input.group, numbers)
        # No worker may pull rows before worker 0 has restored them.
        self._tables.wait_for_all()


def build_row_tables(
    network: gluon.Block, input_shape: Shapes, predict_shape: Shapes, num_samples: int, workers: Store
) -> RowTables:
    """Builds the tables that are computed with the rows of a batch, on workers or on servers. See `RowTables`."""
    kind = ServedTables if any(table.remote_rows for table in tables_of(network)) else RowTables
    return kind(network, input_shape, predict_shape, num_samples, workers)
