"""Updates of a large embedding table by the gradients of a few of its rows.

    lazy     updates only the rows with a gradient, and their state
    exact    updates all rows, those without a gradient with a gradient of 0: bitwise equal to a dense update

Both call the optimizer's own update on slices of the table, so the update of a row must not depend on other rows.

Legend: R rows of the table, K rows with a gradient, C >= K rows of the gradient array, U units, P rows of a chunk.
"""

from __future__ import annotations

import operator
from typing import Dict, Optional

import numpy as np

from mxtrain.engine.backend import mx, nd
from mxtrain.errors import DataError
from mxtrain.optimizer.state import OptimizerState, flatten, map_state

ELEMENTS_AT_ONCE = 1 << 20
"""Elements of the table per chunk of an exact update: the temporary arrays of a chunk fit into a cache."""


class TouchedRows:
    """Rows of a table that the last batch read, in the order of their gradients.

    Attributes:
        id_K: row ids on the host, ascending.
    """

    def __init__(self, table: nd.NDArray):
        self._table = table
        self.set(np.zeros(0, np.int64))

    def set(self, id_K: np.ndarray) -> None:
        """Replaces the rows.

        Raises:
            DataError: an id is negative or not below the number of rows.
        """
        num_rows = len(self._table)
        if len(id_K) and not 0 <= id_K[0] <= id_K[-1] < num_rows:
            raise DataError(
                f"A batch holds the id {id_K[0] if id_K[0] < 0 else id_K[-1]}, and the table has {num_rows} rows, "
                "numbered from 0. The dataset's ids are of other columns than the network's."
            )
        self.id_K = id_K
        self._on_device: Dict[str, nd.NDArray] = {}

    @property
    def index_K(self) -> nd.NDArray:
        """Returns the row ids on the table's device, int32.

        Must not be called without rows: MXNet has no empty arrays.
        """
        return self._as("int32")

    @property
    def number_K(self) -> nd.NDArray:
        """Returns the row ids on the table's device as float64, for native operators."""
        return self._as("float64")

    def _as(self, dtype: str) -> nd.NDArray:
        if dtype not in self._on_device:
            self._on_device[dtype] = nd.array(self.id_K, ctx=self._table.context, dtype=dtype)
        return self._on_device[dtype]

    def __len__(self) -> int:
        return len(self.id_K)

    def gather(self, array_RU: nd.NDArray, out: Optional[nd.NDArray] = None) -> nd.NDArray:
        """Returns these rows of an array of all rows, (K, U); writes them into `out` if it is given."""
        # Ids were checked on the host, where an error can name them, so no id is ever clipped.
        return nd.take(array_RU, self.index_K, mode="clip", out=out)

    def scatter(self, row_KU: nd.NDArray, array_RU: nd.NDArray) -> None:
        """Writes these rows into an array of all rows."""
        put_rows(row_KU, self.index_K, array_RU)

    def dense(self, row_KU: np.ndarray) -> np.ndarray:
        """Returns a host array (R, U) with these rows, and zeros elsewhere."""
        array_RU = np.zeros(self._table.shape, row_KU.dtype)
        array_RU[self.id_K] = row_KU[: len(self)]
        return array_RU


def put_rows(row_KU: nd.NDArray, index_K: nd.NDArray, array_RU: nd.NDArray) -> None:
    """Computes array_RU[index_K] = row_KU in place, asynchronously. Indices must be unique."""
    nd._internal._scatter_set_nd(
        lhs=array_RU, rhs=row_KU, indices=index_K.reshape((1, -1)), shape=array_RU.shape, out=array_RU
    )


def lazy_update(
    optimizer: mx.optimizer.Optimizer,
    index: int,
    table_RU: nd.NDArray,
    state: OptimizerState,
    rows: TouchedRows,
    gradient_CU: nd.NDArray,
) -> None:
    """Updates the rows with a gradient, and their state.

    Args:
        optimizer: optimizer whose update is applied.
        index: index of the table in the optimizer.
        table_RU: all rows.
        state: optimizer state of the table.
        rows: rows that the gradient covers.
        gradient_CU: gradients of `rows`; further rows are ignored.
    """
    if not len(rows):  # MXNet has no empty arrays; the step still counts, e.g. for Adam's bias correction
        optimizer._update_count(index)
        return
    weight_KU = rows.gather(table_RU)
    state_K = map_state(state, rows.gather)
    optimizer.update(index, weight_KU, gradient_CU[: len(rows)], state_K)
    rows.scatter(weight_KU, table_RU)
    for updated, array in zip(flatten(state_K), flatten(state)):
        rows.scatter(updated, array)


def exact_update(
    optimizer: mx.optimizer.Optimizer,
    index: int,
    table_RU: nd.NDArray,
    state: OptimizerState,
    rows: TouchedRows,
    gradient_CU: nd.NDArray,
) -> None:
    """Updates all rows in place, in chunks, without allocating a dense gradient. See `lazy_update` for arguments."""
    num_rows, units = table_RU.shape
    # A row is never divided, even if it is larger than a chunk: GroupAdaGrad needs whole rows.
    step = max(1, min(num_rows, ELEMENTS_AT_ONCE // units))
    gradient_PU = nd.zeros((step, units), ctx=table_RU.context, dtype=table_RU.dtype)
    # `update` counts itself, so the count before the first chunk is kept.
    count = optimizer._index_update_count[index]
    begins = np.arange(0, num_rows, step)
    # [first, last) are the gradient's rows in the chunk of the table's rows [begin, end).
    first = 0
    for begin, last in zip(begins.tolist(), np.searchsorted(rows.id_K, begins + step).tolist()):
        end = min(begin + step, num_rows)
        if last > first:
            position = rows.index_K[first:last] - begin
            put_rows(gradient_CU[first:last], position, gradient_PU)
        # All chunks together are one update: each must see the same count, e.g. for Adam's bias correction.
        optimizer._index_update_count[index] = count
        state_P = map_state(state, operator.itemgetter(slice(begin, end)))  # views, so the state is updated in place
        optimizer.update(index, table_RU[begin:end], gradient_PU[: end - begin], state_P)
        if last > first:  # the buffer is reused for the next chunk: clear only the rows that were written
            put_rows(
                nd.zeros((last - first, units), ctx=position.context, dtype=gradient_PU.dtype), position, gradient_PU
            )
        first = last
