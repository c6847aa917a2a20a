"""One vector for each id: the table of a network for recommendation or for categorical columns.

A table computes in one of two forms. In the compact form (`compact`) the network holds a few rows only, those of a
batch, and ids are positions among them: mxtrain/parallel/row_tables.py.

Legend: B batch, F fields, R rows, C rows of the compact form, U units.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

from mxtrain.engine.backend import gluon, mx, nd
from mxtrain.engine.gluon_parameters import exchange

if TYPE_CHECKING:
    from mxtrain.types.annotations import Array, OperatorModule


class EmbeddingTable(gluon.HybridBlock):
    """Ids (B, F) int32 to vectors (B, F, U).

    Args:
        num_rows: R; ids are from 0 to this.
        units: U.
        scale: standard deviation of the normal distribution that vectors are drawn from.

    Attributes:
        ids_from: the number of the network's input that holds its ids, where the table may be computed in the compact
            form; None: it is a dense parameter like any other.
        scale: as given.
        remote_rows: whether its rows are held by others, and never all here.
    """

    def __init__(self, num_rows: int, units: int, scale: float = 0.01, **kwargs: Any):
        super().__init__(**kwargs)
        self.num_rows, self.units = num_rows, units
        self.ids_from: Optional[int] = None
        self.scale, self.remote_rows = scale, False
        self._rows_held = num_rows
        self.weight = self.params.get("weight", shape=(num_rows, units), init=mx.init.Normal(scale))

    def make_sparse(self, ids_from: int) -> None:
        """Marks the table as row-sparse. Call before initialisation, so that no gradient of all rows is allocated."""
        self.ids_from = ids_from
        # A gradient of all rows would double the memory of the table, which is what the compact form avoids.
        self.weight.grad_req = "null"

    def make_remote(self, device: mx.Context) -> None:
        """Replaces the initialisation if servers hold the rows: a placeholder of one row is allocated."""
        self.remote_rows = True
        exchange(self.weight, nd.zeros((1, self.units), ctx=device), "null")
        self.weight.whole_shape = (self.num_rows, self.units)

    def compact(self, capacity: int) -> nd.NDArray:
        """Takes the table (R, U) out of the network, which gets (C, U) of zeros, with a gradient unless it is frozen.
        Whoever holds the network must forget its cached graph.

        Args:
            capacity: C.

        Returns:
            The table, on its device: the very array; its placeholder if the rows are remote.
        """
        table = self.weight.list_data()[0]
        self._rows_held, self.weight.whole_shape = capacity, (self.num_rows, self.units)
        rows = nd.zeros((capacity, self.units), ctx=table.context, dtype=table.dtype)
        # C is constant for all batches, so static memory planning holds.
        exchange(self.weight, rows, "null" if self.weight.lr_mult == 0 else "write")
        return table

    def restore(self, table: nd.NDArray) -> None:
        """Puts the table back, the very array; the network can compute with it, and not train it."""
        self._rows_held = self.num_rows
        exchange(self.weight, table, "null")

    def hybrid_forward(self, F: OperatorModule, id_BF: Array, weight: Array) -> Array:
        return F.Embedding(id_BF, weight, self._rows_held, self.units)
