"""Rows of text files: TSV, CSV and JSONL, with columns by name or number."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Sequence, Tuple, Union

from mxtrain.errors import DataError, did_you_mean

Column = Union[str, int]
Row = Tuple[str, ...]
SUFFIXES = (".tsv", ".csv", ".jsonl")


def read_columns(
    path: Union[str, Path], columns: Sequence[Column], header: bool, skip_short: bool = False
) -> List[Row]:  # fmt: skip
    """The given columns of every row: `numbered_rows` without their lines."""
    return [row for _, row in numbered_rows(path, columns, header, skip_short)]


def numbered_rows(
    path: Union[str, Path], columns: Sequence[Column], header: bool, skip_short: bool = False
) -> List[Tuple[int, Row]]:  # fmt: skip
    """The line that each row ends in, from 1, and the row's given columns.

    Args:
        path: `.tsv` (tabs, no quoting), `.csv` (commas, quotes), or `.jsonl` (an object a line); the name's end says.
        columns: names, or numbers from 0 where the file is no JSONL.
        header: whether the first row of a TSV or CSV names its columns.
        skip_short: leave out rows that end before a column, as some published files have them.

    Raises:
        DataError: the file cannot be read, or lacks a column somewhere; the message names the line.
    """
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise DataError(f"{path}: texts are read from files that end in {', '.join(SUFFIXES)}.")
    if not path.is_file():
        raise DataError(f"{path}: there is no such file.")
    rows = _read_jsonl(path) if path.suffix == ".jsonl" else _read_lines(path, header)
    found = []
    for line, names, row in rows:
        missing = [column for column in columns if column not in row]
        if missing and skip_short:
            continue
        if missing:
            raise DataError(f"{path}, line {line}: {_what_is_missing(missing[0], names, row)}")
        found.append((line, tuple(row[column] for column in columns)))
    return found


def _what_is_missing(column: Column, names: List[str], row: Mapping[Column, str]) -> str:
    """In a row of a table whose columns have these names, if any."""
    cells = sum(isinstance(key, int) for key in row)
    if cells and (column in names or not isinstance(column, str)):
        return f"it has {cells} columns, so there is none for {column!r}."
    hint = did_you_mean(str(column), names)
    return f"there is no column '{column}'.{hint} It has {', '.join(names) or 'no names of columns'}."


def _read_jsonl(path: Path) -> Iterator[Tuple[int, List[str], Mapping[Column, str]]]:
    with open(path, encoding="utf-8") as stream:
        for line, text in enumerate(stream, start=1):
            if not text.strip():
                continue
            try:
                row: Any = json.loads(text)
                texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in row.items()}
                yield line, list(texts), texts
            except (ValueError, AttributeError) as error:
                raise DataError(f"{path}, line {line} is no JSON object: {error}.") from error


def _read_lines(path: Path, header: bool) -> Iterator[Tuple[int, List[str], Mapping[Column, str]]]:
    quoting: Dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if path.suffix == ".tsv" else {}
    csv.field_size_limit(1 << 27)
    with open(path, encoding="utf-8", newline="") as stream:
        rows = csv.reader(stream, strict=path.suffix == ".csv", **quoting)
        names: List[str] = []
        try:
            for number, cells in enumerate(rows):
                if not cells:
                    continue
                if header and number == 0:
                    names = [name.strip().lstrip("\ufeff") for name in cells]
                    continue
                yield rows.line_num, names, {**dict(zip(names, cells)), **dict(enumerate(cells))}
        except (csv.Error, UnicodeDecodeError) as error:
            raise DataError(f"{path}, line {rows.line_num + 1} cannot be read: {error}.") from error
