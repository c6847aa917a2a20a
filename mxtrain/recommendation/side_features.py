"""Features of users or items, from a table with a row for each.

Legend: E users, or items, in the order of the catalog; R rows of the file, F fields, M numbers.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from typing import Dict, List, Mapping, NamedTuple, Sequence, Tuple

import numpy as np

from mxtrain.data.checking.problems import DUPLICATE, STRICT, UNREADABLE_ROW, Findings, Problem
from mxtrain.data.features.feature_columns import FeatureColumns, Kind
from mxtrain.data.features.feature_rows import FeatureEncoder, FeatureRows
from mxtrain.data.features.feature_statistics import ColumnSettings, measure_columns
from mxtrain.data.features.feature_store import (
    MISSING_CODE,
    FeatureLayout,
    FeatureStore,
    ReadColumn,
    open_store,
)
from mxtrain.data.table.column_kinds import ColumnSpec, kinds_of
from mxtrain.data.table.columns import require_file
from mxtrain.data.table.target_classes import UNKNOWN
from mxtrain.errors import DataError

log = logging.getLogger(__name__)

_WHOLE = re.compile(r"(-?[0-9]+)(?:\.0+)?", re.ASCII)


class SideFile(NamedTuple):
    """Settings of a table of users or items.

    Attributes:
        side: "user" or "item".
        path: path of the file, whose first row names the columns.
        id: name of the column with the id of the user or item.
        columns: kinds of further columns, by name.
        guesses: True to guess the kinds of other columns, False to ignore these.
        missing: cells that mean a missing value.
        buckets: number of buckets of hashed columns.
        min_count: minimum number of rows with a value of a category for the value to get its own id.
        decimal: decimal sign of numbers.
    """

    side: str
    path: str
    id: str
    columns: Mapping[str, ColumnSpec]
    guesses: bool
    missing: Tuple[str, ...]
    buckets: int
    min_count: int
    decimal: str = "."

    def column_settings(self) -> List[ColumnSettings]:
        """Returns the settings of all columns except the ids, in file order.

        Raises:
            DataError: there is no such file, it lacks a column, or all columns are ignored.
        """
        require_file(self.path)
        setting = f"dataset.{self.side}_columns"
        specs = kinds_of(
            self.path,
            self.columns,
            self.id,
            f"dataset.{self.side}_id",
            setting,
            self.guesses,
            self.missing,
            self.decimal,
        )
        if not specs:
            raise DataError(f"{self.path}: it has no column beside '{self.id}' that is not ignored.")
        return [
            ColumnSettings(name, spec.kind, spec.buckets or self.buckets, spec.min_count or self.min_count)
            for name, spec in specs.items()
        ]

    def read(
        self, columns: Sequence[Tuple[str, Kind]], ids: Sequence[str], findings: Findings = STRICT, logs: bool = False
    ) -> FeatureRows:
        """Reads a row for each user or item, (E,). All cells are missing if the file has no row for it.

        Args:
            columns: names and kinds of the columns.
            ids: ids of the catalog.
            findings: collects unusable rows.
            logs: True to log how many users or items have a row.

        Raises:
            DataError: the file cannot be read, has two rows with one id, or has rows for none of `ids`.
        """
        read = (ReadColumn(self.id, "category", self.id), *(ReadColumn(name, kind, name) for name, kind in columns))
        layout = FeatureLayout(read, None, ("0", "1"), self.missing, is_described=False, decimal=self.decimal)
        store = open_store(self.path, layout, findings)
        row_E = self._rows_of(store, ids, findings, logs)
        has_row_E = row_E >= 0
        number_EN = np.full((len(ids), store.number_RN.shape[1]), np.nan, np.float32)
        number_EN[has_row_E] = store.number_RN[row_E[has_row_E]]
        code_EF = np.full((len(ids), store.code_RF.shape[1]), MISSING_CODE, np.uint32)
        code_EF[has_row_E] = store.code_RF[row_E[has_row_E]]
        label_E = np.full(len(ids), UNKNOWN, np.int32)
        return FeatureRows([FeatureStore("", store.numbers, store.codes, number_EN, code_EF, label_E, store.texts)])

    def _rows_of(self, store: FeatureStore, ids: Sequence[str], findings: Findings, logs: bool) -> np.ndarray:
        """Returns the row of each id, -1 if there is none."""
        code_R = store.code_RF[:, list(store.codes).index(self.id)].astype(np.int64)
        for row in np.flatnonzero(code_R == MISSING_CODE).tolist():
            location = store.locations(np.array([row]))[0]
            fact = f"{location}: its '{self.id}' is empty, or a cell of dataset.missing."
            findings.refuse(
                Problem(UNREADABLE_ROW, location, fact, f"Say which {self.side} the row is of, or remove it.")
            )
        texts = store.texts[self.id]
        row_V = np.full(len(texts) + 1, -1, np.int64)
        row_V[code_R[::-1]] = np.arange(len(code_R))[::-1]  # the first counts
        for row in np.flatnonzero((row_V[code_R] != np.arange(len(code_R))) & (code_R != MISSING_CODE)).tolist():
            location = store.locations(np.array([row]))[0]
            fact = f"{location}: {self.side} {texts[code_R[row] - 1]} has a row before."
            findings.refuse(Problem(DUPLICATE, location, fact, "Remove one of them."))
        row_V[MISSING_CODE] = -1
        code_E, num_otherwise = match_ids(ids, texts)
        matched_row_E: np.ndarray = row_V[code_E]
        num_matched = int((matched_row_E >= 0).sum())
        if not num_matched:
            example = f"; its '{self.id}' is like '{texts[0]}'" if texts else ""
            raise DataError(
                f"{self.path}: none of {len(ids):,} {self.side}s has a row in it. Ids of {self.side}s are like "
                f"'{ids[0]}'{example}. Type dataset.{self.side}_id=COLUMN, or write ids alike."
            )
        if logs:
            note = f", {num_otherwise:,} of them as 1 for 1.0 or the other way round" if num_otherwise else ""
            level = logging.INFO if 2 * num_matched >= len(ids) else logging.WARNING
            log.log(level, "%s: %d of %d %ss have a row%s", self.path, num_matched, len(ids), self.side, note)
        return matched_row_E

    def measure(self, ids: Sequence[str]) -> FeatureColumns:
        """Returns vocabularies, means and standard deviations over the users or items of the catalog."""
        settings = self.column_settings()
        rows = self.read([(column.name, column.read_kind) for column in settings], ids, logs=True)
        return measure_columns(rows.stores, None, settings)

    def encode(self, columns: FeatureColumns, ids: Sequence[str]) -> Tuple[np.ndarray, np.ndarray]:
        """Returns the ids (E, F) int32, from 0, and the numbers (E, M) float32 of all users or items.

        Args:
            columns: columns of the network.
            ids: ids of the catalog.
        """
        rows = self.read([(column.name, column.kind) for column in columns.columns], ids)
        return FeatureEncoder(columns)(rows, np.arange(len(ids)))


def match_ids(ids: Sequence[str], texts: Sequence[str]) -> Tuple[List[int], int]:
    """Finds ids among the texts of a column.

    pandas writes whole numbers of a column with missing cells as 1.0. So an id without an equal text matches a text
    with the same value, such as `1` and `1.0`, if only one id and one text have this value.

    Returns:
        The position of each id in `texts`, from 1, or `MISSING_CODE`; and the number of ids that match by value only.
    """
    code_of = {text: code for code, text in enumerate(texts, start=1)}
    codes_of_ids = [code_of.get(id_, MISSING_CODE) for id_ in ids]
    open_ids = [index for index, code in enumerate(codes_of_ids) if code == MISSING_CODE]
    number_of = {index: number for index in open_ids if (number := whole_number(ids[index]))}
    if not number_of:
        return codes_of_ids, 0
    codes: Dict[str, List[int]] = {}
    for text, code in code_of.items():
        codes.setdefault(whole_number(text), []).append(code)
    counts = Counter(map(whole_number, ids))
    num_otherwise = 0
    for index, number in number_of.items():
        if counts[number] == 1 and len(codes.get(number, ())) == 1:
            codes_of_ids[index] = codes[number][0]
            num_otherwise += 1
    return codes_of_ids, num_otherwise


def whole_number(text: str) -> str:
    """Returns the digits of `12` and `12.0`; empty for another text."""
    match = _WHOLE.fullmatch(text)
    return match[1] if match else ""
