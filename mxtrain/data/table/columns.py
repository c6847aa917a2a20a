"""Streams rows of TSV, CSV, JSONL and Parquet files, with columns by name or number."""

from __future__ import annotations

import csv
import decimal
import itertools
import json
import logging
import math
import re
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, TextIO, Tuple, Union

from mxtrain.data.checking.problems import (
    LONG_ROW,
    SHORT_ROW,
    STRICT,
    UNREADABLE_ROW,
    DataPlace,
    DataPlaces,
    Findings,
    Problem,
)
from mxtrain.data.loading.regular_files import exists, files_in, first_of, nearest_there
from mxtrain.data.loading.text_stream import ending_of, open_text
from mxtrain.data.table.parquet import parquet_names, read_parquet
from mxtrain.data.table.quoted_cells import first_lines, has_doubled_quotes, is_quoted
from mxtrain.errors import DataError, did_you_mean, nearest, typed_name
from mxtrain.files.json_text import JsonTextError, decoder_options

Column = Union[str, int]
Row = Tuple[str, ...]
NamedRow = Tuple[int, List[str], Mapping[Column, Any]]
"""The line that a row ends in, the names of columns, and cells by name or number."""
PARQUET = ".parquet"
TABLES = (".tsv", ".csv", ".jsonl", PARQUET)
"""File extensions; text formats may be followed by .gz."""
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
_QUOTED = re.compile(r'"(?:[^"]|"")*"')
_EXCEL = re.compile(r"sep=(.)\r?\n?")
"""A first line of Excel's that says the separator."""
_USUAL_NAMES = {
    "label", "labels", "class", "target", "category", "sentiment", "text", "sentence", "sentence1", "sentence2",
    "review", "source", "user", "user_id", "userid", "item", "item_id", "itemid", "movieid", "rating", "timestamp",
    "src", "tgt", "en", "de", "fr", "es", "it", "pt", "ru", "zh", "ja",
}  # fmt: skip
"""Names of columns in lower case; a first row with one of them is likely to be a header."""

log = logging.getLogger(__name__)


class RowsOfText(NamedTuple):
    """Rows of a table, and their source locations."""

    rows: List[Row]
    places: Optional[DataPlaces] = None


def read_columns(
    path: Union[str, Path], columns: Sequence[Column], header: bool, skip_short: bool = False,
    findings: Findings = STRICT, null: Optional[str] = None,
) -> RowsOfText:  # fmt: skip
    """Reads columns of all rows, and the line of each row. Arguments as in `stream_rows`."""
    numbered = list(stream_rows(path, columns, header, skip_short, findings, null=null))
    are_records = ending_of(path) == PARQUET
    places = DataPlaces([str(path)], [line for line, _ in numbered], None, are_records)
    return RowsOfText([row for _, row in numbered], places)


def numbered_rows(
    path: Union[str, Path], columns: Sequence[Column], header: bool, skip_short: bool = False,
    findings: Findings = STRICT,
) -> List[Tuple[int, Row]]:  # fmt: skip
    """Returns everything that `stream_rows` yields, as a list."""
    return list(stream_rows(path, columns, header, skip_short, findings))


def stream_rows(
    path: Union[str, Path], columns: Sequence[Column], header: bool, skip_short: bool = False,
    findings: Findings = STRICT, form: Optional[str] = None, null: Optional[str] = None,
) -> Iterator[Tuple[int, Row]]:  # fmt: skip
    """Yields (number, cells) for each row: its last line, from 1 (for Parquet the row, from 0), and the given columns.

    Args:
        path: file in the format of its extension: `.tsv` (tabs; quoted cells if its first lines are quoted as in a
            CSV), `.csv` (commas, quotes), `.jsonl` (one object per line), these followed by `.gz`, or `.parquet`.
        columns: names, or numbers from 0 for a TSV or CSV; `a.b` is the key b of an object in column a.
        header: whether the first row of a TSV or CSV names its columns.
        skip_short: skip rows without all of the columns, which some published files contain.
        findings: collects unusable rows, and rows of another length than the first.
        form: extension that replaces that of `path`: `.tsv` of a published format, in which quotes are characters.
        null: text for nulls of JSON or Parquet; None: a null makes its row unusable.

    Raises:
        DataError: the file cannot be read, or a row lacks a column; the message names the line.
    """
    path = Path(path)
    ending = form or require_table(path)
    if form:
        require_file(path)
    if ending == PARQUET:
        as_texts = ((number, names, {name: _as_written(value) for name, value in row.items()})
                    for number, names, row in read_parquet(path, [str(column) for column in columns]))  # fmt: skip
        yield from _usable(path, as_texts, columns, skip_short, findings, ending, null)
        return
    # newline="": Python's csv module needs the line ends inside of quoted cells unchanged.
    with open_text(path, "" if ending == ".csv" else "\n", findings) as lines:
        if ending == ".jsonl":
            yield from _usable(path, _read_jsonl(path, lines, findings), columns, skip_short, findings, ending, null)
            return
        rows = _name_cells(read_cells(path, lines, ending, header, may_be_quoted=not form), header)
        rows = _say_first_line(path, rows, columns, header)
        # A check lists them all; files with rows that are left out anyway may have any.
        rows = _refuse_long_rows(path, rows, first_only=findings.keeps_going or skip_short)
        if findings.keeps_going:
            rows = _remark_lengths(str(path), rows, findings)
        yield from _usable(path, rows, columns, skip_short, findings, ending, null, header)


def require_table(path: Union[str, Path]) -> str:
    """Returns the extension of a table file.

    Raises:
        DataError: the extension is not in `TABLES`, or there is no such file.
    """
    ending = ending_of(path)
    if ending not in TABLES:
        require_file(path)
        raise DataError(f"{path}: rows are read from files that end in {', '.join(TABLES)}, or .gz behind these.")
    require_file(path)
    return ending


def require_file(path: Union[str, Path]) -> None:
    """Checks that a path leads to something other than a folder.

    Raises:
        DataError: there is no such file, or it is a folder.
    """
    if not exists(path):
        raise DataError(f"{path}: there is no such file.{nearest_there(path)}")
    if Path(path).is_dir():
        raise DataError(f"{path} is a folder, and a file is needed: {first_of(files_in(path)) or 'it has none'}.")


def names_of_columns(path: Union[str, Path]) -> List[str]:
    """Reads the names of columns: the first row of a TSV or CSV, the first object of a JSONL, the schema of a Parquet.

    Raises:
        DataError: the file cannot be read, or is empty.
    """
    path = Path(path)
    ending = require_table(path)
    if ending == PARQUET:
        return parquet_names(path)
    with open_text(path, "" if ending == ".csv" else "\n", STRICT) as lines:
        if ending == ".jsonl":
            names = next((names for _, names, _ in _read_jsonl(path, lines, STRICT)), [])
        else:
            header = next((cells for _, cells in read_cells(path, lines, ending) if _has_text(cells)), [])
            names = [cell.strip() for cell in header]
    if not names:
        raise DataError(f"{path} is empty: there are no columns.")
    return names


def _usable(
    path: Path, rows: Iterator[NamedRow], columns: Sequence[Column], skip_short: bool, findings: Findings, ending: str,
    null: Optional[str], header: bool = False,
) -> Iterator[Tuple[int, Row]]:  # fmt: skip
    """Yields the given columns of the rows that have them, as texts; reports all other rows to `findings`."""
    has_cells = ending in (".tsv", ".csv")
    first: Optional[Mapping[Column, Any]] = None
    for line, names, row in rows:
        if first is None:
            first = row
            _refuse_repeated(path, columns, names)
        missing = [column for column in columns if column not in row]
        if missing and skip_short:
            continue
        if missing:
            place = place_of(path, line)
            fact = f"{place}: {_what_is_missing(missing[0], names, row)}"
            if ending == PARQUET:
                raise DataError(fact)
            if has_cells and missing[0] not in (names if isinstance(missing[0], str) else first):
                if isinstance(missing[0], str) and header:
                    place = DataPlace(str(path), _first_line(path, ending))
                    fact = f"{place}: {_what_is_missing(missing[0], names, row)}"
                raise DataError(fact)  # the header, or the first row, lacks the column, so no row has it
            if not has_cells or not findings.keeps_going:  # else `_remark_lengths` has reported the row
                findings.refuse(Problem(SHORT_ROW, place, fact))
            continue
        cells: List[Any] = [null if row[column] is None else row[column] for column in columns]
        for column, cell in zip(columns, cells):
            reason = _no_text(cell)
            if reason:
                place = place_of(path, line)
                findings.refuse(Problem(UNREADABLE_ROW, place, f"{place}: '{column}' {reason}."))
                break
        else:
            yield line, tuple(cells)


def place_of(path: Union[str, Path], number: int) -> DataPlace:
    """Returns the location of a row of `stream_rows`, from its number."""
    return DataPlace(str(path), record=number) if ending_of(path) == PARQUET else DataPlace(str(path), number)


def _first_line(path: Path, ending: str) -> int:
    with open_text(path, "" if ending == ".csv" else "\n") as lines:
        return next(number for number, cells in read_cells(path, lines, ending) if _has_text(cells))


def _has_text(cells: Sequence[str]) -> bool:
    """Returns True if a cell is not blank. Spreadsheets append rows of blank cells, which are ignored."""
    return any(map(str.strip, cells))


def _refuse_repeated(path: Path, columns: Sequence[Column], names: Sequence[str]) -> None:
    """Checks that the name of each column that is read is unique.

    Raises:
        DataError: two columns have the same name.
    """
    for column in columns:
        if isinstance(column, str) and column and names.count(column) > 1:
            raise DataError(f"{path}: two columns are called '{column}'. Give each a name of its own.")


def _say_first_line(
    path: Path, rows: Iterator[NamedRow], columns: Sequence[Column], header: bool
) -> Iterator[NamedRow]:  # fmt: skip
    """Yields the rows, and logs how the first line is read.

    With columns by number, a wrong `header` does not fail: it silently drops a row or reads names as values.
    """
    for line, names, row in itertools.islice(rows, 1):
        if header and any(isinstance(column, int) for column in columns):
            examples = ", ".join(repr(name) for name in names[:6])
            log.info("%s: the first line is read as names of columns: %s. If it is a row, type dataset.header=false.",
                     path, examples)  # fmt: skip
        cells = [] if header else [str(row.get(column, "")).strip().lower() for column in columns]
        if _USUAL_NAMES.intersection(cells) and all(map(str.isidentifier, cells)):
            log.warning("%s: the first line, %s, looks like names of columns, and is read as a row. If it holds names, "
                        "type dataset.header=true.", place_of(path, line), ", ".join(cells))  # fmt: skip
        yield line, names, row
    yield from rows


def _refuse_long_rows(path: Path, rows: Iterator[NamedRow], first_only: bool) -> Iterator[NamedRow]:
    """Yields the rows of a table, and rejects rows with more cells than columns.

    In such a row cells may be in wrong columns: R writes row names without a header, and an unquoted comma splits a
    cell.

    Args:
        path: path of the table.
        rows: rows with the names of the columns; without names, the first row sets the number of columns.
        first_only: check only the first row, which suffices for R's row names.

    Raises:
        DataError: a row has a further cell that is not blank.
    """
    width = 0
    for number, (line, names, row) in enumerate(rows):
        width = width or len(names) or _num_cells(row)
        if width not in row:
            yield line, names, row
            continue
        further = [row[index] for index in range(width, _num_cells(row)) if row[index].strip()]
        if further and names and (number == 0 or not first_only):
            raise DataError(
                f"{place_of(path, line)}: the row has more cells than the header has names, so cells may be below "
                f"wrong ones: '{row[0]}' is below '{names[0]}', and '{further[0]}' below none. Name all columns (R: "
                "write.table(..., col.names=NA)), or quote cells with separators."
            )
        if further and not first_only:
            raise DataError(
                f"{place_of(path, line)}: the row has {_num_cells(row)} cells, and the first row {width}, so cells may "
                f"be in wrong columns: '{further[0]}' is in none. Remove separators inside of cells."
            )
        yield line, names, row


def _num_cells(row: Mapping[Column, Any]) -> int:
    return sum(isinstance(key, int) for key in row)


def _remark_lengths(path: str, rows: Iterator[NamedRow], findings: Findings) -> Iterator[NamedRow]:
    """Yields the rows of a table, and reports those with another number of cells than the header or the first row."""
    width = 0
    for line, names, row in rows:
        length = _num_cells(row)
        width = width or len(names) or length
        if length != width:
            place = DataPlace(path, line)
            fact = f"{place} has {length} columns, and the first row {width}."
            remedy = "Complete or remove it." if length < width else "Quote or remove the surplus cells."
            findings.remark(Problem(SHORT_ROW if length < width else LONG_ROW, place, fact, remedy))
        yield line, names, row


def _no_text(value: object) -> str:
    """Returns the reason why a value is not valid text; "" if it is."""
    if not isinstance(value, str):
        kind = "null" if value is None else "a list or an object" if isinstance(value, (list, dict)) else "bytes"
        return f"is {kind}, which is no text"
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        return f"holds half a character, \\u{ord(value[error.start]):04x}, which is no text"
    return ""


def _what_is_missing(column: Column, names: List[str], row: Mapping[Column, str]) -> str:
    """Returns the sentence that explains why a row has no such column."""
    cells = _num_cells(row)
    if cells and (column in names or not isinstance(column, str)):
        column_name = repr(column) if isinstance(column, str) else f"number {column}, counted from 0"
        return f"it has {cells} column{'s' * (cells > 1)}, so there is none for {column_name}."
    hint = did_you_mean(str(column), names)
    available = f"It has {', '.join(names) or 'no names of columns'}.{hint_at_separator(names)}"
    return f"there is no column '{column}'.{hint} {available}"


def require_column(setting: str, column: str, path: str, names: Sequence[str]) -> None:
    """Checks that the header of a table has the column of a setting.

    Raises:
        DataError: there is no such column; the message says what to type.
    """
    if column not in names:
        nearest_names = nearest(column, names)
        hint = f" Did you mean '{nearest_names[0]}'?" if nearest_names else ""
        advice = f" Type {typed_name(setting, (nearest_names or names)[0])}, or another of {', '.join(names)}."
        raise DataError(
            f"{setting}={column}: {path}, line 1: there is no column '{column}'.{hint}"
            f"{hint_at_separator(names) or advice}"
        )


def hint_at_separator(names: Sequence[str]) -> str:
    """Returns a sentence if a header seems to have another separator; else ""."""
    if len(names) != 1:
        return ""
    separators = next((name for separator, name in SEPARATORS.items() if separator in names[0]), "")
    return f" It seems to be separated by {separators}: a .csv has commas, a .tsv tabs." if separators else ""


def _read_jsonl(path: Path, lines: TextIO, findings: Findings) -> Iterator[NamedRow]:
    decoder = json.JSONDecoder(**decoder_options("", allow_nan=True))
    for line, part in enumerate(lines, start=1):
        if not part.strip():
            continue
        try:
            row: Any = decoder.decode(part)
            reason: object = "" if isinstance(row, dict) else f"it is {part.strip():.40}"
        except JsonTextError as error:
            reason = f"it {error}"
        except (ValueError, RecursionError) as error:  # whose own text counts lines from this one
            reason = getattr(error, "msg", error)
        if reason:
            place = DataPlace(str(path), line)
            findings.refuse(Problem(UNREADABLE_ROW, place, f"{place} is no JSON object: {reason}."))
            continue
        # Numbers and truth are labels as they are written; null, lists and objects are no text.
        cells: Dict[Column, Any] = {name: _as_written(value) for name, value in row.items()}
        names = list(row)
        if any(isinstance(value, dict) for value in row.values()):
            names = _add_inner(cells, row)
        yield line, names, cells


def _add_inner(cells: Dict[Column, Any], row: Mapping[str, Any]) -> List[str]:
    """Adds the cells of nested objects under names such as a.b; returns the names of all columns."""
    names: List[str] = []
    for name, value in row.items():
        inner = value if isinstance(value, dict) else {}
        names += [f"{name}.{key}" for key in inner] or [name]
        for key, cell in inner.items():
            cells.setdefault(f"{name}.{key}", _as_written(cell))
    return names


def _as_written(value: object) -> object:
    """Converts numbers and booleans to JSON text. NaN becomes None, as in pandas; other values are unchanged."""
    if isinstance(value, str):
        return value
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, (bool, int, float)):
        return json.dumps(value)
    return str(value) if isinstance(value, decimal.Decimal) else value


def _separator_of(header: str) -> str:
    """Returns the first of `SEPARATORS` that a header contains outside of quotes, else a comma."""
    plain = _QUOTED.sub("", header)
    return next((mark for mark in SEPARATORS if mark in plain), ",")


def _name_cells(
    rows: Iterator[Tuple[int, List[str]]], header: bool
) -> Iterator[NamedRow]:  # fmt: skip
    """Yields (line, names of columns, cells by name and by number) for each row that is not blank."""
    names: List[str] = []
    for line, cells in rows:
        if not _has_text(cells):
            continue
        if header:
            names, header = [name.strip() for name in cells], False
            continue
        yield line, names, {**dict(zip(names, cells)), **dict(enumerate(cells))}


def read_cells(
    path: Path, lines: TextIO, ending: str, header: bool = True, may_be_quoted: bool = True
) -> Iterator[Tuple[int, List[str]]]:  # fmt: skip
    """Yields the last line and the cells of each row.

    Args:
        path: path of the file, for messages.
        lines: its lines.
        ending: its extension. The separator of a `.csv` is found in its header: a comma, else a semicolon, tab or
            vertical bar. That of a `.tsv` is a tab.
        header: whether the first row names the columns.
        may_be_quoted: whether cells of a `.tsv` are unquoted if its first lines are quoted as in a CSV. Otherwise
            quotes are characters.

    Raises:
        DataError: a row cannot be split into cells.
    """
    csv.field_size_limit(1 << 27)  # the default, 128 KB, is too small for long texts
    if ending == ".tsv":
        first = first_lines(lines) if may_be_quoted else []
        all_lines = itertools.chain(first, lines)
        if is_quoted(first, header):
            yield from _unquoted(path, all_lines, "\t", 0)
            return
        yield from _divided(path, all_lines, warns=may_be_quoted)
        return
    first = []
    for line in lines:
        first.append(line)
        if line.strip():
            break
    excel_separator = _EXCEL.fullmatch(first[-1]) if first else None
    separator = excel_separator[1] if excel_separator else _separator_of(first[-1]) if first and header else ","
    rest = lines if excel_separator else itertools.chain(first, lines)
    yield from _unquoted(path, rest, separator, len(first) if excel_separator else 0)


def _unquoted(path: Path, lines: Iterator[str], separator: str, skipped: int) -> Iterator[Tuple[int, List[str]]]:
    """Yields rows of cells that may be quoted, also after a space: `a, "b"`."""
    rows = csv.reader(lines, delimiter=separator, strict=True, skipinitialspace=True)
    first = 1 + skipped
    try:
        for cells in rows:
            yield rows.line_num + skipped, cells
            first = rows.line_num + skipped + 1
    except csv.Error as error:
        raise DataError(f"{path}, line {first} begins a row that cannot be read: {error}.") from error


def _divided(path: Path, lines: Iterator[str], warns: bool) -> Iterator[Tuple[int, List[str]]]:
    """Yields one row per line, split at tabs. Quotes are characters.

    Args:
        path: path of the file.
        lines: its lines.
        warns: whether to warn at the first cell that looks quoted.
    """
    for number, line in enumerate(lines, start=1):
        line = line.rstrip("\n")
        line = line[:-1] if line.endswith("\r") else line
        cells = line.split("\t") if line else []
        if warns and '""' in line and (quoted := next(filter(has_doubled_quotes, cells), None)) is not None:
            warns = False
            log.warning("%s: the quotes of %.60s are read as characters. If cells are quoted, call the file .csv: tabs "
                        "may separate its cells, too.", place_of(path, number), quoted)  # fmt: skip
        yield number, cells
