"""Features of users and items from files of fixed columns, such as those of MovieLens and RecBole.

Legend: E users, or items, in the order of the catalog; F categories, M numbers.
"""

from __future__ import annotations

import logging
from typing import Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from mxtrain.data.checking.problems import (
    DUPLICATE,
    NOT_A_NUMBER,
    STRICT,
    UNREADABLE_ROW,
    DataLocation,
    Findings,
    Problem,
)
from mxtrain.data.features.feature_columns import FeatureColumns, Kind
from mxtrain.data.features.feature_rows import FeatureEncoder, FeatureRows
from mxtrain.data.features.feature_statistics import ColumnSettings, measure_columns
from mxtrain.data.features.feature_store import MISSING_CODE, FeatureStore
from mxtrain.data.table.target_classes import UNKNOWN
from mxtrain.errors import DataError
from mxtrain.files.text_numbers import parse_number

log = logging.getLogger(__name__)

SET = "set"
"""Kind of a column that holds any number of values: each becomes a column that says if a row has it."""
MAX_VALUES = 100
"""Largest number of values of such a column; it is left out if it has more."""


class GivenColumn(NamedTuple):
    """A column of a file.

    Attributes:
        name: its name.
        kind: number, category, hashed or `SET`.
        separator: separator of the values of a set.
    """

    name: str
    kind: str
    separator: str = " "


class GivenFeatures(NamedTuple):
    """Features of users or items that were read; the same methods as `SideFile`.

    Attributes:
        side: "user" or "item".
        path: path of the file.
        kinds: kind of each column.
        rows: id -> column -> cell. An empty or absent cell is missing.
        buckets: number of buckets of hashed columns.
    """

    side: str
    path: str
    kinds: Mapping[str, Kind]
    rows: Mapping[str, Mapping[str, str]]
    buckets: int

    def column_settings(self) -> List[ColumnSettings]:
        """Returns the settings of all columns."""
        return [ColumnSettings(name, kind, self.buckets, 1) for name, kind in self.kinds.items()]

    def read(
        self, columns: Sequence[Tuple[str, Kind]], ids: Sequence[str], findings: Findings = STRICT, logs: bool = False
    ) -> FeatureRows:
        """Returns a row for each user or item, (E,); see `SideFile.read`.

        Raises:
            DataError: no user or item has a row.
        """
        matched = [self.rows.get(id_) for id_ in ids]
        count = sum(row is not None for row in matched)
        if not count:
            raise DataError(f"{self.path}: none of {len(ids):,} {self.side}s has a row in it.")
        if logs:
            level = logging.INFO if 2 * count >= len(ids) else logging.WARNING
            log.log(level, "%s: %d of %d %ss have a row", self.path, count, len(ids), self.side)
        numbers = [name for name, kind in columns if kind == "number"]
        codes = [name for name, kind in columns if kind != "number"]
        cells = {name: [(row or {}).get(name, "") for row in matched] for name, _ in columns}
        texts = {name: sorted(set(cells[name]) - {""}) for name in codes}
        number_EM = np.array([[float(cell or "nan") for cell in cells[name]] for name in numbers], np.float32)
        code_EF = np.full((len(ids), len(codes)), MISSING_CODE, np.uint32)
        for column, name in enumerate(codes):
            code_of = {text: code for code, text in enumerate(texts[name], start=1)}
            code_EF[:, column] = [code_of.get(cell, MISSING_CODE) for cell in cells[name]]
        return FeatureRows(
            [
                FeatureStore(
                    "",
                    numbers,
                    codes,
                    number_EM.reshape(len(numbers), len(ids)).T,
                    code_EF,
                    np.full(len(ids), UNKNOWN, np.int32),
                    texts,
                )
            ]
        )

    def measure(self, ids: Sequence[str]) -> FeatureColumns:
        """See `SideFile.measure`."""
        settings = self.column_settings()
        rows = self.read([(column.name, column.read_kind) for column in settings], ids, logs=True)
        return measure_columns(rows.stores, None, settings)

    def encode(self, columns: FeatureColumns, ids: Sequence[str]) -> Tuple[np.ndarray, np.ndarray]:
        """See `SideFile.encode`."""
        rows = self.read([(column.name, column.kind) for column in columns.columns], ids)
        return FeatureEncoder(columns)(rows, np.arange(len(ids)))


def read_features(
    side: str,
    path: str,
    columns: Sequence[GivenColumn],
    rows: Iterable[Tuple[int, str, Sequence[str]]],
    buckets: int,
    findings: Findings,
) -> GivenFeatures:
    """Returns the features of a file.

    Args:
        side: "user" or "item".
        path: path of the file.
        columns: its columns without the id.
        rows: number of the line, id and cells of each row.
        buckets: number of buckets of hashed columns.
        findings: collects rows that cannot be used.
    """
    found: Dict[str, Dict[str, str]] = {}
    for number, id_, cells in rows:
        problem = _problem_of(side, id_, columns, cells, found)
        if problem is not None:
            location = DataLocation(path, number)
            kind, reason = problem
            findings.refuse(Problem(kind, location, f"{location}: {reason}", "Correct or remove the row."))
            continue
        found[id_] = {column.name: cell.strip() for column, cell in zip(columns, cells)}
    kinds: Dict[str, Kind] = {}
    for column in columns:
        if column.kind == SET:
            kinds.update(_expand(path, column, found))
        else:
            kinds[column.name] = column.kind  # type: ignore[assignment]  # one of them
    return GivenFeatures(side, path, kinds, found, buckets)


def _problem_of(
    side: str, id_: str, columns: Sequence[GivenColumn], cells: Sequence[str], found: Mapping[str, object]
) -> Optional[Tuple[str, str]]:
    if not id_:
        return UNREADABLE_ROW, f"the id of its {side} is empty."
    if id_ in found:
        return DUPLICATE, f"{side} {id_} has a row before."
    for column, cell in zip(columns, cells):
        if column.kind == "number" and cell.strip():
            value = parse_number(cell.strip())
            if value is None or not abs(value) < 1e38:
                return NOT_A_NUMBER, f"its {column.name} '{cell.strip()}' is no number."
    return None


def _expand(path: str, column: GivenColumn, rows: Mapping[str, Dict[str, str]]) -> Dict[str, Kind]:
    """Replaces the cells of a set by a cell for each value; returns the kinds of the new columns."""
    sets = {id_: [one for one in row.pop(column.name).split(column.separator) if one] for id_, row in rows.items()}
    values = sorted({value for has in sets.values() for value in has})
    if len(values) > MAX_VALUES:
        log.warning("%s: %s is ignored, because it has more than %d values", path, column.name, MAX_VALUES)
        return {}
    for id_, has in sets.items():
        rows[id_].update({f"{column.name}={value}": "1" if value in has else "0" for value in values})
    return {f"{column.name}={value}": "category" for value in values}
