"""What a description says of the columns of a table, and what is guessed of the others from their first rows."""

from __future__ import annotations

from itertools import islice
from typing import Any, Dict, List, Literal, Mapping, Optional, Sequence

import numpy as np

from mxtrain.dataset.checking.problems import Findings, Problem
from mxtrain.dataset.table.cells import number_of
from mxtrain.dataset.table.columns import names_of_columns, stream_rows
from mxtrain.errors import DataError, did_you_mean
from mxtrain.types import Positive, Spec

GUESSED_ROWS = 1000
"""First rows of a file that a guess looks at."""
MOST_CATEGORIES = 100
"""Different texts in these rows, above which a column is hashed."""
SHARE_OF_NUMBERS = 0.9
Guess = Literal["number", "category", "hashed", "ignore"]


class ColumnSpec(Spec):
    """What a column is."""

    kind: Literal["number", "count", "category", "hashed", "ignore"]
    """number; count = a number that enters as log(1 + x); category = each value that comes often enough has an id;
    hashed = each value has the id of its bucket; ignore."""
    buckets: Optional[Positive] = None
    """Of a hashed column; null = dataset.buckets."""
    min_count: Optional[Positive] = None
    """Of a category; null = dataset.min_count."""


class _Silent(Findings):
    """Nobody who hears of problems."""

    def refuse(self, *problems: Problem, sentence: str = "") -> None:
        """See `Findings`."""

    @property
    def goes_on(self) -> bool:
        return True


def as_column_specs(given: Any) -> Any:
    """Makes settings of words, `{age: number}` for `{age: {kind: number}}`, before they are validated."""
    if not isinstance(given, Mapping):
        return given
    return {name: ColumnSpec(kind=value) if isinstance(value, str) else  # type: ignore[arg-type]  # it is validated
            ColumnSpec(**value) if isinstance(value, Mapping) else value for name, value in given.items()}  # fmt: skip


def refuse_unknown_columns(path: str, named: Sequence[str], names: Sequence[str], setting: str) -> None:
    """Raises: DataError: the file has no column of a name, or two; says the nearest names."""
    for name in named:
        if name not in names:
            raise DataError(
                f"{setting}: {path} has no column '{name}'.{did_you_mean(name, names)} It has {', '.join(names)}."
            )
    twice = next((name for number, name in enumerate(names) if name in names[:number]), None)
    if twice is not None:
        raise DataError(f"{path}: two columns are called '{twice}'. Give each a name of its own.")


def header_of(path: str, named: Sequence[str], setting: str) -> List[str]:
    """The names of a file's columns.

    Raises:
        DataError: as `refuse_unknown_columns` says.
    """
    names = names_of_columns(path)
    refuse_unknown_columns(path, named, names, setting)
    return names


def guess_kinds(path: str, names: Sequence[str], missing: Sequence[str]) -> Dict[str, Guess]:
    """What columns seem to be by the first rows of a file.

    A column of numbers is one with `SHARE_OF_NUMBERS` of its cells numbers, so that a wrong cell is found; of others
    those with few different texts are categories, and the rest are hashed. One without a value is ignored. Rows that
    cannot be used are passed over: whoever reads all rows says what is wrong with them.
    """
    null = missing[0] if missing else None
    rows = [row for _, row in islice(stream_rows(path, list(names), True, True, _Silent(), null=null), GUESSED_ROWS)]
    found: Dict[str, Guess] = {}
    for number, name in enumerate(names):
        texts = [text for row in rows if (text := row[number].strip()) not in missing]
        if not texts:
            found[name] = "ignore"
        elif np.isfinite([number_of(text) for text in texts]).mean() >= SHARE_OF_NUMBERS:
            found[name] = "number"
        else:
            found[name] = "category" if len(set(texts)) <= MOST_CATEGORIES else "hashed"
    return found
