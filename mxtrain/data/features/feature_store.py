"""Prepares the rows of a table once: numbers, codes of categories and targets in memory-mapped arrays.

A code identifies the value of a cell independent of vocabularies: the position of the value in order of first
occurrence, or a hash. So changed settings of vocabularies, buckets or splits do not read the file again.

Legend: R rows of a file, N columns of numbers, F columns with codes.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field
from itertools import islice
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Collection,
    Dict,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Protocol,
    Sequence,
    Set,
    Tuple,
    Type,
    TypeVar,
)

import numpy as np

from mxtrain.data.checking.problems import (
    LABEL_RANGE,
    NOT_A_NUMBER,
    STRICT,
    DataLocations,
    Findings,
    Problem,
)
from mxtrain.data.corpus.content import contents_of
from mxtrain.data.corpus.preparing import Advance, prepare, prepare_temporary
from mxtrain.data.corpus.shards import ArrayForm, Shards, ShardWriter
from mxtrain.data.loading.input_files import read_each
from mxtrain.data.loading.text_stream import ending_of
from mxtrain.data.sample_weights import wrong_weights
from mxtrain.data.table.cell_text import canonical, hash_code, mixed_truth
from mxtrain.data.table.cells import (
    MAX_NUMBER,
    WrittenColumn,
    read_numbers,
    spelled_alike,
    why_no_number,
)
from mxtrain.data.table.column_kinds import as_override
from mxtrain.data.table.columns import LIST_SEPARATOR, PARQUET, classes_in, given_rows, location_of, stream_rows
from mxtrain.data.table.dates import DateColumn, missing_part, split_feature
from mxtrain.data.table.target_classes import UNKNOWN, label_of_text, named_choices, numbered_classes
from mxtrain.data.table.text_rows import Column
from mxtrain.errors import DataError

if TYPE_CHECKING:
    from mxtrain.data.features.feature_columns import Kind
    from mxtrain.types.annotations import JsonObject

log = logging.getLogger(__name__)


class PlacedRows(Protocol):
    """Rows of a file with their source locations."""

    def __len__(self) -> int:
        """Returns the number of rows."""

    def locations(self, row_N: np.ndarray) -> DataLocations:
        """Returns the source locations of rows."""


Store = TypeVar("Store", bound=PlacedRows)
MISSING_CODE = 0
_TARGET, _WEIGHT = "\0target", "\0weight"
"""Beginning of the keys of targets, and key of the weight, among columns of numbers; no column can have such names."""
MAX_VALUES = 4_000_000
"""Maximum number of distinct values of all category columns together, because they are counted in memory."""
PIECE_ROWS = 65536
"""Number of rows that `iterate_rows` yields at once."""
ROWS_AT_ONCE = 4096
"""Number of rows whose cells are encoded at a time."""
ROWS_VERSION = 2
"""Version of the reading of cells; rows of other versions in the cache are not used."""
_MAX_COMPARED = 10_000
"""Maximum number of values of a category whose spellings are compared; users and items have more."""
_WORDS_FOR_MISSING = ("NA", "N/A", "n/a", "null", "NULL", "None")
"""Missing cells that may also be values of a category, such as the code of a country."""


class ReadColumn(NamedTuple):
    """A column to read.

    Attributes:
        name: name of the feature.
        kind: "category": codes number its values; "hashed": codes are hashes; "number": no codes.
        at: name or number of the column in the file.
    """

    name: str
    kind: Kind
    at: Column


class FeatureLayout(NamedTuple):
    """Columns of a file and how they are parsed. Part of the key of the prepared arrays.

    Attributes:
        columns: the features.
        target: column of the target; None: there is none to read.
        classes: values of the target in the file, in the order of their labels from 0; empty if the target is a number.
        missing: texts of cells without a value.
        header: True if the first row of a TSV or CSV file names the columns.
        form: see `stream_rows`.
        is_described: True if columns, classes and missing cells are settings of the dataset, for messages.
        decimal: decimal sign of numbers.
        have_ids: True if each row has an id that is not read. Rows with equal features are then no duplicates.
        canonical: see `FeatureColumn.canonical`.
        weight: column of the weights of samples; None: they have none.
        more_targets: columns of further targets, which are numbers as `target` is.
    """

    columns: Tuple[ReadColumn, ...]
    target: Optional[Column]
    classes: Tuple[str, ...]
    missing: Tuple[str, ...] = ("",)
    header: bool = True
    form: Optional[str] = None
    is_described: bool = False
    decimal: str = "."
    have_ids: bool = False
    canonical: bool = False
    weight: Optional[Column] = None
    more_targets: Tuple[Column, ...] = ()

    @property
    def targets(self) -> List[Column]:
        """Returns the columns of all targets."""
        return [] if self.target is None else [self.target, *self.more_targets]

    @property
    def key(self) -> List[Any]:
        """Returns the part of the key of the prepared arrays; earlier versions had neither weights nor more targets."""
        has_more = self.weight is not None or bool(self.more_targets)
        return list(self if has_more else self[: self._fields.index("weight")])

    @property
    def number_names(self) -> List[str]:
        """Returns the names of the columns of numbers."""
        return [column.name for column in self.columns if column.kind == "number"]

    @property
    def code_names(self) -> List[str]:
        """Returns the names of the columns with codes."""
        return [column.name for column in self.columns if column.kind != "number"]


@dataclass
class FeatureStore:
    """The prepared rows of one file.

    Attributes:
        key: hash of the file's content and its layout; the same key means the same rows.
        numbers, codes: names of the columns of `number_RN` and `code_RF`.
        number_RN: float32, NaN if missing.
        code_RF: uint32, `MISSING_CODE` if missing.
        label_R: int32, class index or `UNKNOWN`; or the target number, float64, NaN if unknown; of T targets (R, T).
        texts: column of categories -> text of each code, from code 1 on.
        file: path of the file; empty if the rows come from no file.
        number_R: line or record of each row; None: in order.
        shards: the files of the arrays, which must not be removed while the arrays are used.
        have_ids: see `FeatureLayout`.
        weight_R: weight of each row, float64; None: all count equally.
    """

    key: str
    numbers: Sequence[str]
    codes: Sequence[str]
    number_RN: np.ndarray
    code_RF: np.ndarray
    label_R: np.ndarray
    texts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    file: str = ""
    number_R: Optional[np.ndarray] = None
    shards: Optional[Shards] = None
    have_ids: bool = False
    weight_R: Optional[np.ndarray] = None

    def __len__(self) -> int:
        return len(self.label_R)

    def locations(self, row_N: np.ndarray) -> DataLocations:
        """Returns the source locations of rows."""
        number_N = row_N if self.number_R is None else self.number_R[row_N]
        return DataLocations([self.file], number_N, None, ending_of(self.file) == PARQUET or not self.file)


def open_store(path: str, layout: FeatureLayout, findings: Findings = STRICT) -> FeatureStore:
    """Opens the prepared rows of a file; prepares them on first use.

    Args:
        path: path of the file.
        layout: columns of the file and how they are parsed.
        findings: collects unusable rows, which are skipped.

    Raises:
        DataError: the file cannot be read.
    """
    numbers, codes = layout.number_names, layout.code_names
    shape = (len(layout.targets),) if layout.more_targets else ()
    forms = {"label": ArrayForm("int32" if layout.classes else "float64", shape), "place": ArrayForm("int64")}
    if numbers:
        forms["number"] = ArrayForm("float32", (len(numbers),))
    if layout.weight is not None:
        forms["weight"] = ArrayForm("float64")
    if codes:
        forms["code"] = ArrayForm("uint32", (len(codes),))

    def write(writer: ShardWriter, advance: Advance) -> JsonObject:
        return _FeatureReader(path, layout, findings).write(writer, advance)

    # Data with problems must not enter the cache, where training would find them.
    if findings.keeps_going:
        shards = prepare_temporary("features", forms, write)
    else:
        (content,) = contents_of([path], f"content of {path}")
        cache_key = [content.sha256, ending_of(path), ROWS_VERSION, *layout.key]
        classes = classes_in(path)
        # Earlier versions read their numbers, and those of targets later than those of features.
        cache_key += [dict(classes), *([] if layout.classes else ["targets"])] if classes else []
        shards = prepare("features", cache_key, forms, write, what=f"rows of {path}", total=0)
        # A file that was written to meanwhile would be cached under the hash of another content.
        content.require_unchanged()
    for message in shards.facts["said"]:
        log.info("%s: %s", path, message)
    count = len(shards)
    return FeatureStore(
        key=shards.key,
        numbers=numbers,
        codes=codes,
        number_RN=shards.array("number") if numbers else np.empty((count, 0), np.float32),
        code_RF=shards.array("code") if codes else np.empty((count, 0), np.uint32),
        label_R=shards.array("label"),
        texts=shards.facts["texts"],
        file=path,
        number_R=shards.array("place"),
        shards=shards,
        have_ids=layout.have_ids,
        weight_R=None if layout.weight is None else shards.array("weight"),
    )


def store_rows(rows: Sequence[Mapping[str, Any]], layout: FeatureLayout) -> FeatureStore:
    """Returns rows of Python code, in memory, with the codes and numbers of equal rows in a file.

    Args:
        rows: dicts from column to value.
        layout: columns, which have names.

    Raises:
        DataError: a row lacks a column, or a cell is no number; the message names the row.
    """
    collected = _Collected()
    facts = _FeatureReader("", layout, STRICT, rows).write(collected, lambda count: None)
    numbers, codes = layout.number_names, layout.code_names
    return FeatureStore(
        key="",
        numbers=numbers,
        codes=codes,
        number_RN=collected.array("number", (len(rows), len(numbers)), np.float32),
        code_RF=collected.array("code", (len(rows), len(codes)), np.uint32),
        label_R=collected.array("label", (len(rows),), np.int32 if layout.classes else np.float64),
        texts=facts["texts"],
    )


class RowWriter(Protocol):
    """Destination of rows; a `ShardWriter` is one."""

    def append(self, count: int, values: Mapping[str, np.ndarray]) -> None:
        """Appends rows, as the values of each array."""


class _Collected:
    """Keeps rows in memory, as a `RowWriter`."""

    def __init__(self) -> None:
        self._parts: List[Mapping[str, np.ndarray]] = []

    def append(self, count: int, values: Mapping[str, np.ndarray]) -> None:
        """See `RowWriter`."""
        self._parts.append(values)

    def array(self, name: str, shape: Tuple[int, ...], dtype: Type[np.generic]) -> np.ndarray:
        """Returns one of the arrays; zeros if no row has values for it."""
        parts = [part[name] for part in self._parts if name in part]
        return np.concatenate(parts).astype(dtype, copy=False) if parts else np.zeros(shape, dtype)


def _stripped(cell: str) -> str:
    # The separator of a list counts as white space in Python.
    return cell if cell[:1] == LIST_SEPARATOR else cell.strip()


class _FeatureReader:
    """Reads a file, or rows of Python code, and appends numbers, codes and targets of their cells to a writer."""

    def __init__(
        self,
        path: str,
        layout: FeatureLayout,
        findings: Findings,
        given: Optional[Sequence[Mapping[str, Any]]] = None,
    ) -> None:
        self._given = given
        self._path, self._layout, self._findings = path, layout, findings
        self._missing = frozenset(layout.missing)
        self._num_values = 0  # number of values of all columns: a new sum for each column would be quadratic
        self._code_of: Dict[str, Dict[str, int]] = {
            column.name: {} for column in layout.columns if column.kind == "category"
        }
        self._label_of = {name: label for label, name in enumerate(layout.classes)}
        self._messages: Dict[str, str] = {}  # of columns with codes
        self._written = {
            column.name: WrittenColumn(column.name, self._missing, layout.decimal)
            for column in layout.columns
            if column.kind == "number" and not split_feature(column.name)[1]
        }
        dated = [str(column.at) for column in layout.columns if split_feature(column.name)[1]]
        self._dates = {name: DateColumn(name) for name in dated}
        self._wrong_dates: Set[Tuple[str, int]] = set()
        if layout.target is not None and not layout.classes:
            for target in layout.targets:
                self._written[f"{_TARGET} {target}"] = WrittenColumn(str(target), self._missing, layout.decimal)
        if layout.weight is not None:
            self._written[_WEIGHT] = WrittenColumn(str(layout.weight), self._missing, layout.decimal)

    def write(self, writer: RowWriter, advance: Advance) -> JsonObject:
        """Writes all rows and returns the facts of the shards.

        It commits nothing before the end: an interrupted preparation could not continue, because the codes depend on
        all rows before.
        """
        layout = self._layout
        target = layout.targets
        weight = [] if layout.weight is None else [layout.weight]
        positions = [*(column.at for column in layout.columns), *target, *weight]
        null = layout.missing[0] if layout.missing else None
        are_numbers = [column.at for column in layout.columns if column.name in self._written]
        decimal_in = dict.fromkeys([*are_numbers, *([] if layout.classes else target), *weight], layout.decimal)
        # Columns of numbers, which a setting or an earlier run has chosen, keep the numbers of their classes.
        named = {str(column.at) for column in layout.columns if column.kind != "number"}
        named.update(map(str, target))
        if self._given is None:
            self._report_numbered({str(one) for one in positions} - named)
        rows = (
            stream_rows(
                self._path, positions, layout.header, False, self._findings, layout.form, null, decimal_in, named
            )
            if self._given is None
            else iter(given_rows(self._given, positions, null, decimal_in))
        )
        while batch := list(islice(rows, ROWS_AT_ONCE)):
            self._append(batch, writer)
            advance(len(batch))
        texts = {name: list(code_of) for name, code_of in self._code_of.items()}
        for name, values in texts.items():
            alike = spelled_alike(dict.fromkeys(map(canonical, values))) if len(values) <= _MAX_COMPARED else []
            if alike:
                spellings = " and ".join(map(repr, alike[0][:4]))
                self._messages[f"alike {name}"] = (
                    f"the values {spellings} of '{name}' differ in case, spaces, the encoding of accents or the digits "
                    "of a number alone, and are read as different ones."
                )
            mixed = mixed_truth(values) if len(values) <= _MAX_COMPARED else []
            if mixed:
                self._messages[f"truth {name}"] = (
                    f"'{name}' has the values {', '.join(map(repr, mixed))}: true and false seem to be written in "
                    "several ways, which are read as different values. Write them in one way."
                )
        messages = [message for column in self._written.values() for message in column.sentences]
        return {"texts": texts, "said": [*messages, *self._messages.values()]}

    def _report_numbered(self, columns: Collection[str]) -> None:
        """Collects a sentence on each of these columns whose numbers stand for classes with names."""
        for name, classes in classes_in(self._path).items():
            if name in columns:
                self._messages[f"classes {name}"] = numbered_classes(name, classes)

    def _append(self, rows: List[Tuple[int, Tuple[str, ...]]], writer: RowWriter) -> None:
        lines = [line for line, _ in rows]
        cells = [[_stripped(cell) for cell in column] for column in zip(*(row for _, row in rows))]
        kept_R = np.ones(len(rows), bool)
        columns_by_array: Dict[str, List[np.ndarray]] = {"number": [], "code": []}
        for column, texts in zip(self._layout.columns, cells):
            if split_feature(column.name)[1]:
                columns_by_array["number"].append(self._parts(column, texts, lines, kept_R))
            elif column.kind == "number":
                columns_by_array["number"].append(self._numbers(column, texts, lines, kept_R))
            else:
                columns_by_array["code"].append(self._codes(column, texts))
        is_class = bool(self._layout.classes)
        label_R = np.full(len(rows), UNKNOWN, np.int32) if is_class else np.full(len(rows), math.nan)
        if self._layout.target is not None:
            of_targets = list(zip(self._layout.targets, cells[len(self._layout.columns) :]))
            if is_class:
                label_R = self._labels(of_targets[0][1], lines, kept_R)
            else:
                columns = [self._targets(target, texts, lines, kept_R) for target, texts in of_targets]
                label_R = np.stack(columns, axis=1) if self._layout.more_targets else columns[0]
        weight_R = None if self._layout.weight is None else self._weights(cells[-1], lines, kept_R)
        arrays = {name: np.stack(columns, axis=1)[kept_R] for name, columns in columns_by_array.items() if columns}
        arrays.update(label=label_R[kept_R], place=np.array(lines, np.int64)[kept_R])
        if weight_R is not None:
            arrays["weight"] = weight_R[kept_R]
        writer.append(int(kept_R.sum()), arrays)

    def _numbers(self, column: ReadColumn, texts: List[str], lines: List[int], kept_R: np.ndarray) -> np.ndarray:
        """Parses the cells of a column, NaN if missing. Clears `kept_R` for rows whose cell is not a number."""
        parsed = read_numbers(texts, self._missing, self._layout.decimal)
        value_R = parsed.value_R
        wrong_R = ~parsed.is_missing_R & ~(np.abs(value_R) <= MAX_NUMBER)
        for index in np.flatnonzero(wrong_R).tolist():
            setting = as_override({column.name: "category"})
            alternative = f", name such cells in dataset.missing, or type dataset.columns={setting}"
            reason_of_cell = why_no_number(texts[index], self._layout.decimal)
            self._refuse(
                NOT_A_NUMBER,
                lines[index],
                f"'{column.name}' is {reason_of_cell}.",
                f"Correct the cell{alternative if self._layout.is_described else ''}.",
            )
        for index, reason in self._written[column.name].add(texts, parsed):
            self._refuse(NOT_A_NUMBER, lines[index], reason, "Write all cells of the column in one way.")
        kept_R &= ~wrong_R
        return np.where(wrong_R, math.nan, value_R).astype(np.float32)

    def _parts(self, column: ReadColumn, texts: List[str], lines: List[int], kept_R: np.ndarray) -> np.ndarray:
        """Parses the cells of a column of dates as one of their parts. Clears `kept_R` for rows without a date."""
        (name, part), dates = split_feature(column.name), self._dates[str(column.at)]
        value_R = np.full(len(texts), missing_part(part))
        for index, text in enumerate(texts):
            if text in self._missing:
                continue
            moment, reason = dates.read(text)
            if moment is not None:
                value_R[index] = moment.part(part)
                continue
            kept_R[index] = False
            if (name, lines[index]) not in self._wrong_dates:  # once for all parts
                self._wrong_dates.add((name, lines[index]))
                setting = as_override({name: "category"})
                remedy = f"Correct the cell, name such cells in dataset.missing, or type dataset.columns={setting}."
                self._refuse(NOT_A_NUMBER, lines[index], reason, remedy)
        return value_R.astype(np.float32)

    def _codes(self, column: ReadColumn, texts: List[str]) -> np.ndarray:
        """Returns the codes of the cells of a column. A category numbers its new values; a hashed column needs no table
        of its values, so its `code_of` is None."""
        code_of = self._code_of.get(column.name)
        num_before = len(code_of or ())
        codes: Dict[str, int] = dict.fromkeys(self._missing, MISSING_CODE)
        for text in dict.fromkeys(texts):
            if text in codes:
                if text in _WORDS_FOR_MISSING:
                    self._messages.setdefault(
                        column.name,
                        (
                            f"'{text}' in '{column.at}' is read as a missing value. If it is a value, leave it out "
                            "of dataset.missing."
                        ),
                    )
                continue
            codes[text] = (
                hash_code(text, self._layout.canonical)
                if code_of is None
                else code_of.setdefault(text, len(code_of) + 1)
            )
        if code_of is not None:
            self._num_values += len(code_of) - num_before
        if code_of is not None and self._num_values > MAX_VALUES:
            largest = max(self._code_of, key=lambda name: len(self._code_of[name]))
            setting = (
                f"columns={as_override({largest: 'hashed'})}" if self._layout.is_described else "categories=hashed"
            )
            raise DataError(
                f"{self._path}: its categories have more than {MAX_VALUES:,} different values, of which "
                f"{len(self._code_of[largest]):,} are of '{largest}'. Hash that column: type dataset.{setting}."
            )
        return np.array([codes[text] for text in texts], np.uint32)

    def _labels(self, texts: List[str], lines: List[int], kept_R: np.ndarray) -> np.ndarray:
        label_of = {text: label_of_text(text, self._label_of) for text in set(texts)}
        for index, text in enumerate(texts):
            if label_of[text] == UNKNOWN:
                fact = f"the target is {repr(text) if text else 'empty'}; allowed are {named_choices(self._label_of)}."
                alternative = ", or name all classes in dataset.classes" if self._layout.is_described and text else ""
                if not self._layout.is_described:
                    alternative = "; rows of this dataset have two classes, by definition"
                self._refuse(LABEL_RANGE, lines[index], fact, f"Correct it{alternative}.")
        label_R = np.array([label_of[text] for text in texts], np.int32)
        kept_R &= label_R != UNKNOWN
        return label_R

    def _targets(self, target: Column, texts: List[str], lines: List[int], kept_R: np.ndarray) -> np.ndarray:
        """Parses a target that is a number. Clears `kept_R` for rows without a finite one."""
        parsed = read_numbers(texts, self._missing, self._layout.decimal)
        wrong_R = parsed.is_missing_R | ~(np.abs(parsed.value_R) <= MAX_NUMBER)
        for index in np.flatnonzero(wrong_R).tolist():
            text, is_missing = texts[index], bool(parsed.is_missing_R[index])
            reason = f"'{text}', a missing number" if is_missing else why_no_number(text, self._layout.decimal)
            remedy = "Give the number." if is_missing else "Correct the cell, or type task=tabular to predict classes."
            self._refuse(NOT_A_NUMBER, lines[index], f"'{target}' is {reason}.", remedy)
        for index, reason in self._written[f"{_TARGET} {target}"].add(texts, parsed):
            self._refuse(NOT_A_NUMBER, lines[index], reason, "Write all cells of the column in one way.")
        kept_R &= ~wrong_R
        return np.where(wrong_R, math.nan, parsed.value_R)

    def _weights(self, texts: List[str], lines: List[int], kept_R: np.ndarray) -> np.ndarray:
        """Parses weights. Clears `kept_R` for rows without a valid one."""
        parsed = read_numbers(texts, self._missing, self._layout.decimal)
        for index, reason in wrong_weights(parsed.value_R, texts):
            self._refuse(NOT_A_NUMBER, lines[index], f"'{self._layout.weight}' is {reason}.", "Correct the cell.")
            kept_R[index] = False
        for index, reason in self._written[_WEIGHT].add(texts, parsed):
            self._refuse(NOT_A_NUMBER, lines[index], reason, "Write all cells of the column in one way.")
        return parsed.value_R

    def _refuse(self, kind: str, line: int, fact: str, remedy: str) -> None:
        location = location_of(self._path, line)
        self._findings.refuse(Problem(kind, location, f"{location}: {fact}", remedy))


def iterate_rows(stores: Sequence[FeatureStore], row_N: Optional[np.ndarray]) -> Iterator[Any]:
    """Yields (store, rows of it) in pieces of at most `PIECE_ROWS` rows.

    Args:
        stores: stores whose rows are numbered consecutively.
        row_N: ascending row numbers; None: all rows.
    """
    begin = 0
    for store in stores:
        first, last = (0, len(store)) if row_N is None else np.searchsorted(row_N, [begin, begin + len(store)]).tolist()
        for low in range(first, last, PIECE_ROWS):
            high = min(low + PIECE_ROWS, last)
            yield store, np.arange(low, high) if row_N is None else row_N[low:high] - begin
        begin += len(store)


def open_inputs(
    paths: Sequence[str], open_one: Callable[[str], Store], skip_unreadable: bool, unreadable: Dict[int, str]
) -> Tuple[List[Store], List[str]]:
    """Opens files to predict for.

    Args:
        paths: paths of the files.
        open_one: opens one file.
        skip_unreadable, unreadable: see `BaseDataset.open_inputs`.

    Returns:
        The opened files, and the source location of each row: `file:line`, or `file:record` for Parquet.

    Raises:
        DataError: a file cannot be read.
    """
    stores, locations = [], []
    for path, store in read_each(paths, open_one, skip_unreadable, unreadable):
        stores.append(store)
        locations += [f"{path}:{number}" for number in store.locations(np.arange(len(store))).number_N.tolist()]
    return stores, locations
