"""What `eval` shows of translations: how many are the reference exactly, and others beside theirs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, List, Mapping, Optional, Tuple

from mxtrain.task.base import Report
from mxtrain.types import Artifact, Table

if TYPE_CHECKING:
    from mxnet.ndarray import NDArray

    from mxtrain.dataset.language.parallel import AnyPairs
    from mxtrain.engine.predictions import Decode
    from mxtrain.types import Batch

MAX_SHOWN = 20


class TranslationReport(Report):
    """Exact matches, and the first translations that are none.

    Args:
        source: of the pairs that are measured.
    """

    def __init__(self, source: AnyPairs):
        self._pairs = source.pairs
        self._decode: Optional[Decode] = None
        self._count, self._exact = 0, 0
        self._others: List[Tuple[int, str]] = []

    def decode_by(self, decode: Decode) -> None:
        """See `Report`."""
        self._decode = decode

    def update(self, batch: Batch, outputs: Tuple[NDArray, ...]) -> None:
        """See `Report`. Each token is asked for on the host, so nothing is under way anyhow."""
        from mxtrain.engine.predictions import to_host

        if self._decode is None or batch.index_B is None or batch.meta is None:
            return
        for index, tokens, reference in zip(batch.index_B.tolist(), to_host(self._decode(outputs, batch)), batch.meta):
            found = reference.decode(tokens)
            self._count += 1
            self._exact += found == reference.text
            if found != reference.text:
                self._others.append((index, found))

    def values(self) -> Mapping[str, float]:
        """See `Report`."""
        return {"exact_match": self._exact / self._count} if self._count else {}

    def artifacts(self, title: str) -> List[Artifact]:
        """See `Report`."""
        rows: List[Any] = [(*self._pairs[index], found) for index, found in sorted(self._others)[:MAX_SHOWN]]
        summary = Table("exact_matches", ("exact_match", "count"), [(self._exact / max(self._count, 1), self._count)])
        return [summary, Table("others", ("source", "reference", "translation"), rows)]
