"""Damaged series over time: tables, and lines of JSON of DeepAR."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Callable, List

from damage import Case, damage_file, kind, piped, read_splits

from mxtrain.forecasting.json_lines import DeepARLines
from mxtrain.forecasting.series_table import SeriesTable

SERIES, LINES = "table of series", "DeepAR's lines"
ROWS = ((SERIES, "a.csv"),)
BOTH = (*ROWS, (LINES, "a.jsonl"))

CASES: List[Case] = [
    *(Case(name, "it is in UTF-16", "is in UTF-16, not UTF-8") for name in (SERIES, LINES)),
    *(Case(name, "it is a named pipe", "is a named pipe, and only regular files are read") for name in (SERIES, LINES)),
    Case(SERIES, "it is empty", "a.csv is empty: there are no columns."),
    Case(SERIES, "it has a header alone", "a.csv has no rows."),
    Case(SERIES, "it is cut off", "a.csv, line 46: it has 1 column"),
    Case(SERIES, "a name is in Latin-1", "line 3 is no UTF-8: it holds the byte 0xe9"),
    Case(SERIES, "a row is missing", "a.csv, line 5: the series 'a' lacks 1 row before it, 2024-01-04"),
    Case(SERIES, "a row is repeated", "a.csv, line 6: the series 'a' has the time 2024-01-04 again"),
    Case(SERIES, "a time is no date", "a.csv, line 5: the time '2024-02-31' is no time"),
    Case(SERIES, "a value is a text", "a.csv, line 5: 'target' is 'many', no number."),
    Case(SERIES, "a value is too large", "a.csv, line 5: 'target' is 1e300, and numbers are at most 3.4e+38."),
    Case(LINES, "it is empty", "a.jsonl holds no series."),
    Case(LINES, "it is cut off", "a.jsonl, line 2 "),
    Case(LINES, "a line is no object", "a.jsonl, line 2 is no object such as"),
    Case(LINES, "a value is a text", "a.jsonl, line 2: value 1 of target is 'many', no number"),
    Case(LINES, "a value is too large", "a.jsonl, line 2: value 1 of target is 1e+300, no number below 3.4e+38"),
]


@kind(SERIES)
def _table(folder: Path) -> Callable[[], None]:
    rows = [f"{item},2024-01-{day:02},{day}\n" for item in ("a", "caf\u00e9") for day in range(1, 31)]
    (folder / "a.csv").write_text("item_id,timestamp,target\n" + "".join(rows), encoding="utf-8")
    return read_splits(SeriesTable(path=str(folder / "a.csv"), horizon=2))


@kind(LINES)
def _lines(folder: Path) -> Callable[[], None]:
    lines = [json.dumps({"start": "2024-01-01", "target": list(range(30 + number))}) for number in range(3)]
    (folder / "a.jsonl").write_text("\n".join(lines) + "\n")
    return read_splits(DeepARLines(path=str(folder / "a.jsonl"), frequency="D", horizon=2))


@damage_file(*BOTH, called="it is in UTF-16")
def _utf16(path: Path) -> None:
    path.write_text(path.read_text(encoding="utf-8"), encoding="utf-16")


damage_file(*BOTH, called="it is a named pipe")(piped)


@damage_file(*BOTH, called="it is empty")
def _empty(path: Path) -> None:
    path.write_bytes(b"")


@damage_file(*ROWS, called="it has a header alone")
def _header(path: Path) -> None:
    path.write_text(path.read_text(encoding="utf-8").splitlines()[0] + "\n")


@damage_file(*BOTH, called="it is cut off")
def _cut(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    last = 45 if path.suffix == ".csv" else 1
    path.write_text("\n".join([*lines[:last], lines[last][:2]]), encoding="utf-8")


def _replace(path: Path, number: int, *lines: str) -> None:
    text = path.read_text(encoding="utf-8").splitlines()
    text[number - 1 : number] = lines
    path.write_text("\n".join(text) + "\n", encoding="utf-8")


@damage_file(*ROWS, called="a name is in Latin-1")
def _latin1(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    lines[2] = b"caf\xe9,2024-01-02,1\n"
    path.write_bytes(b"".join(lines))


for _called, _lines_of in {
    "a row is missing": (),
    "a row is repeated": ("a,2024-01-04,4", "a,2024-01-04,5"),
    "a time is no date": ("a,2024-02-31,4",),
    "a value is a text": ("a,2024-01-04,many",),
    "a value is too large": ("a,2024-01-04,1e300",),
}.items():
    damage_file(*ROWS, called=_called)(lambda path, lines=_lines_of: _replace(path, 5, *lines))


for _called, _line in {
    "a line is no object": '"one"',
    "a value is a text": '{"start": "2024-01-01", "target": [1, "many"]}',
    "a value is too large": '{"start": "2024-01-01", "target": [1, 1e300]}',
}.items():
    damage_file((LINES, "a.jsonl"), called=_called)(lambda path, line=_line: _replace(path, 2, line))
