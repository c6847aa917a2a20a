"""Large tables of embeddings in a strategy: the network holds the rows of one batch, not the tables.

    ids of the batch -> their distinct ones [of all workers] -> rows of the table -> the network's parameter
    ids of the batch -> positions among these              -> the network's input

So the network sees a small dense parameter of constant shape. Gradient accumulation, microbatches, replicas, stages,
mixed precision, clipping and sums over workers treat it as any other parameter. Each worker has the table and its
optimizer state once, and no gradient of all rows is ever allocated.

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
from mxtrain.kvstore.reduction import Reduction
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
    # Samples may share thousands of ids, e.g. of drawn classes. These are sorted once instead of for each sample.
    is_shared_F = (id_BF == id_BF[:1]).all(axis=0)
    own_N, shared_N = id_BF[:, ~is_shared_F], id_BF[0, is_shared_F]
    id_K, position_N = np.unique(np.concatenate([own_N.ravel(), shared_N]), return_inverse=True)
    position_BF = np.empty(id_BF.shape, np.int32)
    position_BF[:, ~is_shared_F] = position_N[: own_N.size].reshape(own_N.shape)
    position_BF[:, is_shared_F] = position_N[own_N.size :]
    return id_K.astype(np.int64), position_BF


class IdInput:
    """An input of the network that holds ids, and the tables that they are looked up in.

    Args:
        number: position among the network's inputs.
        tables: structural name -> block of each table.
        width: F, the number of ids of a sample.
        num_samples: number of samples of a batch of all workers.
        min_capacity: lower bound of C: a sample in prediction may have more ids than one in training. 0: in prediction,
            the network has no such input.
    """

    def __init__(self, number: int, tables: Dict[str, EmbeddingTable], width: int, num_samples: int, min_capacity: int):
        self.number, self.width = number, width
        self.num_rows = min(table.num_rows for table in tables.values())
        self._blocks = tables
        # A constant for all batches, because graphs with static memory need one shape.
        self.capacity = min(max(self.count_ids(num_samples), min_capacity), self.num_rows)
        self.tables = self._replace_tables()
        self.rows = {name: TouchedRows(table) for name, table in self.tables.items()}
        # Separate from `rows`: an evaluation must not change the rows to which the last gradient belongs.
        self._rows_evaluated = {name: TouchedRows(table) for name, table in self.tables.items()}

    def _replace_tables(self) -> Dict[str, nd.NDArray]:
        """Replaces the network's tables by arrays of C rows; returns the whole tables."""
        return {name: table.compact(self.capacity) for name, table in self._blocks.items()}

    def count_ids(self, num_samples: int) -> int:
        """Returns the largest number of distinct ids of samples."""
        return max(table.count_ids(self.width, num_samples) for table in self._blocks.values())

    def require_room(self, id_K: np.ndarray) -> None:
        """Checks that the network has room for these ids.

        Raises:
            DataError: there are more than C ids.
        """
        if len(id_K) > self.capacity:
            raise DataError(
                f"A batch holds {len(id_K):,} distinct ids, and the network has room for {self.capacity:,}: the loader "
                "gives larger batches than dataset.batch_size. Type trainer.sparse_grad=false."
            )

    def fill(self, id_K: np.ndarray, copies: Dict[str, Sequence[nd.NDArray]], trains: bool) -> None:
        """Gathers rows into the network's parameters. Asynchronous.

        Args:
            id_K: distinct ids, ascending.
            copies: structural name -> the parameter (C, U) on each replica.
            trains: True if a backward pass follows, whose gradients belong to these rows.
        """
        self.require_room(id_K)
        for name, rows in (self.rows if trains else self._rows_evaluated).items():
            rows.set(id_K)
            if not len(id_K):
                continue
            first, *other_copies = (copy[: len(id_K)] for copy in copies[name])
            table = self.tables[name]
            if table.context == first.context:
                rows.gather(table, out=first)
            else:
                rows.gather(table).copyto(first)
            for target in other_copies:
                first.copyto(target)

    def restore(self) -> None:
        """Puts the tables back into the network."""
        for name, block in self._blocks.items():
            block.restore(self.tables[name])


class RowTables:
    """Large embedding tables of a network, which gets only the rows of the current batch.

    Does nothing if the network has no such tables.

    Args:
        network: initialised gluon block on one device. Its marked tables are replaced by smaller arrays.
        input_shape: shape of one sample, or of each of several inputs.
        predict_shape: the same in prediction.
        num_samples: number of samples of a batch of all workers.
        workers: store that connects the workers.
    """

    def __init__(
        self, network: gluon.Block, input_shape: Shapes, predict_shape: Shapes, num_samples: int, workers: Store
    ):
        self._network, self._workers = network, workers
        names = {parameter: name for name, parameter in distinct_parameters(network).items()}
        marked: Dict[int, Dict[str, EmbeddingTable]] = {}
        for table in tables_of(network):
            if table.ids_from is not None:
                marked.setdefault(table.ids_from, {})[names[table.weight]] = table
        trained, predicted = (
            dict(enumerate(map(math.prod, shapes_of(shapes)))) for shapes in (input_shape, predict_shape)
        )
        self.inputs = [
            self._build_input(number, tables, trained[number], num_samples, predicted.get(number, 0))
            for number, tables in sorted(marked.items())
        ]
        self._copies: Dict[str, Sequence[nd.NDArray]] = {}
        if self.inputs:
            forget_graphs(network)

    def _build_input(self, *arguments: Any) -> IdInput:
        return IdInput(*arguments)

    @property
    def remote(self) -> RemoteTables:
        """Returns the tables whose rows are on servers."""
        return RemoteTables()

    @property
    def tables(self) -> Dict[str, nd.NDArray]:
        """Returns structural name -> whole table (R, U)."""
        return {name: table for id_input in self.inputs for name, table in id_input.tables.items()}

    @property
    def rows(self) -> Dict[str, TouchedRows]:
        """Returns structural name -> rows of the gradient of the last batch."""
        return {name: rows for id_input in self.inputs for name, rows in id_input.rows.items()}

    def bind(self, copies: Dict[str, Sequence[nd.NDArray]], reductions: Sequence[Reduction]) -> None:
        """Sets the copies of the parameters on each replica, by structural name, and the gradients to reduce."""
        self._copies = copies

    def look_ahead(self, batch: Batch) -> Batch:
        """Prepares a batch in the reading thread, without other workers and devices."""
        if not self.inputs or not batch.size:
            return batch
        numbers = [id_input.number for id_input in self._inputs_of(batch)]
        return replace(batch, ids={number: distinct_ids(batch.inputs[number].asnumpy()) for number in numbers})

    def _inputs_of(self, batch: Batch) -> Sequence[IdInput]:
        """Returns the inputs that a batch has: prediction may have fewer than training."""
        return [id_input for id_input in self.inputs if id_input.number < len(batch.inputs)]

    def enter(self, batch: Batch) -> Batch:
        """Returns the batch with positions instead of ids, once their rows are in the network. Collective."""
        return self._enter(batch, trains=True)

    def enter_evaluation(self, batch: Batch) -> Batch:
        """Does the same for a batch of this worker alone that is not trained on."""
        return self._enter(batch, trains=False)

    def _enter(self, batch: Batch, trains: bool) -> Batch:
        if not self.inputs:
            return batch
        if batch.ids is None:
            batch = self.look_ahead(batch)
        inputs = list(batch.inputs)
        for id_input in self.inputs:
            own_K, position_BF = (batch.ids or {}).get(id_input.number, (np.zeros(0, np.int64), None))
            id_K = self._of_all(own_K, batch.global_size, id_input) if trains else own_K
            self._fill(id_input, id_K, batch, trains)
            if position_BF is not None:
                if id_K is not own_K:
                    position_BF = np.searchsorted(id_K, own_K).astype(np.int32)[position_BF]
                ids = inputs[id_input.number]
                inputs[id_input.number] = nd.array(position_BF, ctx=ids.context, dtype=ids.dtype)
        return replace(batch, inputs=tuple(inputs), ids=None, rows=None)

    def _fill(self, id_input: IdInput, id_K: np.ndarray, batch: Batch, trains: bool) -> None:
        """Copies the rows of these ids into the network."""
        id_input.fill(id_K, self._copies, trains)

    def _of_all(self, own_K: np.ndarray, num_samples: int, id_input: IdInput) -> np.ndarray:
        """Returns the distinct ids of all workers' shares of a batch, ascending. Waits for all."""
        world = self._workers.world
        if world.size == 1:
            return own_K
        ends = [world.share_of(rank, num_samples) for rank in range(world.size)]
        # Ids are exchanged before the forward pass: with the same rows everywhere, the usual sum of a store adds
        # gradients.
        most = id_input.count_ids(max(end - begin for begin, end in ends))
        id_plus_one_WN = np.zeros((world.size, most))
        id_plus_one_WN[world.rank, : len(own_K)] = own_K + 1  # 0 marks unused positions
        # Each position is summed with zeros, so ids arrive unchanged.
        all_ids = self._workers.total(id_plus_one_WN.ravel())
        return np.unique(all_ids[all_ids > 0]).astype(np.int64) - 1

    @property
    def room(self) -> Optional[int]:
        """Returns the maximum number of distinct ids of an input; None: all rows fit."""
        smaller = [id_input.capacity for id_input in self.inputs if id_input.capacity < id_input.num_rows]
        return min(smaller, default=None)

    def fitting(self, batch: Batch) -> Iterator[Batch]:
        """Yields parts of a batch whose rows fit into the network."""
        crowded = [id_input for id_input in self._inputs_of(batch) if id_input.capacity < id_input.num_rows]
        widths = [math.prod(batch.inputs[id_input.number].shape[1:]) for id_input in crowded]
        room = min((max(1, id_input.capacity // width) for id_input, width in zip(crowded, widths)), default=batch.size)
        if batch.size <= room:
            yield batch
            return
        for begin in range(0, batch.size, room):
            yield batch.slice(begin, min(begin + room, batch.size))

    def restore(self) -> None:
        """Puts the tables back into the network, whose parameters are then only on the device of the tables."""
        for id_input in self.inputs:
            id_input.restore()
        if self.inputs:
            forget_graphs(self._network)


def forget_graphs(network: gluon.Block) -> None:
    """Clears cached graphs, so that blocks are traced again with their new parameters."""
    for _, block in blocks_by_path(network):
        if isinstance(block, gluon.HybridBlock):
            block._clear_cached_op()
