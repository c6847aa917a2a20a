"""Rows of text files: TSV, CSV and JSONL, with columns by name or number."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from mxtrain.dataset.checking.problems import (
    LONG_ROW,
    SHORT_ROW,
    STRICT,
    UNREADABLE_ROW,
    DataPlace,
    DataPlaces,
    Findings,
    Problem,
)
from mxtrain.dataset.loading.regular_files import exists, read_text
from mxtrain.errors import DataError, did_you_mean

Column = Union[str, int]
Row = Tuple[str, ...]
NamedRow = Tuple[int, List[str], Mapping[Column, Any]]
"""The line that a row ends in, the names of columns, and cells by name or number."""
SUFFIXES = (".tsv", ".csv", ".jsonl")


class RowsOfText(NamedTuple):
    """Rows of a table, and where each stands."""

    rows: List[Row]
    places: Optional[DataPlaces] = None


def read_columns(
    path: Union[str, Path], columns: Sequence[Column], header: bool, skip_short: bool = False,
    findings: Findings = STRICT,
) -> RowsOfText:  # fmt: skip
    """The given columns of every row, and their lines; see `numbered_rows`."""
    found = numbered_rows(path, columns, header, skip_short, findings)
    return RowsOfText([row for _, row in found], DataPlaces([str(path)], [line for line, _ in found]))


def numbered_rows(
    path: Union[str, Path], columns: Sequence[Column], header: bool, skip_short: bool = False,
    findings: Findings = STRICT,
) -> List[Tuple[int, Row]]:  # fmt: skip
    """The line that each row ends in, from 1, and the row's given columns.

    Args:
        path: `.tsv` (tabs, no quoting), `.csv` (commas, quotes), or `.jsonl` (an object a line); the name's end says.
        columns: names, or numbers from 0 where the file is no JSONL.
        header: whether the first row of a TSV or CSV names its columns.
        skip_short: leave out rows that end before a column, as some published files have them.
        findings: gets rows that cannot be used, and those of another length than the first.

    Raises:
        DataError: the file cannot be read, or lacks a column somewhere; the message names the line.
    """
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise DataError(f"{path}: texts are read from files that end in {', '.join(SUFFIXES)}.")
    if not exists(path):
        raise DataError(f"{path}: there is no such file.")
    text = read_text(path, findings)
    is_jsonl = path.suffix == ".jsonl"
    rows = _read_jsonl(path, text, findings) if is_jsonl else _name_cells(_read_cells(path, text), header)
    if findings.goes_on and not is_jsonl:
        rows = _remark_lengths(str(path), rows, findings)
    found = []
    first: Optional[Mapping[Column, Any]] = None
    for line, names, row in rows:
        first = row if first is None else first
        missing = [column for column in columns if column not in row]
        if missing and skip_short:
            continue
        if missing:
            place = DataPlace(str(path), line)
            fact = f"{place}: {_what_is_missing(missing[0], names, row)}"
            if not is_jsonl and missing[0] not in (names if isinstance(missing[0], str) else first):
                if isinstance(missing[0], str) and header:
                    place = DataPlace(str(path), next(number for number, cells in _read_cells(path, text) if cells))
                    fact = f"{place}: {_what_is_missing(missing[0], names, row)}"
                raise DataError(fact)  # no row can have it, since the header or the first has not
            if is_jsonl or not findings.goes_on:  # else it was remarked by its length
                findings.refuse(Problem(SHORT_ROW, place, fact))
            continue
        for column in columns:
            reason = _no_text(row[column])
            if reason:
                place = DataPlace(str(path), line)
                findings.refuse(Problem(UNREADABLE_ROW, place, f"{place}: '{column}' {reason}."))
                break
        else:
            found.append((line, tuple(row[column] for column in columns)))
    return found


def _remark_lengths(path: str, rows: Iterator[NamedRow], findings: Findings) -> Iterator[NamedRow]:
    """The rows of a table; remarks those with fewer or more cells than the header, or than the first where there is
    none."""
    width = 0
    for line, names, row in rows:
        length = sum(isinstance(key, int) for key in row)
        width = width or len(names) or length
        if length != width:
            place = DataPlace(path, line)
            fact = f"{place} has {length} columns, and the first row {width}."
            remedy = "Complete or remove it." if length < width else "Quote or remove what is too much."
            findings.remark(Problem(SHORT_ROW if length < width else LONG_ROW, place, fact, remedy))
        yield line, names, row


def _no_text(value: object) -> str:
    """Why a value is no text; empty where it is."""
    if not isinstance(value, str):
        return f"is {'null' if value is None else 'a list or an object'}, which is no text"
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        return f"holds half a character, \\u{ord(value[error.start]):04x}, which is no text"
    return ""


def _what_is_missing(column: Column, names: List[str], row: Mapping[Column, str]) -> str:
    """Says what is missing in a row of a table whose columns have these names, if anything."""
    cells = sum(isinstance(key, int) for key in row)
    if cells and (column in names or not isinstance(column, str)):
        return f"it has {cells} columns, so there is none for {column!r}."
    hint = did_you_mean(str(column), names)
    return f"there is no column '{column}'.{hint} It has {', '.join(names) or 'no names of columns'}."


def _read_jsonl(path: Path, text: str, findings: Findings) -> Iterator[NamedRow]:
    for line, part in enumerate(text.split("\n"), start=1):
        if not part.strip():
            continue
        try:
            row: Any = json.loads(part)
            names = list(row.keys())
        except (ValueError, AttributeError, RecursionError) as error:
            place = DataPlace(str(path), line)
            findings.refuse(Problem(UNREADABLE_ROW, place, f"{place} is no JSON object: {error}."))
            continue
        # Numbers and truth are labels as they are written; null, lists and objects are no text.
        yield (
            line,
            names,
            {
                name: json.dumps(value) if isinstance(value, (bool, int, float)) else value
                for name, value in row.items()
            },
        )


def _name_cells(
    rows: Iterator[Tuple[int, List[str]]], header: bool
) -> Iterator[NamedRow]:  # fmt: skip
    """(line, names of columns, cells by name and number) of each row that is not empty."""
    names: List[str] = []
    for line, cells in rows:
        if not cells:
            continue
        if header:
            names, header = [name.strip() for name in cells], False
            continue
        yield line, names, {**dict(zip(names, cells)), **dict(enumerate(cells))}


def _read_cells(path: Path, text: str) -> Iterator[Tuple[int, List[str]]]:
    """The line that each row ends in, and its cells."""
    if path.suffix == ".tsv":  # no quoting: a line is a row
        lines = (line[:-1] if line.endswith("\r") else line for line in text.split("\n"))
        yield from ((number, line.split("\t") if line else []) for number, line in enumerate(lines, start=1))
        return
    csv.field_size_limit(1 << 27)
    rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    first = 1
    try:
        for cells in rows:
            yield rows.line_num, cells
            first = rows.line_num + 1
    except csv.Error as error:
        raise DataError(f"{path}, line {first} begins a row that cannot be read: {error}.") from error
