"""What a description says of the columns of a table, and what is guessed of the others from their first rows."""

from __future__ import annotations

import json
import logging
import re
from itertools import islice
from typing import Any, Dict, List, Literal, Mapping, Optional, Sequence

import numpy as np
import yaml

from mxtrain.dataset.checking.problems import Findings, Problem
from mxtrain.dataset.table.cells import number_of
from mxtrain.dataset.table.columns import hint_at_separator, names_of_columns, stream_rows
from mxtrain.errors import DataError, did_you_mean
from mxtrain.types import Positive, Spec

GUESSED_ROWS = 1000
"""First rows of a file that a guess looks at."""
MOST_CATEGORIES = 100
"""Different texts in these rows, above which a column is hashed."""
SHARE_OF_NUMBERS = 0.9
_PLAIN, _WORDS = re.compile(r"[A-Za-z_][\w ./%+-]*(?<! )", re.ASCII), ("true", "false", "null", "nan", "inf")
"""Names that Hydra's overrides take as keys, and words that mean something there. All else stands in a text."""
Guess = Literal["number", "category", "hashed", "ignore"]
MISSING_CELLS = ("", "NA", "N/A", "NaN", "nan", "null", "NULL", "?")
"""Cells that mean that there is no value, unless a description says otherwise."""

log = logging.getLogger(__name__)


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
    """Makes settings of words, `{age: number}` for `{age: {kind: number}}`, before they are validated; and of a text in
    YAML, in which columns can have names that Hydra's overrides do not take."""
    if isinstance(given, str):
        try:
            given = yaml.safe_load(given)
        except yaml.YAMLError as error:
            raise ValueError(f"columns is no YAML: {' '.join(str(error).split())}") from error
    if not isinstance(given, Mapping):
        return given
    return {name: {"kind": value} if isinstance(value, str) else value for name, value in given.items()}


def as_typed(kinds: Mapping[str, str]) -> str:
    """Columns and their kinds as they can be typed behind `dataset.columns=`; one without a name cannot."""
    named = {name: kind for name, kind in kinds.items() if name}
    if all(_PLAIN.fullmatch(name) and name.lower() not in _WORDS for name in named):
        return f"{{{', '.join(f'{name}: {kind}' for name, kind in named.items())}}}"
    text = json.dumps(named, ensure_ascii=False)
    return "'{}'".format(text.replace("'", r"\'"))


def refuse_unknown_columns(path: str, named: Sequence[str], names: Sequence[str], setting: str) -> None:
    """Raises: DataError: the file has no column of a name, or two; says the nearest names."""
    for name in named:
        if name not in names:
            raise DataError(
                f"{setting}: {path} has no column '{name}'.{did_you_mean(name, names)} It has {', '.join(names)}."
                f"{hint_at_separator(names)}"
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


def kinds_of(
    path: str, given: Mapping[str, ColumnSpec], apart: str, apart_setting: str, setting: str, guesses: bool,
    missing: Sequence[str],
) -> Dict[str, ColumnSpec]:  # fmt: skip
    """What each column of a file is that is not ignored, in the order of the file; says what was guessed.

    Args:
        path: of the file.
        given: what a description says of columns.
        apart: the column that is no feature: the target, or who a row is of.
        apart_setting, setting: which name it and `given`, for messages.
        guesses: whether columns of which nothing is said are guessed; else they are ignored.
        missing: cells that mean that there is no value.

    Raises:
        DataError: the file lacks a column that the description names.
    """
    names = header_of(path, [apart], apart_setting)
    refuse_unknown_columns(path, list(given), names, setting)
    open_names = [name for name in names if name not in given and name != apart]
    guessed: Dict[str, ColumnSpec] = {}
    if open_names and guesses:
        found = guess_kinds(path, open_names, missing)
        guessed = {name: ColumnSpec(kind=kind) for name, kind in found.items()}
        rows = f"{GUESSED_ROWS:,}"
        log.info("%s, guessed from the first %s rows of %s: %s", setting, rows, path, as_typed(found))
    known = {**given, **guessed}
    return {name: known[name] for name in names if name in known and known[name].kind != "ignore"}


def guess_kinds(path: str, names: Sequence[str], missing: Sequence[str]) -> Dict[str, Guess]:
    """What columns seem to be by the first rows of a file.

    A column of numbers is one with `SHARE_OF_NUMBERS` of its cells numbers, so that a wrong cell is found; of others
    those with few different texts are categories, and the rest are hashed. One without a value is ignored, and so is
    one without a name, as the numbers of rows that pandas writes. Rows that cannot be used are passed over: whoever
    reads all rows says what is wrong with them.

    Raises:
        DataError: no row can be used.
    """
    null = missing[0] if missing else None
    rows = [row for _, row in islice(stream_rows(path, list(names), True, True, _Silent(), null=null), GUESSED_ROWS)]
    if not rows:
        raise DataError(f"{path}: behind its header there is no row with all columns.")
    found: Dict[str, Guess] = {}
    for number, name in enumerate(names):
        texts = [text for row in rows if (text := row[number].strip()) not in missing]
        if not texts or not name:
            found[name] = "ignore"
        elif np.isfinite([number_of(text) for text in texts]).mean() >= SHARE_OF_NUMBERS:
            found[name] = "number"
        else:
            found[name] = "category" if len(set(texts)) <= MOST_CATEGORIES else "hashed"
    return found
