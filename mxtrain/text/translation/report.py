"""Report of `eval` for translations: examples that differ from their reference, shown with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, List, Optional, Tuple

from mxtrain.task.report import Report
from mxtrain.types import Artifact, Table

if TYPE_CHECKING:
    from mxnet.ndarray import NDArray

    from mxtrain.engine.predictions import Decode
    from mxtrain.text.translation.parallel import AnyPairs
    from mxtrain.types import Batch

MAX_SHOWN = 20


class TranslationReport(Report):
    """Number of translations equal to the reference, and the first that differ.

    Args:
        source: of the pairs that are measured.
    """

    def __init__(self, source: AnyPairs):
        self._pairs = source.pairs
        self._decode: Optional[Decode] = None
        self._count = 0
        self._others: List[Tuple[int, str]] = []

    def decode_by(self, decode: Decode) -> None:
        """See `Report`."""
        self._decode = decode

    def update(self, batch: Batch, outputs: Tuple[NDArray, ...]) -> None:
        """See `Report`. Each token is asked for on the host, so nothing is under way anyhow."""
        from mxtrain.engine.predictions import to_host

        if self._decode is None:
            return
        assert batch.index_B is not None and batch.meta is not None
        predictions = to_host(self._decode(outputs, batch))
        for index, prediction, reference in zip(batch.index_B.tolist(), predictions, batch.meta):
            found = reference.read(prediction)
            if found != reference.text:
                self._others.append((index, found))
        self._count += batch.size

    def artifacts(self, title: str) -> List[Artifact]:
        """See `Report`."""
        rows: List[Any] = [(*self._pairs[index], found) for index, found in sorted(self._others)[:MAX_SHOWN]]
        exact = self._count - len(self._others)
        counts = [("the reference, character by character", exact), ("another text", len(self._others))]
        return [
            Table("translations", ("translation is", "count"), counts),
            Table("others", ("source", "reference", "translation"), rows),
        ]
