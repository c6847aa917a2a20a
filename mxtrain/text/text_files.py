"""Builds stores of texts from labelled tables and from the paragraphs of text files."""

from __future__ import annotations

import itertools
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Callable, Dict, Iterator, List, Optional, Sequence, Tuple, Union

import numpy as np

from mxtrain.data.checking.problems import (
    EMPTY_TEXT,
    LISTED_TWICE,
    STRICT,
    UNKNOWN_CLASS,
    UNREADABLE_FILE,
    DataLocation,
    DataLocations,
    Findings,
    Problem,
)
from mxtrain.data.corpus.content import FileContent, contents_of
from mxtrain.data.corpus.preparing import Advance, prepare, prepare_temporary
from mxtrain.data.corpus.shards import Shards, ShardWriter
from mxtrain.data.loading.dataset_files import FileId, exists, files_in, id_of, walk
from mxtrain.data.loading.file_patterns import expand_files
from mxtrain.data.loading.text_stream import GZIP, MAX_LINE, ending_of, open_text
from mxtrain.data.table.columns import PARQUET, Row, locate_rows, location_of, require_table, stream_rows
from mxtrain.data.table.text_rows import Column
from mxtrain.errors import DataError, did_you_mean
from mxtrain.text.sources import LabelledTexts
from mxtrain.text.stored import TextRecord, text_forms, write_texts
from mxtrain.text.stored_sources import StoredDocuments, StoredTexts

if TYPE_CHECKING:
    from mxtrain.types.annotations import Json, JsonObject

ROW_ENDINGS = (".jsonl", PARQUET)
"""Extensions of files with a text per row."""
AnyTexts = Union[LabelledTexts, StoredTexts]
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TextTable:
    """Texts with a name each: the name of a class, or a number in text form.

    Attributes:
        names: all distinct names, in the order of their first rows.
        name_N: index into `names` of each row.
        locations: source location of each row; None = not from a file.
        build: function (label of each sample, row of each sample) -> samples.
    """

    names: List[str]
    name_N: np.ndarray
    locations: Optional[DataLocations]
    build: Callable[[np.ndarray, np.ndarray], AnyTexts]

    def __len__(self) -> int:
        """Returns the number of rows."""
        return len(self.name_N)


def table_in_memory(rows: Sequence[Row]) -> TextTable:
    """Builds a table from rows (text, name) or (text, text, name)."""
    numbers = {name: number for number, name in enumerate(dict.fromkeys(row[-1] for row in rows))}

    def build(label_N: np.ndarray, row_N: np.ndarray) -> AnyTexts:
        kept_rows = [rows[row] for row in row_N]
        return LabelledTexts([(row[0], row[1] if len(row) > 2 else None) for row in kept_rows], label_N)

    return TextTable(list(numbers), np.array([numbers[row[-1]] for row in rows], np.int32), None, build)


def read_table(
    path: Union[str, Path, Sequence[str]],
    columns: Sequence[Column],
    header: bool,
    skip_short: bool = False,
    findings: Findings = STRICT,
    form: Optional[str] = None,
    decimal: str = ".",
) -> TextTable:
    """Reads the rows of a file, or of several with the same columns, whose last column is the name. The rows are stored
    on first use and reused. Arguments are those of `stream_rows`, and `decimal`, the decimal sign of names that are
    numbers.

    Spaces around names are stripped. A row without a name is a problem.

    Raises:
        DataError: see `stream_rows`, which describes the arguments.
    """
    paths: Sequence[Union[str, Path]] = [path] if isinstance(path, (str, Path)) else path
    ending = require_table(paths[0])
    # Nothing for a point, so that the key of the cache stays that of texts with classes.
    decimal_in = {} if decimal == "." else {columns[-1]: decimal}
    numbers: Dict[str, int] = {}
    empty: List[List[int]] = []
    counts = [0] * len(paths)

    def records() -> Iterator[TextRecord]:
        for index, file in enumerate(paths):
            counts[index] = 0
            for number, row in stream_rows(
                file, columns, header, skip_short, findings, form, decimal_in=decimal_in, names_classes=True
            ):
                name = row[-1].strip()
                if not name:
                    location = location_of(file, number)
                    fact = f"{location}: '{columns[-1]}' is empty."
                    findings.refuse(Problem(UNKNOWN_CLASS, location, fact, "Give the label, or remove the row."))
                    continue
                if not all(map(str.strip, row[:-1])):
                    empty.append([number, index])
                counts[index] += 1
                yield TextRecord(row[:-1], number, numbers.setdefault(name, len(numbers)))

    num_columns = len(columns) - 1
    shards = prepare_texts(
        "table",
        paths,
        [ending, list(columns), header, skip_short, form, *decimal_in.values(), *["classes"] * (ending == PARQUET)],
        num_columns,
        records,
        findings,
        # The number of rows with an empty text, and number and file of the first of them.
        facts=lambda: {"names": list(numbers), "empty": [len(empty), *itertools.chain(*empty[:1])], "counts": counts},
    )
    num_empty, *first_empty = shards.facts["empty"]
    what = name_of(paths)
    if num_empty and not findings.keeps_going:  # a check lists them all
        log.warning(
            "%s: %d rows have an empty text, of which %s is the first, and are read as they are.",
            what,
            num_empty,
            # A store of a single file that an earlier version wrote has no index of the file.
            location_of(paths[first_empty[1] if len(paths) > 1 else 0], first_empty[0]),
        )
    locations = locate_rows(paths, shards.array("number"), shards.facts["counts"] if len(paths) > 1 else ())

    def build(label_N: np.ndarray, row_N: np.ndarray) -> AnyTexts:
        is_all = len(row_N) == len(shards)
        return StoredTexts(shards, num_columns, what, label_N, None if is_all else row_N, locations)

    return TextTable(shards.facts["names"], shards.array("group"), locations, build)


def read_documents(files: Sequence[Path], findings: Findings, column: str = "text") -> StoredDocuments:
    """Reads the paragraphs of text files, of which an empty line ends one, or the rows of JSON lines and Parquet. Each
    file is a document.

    Args:
        files: paths; all or none have rows.
        findings: collects what cannot be read.
        column: column of the text in files with rows.

    Raises:
        DataError: a file is missing or no UTF-8 text, or has no such column.
    """
    have_rows = [ending_of(file) in ROW_ENDINGS for file in files]
    if any(have_rows) and not all(have_rows):
        table, text = files[have_rows.index(True)], files[have_rows.index(False)]
        raise DataError(f"{table} has a text per row, and {text} a paragraph: give files of one kind.")
    endings = {ending_of(file) for file in files} if any(have_rows) else set()
    if len(endings) > 1:
        raise DataError(f"{name_of(files)} end in {' and '.join(sorted(endings))}: give files with the same extension.")

    def texts_of(file: Path) -> Iterator[Tuple[int, str]]:
        if not endings:
            yield from stream_paragraphs(file, findings)
            return
        for number, (text,) in stream_rows(file, [column], header=True, findings=findings):
            if text.strip():
                yield number, text

    def records() -> Iterator[TextRecord]:
        for number, file in enumerate(files):
            for line, text in readable_records(file, texts_of(file), findings):
                yield TextRecord([text], line, number)

    settings: Json = [column, *endings] if endings else []
    shards = prepare_texts("documents", files, settings, 1, records, findings)
    locations = DataLocations(list(map(str, files)), shards.array("number"), shards.array("group"), PARQUET in endings)
    return StoredDocuments(shards, name_of(files), None, locations)


def list_text_files(paths: Union[str, List[str]], endings: Tuple[str, ...], findings: Findings = STRICT) -> List[Path]:
    """Returns the files of paths and patterns. A folder stands for all files in it with these extensions. A file that
    several paths name is returned once.

    Raises:
        DataError: there is no such file or folder.
    """
    file_of_id: Dict[FileId, Path] = {}
    for path in map(Path, expand_files(paths, may_repeat=True)):
        if not exists(path):
            raise DataError(
                f"'{path}': there is no such file or folder.{did_you_mean(path.name, files_in(path.parent))}"
            )
        files = walk(path, endings, findings=findings) if path.is_dir() else [(path, id_of(path))]
        for file, number in files:
            first = file_of_id.setdefault(number, file)
            if first is not file:
                is_same_name = str(file) == str(first)
                duplicate = f"'{file}' is named twice" if is_same_name else f"'{file}' and '{first}' are the same file"
                fact = f"{duplicate}, and counts once."
                findings.remark(Problem(LISTED_TWICE, DataLocation(str(file)), fact, "Name it once."))
    return list(file_of_id.values())


def readable_records(file: Path, records: Iterator[Tuple[int, str]], findings: Findings) -> Iterator[Tuple[int, str]]:
    """Yields the records of a file until one cannot be read, which is added to the findings as a problem."""
    location, is_empty = DataLocation(str(file)), True
    try:
        for record in records:
            is_empty = False
            yield record
    except DataError as error:
        if not findings.keeps_going:
            raise
        findings.refuse(Problem(UNREADABLE_FILE, location, str(error)))
        return
    if is_empty:
        findings.remark(Problem(EMPTY_TEXT, location, f"{location} holds no text.", "Remove it."))


def name_of(files: Sequence[Union[str, Path]]) -> str:
    """Returns the name of a single file, or the number of files, for messages."""
    return str(files[0]) if len(files) == 1 else f"{len(files):,} files"


def prepare_texts(
    kind: str,
    files: Sequence[Union[str, Path]],
    settings: Json,
    num_columns: int,
    records: Callable[[], Iterator[TextRecord]],
    findings: Findings = STRICT,
    facts: Callable[[], JsonObject] = dict,
) -> Shards:
    """Finds or builds a store of the texts of files; see `prepare`.

    Args:
        kind: kind of store, part of the cache key.
        files: all files that `records` reads.
        settings: all settings that the records depend on, part of the cache key.
        num_columns: number of texts in each record.
        records: function that reads the files as a stream, from the beginning at each call.
        findings: if it continues after a problem, the store is neither cached nor read from the cache.
        facts: function that returns further JSON values of the store; called after the last record.

    Raises:
        DataError: a file cannot be read, or changes while it is read.
    """
    # `data check` does not cache the store, so it needs no hash of the files.
    contents = [] if findings.keeps_going else contents_of(files)

    def write(writer: ShardWriter, advance: Advance) -> JsonObject:
        write_texts(records(), num_columns, writer, advance)
        for content in contents:
            # If the file changed while it was read, the result must not be stored under the hash of the old content.
            content.require_unchanged()
        return facts()

    forms = text_forms(num_columns)
    if findings.keeps_going:
        return prepare_temporary(kind, forms, write)
    # Progress is counted in bytes of text, whose total is unknown for compressed files (whose suffix is not the ending
    # of their format) and for Parquet.
    is_plain = all(Path(file).suffix == ending_of(file) and ending_of(file) != PARQUET for file in files)
    total = sum(content.num_bytes for content in contents) if is_plain else 0
    key_parts: Json = [_content_keys(contents), settings]
    return prepare(kind, key_parts, forms, write, what=f"texts of {name_of(files)}", total=total)


def _content_keys(contents: Sequence[FileContent]) -> Json:
    """Returns the SHA-256 of each file, and whether it is compressed."""
    # The extension decides if a file is decompressed, and it is not part of the hash.
    return [[content.sha256, Path(content.path).suffix == GZIP] for content in contents]


def stream_paragraphs(path: Path, findings: Findings = STRICT) -> Iterator[Tuple[int, str]]:
    """Yields (number of the first line, text) of each paragraph of a file. An empty or blank line ends a paragraph.

    Raises:
        DataError: the file cannot be read, is no UTF-8, or has a paragraph that is too long.
    """
    with open_text(path, None, findings) as lines:
        words: List[str] = []
        begin, size = 0, 0
        for number, line in enumerate(lines, start=1):
            line_words = line.split()
            if line_words:
                begin = begin if words else number
                words += line_words
                size += len(line)
                if size > MAX_LINE:
                    raise DataError(f"{path}, line {begin} begins a paragraph of more than {MAX_LINE:,} characters.")
            elif words:
                yield begin, " ".join(words)
                words, size = [], 0
        if words:
            yield begin, " ".join(words)
