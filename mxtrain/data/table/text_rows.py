"""Reads the rows of tables in text files, CSV, TSV and JSON lines. Exported folders have a copy of this module."""

from __future__ import annotations

import csv
import itertools
import logging
import re
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Sequence, TextIO, Tuple, Union

from mxtrain.data.table.quoted_cells import first_lines, has_doubled_quotes, is_quoted
from mxtrain.errors import DataError

Column = Union[str, int]
NamedRow = Tuple[int, List[str], Mapping[Column, Any]]
"""Last line of a row, names of the columns, and cells by name or number."""
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
_QUOTED = re.compile(r'"(?:[^"]|"")*"')
_EXCEL = re.compile(r"sep=(.)\r?\n?")
"""First line by which Excel declares the separator."""

log = logging.getLogger(__name__)


def has_text(cells: Sequence[str]) -> bool:
    """Returns True if a cell is not blank. Spreadsheets append rows of blank cells; these are ignored."""
    return any(map(str.strip, cells))


def refuse_long_rows(path: Path, rows: Iterator[NamedRow], first_only: bool) -> Iterator[NamedRow]:
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
        width = width or len(names) or num_cells(row)
        if width not in row:
            yield line, names, row
            continue
        further = [row[index] for index in range(width, num_cells(row)) if row[index].strip()]
        if further and names and (number == 0 or not first_only):
            raise DataError(
                f"{path}, line {line}: the row has more cells than the header has names, so cells may be below "
                f"wrong ones: '{row[0]}' is below '{names[0]}', and '{further[0]}' below none. Name all columns (R: "
                "write.table(..., col.names=NA)), or quote cells with separators."
            )
        if further and not first_only:
            raise DataError(
                f"{path}, line {line}: the row has {num_cells(row)} cells, and the first row {width}, so cells may "
                f"be in wrong columns: '{further[0]}' is in none. Remove separators inside of cells."
            )
        yield line, names, row


def num_cells(row: Mapping[Column, Any]) -> int:
    """Returns the number of cells of a row, whose keys are names and numbers."""
    return sum(isinstance(key, int) for key in row)


def add_nested(cells: Dict[Column, Any], row: Mapping[str, Any]) -> List[str]:
    """Adds the values of nested objects under names such as a.b; returns the names of all columns."""
    names: List[str] = []
    for name, value in row.items():
        inner = value if isinstance(value, dict) else {}
        names += [f"{name}.{key}" for key in inner] or [name]
        for key, cell in inner.items():
            cells.setdefault(f"{name}.{key}", cell)
    return names


def _separator_of(header: str) -> str:
    """Returns the first of `SEPARATORS` that a header contains outside of quotes, else a comma."""
    plain = _QUOTED.sub("", header)
    return next((mark for mark in SEPARATORS if mark in plain), ",")


def name_cells(rows: Iterator[Tuple[int, List[str]]], header: bool) -> Iterator[NamedRow]:
    """Yields (line, names of columns, cells by name and by number) for each row that is not blank."""
    names: List[str] = []
    for line, cells in rows:
        if not has_text(cells):
            continue
        if header:
            names, header = [name.strip() for name in cells], False
            continue
        yield line, names, {**dict(zip(names, cells)), **dict(enumerate(cells))}


def read_cells(
    path: Path, lines: TextIO, ending: str, header: bool = True, may_be_quoted: bool = True
) -> Iterator[Tuple[int, List[str]]]:
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
            log.warning(
                "%s: the quotes of %.60s are read as characters. If cells are quoted, call the file .csv: tabs "
                "may separate its cells, too.",
                f"{path}, line {number}",
                quoted,
            )
        yield number, cells
