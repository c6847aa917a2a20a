"""Recurrent state that is passed from each batch to the next, for each row of the global batch.

The network takes it as its last inputs and returns it as its last outputs. It is put into a batch beside what the
loader gave, so it is divided among workers, replicas and microbatches like the batch, by code that does not know it.

Reasons: docs/decisions/0051-recurrent-state.md.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np

from mxtrain.engine.backend import nd
from mxtrain.errors import CheckpointError
from mxtrain.kvstore.store import Store
from mxtrain.types import Batch, Shape

if TYPE_CHECKING:
    from mxnet import Context, gluon

    from mxtrain.types.annotations import Json, JsonObject


class RecurrentState:
    """The state of this worker's rows of the global batch, on one device. Without any shapes it does nothing.

    A checkpoint holds the state of all rows of the global batch, in their order.

    Args:
        shapes: of each array of the state, for one row.
        network: whose precision and device it has.
        workers: have the other rows.
    """

    def __init__(self, shapes: Sequence[Shape], network: gluon.Block, workers: Optional[Store] = None) -> None:
        self.shapes = [tuple(shape) for shape in shapes]
        self._network, self._workers = network, workers or Store()
        self._rows: List[nd.NDArray] = []
        self._restored: List[np.ndarray] = []
        self._global_size = 0

    def enter(self, batch: Batch) -> Batch:
        """Returns the batch with the state of its rows behind its inputs: zeros where it does not go on where another
        ended."""
        if not self.shapes:
            return batch
        self._global_size = batch.global_size
        restored, self._restored = self._restored, []
        if not batch.size:
            return batch
        # The batch decides, so training, resume, evaluation and `verify` need no call that resets the state.
        if not batch.continues_previous:
            device, dtype = self._place()
            rows = [nd.zeros((batch.size, *shape), ctx=device, dtype=dtype) for shape in self.shapes]
        elif restored:
            begin, end = self._workers.world.share(batch.global_size)
            device, dtype = self._place()
            rows = [nd.array(array[begin:end], ctx=device, dtype=dtype) for array in restored]
        else:
            rows = self._rows
        assert rows and len(rows[0]) == batch.size, "a batch must continue the rows of the previous one"
        return replace(batch, inputs=(*batch.inputs, *rows))

    def leave(self, shards: Sequence[Sequence[nd.NDArray]]) -> None:
        """Keeps the new state of each shard of the batch, in row order."""
        if shards and self.shapes:
            device, _ = self._place()
            parts = [[array.as_in_context(device) for array in arrays] for arrays in zip(*shards)]
            self._rows = [arrays[0] if len(arrays) == 1 else nd.concat(*arrays, dim=0) for arrays in parts]

    def _place(self) -> Tuple[Context, str]:
        parameter = next(iter(self._network.collect_params().values()))
        return parameter.list_ctx()[0], parameter.dtype

    def save_state(self) -> Tuple[Mapping[str, Union[nd.NDArray, np.ndarray]], Mapping[str, Json]]:
        """See `Stateful`. Collective: the rows of all workers."""
        if not self._global_size:
            return {}, {}
        if self._restored:  # no batch has come since
            return {str(number): array for number, array in enumerate(self._restored)}, {}
        if self._workers.world.size == 1:
            return {str(number): array for number, array in enumerate(self._rows)}, {}
        begin, end = self._workers.world.share(self._global_size)
        gathered: Dict[str, np.ndarray] = {}
        for number, shape in enumerate(self.shapes):
            all_rows = np.zeros((self._global_size, *shape), np.float32)
            if end > begin:
                all_rows[begin:end] = self._rows[number].asnumpy()
            # A sum with zeros is exact.
            gathered[str(number)] = self._workers.total(all_rows.ravel()).astype(np.float32).reshape(all_rows.shape)
        return gathered, {}

    def load_state(self, arrays: Mapping[str, np.ndarray], values: JsonObject, source: str) -> None:
        """See `Stateful`."""
        states = [arrays[name] for name in sorted(arrays, key=int)] if all(map(str.isdecimal, arrays)) else None
        if states is None or (states and [array.shape[1:] for array in states] != self.shapes):
            raise CheckpointError(f"{source} holds the carried state of another network.")
        self._restored, self._rows = states, []
        self._global_size = len(states[0]) if states else 0
