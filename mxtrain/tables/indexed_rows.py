"""Sparse rows of features in libsvm or libffm format, parsed once and stored as ids, values and targets.

Legend: R rows of a file, B batch, L ids of a row.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

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
from mxtrain.data.table.cells import LARGEST_NUMBER, number_of
from mxtrain.data.table.target_classes import UNKNOWN
from mxtrain.errors import DataError
from mxtrain.files.text_numbers import parse_integer, parse_number
from mxtrain.types import LARGEST_COUNT

if TYPE_CHECKING:
    from mxtrain.annotations import Json, JsonObject
    from mxtrain.data.features.feature_columns import FeatureColumns

LABELS = {0.0: 0, -1.0: 0, 1.0: 1}
_FORMS = {
    "id": ArrayForm("int32", (), True), "value": ArrayForm("float32", (), True), "label": ArrayForm("uint8"),
    "place": ArrayForm("int64"),
}  # fmt: skip
_PLAIN_PAIRS = re.compile(r"(?:(?:[^ :]*:)?[0-9+\-]+:[0-9+\-.eE]+(?: |$))*", re.ASCII)
_ROWS_AT_ONCE = 4096
_LOOKED_AT, _LEAST_SHARE = 1000, 0.1
"""Number of first lines whose targets are checked, and the share of them that may not be allowed targets: one wrong
line is a problem of that line, many wrong lines are a file with other targets."""
LONGEST_ROW = 10_000
"""Features of a row, unless `max_features` says otherwise."""


@dataclass
class IndexedStore:
    """Rows of one file.

    Attributes:
        ids, values: feature ids and values of all rows.
        label_R: target of each row, uint8: 0, 1 or `UNKNOWN`.
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


class IndexedRow(NamedTuple):
    """A parsed line of a file."""

    line: int
    label: int
    ids: List[int]
    values: List[float]


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
        while some := list(islice(rows, _ROWS_AT_ONCE)):
            length_R = np.array([len(row.ids) for row in some], np.int64)
            values: Dict[str, np.ndarray] = {
                "id": np.array([one for row in some for one in row.ids], np.int32),
                "value": np.array([one for row in some for one in row.values], np.float32),
                "label": np.array([row.label for row in some], np.uint8),
                "place": np.array([row.line for row in some], np.int64),
            }
            writer.append(len(some), values, {"id": length_R, "value": length_R})
            advance(len(some))
        return {}

    if findings.keeps_going:
        shards = prepare_for_now("indexed", _FORMS, write)
    else:
        (content,) = contents_of([path], f"content of {path}")
        made_of: Json = [content.sha256, with_target]
        shards = prepare("indexed", made_of, _FORMS, write, what=f"rows of {path}")
        content.require_unchanged()  # the cache key is the hash of the content before it was parsed
    return IndexedStore(
        shards.ragged("id"), shards.ragged("value"), shards.array("label"), path, shards.array("place"), shards
    )


def read_indexed(path: str, with_target: bool, findings: Findings) -> Iterator[IndexedRow]:
    """Yields the rows of a libsvm file (`target index:value ...`) or libffm file (`target field:index:value ...`).

    Fields are ignored. Text after a `#` is a comment.
    """
    with open_text(path, "\n", findings) as lines:
        first = list(islice(lines, _LOOKED_AT))
        if with_target:
            _refuse_other_targets(path, first)
        for line, text in enumerate(chain(first, lines), start=1):
            cells = text.partition("#")[0].split()
            if not cells:
                continue
            try:
                yield _row_of(line, cells, with_target)
            except _WrongLine as wrong:
                place = DataPlace(path, line)
                findings.refuse(Problem(wrong.kind, place, f"{place}: {wrong}", "Correct or remove it."))


def _refuse_other_targets(path: str, lines: Sequence[str]) -> None:
    """Raises a `DataError` if many of the first lines have targets that are not allowed, such as 1 and 2."""
    texts = [cells[0] for line in lines if (cells := line.partition("#")[0].split())]
    counts = Counter(number for text in texts if (number := number_of(text)) == number)
    others = {number: count for number, count in counts.items() if number not in LABELS}
    if sum(others.values()) < max(3, len(texts) * _LEAST_SHARE):
        return
    shown = " and ".join(f"{number:g}" for number in sorted(counts)[:5])
    remedy = (
        "Subtract 1 from them, so that 2 becomes 1 = yes: awk '{$1 -= 1} 1' FILE > NEW." if set(counts) == {1, 2}
        else "Write 1 for yes and 0 for no. A number is predicted by task=regression dataset=number_table."
    )  # fmt: skip
    raise DataError(
        f"{path}: the targets of the first lines are {shown}{' and so on' if len(counts) > 5 else ''}; allowed are 0 "
        f"or -1, and 1. {remedy}"
    )


class _WrongLine(Exception):
    """A line is invalid."""

    def __init__(self, fact: str, kind: str = UNREADABLE_ROW) -> None:
        super().__init__(fact)
        self.kind = kind


def _row_of(line: int, cells: Sequence[str], with_target: bool) -> IndexedRow:
    """Parses a line.

    Raises:
        _WrongLine: the line is invalid.
    """
    begins = with_target or ":" not in cells[0]
    label = _label_of(cells[0]) if begins else UNKNOWN
    if label == UNKNOWN and with_target:
        raise _WrongLine(f"the target is '{cells[0]}'; allowed are 0 or -1, and 1.", LABEL_RANGE)
    pairs = [cell.split(":") for cell in cells[begins:]]
    try:
        if not _PLAIN_PAIRS.fullmatch(" ".join(cells[begins:])):
            raise ValueError
        # int() and float() also accept e.g. underscores and other digits, which the pattern has excluded.
        ids, values = [int(pair[-2]) for pair in pairs], [float(pair[-1]) for pair in pairs]
    except (ValueError, IndexError):
        wrong = next((":".join(pair) for pair in pairs if not _is_pair(pair)), cells[begins])
        raise _WrongLine(f"'{wrong}' is no index:value, and no field:index:value.") from None
    if ids and not 0 <= min(ids) <= max(ids) < LARGEST_COUNT:
        wrong_id = next(one for one in ids if not 0 <= one < LARGEST_COUNT)
        raise _WrongLine(f"the index {wrong_id} is not from 0 to {LARGEST_COUNT - 1:,}.")
    if not all(-LARGEST_NUMBER <= value <= LARGEST_NUMBER for value in values):  # is false for a NaN
        raise _WrongLine("a value is no finite number of 32 bits.")
    return IndexedRow(line, label, ids, values)


def _label_of(text: str) -> int:
    return LABELS.get(number_of(text), UNKNOWN)


def _is_pair(pair: Sequence[str]) -> bool:
    if len(pair) not in (2, 3):
        return False
    return parse_integer(pair[-2]) is not None and parse_number(pair[-1]) is not None


class IndexedRows(FeatureRows):
    """Rows of ids and values; see `FeatureRows`."""

    def take(self, indices: Any) -> IndexedRows:
        found = super().take(indices)
        return IndexedRows(found.stores, found.row_N)

    def checks(self) -> Checks:
        return IndexedChecks(self)

    def build_encoder(self, columns: FeatureColumns) -> IndexedEncoder:  # type: ignore[override]  # it is called alike
        return IndexedEncoder(columns)

    def ragged(self, index_B: np.ndarray) -> Tuple[np.ndarray, List[Tuple[np.ndarray, np.ndarray]]]:
        """Returns the number of ids of each sample, (B,), and the (ids, values) of each sample."""
        found: Dict[int, Tuple[np.ndarray, np.ndarray]] = {}
        for store, place, row in self.apart(index_B):
            begin_B, end_B = store.ids.begin[row], store.ids.begin[row + 1]  # type: ignore[attr-defined]  # it is indexed
            for one, begin, end in zip(place.tolist(), begin_B.tolist(), end_B.tolist()):
                found[one] = (store.ids.value[begin:end], store.values.value[begin:end])  # type: ignore[attr-defined]
        pairs = [found[number] for number in range(len(index_B))]
        return np.array([len(ids) for ids, _ in pairs], np.int64), pairs


class IndexedChecks(SourceChecks):
    """Checks for duplicates and counts of classes. All other problems are found while the file is read."""

    def place(self, index: int) -> DataPlace:
        """See `Checks`."""
        ((store, _, row),) = self._source.apart(np.array([index]))
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
        length_B, pairs = source.ragged(index_B)
        id_BL = np.zeros((len(index_B), self._length), np.int32)
        value_BL = np.zeros((len(index_B), self._length), np.float32)
        is_there_BL = np.arange(self._length) < length_B[:, None]
        if is_there_BL.any():
            id_BL[is_there_BL] = np.concatenate([ids[: self._length] for ids, _ in pairs])
            value_BL[is_there_BL] = np.concatenate([values[: self._length] for _, values in pairs])
        is_known_BL = id_BL < self._num_ids
        return [np.where(is_known_BL, id_BL, 0).astype(np.int32), np.where(is_known_BL, value_BL, 0).astype(np.float32)]

    def design(self, source: IndexedRows, index_B: np.ndarray) -> Any:
        """Returns the values as a sparse matrix (B, number of ids), for linear models."""
        from scipy.sparse import csr_matrix

        id_BL, value_BL = self.inputs(source, index_B)
        begins = np.arange(len(index_B) + 1) * self._length
        shape = (len(index_B), self._num_ids)
        return csr_matrix((value_BL.ravel().astype(np.float64), id_BL.ravel(), begins), shape=shape)


def measure_indexed(rows: FeatureRows, most: Optional[int], max_index: int) -> Tuple[int, int]:
    """Returns the number of ids (largest id + 1) and the largest number of ids of a row, over the training rows.

    Args:
        rows: training rows.
        most: number of ids of a row that are used; None = all.
        max_index: largest allowed id; the network has a vector for each id up to the largest.

    Raises:
        DataError: an id is larger than `max_index`, or a row is longer than `LONGEST_ROW` and `most` is None.
    """
    largest, longest = 0, 1
    for begin in range(0, len(rows), _ROWS_AT_ONCE):
        index_B = np.arange(begin, min(begin + _ROWS_AT_ONCE, len(rows)))
        length_B, pairs = rows.ragged(index_B)  # type: ignore[attr-defined]  # they are `IndexedRows`
        longest = max(longest, int(length_B.max(initial=0)))
        largest_B = np.array([int(ids[:most].max()) if len(ids) else 0 for ids, _ in pairs])
        largest = max(largest, int(largest_B.max(initial=0)))
        if largest > max_index:
            place = IndexedChecks(rows).place(begin + int(largest_B.argmax()))
            raise DataError(
                f"{place} has the index {largest:,}. The network has a vector for each index up to the largest, and "
                f"{max_index:,} is allowed: number the features anew without gaps, or type dataset.max_index={largest} "
                "if there is memory for so many."
            )
        if most is None and longest > LONGEST_ROW:
            place = IndexedChecks(rows).place(begin + int(length_B.argmax()))
            raise DataError(
                f"{place} has {longest:,} features, and all rows of a batch take as much memory as the longest one. "
                f"Type dataset.max_features={longest} to read all of them, or fewer to read the first ones of each row."
            )
    return largest + 1, min(longest, most or longest)
