"""Kinds of the columns of a table, by its description or guessed from the first rows.

A column contains numbers if nine of ten cells that are not missing do; the others are then errors with file and line.
Digits that begin with 0, as in postal codes, a percent sign in some cells, or different currencies make it a column of
categories. The decimal sign is a setting, not a guess: `1,234` alone does not tell.
"""

from __future__ import annotations

import json
import logging
import math
import re
from itertools import islice
from typing import Any, Callable, Collection, Dict, Iterator, List, Literal, Mapping, Optional, Sequence, Tuple

import yaml

from mxtrain.data.checking.problems import Findings, Problem
from mxtrain.data.table.cells import mixed_unit
from mxtrain.data.table.columns import classes_in, hint_at_separator, names_of_columns, stream_rows
from mxtrain.data.table.dates import FORM, read_moment
from mxtrain.data.table.missing_cells import MISSING_NUMBERS
from mxtrain.data.table.text_rows import Column
from mxtrain.data.table.written_numbers import read_number
from mxtrain.errors import DataError, did_you_mean
from mxtrain.files.text_numbers import parse_integer
from mxtrain.types import Positive, Spec

GUESSED_ROWS = 1000
"""Number of first rows of a file from which kinds are guessed."""
MAX_CATEGORIES = 100
"""A column with more different texts in these rows is hashed."""
SHARE_OF_NUMBERS = 0.9
_MIN_NUMBERED = 5
"""Minimum number of rows for a guess of row numbers: fewer rows may be numbered by chance."""
_ROW_NUMBERS = re.compile(r"Unnamed: 0(?:\.[0-9]+)?|__index_level_[0-9]+__")
"""Names that pandas gives columns without a name, which hold row numbers that it wrote."""
_FOR_ROW_NUMBERS = ("index", "level_0", "rownames", "row.names", "row_names", "rowid")
"""Names in lower case of columns in which pandas' reset_index and R write row numbers."""
_PERHAPS_ROW_NUMBERS = ("X", "...1", "#")
"""Names of columns that R and spreadsheets write, which hold row numbers if these are complete."""
_PLAIN, _WORDS = re.compile(r"[A-Za-z_][\w ./%+-]*(?<! )", re.ASCII), ("true", "false", "null", "nan", "inf")
"""Names that Hydra's overrides accept as keys, and words with a meaning there. Everything else is quoted."""
Guess = Literal["number", "category", "hashed", "date", "ignore"]
_ROW_ID = re.compile(r"(?:.*[\W_])?(?i:id|uuid|guid)|.*[a-z](?:Id|ID)")
"""Names of columns that hold the id of a row where all of their cells differ."""
_CODE = re.compile(r"[+-]?0[0-9]+", re.ASCII)
"""Digits that are a code, such as a postal code: no number is written with zeros in front."""
_TIME_LIKE = re.compile(
    r"[0-9]{1,4}[-/.][0-9]{1,2}[-/.][0-9]{1,4}(?:[T ][0-9]{1,2}:[0-9]{2}.*)?|[0-9]{1,2}:[0-9]{2}(?::[0-9]{2}.*)?",
)
_NUMBER_LIKE = re.compile(r"[^\w\s]{0,3}\s?[0-9][0-9.,'\s]*\s?[^\W\d_]{0,4}[^\w\s]{0,2}")

log = logging.getLogger(__name__)


class ColumnSpec(Spec):
    """Kind of a column."""

    kind: Literal["number", "count", "category", "hashed", "date", "ignore"]
    """number; count = a number that enters as log(1 + x); category = each value that comes often enough has an id;
    hashed = each value has the id of its bucket; date = dates and times as numbers; ignore."""
    buckets: Optional[Positive] = None
    """Number of buckets of a hashed column; null = dataset.buckets."""
    min_count: Optional[Positive] = None
    """Minimum count of the values of a category; null = dataset.min_count."""
    parts: Optional[List[Literal["trend", "month", "weekday", "hour"]]] = None
    """Parts of dates that are features; null = all, the hour only if the first rows have times."""


class _Silent(Findings):
    """Ignores problems."""

    def refuse(self, *problems: Problem, sentence: str = "") -> None:
        """See `Findings`."""

    @property
    def keeps_going(self) -> bool:
        return True


def as_column_specs(specs: Any) -> Any:
    """Expands `{age: number}` to `{age: {kind: number}}` before validation, and parses a text in YAML, in which columns
    can have names that Hydra's overrides do not take."""
    if isinstance(specs, str):
        try:
            specs = yaml.safe_load(specs)
        except yaml.YAMLError as error:
            raise ValueError(f"columns is no YAML: {' '.join(str(error).split())}") from error
    if not isinstance(specs, Mapping):
        return specs
    return {name: {"kind": value} if isinstance(value, str) else value for name, value in specs.items()}


def as_override(kinds: Mapping[str, str]) -> str:
    """Formats columns and their kinds as typed behind `dataset.columns=`; columns without a name are left out."""
    named_kinds = {name: kind for name, kind in kinds.items() if name}
    if all(_PLAIN.fullmatch(name) and name.lower() not in _WORDS for name in named_kinds):
        return f"{{{', '.join(f'{name}: {kind}' for name, kind in named_kinds.items())}}}"
    text = json.dumps(named_kinds, ensure_ascii=False)
    return "'{}'".format(text.replace("'", r"\'"))


def refuse_unknown_columns(path: str, columns: Sequence[str], names: Sequence[str], setting: str) -> None:
    """Checks that the file has each column, once.

    Raises:
        DataError: it has no column of a name, or two; the message has the nearest names.
    """
    for name in columns:
        if name not in names:
            raise DataError(
                f"{setting}: {path} has no column '{name}'.{did_you_mean(name, names)} It has {', '.join(names)}."
                f"{hint_at_separator(names)}"
            )
    # Spreadsheets write columns without a name behind the last one; these are not used.
    repeated = next((name for number, name in enumerate(names) if name and name in names[:number]), None)
    if repeated is not None:
        raise DataError(f"{path}: two columns are called '{repeated}'. Give each a name of its own.")


def header_of(path: str, columns: Sequence[str], setting: str) -> List[str]:
    """Returns the names of a file's columns.

    Raises:
        DataError: as `refuse_unknown_columns` says.
    """
    names = names_of_columns(path)
    refuse_unknown_columns(path, columns, names, setting)
    return names


def kinds_of(
    path: str,
    specs: Mapping[str, ColumnSpec],
    other_column: str,
    other_setting: str,
    setting: str,
    guesses: bool,
    missing: Sequence[str],
    decimal: str = ".",
    takes_dates: bool = False,
) -> Dict[str, ColumnSpec]:
    """Returns the kind of each column that is not ignored, in file order; logs the guessed ones.

    Args:
        path: path of the file.
        specs: columns of the description.
        other_column: the column that is not a feature: the target, or the id of the user or item that a row describes.
        other_setting, setting: names of the settings of `other_column` and `specs`, for messages.
        guesses: True to guess the kinds of columns that are not in `specs`; False to ignore these columns.
        missing: cells that mean a missing value.
        decimal: the decimal sign of numbers.
        takes_dates: True if columns of dates are features, and not texts.

    Raises:
        DataError: the file lacks a column that the description names, or numbers have another decimal sign.
    """
    dates = [name for name, spec in specs.items() if spec.kind == "date"]
    if dates and not takes_dates:
        raise DataError(f"{setting}: '{dates[0]}' is of kind date, which dataset=feature_table reads.")
    names = header_of(path, [other_column], other_setting)
    refuse_unknown_columns(path, list(specs), names, setting)
    open_names = [name for name in names if name not in specs and name != other_column]
    guessed: Dict[str, ColumnSpec] = {}
    if open_names and guesses:
        kinds = guess_kinds(path, open_names, missing, decimal, setting, takes_dates)
        guessed = {name: ColumnSpec(kind=kind) for name, kind in kinds.items()}
        rows = f"{GUESSED_ROWS:,}"
        log.info("%s, guessed from the first %s rows of %s: %s", setting, rows, path, as_override(kinds))
    all_specs = {**specs, **guessed}
    return {name: all_specs[name] for name in names if name in all_specs and all_specs[name].kind != "ignore"}


def guess_kinds(
    path: str,
    names: Sequence[str],
    missing: Sequence[str],
    decimal: str = ".",
    setting: str = "dataset.columns",
    takes_dates: bool = False,
) -> Dict[str, Guess]:
    """Guesses the kinds of columns by the first rows of a file.

    A column is of numbers if `SHARE_OF_NUMBERS` of its cells are, so that a wrong cell is found. Of the others, those
    with few different texts are categories, and the rest are hashed. A column without a value, without a name (as the
    row numbers that pandas writes), or of ids of rows is ignored. A column of class numbers whose names are in the file
    is a column of categories, or hashed if there are many. Rows that cannot be used are skipped: the reader of all rows
    reports them.

    Raises:
        DataError: no row can be used, or the numbers of a column have the other decimal sign.
    """
    rows = [row for _, row in islice(silent_rows(path, names, missing, decimal=decimal), GUESSED_ROWS)]
    if not rows:
        raise DataError(f"{path}: behind its header there is no row with all columns.")
    kinds: Dict[str, Guess] = {}
    classes = classes_in(path)
    for number, name in enumerate(names):
        if name in classes:  # also if their names are digits
            kinds[name] = "category" if len(classes[name]) <= MAX_CATEGORIES else "hashed"
            continue
        cells = [row[number].strip() for row in rows]
        present = [cell for cell in cells if cell not in missing]
        kinds[name] = _guess(path, name, present, len(rows), decimal, setting)
        if takes_dates and kinds[name] in ("category", "hashed") and _most(present, read_moment):
            kinds[name] = "date"
        elif kinds[name] in ("category", "hashed") and _most(present, _TIME_LIKE.fullmatch):
            log.warning(
                "%s: '%s' has dates or times, such as '%s', and is read as texts, which have no order. Write %s to "
                "learn from their order.",
                path,
                name,
                present[0],
                FORM if takes_dates else "numbers, such as days,",
            )
    return kinds


def silent_rows(
    path: str, names: Sequence[str], missing: Sequence[str], form: Optional[str] = None, decimal: str = "."
) -> Iterator[Tuple[int, Sequence[str]]]:
    """Yields the readable rows of a file that has a header with these columns; skips other rows, and all behind damage.

    Args:
        path: path of the file.
        names: names of the columns.
        missing: cells that mean a missing value.
        form: see `stream_rows`.
        decimal: decimal sign of columns of numbers.

    Raises:
        DataError: the file cannot be read, or is damaged before its first row.
    """
    is_begun = False
    try:
        null = missing[0] if missing else None
        decimal_in: Dict[Column, str] = dict.fromkeys(names, decimal)
        for row in stream_rows(path, list(names), True, True, _Silent(), form, null, decimal_in, names_classes=True):
            is_begun = True
            yield row
    except DataError:
        if not is_begun:
            raise


def is_row_id(name: str) -> bool:
    """Returns True if the name of a column is one of ids of rows: id, user_id, PassengerId."""
    return _ROW_ID.fullmatch(name) is not None


def has_row_ids(path: str, read: Collection[str]) -> bool:
    """Returns True if a column that is not read holds ids of rows: then equal rows are different samples."""
    return any(is_row_id(name) and name not in read for name in names_of_columns(path))


def _guess(path: str, name: str, texts: List[str], num_rows: int, decimal: str, setting: str) -> Guess:
    """Guesses the kind of a column by its cells that are not missing."""
    if not texts or not name or _ROW_NUMBERS.fullmatch(name):
        return "ignore"
    distinct = set(texts)
    if len(distinct) == num_rows and _are_row_numbers(name, texts):
        log.info(
            "%s: '%s' has a number of its own in each row, so it is taken for row numbers, and not learned from.",
            path,
            name,
        )
        return "ignore"
    if num_rows > 1 and len(distinct) == num_rows and is_row_id(name):
        log.info("%s: all cells of '%s' differ, so it is taken for the id of rows, and not learned from.", path, name)
        return "ignore"
    cells = [text for text in texts if text not in MISSING_NUMBERS]
    numbers = [read_number(text, decimal) for text in cells]
    share = sum(number is not None and math.isfinite(number.value) for number in numbers) / max(len(cells), 1)
    kind: Guess = "category" if len(distinct) <= MAX_CATEGORIES else "hashed"
    if share >= SHARE_OF_NUMBERS:
        reason = mixed_unit({number.unit for number in numbers if number is not None})
        if not reason and any(_CODE.fullmatch(text) for text in cells):
            reason = "some of its cells begin with 0, as codes do"
        if not reason:
            return "number"
        log.warning(
            "%s: '%s' is read as texts, not as numbers: %s. %s", path, name, reason, _advise_number(name, setting)
        )
        return kind
    _refuse_other_decimal(path, name, cells, decimal, setting)
    if kind == "hashed" and _most(cells, _NUMBER_LIKE.fullmatch) and not _most(cells, _TIME_LIKE.fullmatch):
        log.warning(
            "%s: '%s' is read as texts, and its cells look like numbers written otherwise, such as '%s'. Write them as "
            "plain numbers to learn from their size.",
            path,
            name,
            cells[0],
        )
    return kind


def _most(cells: Sequence[str], predicate: Callable[[str], object]) -> bool:
    """Returns True if `predicate` holds for at least `SHARE_OF_NUMBERS` of the cells; False if there are none."""
    return bool(cells) and sum(bool(predicate(cell)) for cell in cells) >= SHARE_OF_NUMBERS * len(cells)


def _refuse_other_decimal(path: str, name: str, cells: Sequence[str], decimal: str, setting: str) -> None:
    """Rejects a column of numbers with the other decimal sign.

    It is an error and not a guess: `1,234` is more than a thousand in some countries and about one in others.

    Raises:
        DataError: most cells are numbers with that sign; the message says what to type.
    """
    other = "," if decimal == "." else "."
    if not _most(cells, lambda cell: read_number(cell, other) is not None):
        return
    example = next(text for text in cells if read_number(text, decimal) is None)
    value = read_number(example, other)
    if value is not None:
        as_texts = f", or {setting}={as_override({name: 'category'})} to read it as texts" if setting else ""
        raise DataError(
            f"{path}: '{name}' has numbers with the decimal sign '{other}', such as '{example}' for "
            f"{value.value:g}. Type \"dataset.decimal='{other}'\"{as_texts}."
        )


def _are_row_numbers(name: str, texts: Sequence[str]) -> bool:
    """Returns True if different cells of a column are row numbers by its name. Numbers may be missing in between, for
    a table may be a sample of another, unless many other columns have that name."""
    is_usual = name.lower() in _FOR_ROW_NUMBERS
    if not (is_usual or name in _PERHAPS_ROW_NUMBERS) or len(texts) < _MIN_NUMBERED:
        return False
    numbers = sorted(number for text in texts if (number := parse_integer(text, low=0)) is not None)
    is_complete = numbers in (list(range(len(texts))), list(range(1, len(texts) + 1)))
    return is_complete or (is_usual and len(numbers) == len(texts))


def _advise_number(name: str, setting: str) -> str:
    return f"Type {setting}={as_override({name: 'number'})} to read it as numbers." if setting else ""
