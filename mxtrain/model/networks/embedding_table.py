"""Embedding tables of ids, for recommendation and categorical columns, and an MLP on them.

A table has two forms. In the compact form (`compact`) the network holds only the rows of a batch, and ids are positions
among them; see mxtrain/parallel/row_tables.py.

Legend: B batch, F fields, N numbers, R rows, C rows of the compact form, U units, K outputs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional, Sequence

from mxtrain.engine.backend import gluon, mx, nd
from mxtrain.engine.gluon_parameters import exchange

if TYPE_CHECKING:
    import numpy as np

    from mxtrain.types.annotations import Array, OperatorModule


class EmbeddingTable(gluon.HybridBlock):
    """Looks up ids (B, F) int32; returns vectors (B, F, U).

    Args:
        num_rows: R; ids are below it.
        units: U.
        scale: standard deviation of the initial values, which are normally distributed.

    Attributes:
        ids_from: index of the network's input with the ids, if the table supports the compact form; None = the table
            is an ordinary dense parameter.
        scale: see the argument.
        remote_rows: True if servers hold the rows, so that the whole table is never in this process.
        num_shared: number of the ids of a sample that are the same for all samples of a batch.
        loaded: rows of a weights file (R, U) that are to be sent to the servers; None = initial values.
    """

    def __init__(self, num_rows: int, units: int, scale: float = 0.01, **kwargs: Any):
        super().__init__(**kwargs)
        self.num_rows, self.units = num_rows, units
        self.ids_from: Optional[int] = None
        self.scale, self.remote_rows, self.num_shared = scale, False, 0
        self.loaded: Optional[np.ndarray] = None
        self._rows_held = num_rows
        self.weight = self.params.get("weight", shape=(num_rows, units), init=mx.init.Normal(scale))

    def make_sparse(self, ids_from: int) -> None:
        """Marks the table as row-sparse. Call before initialisation, so that no gradient of all rows is allocated."""
        self.ids_from = ids_from
        # A gradient of all rows would double the memory of the table, which is what the compact form avoids.
        self.weight.grad_req = "null"

    def count_ids(self, width: int, num_samples: int) -> int:
        """Returns the largest number of distinct ids of samples with `width` ids each."""
        return num_samples * (width - self.num_shared) + self.num_shared

    def make_remote(self, device: mx.Context) -> None:
        """Replaces the initialisation if servers hold the rows: a placeholder of one row is allocated."""
        self.remote_rows = True
        exchange(self.weight, nd.zeros((1, self.units), ctx=device), "null")
        self.weight.whole_shape = (self.num_rows, self.units)

    def compact(self, capacity: int) -> nd.NDArray:
        """Replaces the table (R, U) in the network by zeros (C, U), which get a gradient unless the table is frozen.

        The caller must clear the cached graph of the network.

        Args:
            capacity: C.

        Returns:
            The array of the table itself, on its device; a placeholder if the rows are remote.
        """
        table = self.weight.list_data()[0]
        self._rows_held, self.weight.whole_shape = capacity, (self.num_rows, self.units)
        rows = nd.zeros((capacity, self.units), ctx=table.context, dtype=table.dtype)
        # C is constant for all batches, so static memory planning holds.
        exchange(self.weight, rows, "null" if self.weight.lr_mult == 0 else "write")
        return table

    def restore(self, table: nd.NDArray) -> None:
        """Puts the array of the table back into the network, which can then compute but not train."""
        self._rows_held = self.num_rows
        exchange(self.weight, table, "null")

    def hybrid_forward(self, F: OperatorModule, id_BF: Array, weight: Array) -> Array:
        return F.Embedding(id_BF, weight, self._rows_held, self.units)


class EmbeddedMLP(gluon.HybridBlock):
    """Applies dense layers to the concatenated embeddings of ids (B, F), and to numbers (B, N) if the table has any.
    Returns (B, K).

    Args:
        mlp: network of inputs (B, F * U + N).
        field_sizes: number of ids of each field.
        units: U.
    """

    def __init__(self, mlp: gluon.Block, field_sizes: Sequence[int], units: int, **kwargs: Any):
        super().__init__(**kwargs)
        with self.name_scope():
            self.table = EmbeddingTable(sum(field_sizes), units)
        self.mlp = mlp

    def hybrid_forward(self, F: OperatorModule, id_BF: Array, *numbers: Array) -> Array:
        vector_BD = F.flatten(self.table(id_BF))
        return self.mlp(F.concat(vector_BD, *numbers, dim=1) if numbers else vector_BD)
