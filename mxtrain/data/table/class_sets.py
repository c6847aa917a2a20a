"""The classes of the rows of a table, any number for each row: names in one column, or a column of 0 and 1 for each
class.

Legend: R rows, K classes.
"""

from __future__ import annotations

import logging
from typing import Collection, List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from mxtrain.data.checking.problems import NOT_A_NUMBER, UNKNOWN_CLASS, DataLocations, Findings, Problem
from mxtrain.data.loading.text_stream import ending_of
from mxtrain.data.table.columns import LIST_SEPARATOR, ListColumn, names_of_columns, read_columns, require_column
from mxtrain.errors import DataError, did_you_mean

AUTO = "auto"
DELIMITERS = ("|", ";", ",")
"""Delimiters that are recognised in a column of names."""
USUAL_COLUMNS = ("labels", "label", "classes", "tags", "class")
"""Columns of names that are found without a setting, in this order."""
YES_NO = {"1": 1, "0": 0, "1.0": 1, "0.0": 0, "true": 1, "false": 0}

log = logging.getLogger(__name__)
Labels = Union[None, str, List[str]]


class SetColumns(NamedTuple):
    """Columns of a table that say the classes of its rows.

    Attributes:
        columns: columns that are read: one with names, or one for each class.
        delimiter: text between two names; None: the columns hold 0 and 1.
        class_names: names of the classes, in the order of the targets.
    """

    columns: Tuple[str, ...]
    delimiter: Optional[str]
    class_names: Tuple[str, ...]


def find_set_columns(
    path: str,
    labels: Labels,
    delimiter: str,
    others: Collection[str],
    missing: Collection[str] = (),
    setting: str = "dataset.label",
    further: Sequence[str] = (),
    names_classes: bool = False,
) -> SetColumns:
    """Finds the classes of the rows of a training file.

    Args:
        path: path of the file.
        labels: column of names, or the columns of the classes; None: the first of `USUAL_COLUMNS`, or all columns
            besides `others`.
        delimiter: text between two names; auto: recognised.
        others: columns that are inputs.
        missing: cells that mean a missing value, and so no class.
        setting: setting of `labels`, for messages.
        further: paths of further files of the training samples.
        names_classes: see `read_parquet`.

    Raises:
        DataError: there is no such column, it is named twice, or the delimiter is empty or not clear.
    """
    if not delimiter:
        raise DataError("dataset.delimiter is empty. Type the text between two names of classes, or auto.")
    names = names_of_columns(path)
    if labels is None:
        usual = next((name for name in USUAL_COLUMNS if name in names and name not in others), None)
        labels = usual if usual is not None else [name for name in names if name not in others]
    if isinstance(labels, list):
        if len(labels) < 2:
            raise DataError(
                f"{setting}: {path} has no two columns of classes{' besides ' * bool(others)}{', '.join(others)}. Name "
                "the column with the names of the classes, or two or more columns of 0 and 1."
            )
        for name in labels:
            _require(path, name, names, setting)
            if labels.count(name) > 1:
                raise DataError(f"{setting} names '{name}' twice. Each class has one column.")
        return SetColumns(tuple(labels), None, tuple(labels))
    _require(path, labels, names, setting)
    rows = read_columns([path, *further], [ListColumn(labels)], header=True, names_classes=names_classes).rows
    cells = [row[0] for row in rows if row[0] not in missing]
    if delimiter == AUTO:
        delimiter = recognise_delimiter(path, labels, cells)
    found = sorted({name for cell in cells for name in split_names(cell, delimiter) if name})
    if len(found) < 2:
        available = f"only the class '{found[0]}'" if found else "no class"
        raise DataError(
            f"{path}: the column '{labels}' has {available}, and at least 2 classes are needed. Name another "
            f"column with {setting}=COLUMN."
        )
    return SetColumns((labels,), delimiter, tuple(found))


def _require(path: str, name: str, names: Sequence[str], setting: str) -> None:
    if ending_of(path) != ".jsonl":  # an object of JSON lines need not have all keys
        require_column(setting, name, path, names)


def recognise_delimiter(path: str, column: str, cells: Sequence[str]) -> str:
    """Returns the text between two names of a column; logs it.

    Raises:
        DataError: several delimiters occur, or only spaces.
    """
    cells = [cell for cell in cells if not cell.startswith(LIST_SEPARATOR)]
    found = [sign for sign in DELIMITERS if any(sign in cell for cell in cells)]
    if len(found) > 1:
        listed = " and ".join(f"'{sign}'" for sign in found)
        raise DataError(
            f"{path}: cells of the column '{column}' hold {listed}, so it is not clear what is between two classes. "
            f"Type \"dataset.delimiter='{found[0]}'\", or another one."
        )
    if not found and any(" " in cell.strip() for cell in cells):
        raise DataError(
            f"{path}: cells of the column '{column}' hold spaces. Type \"dataset.delimiter=' '\" if a space is between "
            "two classes, or \"dataset.delimiter='|'\" if it belongs to the name of a class."
        )
    delimiter = found[0] if found else DELIMITERS[0]
    if not cells:  # all are lists
        return delimiter
    log.info("%s: classes of the column '%s' are divided by '%s' (dataset.delimiter)", path, column, delimiter)
    return delimiter


def split_names(cell: str, delimiter: str) -> List[str]:
    """Returns the names in a cell; an empty cell has none. An empty name between two delimiters is returned as ""."""
    if cell.startswith(LIST_SEPARATOR):
        return [name.strip() for name in cell[1:].split(LIST_SEPARATOR)]
    text = cell.strip()
    return [name.strip() for name in text.split(delimiter)] if text else []


def shown_names(cell: str) -> str:
    """Returns a cell with names for messages: a text in quotes, or a list."""
    names = [name.strip() for name in cell[1:].split(LIST_SEPARATOR)]
    return f"{names}"[:60] if cell.startswith(LIST_SEPARATOR) else f"'{cell:.60}'"


def parse_sets(
    found: SetColumns, cells: Sequence[Sequence[str]], locations: DataLocations, findings: Findings
) -> Tuple[np.ndarray, np.ndarray]:
    """Returns the classes of rows.

    Args:
        found: the columns.
        cells: cells of these columns, of each row.
        locations: source location of each row.
        findings: collects rows with unknown classes or values.

    Returns:
        Targets (R, K) of 0 and 1, int32, and the rows (R,) of the table, without unusable ones.
    """
    number_of = {name: number for number, name in enumerate(found.class_names)}
    set_RK = np.zeros((len(cells), len(found.class_names)), np.int32)
    is_valid_R = np.ones(len(cells), bool)
    problems: List[Problem] = []
    for row, texts in enumerate(cells):
        if found.delimiter is None:
            for number, text in enumerate(texts):
                value = YES_NO.get(text.strip().lower())
                if value is None:
                    fact = f"{locations[row]}: '{found.columns[number]}' is '{text:.40}'; allowed are 0 and 1."
                    remedy = "Correct the cell, or name the columns of the classes with dataset.label=[NAME,NAME]."
                    problems.append(Problem(NOT_A_NUMBER, locations[row], fact, remedy))
                    is_valid_R[row] = False
                    break
                set_RK[row, number] = value
            continue
        for name in split_names(texts[0], found.delimiter):
            if name not in number_of:
                fact = f"{locations[row]} has the class '{name:.60}'."
                if not name:
                    fact = f"{locations[row]}: '{found.columns[0]}' is {shown_names(texts[0])}, with an empty name."
                hint = f"{did_you_mean(name, found.class_names)} Classes of the training rows are "
                remedy = f"{hint}{', '.join(found.class_names[:20])}.".strip()
                problems.append(Problem(UNKNOWN_CLASS, locations[row], fact, remedy))
                is_valid_R[row] = False
                break
            set_RK[row, number_of[name]] = 1
    findings.refuse(*problems)
    kept = np.flatnonzero(is_valid_R)
    return set_RK[kept], kept
