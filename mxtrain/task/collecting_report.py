"""Base of reports about predictions that metrics collect, on the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, List, Optional, Tuple

from mxtrain.task.report import Report

if TYPE_CHECKING:
    from mxnet.ndarray import NDArray

    from mxtrain.engine.predictions import Decode, Predictions
    from mxtrain.metric.host import Collected
    from mxtrain.types import Batch


class CollectingReport(Report):
    """Gives each batch to a metric's collector a few batches late, so that the pass does not wait for the device.

    Args:
        decode: (outputs, batch) -> predictions; None: set by `decode_by`, and nothing is collected before.
        collected: collector that gets predictions and targets.
    """

    def __init__(self, decode: Optional[Decode], collected: Collected):
        self._decode, self._collector = decode, collected
        self._pending: List[Tuple[Batch, Predictions]] = []

    def decode_by(self, decode: Decode) -> None:
        self._decode = decode

    def update(self, batch: Batch, outputs: Tuple[NDArray, ...]) -> None:
        from mxtrain.engine.predictions import BATCHES_AHEAD

        if self._decode is None:
            return
        self._pending.append((batch.without_inputs(), self._decode(outputs, batch)))
        if len(self._pending) > BATCHES_AHEAD:
            self._collect(*self._pending.pop(0))

    def _collect(self, batch: Batch, predictions: Predictions) -> None:
        from mxtrain.engine.predictions import to_host

        assert batch.index_B is not None
        self._collector.update(batch.index_B, to_host(predictions), batch.targets[0].asnumpy(), batch.meta)

    def finish(self) -> None:
        """Collects pending batches; waits for the device."""
        while self._pending:
            self._collect(*self._pending.pop(0))
