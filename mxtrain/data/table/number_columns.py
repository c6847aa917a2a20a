"""Columns of numbers of which each row needs one, such as the numbers to predict.

Legend: R rows, C columns.
"""

from __future__ import annotations

import logging
from typing import Collection, List, NamedTuple, Sequence, Tuple, Union

import numpy as np

from mxtrain.data.checking.problems import NOT_A_NUMBER, DataLocations, Findings, Problem
from mxtrain.data.loading.text_stream import ending_of
from mxtrain.data.table.cells import MAX_NUMBER, MISSING_CELLS, WrittenColumn, read_numbers, why_no_number
from mxtrain.data.table.columns import require_column
from mxtrain.errors import DataError

USUAL_COLUMNS = ("target", "label", "value", "score")
"""Columns of the number to predict that are found without a setting, in this order."""

log = logging.getLogger(__name__)


class ParsedColumn(NamedTuple):
    """Numbers of a column.

    Attributes:
        number_R: the numbers; NaN where a cell has none.
        is_wrong_R: True for rows that cannot be used.
        faults: index, fact and remedy of each wrong cell.
        sentences: how cells that are no plain numbers are read.
    """

    number_R: np.ndarray
    is_wrong_R: np.ndarray
    faults: List[Tuple[int, str, str]]
    sentences: List[str]


def parse_column(
    name: str, cells: Sequence[str], missing: Collection[str], decimal: str, allows_missing: bool = False
) -> ParsedColumn:
    """Parses the cells of a column.

    Args:
        name: name of the column.
        cells: cells of the rows.
        missing: cells that mean a missing number.
        decimal: decimal sign.
        allows_missing: True if rows without the number can be used.
    """
    texts = [cell.strip() for cell in cells]
    parsed = read_numbers(texts, missing, decimal)
    is_wrong_R = ~(np.abs(parsed.value_R) <= MAX_NUMBER)  # not `>`: NaN must count as wrong
    if allows_missing:
        is_wrong_R &= ~parsed.is_missing_R
    faults = []
    for row in np.flatnonzero(is_wrong_R).tolist():
        is_empty = bool(parsed.is_missing_R[row])
        cell = f"'{texts[row]}', a missing number" if is_empty else why_no_number(texts[row], decimal)
        faults.append((row, f"'{name}' is {cell}.", "Give the number." if is_empty else "Correct the cell."))
    written = WrittenColumn(name, missing, decimal)
    faults += [(row, reason, "Write all cells of the column in one way.") for row, reason in written.add(texts, parsed)]
    return ParsedColumn(parsed.value_R, is_wrong_R, faults, written.sentences)


def find_number_columns(
    path: str, label: Union[None, str, List[str]], names: Sequence[str], others: Collection[str]
) -> List[str]:
    """Returns the columns of the numbers to predict.

    Args:
        path: path of the table, for messages.
        label: setting dataset.label; None: one of `USUAL_COLUMNS`, or the only column besides `others`.
        names: columns of the table; of JSON lines, the keys of the first object.
        others: columns that are inputs.

    Raises:
        DataError: there is no such column, several could be meant, or one is named twice or is an input.
    """
    if isinstance(label, list):
        if not label or len(set(label)) < len(label):
            raise DataError(f"dataset.label={label}: name one or several different columns.")
        given = [name for name in label if name in others]
        if given:
            raise DataError(f"dataset.label names '{given[0]}', which cannot be predicted from itself.")
        if ending_of(path) != ".jsonl":
            for name in label:
                require_column("dataset.label", name, path, names)
        return label
    if label is not None:
        if ending_of(path) != ".jsonl":  # an object of JSON lines need not have all keys
            require_column("dataset.label", label, path, names)
        return [label]
    open_names = [name for name in names if name not in others]
    usual = usual_column(open_names)
    if usual:
        return [usual]
    available = f"It has {', '.join(open_names)}." if open_names else "It has no column besides those of the samples."
    raise DataError(f"dataset.label: name the column of {path} with the number to predict, or several. {available}")


def usual_column(names: Sequence[str]) -> str:
    """Returns the column of these that is found without a setting: the first of `USUAL_COLUMNS`, or the only one; empty
    if there is none."""
    usual = [name for name in USUAL_COLUMNS if name in names]
    return (usual or names)[0] if usual or len(names) == 1 else ""


def parse_numbers(
    names: Sequence[str], rows: Sequence[Sequence[str]], decimal: str, locations: DataLocations, findings: Findings
) -> Tuple[np.ndarray, np.ndarray]:
    """Returns the numbers to predict of rows, and logs how cells are read.

    Args:
        names: names of the columns.
        rows: cells of these columns, of each row.
        decimal: decimal sign.
        locations: source location of each row.
        findings: collects rows without a number.

    Returns:
        Numbers (R, C), float32, and the rows (R,) of the table, without unusable ones.
    """
    number_RC = np.zeros((len(rows), len(names)))
    is_wrong_R = np.zeros(len(rows), bool)
    faults: List[Tuple[int, int, str, str]] = []
    for number, name in enumerate(names):
        parsed = parse_column(name, [row[number] for row in rows], MISSING_CELLS, decimal)
        number_RC[:, number] = parsed.number_R
        is_wrong_R |= parsed.is_wrong_R
        faults += [(row, number, fact, remedy) for row, fact, remedy in parsed.faults]
        for sentence in parsed.sentences:
            log.info("%s: %s", locations[0].file, sentence)
    findings.refuse(
        *(
            Problem(NOT_A_NUMBER, locations[row], f"{locations[row]}: {fact}", remedy)
            for row, _, fact, remedy in sorted(faults)
        )
    )
    kept = np.flatnonzero(~is_wrong_R)
    return number_RC[kept].astype(np.float32), kept
