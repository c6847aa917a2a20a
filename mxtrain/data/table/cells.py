"""Columns of numbers in tables; `written_numbers` parses a single cell.

Legend: R rows.
"""

from __future__ import annotations

import itertools
import math
import re
import unicodedata
from typing import Any, Collection, Dict, Iterable, List, Literal, NamedTuple, Sequence, Tuple, Union

import numpy as np
import pydantic
from typing_extensions import Annotated

from mxtrain.data.table.missing_cells import MISSING_CELLS as MISSING_CELLS
from mxtrain.data.table.missing_cells import MISSING_NUMBERS
from mxtrain.data.table.written_numbers import WrittenNumber, read_number
from mxtrain.files.text_numbers import parse_finite, parse_number

MAX_NUMBER = float(np.finfo(np.float32).max)
_WHOLE_IN_32_BITS = 1 << 24
"""Largest number up to which float32 represents each whole number exactly."""
PERCENT = "%"
Decimal = Literal[".", ","]
"""Decimal signs."""

_PLAIN = re.compile(r"[0-9+\-.eE\n]*", re.ASCII)


def _as_written(cells: Any) -> Any:
    """Converts numbers and truth values in a list to their texts, before validation."""
    return [_as_text(cell) for cell in cells] if isinstance(cells, list) else cells


def _as_text(cell: Any) -> Any:
    if isinstance(cell, bool):
        return str(cell).lower()
    return str(cell) if isinstance(cell, (int, float)) and math.isfinite(cell) else cell


CellTexts = Annotated[List[str], pydantic.BeforeValidator(_as_written)]
"""Cells as they are written in a file; [0, 1] in a description means ["0", "1"]."""


class ParsedNumbers(NamedTuple):
    """Numbers of cells.

    Attributes:
        value_R: NaN where a cell is missing or is no number.
        is_missing_R: whether a cell is missing.
        written: how each cell that is no plain number was read, by its place.
    """

    value_R: np.ndarray
    is_missing_R: np.ndarray
    written: Dict[int, WrittenNumber]


def number_of(text: str) -> float:
    """Returns the plain number in a cell; NaN where there is none."""
    value = parse_number(text, allow_special=True)
    return math.nan if value is None else value


def read_numbers(texts: Sequence[str], missing: Collection[str], decimal: str = ".") -> ParsedNumbers:
    """Returns the numbers of the cells of a column.

    Args:
        texts: without space around them.
        missing: cells without a value, besides `MISSING_NUMBERS`.
        decimal: the decimal sign.
    """
    is_missing_R = np.array([text in missing or text in MISSING_NUMBERS for text in texts], bool)
    value_R = np.full(len(texts), math.nan)
    present = np.flatnonzero(~is_missing_R).tolist()
    written: Dict[int, WrittenNumber] = {}
    cells = [texts[index] for index in present]
    # One test for the whole column: cells are joined, and only columns with other characters are read one by one.
    if decimal == "." and _PLAIN.fullmatch("\n".join(cells)):
        try:
            value_R[present] = [float(cell) for cell in cells]  # of these characters alone, float() takes nothing else
            return ParsedNumbers(value_R, is_missing_R, written)
        except ValueError:
            pass
    for index, cell in zip(present, cells):
        number = read_number(cell, decimal)
        if number is not None:
            value_R[index] = number.value
            if not number.is_plain:
                written[index] = number
    return ParsedNumbers(value_R, is_missing_R, written)


def mixed_unit(units: Collection[str]) -> str:
    """Returns the reason why cells with these units cannot be in one column of numbers; empty if they can."""
    signs = sorted(unit for unit in units if unit)
    if len(signs) > 1:
        return f"its cells have the signs {' and '.join(signs)}"
    return "some of its cells have a percent sign, and others have none" if PERCENT in units and "" in units else ""


def why_no_number(text: str, decimal: str = ".") -> str:
    """Describes a cell that holds no finite number within the range of float32."""
    number = read_number(text, decimal)
    if number is None:
        comma = read_number(text, ",") if decimal == "." else None
        hint = f" (with a decimal comma, dataset.decimal=',', it is {comma.value:g})" if comma is not None else ""
        return f"'{text}', no number{hint}"
    if not math.isfinite(number.value):
        return f"{number.value}, no finite number"
    return f"{number.value}, and the largest number that is read is {MAX_NUMBER:.1e}"


def spelled_alike(texts: Iterable[str]) -> List[List[str]]:
    """Groups of different texts that differ in case, spaces, the encoding of accents or the digits of a number alone,
    such as 1 and 1.0."""
    groups: Dict[Union[str, float], List[str]] = {}
    for text in texts:
        # NFKC joins an accent that is a character of its own with its letter, and makes full-width digits plain ones.
        plain = unicodedata.normalize("NFKC", " ".join(text.casefold().split()))
        number = parse_finite(plain)
        groups.setdefault(plain if number is None else number, []).append(text)
    return [group for group in groups.values() if len(group) > 1]


def _same_in_32_bits(value_R: np.ndarray) -> Tuple[float, ...]:
    """Returns two different integers that are equal in float32, such as ids or seconds since 1970; empty if there are
    none."""
    large = np.unique(value_R[np.abs(value_R) > _WHOLE_IN_32_BITS])
    large = large[large == np.floor(large)]
    with np.errstate(over="ignore"):
        # Neighbours of the sorted different values are enough: equal float32 numbers come from a range.
        first = np.flatnonzero(np.diff(large.astype(np.float32)) == 0)
    return tuple(large[first[0] : first[0] + 2].tolist()) if len(first) else ()


class WrittenColumn:
    """Collects sentences on how cells of a column that are not plain numbers are read, e.g. with a percent sign.

    Args:
        name: name of the column.
        missing, decimal: as `read_numbers` gets them.
    """

    def __init__(self, name: str, missing: Collection[str], decimal: str = ".") -> None:
        self._name, self._missing, self._decimal = name, missing, decimal
        self._units: Dict[str, None] = {}
        self._notes: Dict[str, str] = {}

    @property
    def sentences(self) -> List[str]:
        """Returns sentences on how cells are read; none if all are plain numbers or cells that `missing` names."""
        return list(self._notes.values())

    def add(self, texts: Sequence[str], parsed: ParsedNumbers) -> List[Tuple[int, str]]:
        """Notes more cells of the column.

        Args:
            texts: cells.
            parsed: what `read_numbers` returned for them.

        Returns:
            The index of the first cell of each unit that does not fit the units before, and the reason.
        """
        first_row_of_unit = {number.unit: row for row, number in reversed(list(parsed.written.items()))}
        is_plain_R = ~np.isnan(parsed.value_R)
        is_plain_R[list(parsed.written)] = False
        if is_plain_R.any():
            first_row_of_unit.setdefault("", int(np.argmax(is_plain_R)))
        problems = []
        for unit, row in sorted(first_row_of_unit.items(), key=lambda pair: pair[1]):
            if unit not in self._units and (reason := mixed_unit([*self._units, unit])):
                problems.append((row, f"'{self._name}' is '{texts[row]}': {reason}."))
            self._units[unit] = None
        if "same" not in self._notes and (pair := _same_in_32_bits(parsed.value_R)):
            self._notes["same"] = (
                f"numbers of '{self._name}' are kept in 32 bits, in which {pair[0]:.0f} and {pair[1]:.0f} are the "
                "same. If their difference matters, subtract a constant; ids belong to a category."
            )
        for row, number in itertools.islice(parsed.written.items(), 1):
            is_group = self._decimal == "." and "," in texts[row] and "." not in texts[row]
            hint = " If the comma is a decimal sign, type \"dataset.decimal=','\"." if is_group else ""
            self._notes.setdefault(
                "written",
                (
                    f"numbers of '{self._name}' are read without their signs and groups: '{texts[row]}' as "
                    f"{number.value:g}.{hint}"
                ),
            )
        if "missing" not in self._notes:
            missing = (texts[row] for row in np.flatnonzero(parsed.is_missing_R).tolist())
            for dash in itertools.islice((text for text in missing if text not in self._missing), 1):
                self._notes["missing"] = f"'{dash}' in '{self._name}' is read as a missing number."
        return problems
