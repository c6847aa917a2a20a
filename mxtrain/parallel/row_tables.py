"""Large tables of embeddings in a strategy: the network holds the rows of one batch, not the tables.

    ids of the batch -> their distinct ones [of all workers] -> rows of the table -> the network's parameter
    ids of the batch -> positions among these              -> the network's input

So the network sees a small dense parameter of constant shape. Gradient accumulation, microbatches, replicas, stages,
mixed precision, clipping and sums over workers treat it as any other parameter. Each worker has the table and its
optimizer state once, and no gradient of all rows is ever allocated (docs/decisions/0065).

Legend: B batch, F ids of a sample, K distinct ids, C rows that the network has room for, R rows of a table, U units,
W workers.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Dict, Iterator, Optional, Sequence

import numpy as np

from mxtrain.engine.backend import gluon, nd
from mxtrain.errors import DataError
from mxtrain.kvstore.store import Reduction
from mxtrain.model.graph.id_inputs import tables_of
from mxtrain.model.graph.trace import blocks_by_path
from mxtrain.model.parameters import distinct_parameters
from mxtrain.optimizer.rows import TouchedRows
from mxtrain.parallel.base import RemoteTables
from mxtrain.types import Batch, DistinctIds, Shapes, shapes_of

if TYPE_CHECKING:
    from mxtrain.kvstore.store import Store
    from mxtrain.model.networks.embedding_table import EmbeddingTable


def distinct_ids(id_BF: np.ndarray) -> DistinctIds:
    """Returns the distinct ids of a batch, ascending, and the position of each id of the batch among them."""
    id_K, position_N = np.unique(id_BF, return_inverse=True)
    return id_K.astype(np.int64), position_N.astype(np.int32).reshape(id_BF.shape)


class IdInput:
    """An input of the network that holds ids, and the tables that they are looked up in.

    Args:
        number: of the input.
        tables: structural name -> the block, of each table.
        width: F.
        num_samples: of a whole batch of all workers.
        least: C is at least that: ids of a sample that is predicted, which may have more.
    """

    def __init__(self, number: int, tables: Dict[str, EmbeddingTable], width: int, num_samples: int, least: int):
        self.number, self.width = number, width
        self.num_rows = min(table.num_rows for table in tables.values())
        self.capacity = min(max(num_samples * width, least), self.num_rows)
        self._blocks = tables
        self.tables = self._take_out()
        self.rows = {name: TouchedRows(table) for name, table in self.tables.items()}
        self._held = {name: TouchedRows(table) for name, table in self.tables.items()}

    def _take_out(self) -> Dict[str, nd.NDArray]:
        """Makes the network's tables compact; what they were."""
        return {name: table.compact(self.capacity) for name, table in self._blocks.items()}

    def require_room(self, id_K: np.ndarray) -> None:
        """Raises: DataError: these are too many ids."""
        if len(id_K) > self.capacity:
            raise DataError(
                f"A batch holds {len(id_K):,} distinct ids, and the network has room for {self.capacity:,}: the loader "
                "gives larger batches than dataset.batch_size. Type trainer.sparse_grad=false."
            )

    def fill(self, id_K: np.ndarray, copies: Dict[str, Sequence[nd.NDArray]], trains: bool) -> None:
        """Gathers rows into the network's parameters. Asynchronous.

        Args:
            id_K: which.
            copies: structural name -> the parameter (C, U) on each replica.
            trains: whether the gradient that follows is of these rows.
        """
        self.require_room(id_K)
        for name, rows in (self.rows if trains else self._held).items():
            rows.set(id_K)
            if not len(id_K):
                continue
            first, *others = (copy[: len(id_K)] for copy in copies[name])
            table = self.tables[name]
            if table.context == first.context:
                rows.gather(table, out=first)
            else:
                rows.gather(table).copyto(first)
            for other in others:
                first.copyto(other)

    def restore(self) -> None:
        """Puts the tables back into the network."""
        for name, block in self._blocks.items():
            block.restore(self.tables[name])


class RowTables:
    """The tables of a network that are computed by the rows of a batch. Without any it does nothing.

    Args:
        network: initialised, on one device. Its tables that are marked leave it.
        input_shape: of one sample, or of each of several inputs.
        predict_shape: the same in prediction.
        num_samples: of a whole batch of all workers.
        workers: have the other shares of a batch.
    """

    def __init__(
        self, network: gluon.Block, input_shape: Shapes, predict_shape: Shapes, num_samples: int, workers: Store
    ):  # fmt: skip
        self._network, self._workers = network, workers
        names = {parameter: name for name, parameter in distinct_parameters(network).items()}
        marked: Dict[int, Dict[str, EmbeddingTable]] = {}
        for table in tables_of(network):
            if table.ids_from is not None:
                marked.setdefault(table.ids_from, {})[names[table.weight]] = table
        trained, predicted = ([math.prod(one) for one in shapes_of(shape)] for shape in (input_shape, predict_shape))
        self.inputs = [
            self._build_input(number, tables, trained[number], num_samples, predicted[number])
            for number, tables in sorted(marked.items())
        ]
        self._copies: Dict[str, Sequence[nd.NDArray]] = {}
        if self.inputs:
            forget_graphs(network)

    def _build_input(self, *given: Any) -> IdInput:
        return IdInput(*given)

    @property
    def remote(self) -> RemoteTables:
        """Returns the tables whose rows are on servers."""
        return RemoteTables()

    @property
    def tables(self) -> Dict[str, nd.NDArray]:
        """Structural name -> all rows (R, U)."""
        return {name: table for one in self.inputs for name, table in one.tables.items()}

    @property
    def rows(self) -> Dict[str, TouchedRows]:
        """Structural name -> the rows that the gradient of the last batch is of."""
        return {name: rows for one in self.inputs for name, rows in one.rows.items()}

    def place(self, copies: Dict[str, Sequence[nd.NDArray]], reductions: Sequence[Reduction]) -> None:
        """Says where the network's parameters lie on each replica, by structural name, and their gradients."""
        self._copies = copies

    def look_ahead(self, batch: Batch) -> Batch:
        """Prepares a batch in the reading thread, without other workers and devices."""
        if not self.inputs or not batch.size:
            return batch
        return replace(batch, ids={one.number: distinct_ids(batch.inputs[one.number].asnumpy()) for one in self.inputs})

    def enter(self, batch: Batch) -> Batch:
        """Returns the batch with positions instead of ids, once their rows are in the network. Collective."""
        return self._enter(batch, trains=True)

    def enter_evaluation(self, batch: Batch) -> Batch:
        """Does the same for a batch that no other worker has a share of, and that is not trained on."""
        return self._enter(batch, trains=False)

    def _enter(self, batch: Batch, trains: bool) -> Batch:
        if not self.inputs:
            return batch
        if batch.ids is None:
            batch = self.look_ahead(batch)
        inputs = list(batch.inputs)
        for one in self.inputs:
            own_K, position_BF = (batch.ids or {}).get(one.number, (np.zeros(0, np.int64), None))
            id_K = self._of_all(own_K, batch.global_size, one.width) if trains else own_K
            self._fill(one, id_K, batch, trains)
            if position_BF is not None:
                if id_K is not own_K:
                    position_BF = np.searchsorted(id_K, own_K).astype(np.int32)[position_BF]
                given = inputs[one.number]
                inputs[one.number] = nd.array(position_BF, ctx=given.context, dtype=given.dtype)
        return replace(batch, inputs=tuple(inputs), ids=None, rows=None)

    def _fill(self, one: IdInput, id_K: np.ndarray, batch: Batch, trains: bool) -> None:
        """Brings the rows of these ids into the network."""
        one.fill(id_K, self._copies, trains)

    def _of_all(self, own_K: np.ndarray, num_samples: int, width: int) -> np.ndarray:
        """Returns the distinct ids of all workers' shares of a batch, ascending. Waits for all."""
        world = self._workers.world
        if world.size == 1:
            return own_K
        ends = [world.share_of(rank, num_samples) for rank in range(world.size)]
        place_WN = np.zeros((world.size, max(end - begin for begin, end in ends) * width))
        place_WN[world.rank, : len(own_K)] = own_K + 1  # 0 is nothing
        found = self._workers.total(place_WN.ravel())
        return np.unique(found[found > 0]).astype(np.int64) - 1

    @property
    def room(self) -> Optional[int]:
        """Returns the maximum number of distinct ids of an input; None: all rows fit."""
        return min((one.capacity for one in self.inputs if one.capacity < one.num_rows), default=None)

    def fitting(self, batch: Batch) -> Iterator[Batch]:
        """Parts of a batch whose rows the network has room for."""
        crowded = [one for one in self.inputs if one.capacity < one.num_rows]
        widths = [math.prod(batch.inputs[one.number].shape[1:]) for one in crowded]
        room = min((max(1, one.capacity // width) for one, width in zip(crowded, widths)), default=batch.size)
        if batch.size <= room:
            yield batch
            return
        for begin in range(0, batch.size, room):
            yield batch.slice(begin, min(begin + room, batch.size))

    def restore(self) -> None:
        """Puts the tables back into the network, which is then on their device alone."""
        for one in self.inputs:
            one.restore()
        if self.inputs:
            forget_graphs(self._network)


def forget_graphs(network: gluon.Block) -> None:
    """Lets blocks trace themselves anew: what they compute with has changed."""
    for _, block in blocks_by_path(network):
        if isinstance(block, gluon.HybridBlock):
            block._clear_cached_op()
