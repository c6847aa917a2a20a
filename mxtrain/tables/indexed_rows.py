"""Sparse rows of features in libsvm or libffm format, parsed once and stored as ids, values and targets.

Legend: R rows of a file, B batch, L ids of a row.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np

from mxtrain.data.checking.checks import Checked, Checks, SourceChecks, digest_of
from mxtrain.data.checking.problems import (
    LABEL_RANGE,
    STRICT,
    UNREADABLE_ROW,
    DataPlace,
    DataPlaces,
    Findings,
    Problem,
)
from mxtrain.data.corpus.content import contents_of
from mxtrain.data.corpus.preparing import Advance, prepare, prepare_for_now
from mxtrain.data.corpus.shards import ArrayForm, Ragged, Shards, ShardWriter
from mxtrain.data.features.feature_rows import FeatureRows
from mxtrain.data.loading.text_stream import open_text
from mxtrain.data.table.cells import number_of
from mxtrain.data.table.target_classes import UNKNOWN
from mxtrain.errors import DataError
from mxtrain.tables.indexed_lines import LABELS, IndexedRow, WrongLine, cells_of, padded_rows, parse_row

if TYPE_CHECKING:
    from mxtrain.annotations import Json, JsonObject
    from mxtrain.data.features.feature_columns import FeatureColumns

_FORMS = {
    "id": ArrayForm("int32", (), True), "value": ArrayForm("float32", (), True), "label": ArrayForm("int32"),
    "place": ArrayForm("int64"),
}  # fmt: skip
_ROWS_AT_ONCE = 4096
_LOOKED_AT, _LEAST_SHARE = 1000, 0.1
"""Number of first lines whose targets are checked, and the share of invalid targets above which the whole file is
refused instead of single lines."""
LONGEST_ROW = 10_000
"""Maximum number of features of a row, unless `max_features` is set."""


@dataclass
class IndexedStore:
    """Rows of one file.

    Attributes:
        ids, values: feature ids and values of all rows.
        label_R: target of each row, int32: a class index or `UNKNOWN`.
        file: path of the file.
        number_R: line number of each row.
        shards: store of the arrays; the reference keeps its files from being removed.
    """

    ids: Ragged
    values: Ragged
    label_R: np.ndarray
    file: str
    number_R: np.ndarray
    shards: Shards

    def __len__(self) -> int:
        return len(self.label_R)

    def places(self, row_N: np.ndarray) -> DataPlaces:
        """Returns the source locations of rows."""
        return DataPlaces([self.file], self.number_R[row_N])


def open_indexed(path: str, with_target: bool, findings: Findings = STRICT) -> IndexedStore:
    """Opens the rows of a file, which are parsed on first use and cached.

    Args:
        path: path of the file, possibly compressed (.gz).
        with_target: True if each line must begin with a target; otherwise a target is optional.
        findings: collects invalid lines, which are skipped.

    Raises:
        DataError: the file cannot be read.
    """

    def write(writer: ShardWriter, advance: Advance) -> JsonObject:
        rows = read_indexed(path, with_target, findings)
        while batch := list(islice(rows, _ROWS_AT_ONCE)):
            length_R = np.array([len(row.ids) for _, row in batch], np.int64)
            values: Dict[str, np.ndarray] = {
                "id": np.array([item for _, row in batch for item in row.ids], np.int32),
                "value": np.array([item for _, row in batch for item in row.values], np.float32),
                "label": np.array([UNKNOWN if row.label is None else row.label for _, row in batch], np.int32),
                "place": np.array([line for line, _ in batch], np.int64),
            }
            writer.append(len(batch), values, {"id": length_R, "value": length_R})
            advance(len(batch))
        return {}

    if findings.keeps_going:
        shards = prepare_for_now("indexed", _FORMS, write)
    else:
        (content,) = contents_of([path], f"content of {path}")
        cache_key: Json = [content.sha256, with_target]
        shards = prepare("indexed", cache_key, _FORMS, write, what=f"rows of {path}")
        content.require_unchanged()  # the cache key is the hash of the content before it was parsed
    return IndexedStore(
        shards.ragged("id"), shards.ragged("value"), shards.array("label"), path, shards.array("place"), shards
    )


def read_indexed(path: str, with_target: bool, findings: Findings) -> Iterator[Tuple[int, IndexedRow]]:
    """Yields number and content of each line of a file in libsvm or libffm format, see `parse_row`."""
    with open_text(path, "\n", findings) as lines:
        first = list(islice(lines, _LOOKED_AT))
        if with_target:
            _refuse_other_targets(path, first)
        for line, text in enumerate(chain(first, lines), start=1):
            cells = cells_of(text)
            if not cells:
                continue
            try:
                yield line, parse_row(cells, with_target)
            except WrongLine as wrong:
                place, kind = DataPlace(path, line), LABEL_RANGE if wrong.is_target else UNREADABLE_ROW
                findings.refuse(Problem(kind, place, f"{place}: {wrong}", "Correct or remove it."))


def _refuse_other_targets(path: str, lines: Sequence[str]) -> None:
    """Raises a `DataError` if many of the first lines have targets that are not allowed, such as 1 and 2."""
    texts = [cells[0] for line in lines if (cells := cells_of(line))]
    counts = Counter(number for text in texts if (number := number_of(text)) == number)
    other_targets = {number: count for number, count in counts.items() if number not in LABELS}
    if sum(other_targets.values()) < max(3, len(texts) * _LEAST_SHARE):
        return
    examples = " and ".join(f"{number:g}" for number in sorted(counts)[:5])
    remedy = (
        "Subtract 1 from them, so that 2 becomes 1 = yes: awk '{$1 -= 1} 1' FILE > NEW." if set(counts) == {1, 2}
        else "Write 1 for yes and 0 for no. A number is predicted by task=regression dataset=number_table."
    )  # fmt: skip
    raise DataError(
        f"{path}: the targets of the first lines are {examples}{' and so on' if len(counts) > 5 else ''}; allowed are "
        f"0 or -1, and 1. {remedy}"
    )


class IndexedRows(FeatureRows):
    """Rows of ids and values; see `FeatureRows`."""

    def take(self, indices: Any) -> IndexedRows:
        subset = super().take(indices)
        return IndexedRows(subset.stores, subset.row_N)

    def checks(self) -> Checks:
        return IndexedChecks(self)

    def build_encoder(self, columns: FeatureColumns) -> IndexedEncoder:  # type: ignore[override]  # it is called alike
        return IndexedEncoder(columns)

    def ragged(self, index_B: np.ndarray) -> Tuple[np.ndarray, List[Tuple[np.ndarray, np.ndarray]]]:
        """Returns the number of ids of each sample, (B,), and the (ids, values) of each sample."""
        pair_of_sample: Dict[int, Tuple[np.ndarray, np.ndarray]] = {}
        for store, sample_M, row in self.by_store(index_B):
            begin_B, end_B = store.ids.begin[row], store.ids.begin[row + 1]  # type: ignore[attr-defined]  # it is indexed
            for sample, begin, end in zip(sample_M.tolist(), begin_B.tolist(), end_B.tolist()):
                pair_of_sample[sample] = (store.ids.value[begin:end], store.values.value[begin:end])  # type: ignore[attr-defined]
        pairs = [pair_of_sample[number] for number in range(len(index_B))]
        return np.array([len(ids) for ids, _ in pairs], np.int64), pairs


class IndexedChecks(SourceChecks):
    """Checks for duplicates and counts of classes. All other problems are found while the file is read."""

    def place(self, index: int) -> DataPlace:
        """See `Checks`."""
        ((store, _, row),) = self._source.by_store(np.array([index]))
        return store.places(row)[0]

    def check(self, index: int) -> Checked:
        """See `Checks`."""
        _, ((ids, values),) = self._source.ragged(np.array([index]))
        label = self._source.labels(np.array([index]))
        return Checked(digest=digest_of(ids.tobytes(), values.tobytes(), label.tobytes()), classes=label.tolist())


class IndexedEncoder:
    """Converts rows to ids (B, L) int32 and values (B, L) float32, from the first L ids of each row.

    Args:
        columns: columns of the network; there is a single one, with the number of ids and L.
    """

    def __init__(self, columns: FeatureColumns) -> None:
        self._num_ids, self._length = columns.columns[0].buckets, columns.columns[0].length

    def inputs(self, source: IndexedRows, index_B: np.ndarray) -> List[np.ndarray]:
        """Returns ids and values; both are 0 after the end of a row, and for ids that training did not have."""
        _, pairs = source.ragged(index_B)
        return list(padded_rows(pairs, self._length, self._num_ids))

    def design(self, source: IndexedRows, index_B: np.ndarray) -> Any:
        """Returns the values as a sparse matrix (B, number of ids), for linear models."""
        from scipy.sparse import csr_matrix

        id_BL, value_BL = self.inputs(source, index_B)
        begins = np.arange(len(index_B) + 1) * self._length
        shape = (len(index_B), self._num_ids)
        return csr_matrix((value_BL.ravel().astype(np.float64), id_BL.ravel(), begins), shape=shape)


def measure_indexed(rows: FeatureRows, max_features: Optional[int], max_index: int) -> Tuple[int, int]:
    """Returns the number of ids (largest id + 1) and the largest number of ids of a row, over the training rows.

    Args:
        rows: training rows.
        max_features: number of ids of a row that are used; None = all.
        max_index: largest allowed id; the network has a vector for each id up to the largest.

    Raises:
        DataError: an id is larger than `max_index`, or a row is longer than `LONGEST_ROW` and `max_features` is None.
    """
    largest, longest = 0, 1
    for begin in range(0, len(rows), _ROWS_AT_ONCE):
        index_B = np.arange(begin, min(begin + _ROWS_AT_ONCE, len(rows)))
        length_B, pairs = rows.ragged(index_B)  # type: ignore[attr-defined]  # they are `IndexedRows`
        longest = max(longest, int(length_B.max(initial=0)))
        largest_B = np.array([int(ids[:max_features].max()) if len(ids) else 0 for ids, _ in pairs])
        largest = max(largest, int(largest_B.max(initial=0)))
        if largest > max_index:
            place = IndexedChecks(rows).place(begin + int(largest_B.argmax()))
            raise DataError(
                f"{place} has the index {largest:,}. The network has a vector for each index up to the largest, and "
                f"{max_index:,} is allowed: number the features anew without gaps, or type dataset.max_index={largest} "
                "if there is memory for so many."
            )
        if max_features is None and longest > LONGEST_ROW:
            place = IndexedChecks(rows).place(begin + int(length_B.argmax()))
            raise DataError(
                f"{place} has {longest:,} features, and all rows of a batch take as much memory as the longest one. "
                f"Type dataset.max_features={longest} to read all of them, or fewer to read the first ones of each row."
            )
    return largest + 1, min(longest, max_features or longest)
