"""Statistics of columns over training rows: vocabularies by frequency, means and deviations of numbers.

Legend: N samples, R rows of a piece.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from typing import TYPE_CHECKING, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from mxtrain.data.corpus.preparing import Advance, prepare
from mxtrain.data.corpus.shards import ShardWriter
from mxtrain.data.features.feature_columns import FeatureColumn, FeatureColumns
from mxtrain.data.features.feature_store import FeatureStore, iterate_rows
from mxtrain.data.table.cell_text import canonical

if TYPE_CHECKING:
    from mxtrain.data.features.feature_columns import Kind
    from mxtrain.types.annotations import Json, JsonObject


class ColumnSettings(NamedTuple):
    """Settings of a column.

    Attributes:
        name: name of the column.
        kind: number, count (a number whose logarithm is used), category or hashed.
        buckets: number of buckets of a hashed column.
        min_count: minimum number of training rows with a value of a category for the value to be in the vocabulary.
        canonical: see `FeatureColumn.canonical`.
    """

    name: str
    kind: str
    buckets: int = 0
    min_count: int = 1
    canonical: bool = False

    @property
    def read_kind(self) -> Kind:
        """Returns the kind as which cells are read."""
        return "number" if self.kind == "count" else self.kind  # type: ignore[return-value]  # it is one of them


def build_columns(
    stores: Sequence[FeatureStore], row_N: Optional[np.ndarray], settings: Sequence[ColumnSettings]
) -> FeatureColumns:
    """Computes the columns of a network from the training rows, or reads them from the cache.

    Args:
        stores: stores of training rows.
        row_N: row numbers, ascending and consecutive over all stores; None = all.
        settings: settings of the columns.
    """
    rows = "all" if row_N is None else hashlib.sha256(np.ascontiguousarray(row_N, np.int64).tobytes()).hexdigest()
    cache_key: List[Json] = [[store.key for store in stores], rows, [list(column) for column in settings]]

    def write(writer: ShardWriter, advance: Advance) -> JsonObject:
        return {"columns": measure_columns(stores, row_N, settings).to_json()}

    if not all(store.key for store in stores):
        return measure_columns(stores, row_N, settings)
    prepared = prepare("feature_columns", cache_key, {}, write, what="vocabularies and means of training rows")
    return FeatureColumns.from_json(prepared.facts["columns"])


def measure_columns(
    stores: Sequence[FeatureStore], row_N: Optional[np.ndarray], settings: Sequence[ColumnSettings]
) -> FeatureColumns:
    """Computes the columns in one pass over the rows, without the cache; arguments as in `build_columns`."""
    measures: Dict[str, Union[_Count, _Moments]] = {
        column.name: _Count() if column.kind == "category" else _Moments(column.kind == "count")
        for column in settings
        if column.kind != "hashed"
    }
    for store, row_R in iterate_rows(stores, row_N):
        numbers, codes = store.number_RN[row_R], store.code_RF[row_R]
        for name, measure in measures.items():
            if isinstance(measure, _Count):
                measure.add(codes[:, store.codes.index(name)], store.texts[name])
            else:
                measure.add(numbers[:, store.numbers.index(name)].astype(np.float64))
    return FeatureColumns(tuple(_measured(column, measures.get(column.name)) for column in settings))


def _measured(column: ColumnSettings, measure: Union[_Count, _Moments, None]) -> FeatureColumn:
    if isinstance(measure, _Count):
        return FeatureColumn(column.name, "category", tuple(measure.vocabulary(column.min_count)))
    if isinstance(measure, _Moments):
        return FeatureColumn(
            column.name,
            "number",
            mean=measure.mean,
            std=measure.deviation(),
            log=measure.is_log,
            indicator=measure.has_missing,
        )
    return FeatureColumn(column.name, "hashed", buckets=column.buckets, canonical=column.canonical)


class _Count:
    """Frequencies of the values of a category."""

    def __init__(self) -> None:
        self._of_texts: Dict[int, Tuple[Sequence[str], np.ndarray]] = {}

    def add(self, code_R: np.ndarray, texts: Sequence[str]) -> None:
        """Counts the codes of rows of a file with these texts."""
        _, count_V = self._of_texts.setdefault(id(texts), (texts, np.zeros(len(texts) + 1, np.int64)))
        count_V += np.bincount(code_R, minlength=len(count_V))

    def vocabulary(self, min_count: int) -> List[str]:
        """Returns the values that occur at least `min_count` times, most frequent first; ties are sorted by text."""
        counts: Counter = Counter()
        for texts, count_V in self._of_texts.values():
            for text, count in zip(texts, count_V[1:].tolist()):
                counts[canonical(text)] += count
        kept = [(-count, text) for text, count in counts.items() if count >= max(min_count, 1)]
        # Ties by text: a vocabulary must not depend on the order of files or of a hash table.
        return [text for _, text in sorted(kept)]


class _Moments:
    """Mean and standard deviation of the numbers that are not missing.

    Source: pieces are merged as in Chan et al., "Updating formulae and a pairwise algorithm for computing sample
    variances" (1979).
    """

    def __init__(self, is_log: bool) -> None:
        self.is_log, self.has_missing, self.mean = is_log, False, 0.0
        self._count, self._squares = 0, 0.0

    def add(self, value_R: np.ndarray) -> None:
        """Adds numbers; NaN where missing."""
        is_present_R = ~np.isnan(value_R)
        self.has_missing = self.has_missing or not bool(is_present_R.all())
        value_R = as_logarithm(value_R[is_present_R]) if self.is_log else value_R[is_present_R]
        if not len(value_R):
            return
        mean, count, self._count = float(value_R.mean()), self._count, self._count + len(value_R)
        # Merged by means and not by sums of squares, which lose all digits of a small deviation around a large mean.
        difference = mean - self.mean
        self._squares += float(((value_R - mean) ** 2).sum()) + difference**2 * count * len(value_R) / self._count
        self.mean += difference * len(value_R) / self._count

    def deviation(self) -> float:
        """Returns the standard deviation; 1 if all numbers are equal."""
        deviation = math.sqrt(self._squares / self._count) if self._count else 0.0
        return deviation if deviation > 1e-7 * abs(self.mean) else 1.0  # smaller values are rounding errors


def as_logarithm(value: np.ndarray) -> np.ndarray:
    """Computes log(1 + max(x, 0)) of counts.

    Source: Naumov et al., "Deep Learning Recommendation Model for Personalization and Recommendation Systems" (2019),
    https://arxiv.org/abs/1906.00091, whose code does so with Criteo's counts.
    """
    return np.log1p(np.maximum(value, 0.0))
