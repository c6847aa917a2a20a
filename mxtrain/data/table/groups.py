"""The column of a table whose equal values must stay in the same fold, such as patients."""

from __future__ import annotations

import logging
from typing import Dict, List, Optional, Sequence

import numpy as np

from mxtrain.data.checking.problems import DataLocations
from mxtrain.data.loading.folds import Fold
from mxtrain.data.table.column_kinds import header_of, silent_rows
from mxtrain.errors import DataError

log = logging.getLogger(__name__)

SETTING = "trainer.fold_groups"


def group_column(fold: Optional[Fold], path: str) -> Optional[str]:
    """Returns the column by which folds are grouped, which no network learns from unless it is named as a feature.

    Args:
        fold: fold of the dataset.
        path: table with the training samples.

    Raises:
        DataError: it has no such column.
    """
    if fold is None or fold.groups is None:
        return None
    header_of(path, [fold.groups], SETTING)
    log.info("%s=%s: the column is not learned from", SETTING, fold.groups)
    return fold.groups


def read_groups(column: str, locations: Sequence[DataLocations], form: Optional[str] = None) -> np.ndarray:
    """Returns the number of the group of each row, (N,).

    Args:
        column: name of the column.
        locations: source locations of the rows, in parts.
        form: extension that replaces that of the files; see `stream_rows`.

    Raises:
        DataError: a file has no such column, or the cell of a row is empty.
    """
    numbers: Dict[str, int] = {}
    group_numbers: List[np.ndarray] = []
    for part in locations:
        group_N = np.zeros(len(part.number_N), np.int64)
        for path, index_N in part.by_file():
            header_of(path, [column], SETTING)
            text_of = {line: cells[0].strip() for line, cells in silent_rows(path, [column], [""], form)}
            for index in index_N.tolist():
                text = text_of.get(int(part.number_N[index]), "")
                if not text:
                    raise DataError(
                        f"{part[index]}: '{column}' is empty, so the row is in no group ({SETTING}). Give it a value, "
                        "or remove the row."
                    )
                group_N[index] = numbers.setdefault(text, len(numbers))
        group_numbers.append(group_N)
    return np.concatenate([np.zeros(0, np.int64), *group_numbers])
