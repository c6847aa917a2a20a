"""Streams rows of TSV, CSV, JSONL and Parquet files, with columns by name or number."""

from __future__ import annotations

import itertools
import json
import logging
from pathlib import Path
from types import MappingProxyType
from typing import (
    TYPE_CHECKING,
    Any,
    Collection,
    Dict,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    TextIO,
    Tuple,
    Union,
)

import numpy as np

from mxtrain.data.checking.problems import (
    LONG_ROW,
    SHORT_ROW,
    STRICT,
    UNREADABLE_ROW,
    DataLocation,
    DataLocations,
    Findings,
    Problem,
)
from mxtrain.data.loading.dataset_files import exists, files_in, list_first, open_regular, suggest_existing
from mxtrain.data.loading.text_stream import ending_of, open_text
from mxtrain.data.table.cell_text import text_of
from mxtrain.data.table.parquet import parquet_classes, parquet_names, read_parquet
from mxtrain.data.table.text_rows import (
    SEPARATORS,
    Column,
    NamedRow,
    add_nested,
    has_text,
    name_cells,
    num_cells,
    read_cells,
    refuse_long_rows,
)
from mxtrain.errors import DataError, did_you_mean, name_override, nearest
from mxtrain.files.json_text import JsonTextError, decoder_options

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

Row = Tuple[str, ...]
PARQUET = ".parquet"
TABLES = (".tsv", ".csv", ".jsonl", PARQUET)
"""File extensions; text formats may be followed by .gz."""
_USUAL_NAMES = {
    "label",
    "labels",
    "class",
    "target",
    "category",
    "sentiment",
    "text",
    "sentence",
    "sentence1",
    "sentence2",
    "review",
    "source",
    "user",
    "user_id",
    "userid",
    "item",
    "item_id",
    "itemid",
    "movieid",
    "rating",
    "timestamp",
    "src",
    "tgt",
    "en",
    "de",
    "fr",
    "es",
    "it",
    "pt",
    "ru",
    "zh",
    "ja",
}
"""Names of columns in lower case; a first row with one of them is likely to be a header."""

ROWS = "dicts from column to value, data frames and paths of tables"
"""Python objects that datasets of tables predict for, for messages."""

log = logging.getLogger(__name__)


LIST_SEPARATOR = "\x1f"
"""Character before each text of a list in a cell of a `ListColumn`."""


class ListColumn(str):
    """Name of a column whose cells may also be lists of texts, in JSON and Parquet. A list becomes a text, with
    `LIST_SEPARATOR` before each element."""


class RowsOfText(NamedTuple):
    """Rows of a table, and their source locations."""

    rows: List[Row]
    locations: Optional[DataLocations] = None


def read_columns(
    path: Union[str, Path, Sequence[str]],
    columns: Sequence[Column],
    header: bool,
    skip_short: bool = False,
    findings: Findings = STRICT,
    null: Optional[str] = None,
    decimal_in: Mapping[Column, str] = MappingProxyType({}),
    names_classes: Union[bool, Collection[str]] = False,
) -> RowsOfText:
    """Reads columns of all rows of one file, or of several with the same extension, and the line of each row. Arguments
    as in `stream_rows`."""
    paths: Sequence[Union[str, Path]] = [path] if isinstance(path, (str, Path)) else path
    rows: List[Row] = []
    lines: List[int] = []
    counts: List[int] = []
    for file in paths:
        for line, row in stream_rows(
            file, columns, header, skip_short, findings, None, null, decimal_in, names_classes
        ):
            lines.append(line)
            rows.append(row)
        counts.append(len(rows) - sum(counts))
    return RowsOfText(rows, locate_rows(paths, lines, counts))


def locate_rows(paths: Sequence[Union[str, Path]], number_N: ArrayLike, counts: Sequence[int]) -> DataLocations:
    """Returns the source locations of the rows of tables with the same extension.

    Args:
        paths: paths of the tables.
        number_N: number of each row in its table, as in `stream_rows`.
        counts: number of rows of each table.
    """
    file_N = None if len(paths) == 1 else np.repeat(np.arange(len(paths), dtype=np.int32), counts)
    return DataLocations(list(map(str, paths)), number_N, file_N, ending_of(paths[0]) == PARQUET)


def require_same_columns(paths: Sequence[str], columns: Sequence[object] = (), header: bool = True) -> None:
    """Checks that tables that are one split have the same extension, the same columns and the same names of classes.

    Args:
        paths: paths of the tables.
        columns: columns that are read; if one is a number, the order of the columns must be the same, too.
        header: False if the first row of a TSV or CSV names no columns.

    Raises:
        DataError: they differ, or a table cannot be read; the message names the file.
    """
    if len(paths) < 2:
        return
    for path in paths[1:]:
        if ending_of(path) != ending_of(paths[0]):
            raise DataError(f"{path} and {paths[0]} are one split: give files with the same extension.")
    ending, has_order = ending_of(paths[0]), any(isinstance(column, int) for column in columns)
    # Objects need not have the same keys.
    if ending == ".jsonl" or not header and ending != PARQUET:
        return
    first_names, first_classes = names_of_columns(paths[0]), classes_in(paths[0])
    for path in paths[1:]:
        names, classes = names_of_columns(path), classes_in(path)
        if names != first_names and (has_order or sorted(names) != sorted(first_names)):
            raise DataError(
                f"{path} has the columns {list_first(names)}, and {paths[0]} has {list_first(first_names)}: files of "
                "one split must have the same."
            )
        differing = next((name for name in names if classes.get(name) != first_classes.get(name)), None)
        if differing is not None:
            raise DataError(
                f"{path}: the metadata name the classes of '{differing}' {_shown(classes.get(differing))}, and those "
                f"of {paths[0]} {_shown(first_classes.get(differing))}: files of one split must have the same."
            )


def classes_in(path: str) -> Mapping[str, List[str]]:
    """Returns the names of classes by column, if the file is a Parquet and Hugging Face's datasets has written these.

    Raises:
        DataError: the file cannot be read.
    """
    if ending_of(path) != PARQUET:
        return {}
    with open_regular(path) as (file, _):
        return parquet_classes(file, Path(path))


def _shown(names: Optional[Sequence[str]]) -> str:
    return "not at all" if names is None else f"[{list_first(names)}]"


def stream_rows(
    path: Union[str, Path],
    columns: Sequence[Column],
    header: bool,
    skip_short: bool = False,
    findings: Findings = STRICT,
    form: Optional[str] = None,
    null: Optional[str] = None,
    decimal_in: Mapping[Column, str] = MappingProxyType({}),
    names_classes: Union[bool, Collection[str]] = False,
) -> Iterator[Tuple[int, Row]]:
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
        decimal_in: column of numbers -> decimal sign with which its texts are read. Numbers of JSON and Parquet have a
            point, and are converted.
        names_classes: see `read_parquet`.

    Raises:
        DataError: the file cannot be read, or a row lacks a column; the message names the line.
    """
    path = Path(path)
    ending = form or require_table(path)
    if form:
        require_file(path)
    if ending == PARQUET:
        with open_regular(path) as (file, _):
            lists = [column for column in columns if isinstance(column, ListColumn)]
            parquet = read_parquet(file, path, list(map(str, columns)), names_classes=names_classes, lists=lists)
            as_texts = ((number, names, _as_texts(row, decimal_in)) for number, names, row in parquet)
            yield from _select_columns(path, as_texts, columns, skip_short, findings, ending, null)
        return
    # newline="": Python's csv module needs the line ends inside of quoted cells unchanged.
    with open_text(path, "" if ending == ".csv" else "\n", findings) as lines:
        if ending == ".jsonl":
            objects = _read_jsonl(path, lines, findings, decimal_in)
            yield from _select_columns(path, objects, columns, skip_short, findings, ending, null)
            return
        rows = name_cells(read_cells(path, lines, ending, header, may_be_quoted=not form), header)
        rows = _log_first_line(path, rows, columns, header)
        # A check lists them all; files with rows that are left out anyway may have any.
        rows = refuse_long_rows(path, rows, first_only=findings.keeps_going or skip_short)
        if findings.keeps_going:
            rows = _remark_lengths(str(path), rows, findings)
        yield from _select_columns(path, rows, columns, skip_short, findings, ending, null, header)


def stream_objects(
    path: Union[str, Path], columns: Sequence[str], findings: Findings = STRICT
) -> Iterator[Tuple[int, Mapping[Any, Any]]]:
    """Yields (number, values by name) for each row of a `.jsonl` or `.parquet` file, numbered as in `stream_rows`.

    Lists and objects are those of the file; numbers by themselves are texts. Columns that a row lacks are left out.

    Raises:
        DataError: the file cannot be read, or has another format.
    """
    path = Path(path)
    ending = require_table(path)
    if ending == PARQUET:
        with open_regular(path) as (file, _):
            for number, _, row in read_parquet(file, path, list(columns), may_nest=True, names_classes=True):
                yield number, _as_texts(row, {})
        return
    if ending != ".jsonl":
        raise DataError(f"{path}: lists are read from files that end in .jsonl, .jsonl.gz or {PARQUET}.")
    with open_text(path, "\n", findings) as lines:
        for number, _, row in _read_jsonl(path, lines, findings):
            yield number, {name: row[name] for name in columns if name in row}


def given_rows(
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[Column],
    null: Optional[str] = None,
    decimal_in: Mapping[Column, str] = MappingProxyType({}),
) -> List[Tuple[int, Row]]:
    """Returns (number from 0, cells) for rows of Python code, read like objects of a JSONL file. NaN is a null.

    Args:
        rows: dicts from column to value.
        columns, null, decimal_in: as in `stream_rows`.

    Raises:
        DataError: a row lacks a column, or a value is no cell; the message names the row.
    """
    named = (_named_row(number, row, decimal_in) for number, row in enumerate(rows))
    return list(_select_columns("", named, columns, False, STRICT, ".jsonl", null))


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
        raise DataError(f"{path}: there is no such file.{suggest_existing(path)}")
    if Path(path).is_dir():
        raise DataError(f"{path} is a folder, and a file is needed: {list_first(files_in(path)) or 'it has none'}.")


def names_of_columns(path: Union[str, Path]) -> List[str]:
    """Reads the names of columns: the first row of a TSV or CSV, the first object of a JSONL, the schema of a Parquet.

    Raises:
        DataError: the file cannot be read, or is empty.
    """
    path = Path(path)
    ending = require_table(path)
    if ending == PARQUET:
        with open_regular(path) as (file, _):
            return parquet_names(file, path)
    with open_text(path, "" if ending == ".csv" else "\n", STRICT) as lines:
        if ending == ".jsonl":
            names = next((names for _, names, _ in _read_jsonl(path, lines, STRICT)), [])
        else:
            header = next((cells for _, cells in read_cells(path, lines, ending) if has_text(cells)), [])
            names = [cell.strip() for cell in header]
    if not names:
        raise DataError(f"{path} is empty: there are no columns.")
    return names


def _select_columns(
    path: Union[str, Path],
    rows: Iterator[NamedRow],
    columns: Sequence[Column],
    skip_short: bool,
    findings: Findings,
    ending: str,
    null: Optional[str],
    header: bool = False,
) -> Iterator[Tuple[int, Row]]:
    """Yields the given columns of the rows that have them, as texts; reports all other rows to `findings`."""
    has_cells = ending in (".tsv", ".csv")
    # The first row decides whether a column by number exists at all.
    first: Optional[Mapping[Column, Any]] = None
    for line, names, row in rows:
        if first is None:
            first = row
            _refuse_repeated(path, columns, names)
        missing = next((column for column in columns if column not in row), None)
        if missing is not None:
            if skip_short:
                continue
            location, reason = location_of(path, line), _what_is_missing(missing, names, row)
            # If the schema, the header or the first row lacks the column, no row has it.
            lacks_all = has_cells and missing not in (names if isinstance(missing, str) else first)
            if lacks_all and isinstance(missing, str) and header:
                location = DataLocation(str(path), _first_line(Path(path), ending))
            if lacks_all or ending == PARQUET:
                raise DataError(f"{location}: {reason}")
            if not has_cells or not findings.keeps_going:  # otherwise `_remark_lengths` has reported the row
                findings.refuse(Problem(SHORT_ROW, location, f"{location}: {reason}"))
            continue
        cells: List[Any] = [null if row[column] is None else row[column] for column in columns]
        for number, column in enumerate(columns):
            if isinstance(column, ListColumn):
                cells[number] = _joined(cells[number])
        for column, cell in zip(columns, cells):
            reason = why_no_text(cell)
            if reason:
                location = location_of(path, line)
                findings.refuse(Problem(UNREADABLE_ROW, location, f"{location}: '{column}' {reason}."))
                break
        else:
            yield line, tuple(cells)


def _joined(cell: Any) -> Any:
    """Returns a list of texts as one text; other values are unchanged."""
    are_texts = isinstance(cell, list) and all(isinstance(each, str) for each in cell)
    return "".join(LIST_SEPARATOR + each for each in cell) if are_texts else cell


def location_of(path: Union[str, Path], number: int) -> DataLocation:
    """Returns the location of a row of `stream_rows`, or of `given_rows` if the path is empty, from its number."""
    if not str(path):
        return DataLocation(record=number)
    return DataLocation(str(path), record=number) if ending_of(path) == PARQUET else DataLocation(str(path), number)


def _first_line(path: Path, ending: str) -> int:
    with open_text(path, "" if ending == ".csv" else "\n") as lines:
        return next(number for number, cells in read_cells(path, lines, ending) if has_text(cells))


def _refuse_repeated(path: Union[str, Path], columns: Sequence[Column], names: Sequence[str]) -> None:
    """Checks that the name of each column that is read is unique.

    Raises:
        DataError: two columns have the same name.
    """
    for column in columns:
        if isinstance(column, str) and column and names.count(column) > 1:
            raise DataError(f"{path}: two columns are called '{column}'. Give each a name of its own.")


def _log_first_line(
    path: Path, rows: Iterator[NamedRow], columns: Sequence[Column], header: bool
) -> Iterator[NamedRow]:
    """Yields the rows, and logs how the first line is read.

    With columns by number, a wrong `header` does not fail: it silently drops a row or reads names as values.
    """
    for line, names, row in itertools.islice(rows, 1):
        if header and any(isinstance(column, int) for column in columns):
            examples = ", ".join(repr(name) for name in names[:6])
            log.info(
                "%s: the first line is read as names of columns: %s. If it is a row, type dataset.header=false.",
                path,
                examples,
            )
        cells = [] if header else [str(row.get(column, "")).strip().lower() for column in columns]
        if _USUAL_NAMES.intersection(cells) and all(map(str.isidentifier, cells)):
            log.warning(
                "%s: the first line, %s, looks like names of columns, and is read as a row. If it holds names, "
                "type dataset.header=true.",
                location_of(path, line),
                ", ".join(cells),
            )
        yield line, names, row
    yield from rows


def _remark_lengths(path: str, rows: Iterator[NamedRow], findings: Findings) -> Iterator[NamedRow]:
    """Yields the rows of a table, and reports those with another number of cells than the header or the first row."""
    width = 0
    for line, names, row in rows:
        length = num_cells(row)
        width = width or len(names) or length
        if length != width:
            location = DataLocation(path, line)
            fact = f"{location} has {length} columns, and the first row {width}."
            remedy = "Complete or remove it." if length < width else "Quote or remove the surplus cells."
            findings.remark(Problem(SHORT_ROW if length < width else LONG_ROW, location, fact, remedy))
        yield line, names, row


def why_no_text(value: object) -> str:
    """Returns the reason why a value is not valid text; "" if it is."""
    if not isinstance(value, str):
        kinds = {"NoneType": "null", "list": "a list or an object", "dict": "a list or an object", "bytes": "bytes"}
        kind = type(value).__name__
        return f"is {kinds.get(kind, f'of type {kind}')}, which is no text"
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        return f"holds half a character, \\u{ord(value[error.start]):04x}, which is no text"
    return ""


def _what_is_missing(column: Column, names: List[str], row: Mapping[Column, str]) -> str:
    """Returns the sentence that explains why a row has no such column."""
    cells = num_cells(row)
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
        advice = f" Type {name_override(setting, (nearest_names or names)[0])}, or another of {', '.join(names)}."
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


def _as_texts(row: Mapping[Column, Any], decimal_in: Mapping[Column, str]) -> Dict[Column, Any]:
    """Returns the cells of a row of JSON or Parquet as texts. Lists and objects are unchanged."""
    cells: Dict[Column, Any] = {name: text_of(value) for name, value in row.items()}
    for name, decimal in decimal_in.items():
        if name in row and isinstance(cells[name], str) and not isinstance(row[name], str):
            cells[name] = cells[name].replace(".", decimal)
    return cells


def _read_jsonl(
    path: Path, lines: TextIO, findings: Findings, decimal_in: Mapping[Column, str] = MappingProxyType({})
) -> Iterator[NamedRow]:
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
            location = DataLocation(str(path), line)
            findings.refuse(Problem(UNREADABLE_ROW, location, f"{location} is no JSON object: {reason}."))
            continue
        yield _named_row(line, row, decimal_in)


def _named_row(number: int, row: Mapping[str, Any], decimal_in: Mapping[Column, str]) -> NamedRow:
    """Returns an object of JSON or a dict as a row. Numbers and truth are labels as they are written; null, lists and
    objects are no text."""
    cells: Dict[Column, Any] = {str(name): value for name, value in row.items()}
    names = [str(name) for name in row]
    if any(isinstance(value, dict) for value in row.values()):
        names = add_nested(cells, row)
    return number, names, _as_texts(cells, decimal_in)
