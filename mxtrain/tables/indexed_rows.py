"""Sparse rows of features in libsvm or libffm format, parsed once and stored as ids, values and targets.

Legend: R rows of a file, B batch, L ids of a row.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np

from mxtrain.data.checking.checks import Checked, Checks, SourceChecks, digest_of
from mxtrain.data.checking.problems import (
    LABEL_RANGE,
    STRICT,
    UNREADABLE_ROW,
    DataLocation,
    DataLocations,
    Findings,
    Problem,
)
from mxtrain.data.corpus.content import contents_of
from mxtrain.data.corpus.preparing import Advance, prepare, prepare_temporary
from mxtrain.data.corpus.shards import ArrayForm, Ragged, Shards, ShardWriter
from mxtrain.data.features.feature_rows import FeatureRows
from mxtrain.data.loading.text_stream import open_text
from mxtrain.data.table.cells import number_of
from mxtrain.data.table.target_classes import MAX_VALUES, UNKNOWN, choose_classes, count_once, named_choices
from mxtrain.errors import DataError
from mxtrain.files.text_numbers import parse_finite
from mxtrain.tables.indexed_lines import IndexedRow, WrongLine, cells_of, padded_rows, parse_row

if TYPE_CHECKING:
    from mxtrain.data.features.feature_columns import FeatureColumns
    from mxtrain.types.annotations import Json, JsonObject

_FORMS = {
    "id": ArrayForm("int32", (), True),
    "value": ArrayForm("float32", (), True),
    "place": ArrayForm("int64"),
}
_ROWS_AT_ONCE = 4096
MAX_ROW = 10_000
"""Maximum number of features of a row, unless `max_features` is set."""


@dataclass
class IndexedStore:
    """Rows of one file.

    Attributes:
        ids, values: feature ids and values of all rows.
        label_R: target of each row: class index or `UNKNOWN`, int32; or the target number, float64, NaN if unknown.
        file: path of the file.
        number_R: line number of each row.
        shards: store of the arrays; the reference keeps its files from being removed.
        weight_R: None: rows of libsvm have no weights.
    """

    ids: Ragged
    values: Ragged
    label_R: np.ndarray
    file: str
    number_R: np.ndarray
    shards: Shards
    weight_R: Optional[np.ndarray] = None

    def __len__(self) -> int:
        return len(self.label_R)

    def locations(self, row_N: np.ndarray) -> DataLocations:
        """Returns the source locations of rows."""
        return DataLocations([self.file], self.number_R[row_N])


def open_indexed(
    path: str, with_target: bool, classes: Sequence[str] = (), findings: Findings = STRICT
) -> IndexedStore:
    """Opens the rows of a file, which are parsed on first use and cached.

    Args:
        path: path of the file, possibly compressed (.gz).
        with_target: True if each line must begin with a target; otherwise a target is optional.
        classes: the targets in the order of their labels from 0; empty if the target is a number.
        findings: collects invalid lines, which are skipped.

    Raises:
        DataError: the file cannot be read.
    """
    forms = {**_FORMS, "label": ArrayForm("int32" if classes else "float64")}

    def write(writer: ShardWriter, advance: Advance) -> JsonObject:
        rows = read_indexed(path, with_target, classes, findings)
        while batch := list(islice(rows, _ROWS_AT_ONCE)):
            length_R = np.array([len(row.ids) for _, _, row in batch], np.int64)
            values: Dict[str, np.ndarray] = {
                "id": np.array([item for _, _, row in batch for item in row.ids], np.int32),
                "value": np.array([item for _, _, row in batch for item in row.values], np.float32),
                "label": np.array([label for _, label, _ in batch], forms["label"].dtype),
                "place": np.array([line for line, _, _ in batch], np.int64),
            }
            writer.append(len(batch), values, {"id": length_R, "value": length_R})
            advance(len(batch))
        return {}

    if findings.keeps_going:
        shards = prepare_temporary("indexed", forms, write)
    else:
        (content,) = contents_of([path], f"content of {path}")
        cache_key: Json = [content.sha256, with_target, list(classes)]
        shards = prepare("indexed", cache_key, forms, write, what=f"rows of {path}")
        content.require_unchanged()  # the cache key is the hash of the content before it was parsed
    return IndexedStore(
        shards.ragged("id"), shards.ragged("value"), shards.array("label"), path, shards.array("place"), shards
    )


def read_indexed(
    path: str, with_target: bool, classes: Sequence[str], findings: Findings
) -> Iterator[Tuple[int, float, IndexedRow]]:
    """Yields number, label and content of each line of a file in libsvm or libffm format, see `parse_row`."""
    label_of = labels_by_number(classes)
    remedy = "Correct or remove it, or name all classes in dataset.classes." if classes else "Correct or remove it."
    with open_text(path, "\n", findings) as lines:
        for line, text in enumerate(lines, start=1):
            cells = cells_of(text)
            if not cells:
                continue
            location = DataLocation(path, line)
            try:
                row = parse_row(cells, with_target)
            except WrongLine as wrong:
                kind = LABEL_RANGE if wrong.is_target else UNREADABLE_ROW
                findings.refuse(Problem(kind, location, f"{location}: {wrong}", "Correct or remove it."))
                continue
            if not classes:
                yield line, math.nan if row.target is None else row.target, row
                continue
            label = UNKNOWN if row.target is None else label_of.get(row.target, UNKNOWN)
            if label == UNKNOWN and with_target:
                fact = f"the target is '{cells[0]:.100}'; allowed are {named_choices(map(number_text, label_of))}."
                findings.refuse(Problem(LABEL_RANGE, location, f"{location}: {fact}", remedy))
                continue
            yield line, label, row


def labels_by_number(classes: Sequence[str]) -> Dict[float, int]:
    """Returns the label of each target. If the classes are 0 and 1, the target -1 is also 0."""
    label_of = {number_of(name): label for label, name in enumerate(classes)}
    if set(label_of) == {0.0, 1.0}:
        label_of[-1.0] = label_of[0.0]
    return label_of


def find_indexed_classes(path: str) -> List[str]:
    """Returns the classes of a file from the targets of all lines: 0 and 1 for targets -1 and 1.

    Raises:
        DataError: the target has a single value or too many values.
    """

    def count() -> Counter:
        counts: Counter = Counter()
        with open_text(path, "\n") as lines:
            for text in lines:
                cells = cells_of(text)
                target = parse_finite(cells[0]) if cells else None
                if target is not None:
                    counts[number_text(target)] += 1
                if len(counts) > MAX_VALUES:
                    break
        return counts

    counts = count_once(path, ["libsvm"], count)
    if "1" in counts and "0" not in counts and "-1" in counts:
        counts["0"] = counts.pop("-1")
    return choose_classes(counts, path, "the target")


def number_text(number: float) -> str:
    """Returns a number as text, whole numbers without a point."""
    return str(int(number)) if number.is_integer() else str(number)


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

    def location(self, index: int) -> DataLocation:
        """See `Checks`."""
        ((store, _, row),) = self._source.by_store(np.array([index]))
        return store.locations(row)[0]

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
        # Padded arrays, because MXNet's csr arrays can neither be sliced for replicas nor copied in advance.
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
        DataError: an id is larger than `max_index`, or a row is longer than `MAX_ROW` and `max_features` is None.
    """
    largest, longest = 0, 1
    for begin in range(0, len(rows), _ROWS_AT_ONCE):
        index_B = np.arange(begin, min(begin + _ROWS_AT_ONCE, len(rows)))
        length_B, pairs = rows.ragged(index_B)  # type: ignore[attr-defined]  # they are `IndexedRows`
        longest = max(longest, int(length_B.max(initial=0)))
        largest_B = np.array([int(ids[:max_features].max()) if len(ids) else 0 for ids, _ in pairs])
        largest = max(largest, int(largest_B.max(initial=0)))
        if largest > max_index:
            location = IndexedChecks(rows).location(begin + int(largest_B.argmax()))
            raise DataError(
                f"{location} has the index {largest:,}. The network has a vector for each index up to the largest, and "
                f"{max_index:,} is allowed: number the features anew without gaps, or type dataset.max_index={largest} "
                "if there is memory for so many."
            )
        if max_features is None and longest > MAX_ROW:
            location = IndexedChecks(rows).location(begin + int(length_B.argmax()))
            raise DataError(
                f"{location} has {longest:,} features, and all rows of a batch take as much memory as the longest one. "
                f"Type dataset.max_features={longest} to read all of them, or fewer to read the first ones of each row."
            )
    return largest + 1, min(longest, max_features or longest)
