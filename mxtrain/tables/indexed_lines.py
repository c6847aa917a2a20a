"""Parses lines in libsvm or libffm format. Exported folders have a copy of this module.

Legend: B batch, L ids of a row.
"""

from __future__ import annotations

import re
from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from mxtrain.files.text_numbers import parse_finite, parse_integer, parse_number

MAX_ID = int(np.iinfo(np.int32).max)
MAX_VALUE = float(np.finfo(np.float32).max)
_PLAIN_PAIRS = re.compile(r"(?:(?:[^ :]*:)?[0-9+\-]+:[0-9+\-.eE]+(?: |$))*", re.ASCII)


class IndexedRow(NamedTuple):
    """A parsed line.

    Attributes:
        target: the number; None if the line has no target, or an invalid one.
        ids, values: ids and values of the features.
    """

    target: Optional[float]
    ids: List[int]
    values: List[float]


class WrongLine(ValueError):
    """A line is invalid.

    Attributes:
        is_target: True if the target is invalid.
    """

    def __init__(self, fact: str, is_target: bool = False) -> None:
        super().__init__(fact)
        self.is_target = is_target


def cells_of(text: str) -> List[str]:
    """Returns the cells of a line. Text after a `#` is a comment."""
    return text.partition("#")[0].split()


def parse_row(cells: Sequence[str], with_target: bool) -> IndexedRow:
    """Parses the cells of a line, `target index:value ...` (libsvm) or `target field:index:value ...` (libffm).

    Args:
        cells: at least one cell.
        with_target: True if there must be a target; otherwise it is optional.

    Raises:
        WrongLine: the line is invalid.
    """
    has_target = with_target or ":" not in cells[0]
    target = parse_finite(cells[0]) if has_target else None
    if target is None and with_target:
        raise WrongLine(f"the target is '{cells[0]:.100}', which is no finite number.", is_target=True)
    if has_target and target is None and parse_number(cells[0], allow_special=True) is None:
        raise WrongLine(f"'{cells[0]:.100}' is neither a target nor index:value.")
    features = cells[1:] if has_target else cells
    pairs = [cell.split(":") for cell in features]
    try:
        if not _PLAIN_PAIRS.fullmatch(" ".join(features)):
            raise ValueError  # the handler below names the first invalid cell
        # int() and float() also accept e.g. underscores and other digits, which the pattern has excluded.
        ids, values = [int(pair[-2]) for pair in pairs], [float(pair[-1]) for pair in pairs]
    except (ValueError, IndexError):
        invalid_cell = next((":".join(pair) for pair in pairs if not _is_pair(pair)), features[0])
        raise WrongLine(f"'{invalid_cell:.100}' is no index:value, and no field:index:value.") from None
    if ids and not 0 <= min(ids) <= max(ids) < MAX_ID:
        invalid_id = next(id_ for id_ in ids if not 0 <= id_ < MAX_ID)
        raise WrongLine(f"the index {invalid_id} is not from 0 to {MAX_ID - 1:,}.")
    if not all(-MAX_VALUE <= value <= MAX_VALUE for value in values):  # is false for a NaN
        raise WrongLine("a value is no finite number of 32 bits.")
    return IndexedRow(target, ids, values)


def _is_pair(pair: Sequence[str]) -> bool:
    if len(pair) not in (2, 3):
        return False
    return parse_integer(pair[-2]) is not None and parse_number(pair[-1]) is not None


def padded_rows(rows: Sequence[Tuple[Any, Any]], length: int, num_ids: int) -> Tuple[np.ndarray, np.ndarray]:
    """Returns ids (B, L) int32 and values (B, L) float32 of the first L features of each row.

    Both are 0 after the end of a row, and for ids that training did not have.

    Args:
        rows: ids and values of each row, lists or arrays.
        length: L.
        num_ids: the number of ids that the network has.
    """
    id_BL = np.zeros((len(rows), length), np.int32)
    value_BL = np.zeros((len(rows), length), np.float32)
    is_filled_BL = np.arange(length) < np.array([len(ids) for ids, _ in rows], np.int64)[:, None]
    if is_filled_BL.any():
        id_BL[is_filled_BL] = np.concatenate([ids[:length] for ids, _ in rows])
        value_BL[is_filled_BL] = np.concatenate([values[:length] for _, values in rows])
    # A value of 0 takes an id out of all sums of the network, as it does for padding.
    is_known_BL = id_BL < num_ids
    return np.where(is_known_BL, id_BL, 0).astype(np.int32), np.where(is_known_BL, value_BL, 0).astype(np.float32)
