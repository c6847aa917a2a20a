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
    """Fills what metrics collect with each batch, a few batches behind, so that the device is not waited for.

    Args:
        decode: predictions from outputs; None: `decode_by` says it, and nothing is collected before.
        collected: is filled.
    """

    def __init__(self, decode: Optional[Decode], collected: Collected):
        self._decode, self._filled = decode, collected
        self._under_way: List[Tuple[Batch, Predictions]] = []

    def decode_by(self, decode: Decode) -> None:
        self._decode = decode

    def update(self, batch: Batch, outputs: Tuple[NDArray, ...]) -> None:
        from mxtrain.engine.predictions import BATCHES_AHEAD

        if self._decode is None:
            return
        self._under_way.append((batch, self._decode(outputs, batch)))
        if len(self._under_way) > BATCHES_AHEAD:
            self._collect(*self._under_way.pop(0))

    def _collect(self, batch: Batch, decoded: Predictions) -> None:
        from mxtrain.engine.predictions import to_host

        assert batch.index_B is not None
        self._filled.update(batch.index_B, to_host(decoded), batch.targets[0].asnumpy(), batch.meta)

    def finish(self) -> None:
        """Collects pending batches; waits for the device."""
        while self._under_way:
            self._collect(*self._under_way.pop(0))
