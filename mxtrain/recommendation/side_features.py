"""Features of users or of items, from a table with a row for each: read once, by the machinery of tables.

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
from mxtrain.data.features.feature_statistics import WantedColumn, measure_columns
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
    """A table of users or items as a description has it.

    Attributes:
        side: user or item.
        path: of the file, whose first row names the columns.
        id: the column that says who a row is of.
        columns: what further columns are.
        guesses: whether columns of which nothing is said are guessed; else they are ignored.
        missing: cells that mean that there is no value.
        buckets: of a hashed column.
        min_count: how often a value of a category must come, to have an id of its own.
        decimal: the decimal sign of numbers.
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

    def wanted(self) -> List[WantedColumn]:
        """Its columns but the one of ids, in the order of the file.

        Raises:
            DataError: there is no such file, it lacks a column, or no column is left.
        """
        require_file(self.path)
        setting = f"dataset.{self.side}_columns"
        specs = kinds_of(
            self.path, self.columns, self.id, f"dataset.{self.side}_id", setting, self.guesses, self.missing,
            self.decimal,
        )  # fmt: skip
        if not specs:
            raise DataError(f"{self.path}: it has no column beside '{self.id}' that is not ignored.")
        return [WantedColumn(name, one.kind, one.buckets or self.buckets, one.min_count or self.min_count)
                for name, one in specs.items()]  # fmt: skip

    def read(
        self, columns: Sequence[Tuple[str, Kind]], ids: Sequence[str], findings: Findings = STRICT, says: bool = False
    ) -> FeatureRows:
        """Returns a row for each user or item, (E,), with all cells missing where the file has none.

        Args:
            columns: names and kinds.
            ids: of the catalog.
            findings: gets rows that cannot be used.
            says: whether to log how many have a row.

        Raises:
            DataError: the file cannot be read, has two rows of one id, or a row of none of `ids`.
        """
        read = (ReadColumn(self.id, "category", self.id), *(ReadColumn(name, kind, name) for name, kind in columns))
        layout = FeatureLayout(read, None, ("0", "1"), self.missing, is_described=False, decimal=self.decimal)
        store = open_store(self.path, layout, findings)
        row_E = self._rows_of(store, ids, findings, says)
        is_there_E = row_E >= 0
        number_EN = np.full((len(ids), store.number_RN.shape[1]), np.nan, np.float32)
        number_EN[is_there_E] = store.number_RN[row_E[is_there_E]]
        code_EF = np.full((len(ids), store.code_RF.shape[1]), MISSING_CODE, np.uint32)
        code_EF[is_there_E] = store.code_RF[row_E[is_there_E]]
        label_E = np.full(len(ids), UNKNOWN, np.uint8)
        return FeatureRows([FeatureStore("", store.numbers, store.codes, number_EN, code_EF, label_E, store.texts)])

    def _rows_of(self, store: FeatureStore, ids: Sequence[str], findings: Findings, says: bool) -> np.ndarray:
        """Returns the row of each id, -1 where there is none."""
        code_R = store.code_RF[:, list(store.codes).index(self.id)].astype(np.int64)
        for row in np.flatnonzero(code_R == MISSING_CODE).tolist():
            place = store.places(np.array([row]))[0]
            fact = f"{place}: its '{self.id}' is empty, or a cell of dataset.missing."
            findings.refuse(Problem(UNREADABLE_ROW, place, fact, f"Say which {self.side} the row is of, or remove it."))
        texts = store.texts[self.id]
        row_V = np.full(len(texts) + 1, -1, np.int64)
        row_V[code_R[::-1]] = np.arange(len(code_R))[::-1]  # the first counts
        for row in np.flatnonzero((row_V[code_R] != np.arange(len(code_R))) & (code_R != MISSING_CODE)).tolist():
            place = store.places(np.array([row]))[0]
            fact = f"{place}: {self.side} {texts[code_R[row] - 1]} has a row before."
            findings.refuse(Problem(DUPLICATE, place, fact, "Remove one of them."))
        row_V[MISSING_CODE] = -1
        code_E, num_otherwise = match_ids(ids, texts)
        found: np.ndarray = row_V[code_E]
        num_matched = int((found >= 0).sum())
        if not num_matched:
            like = f"; its '{self.id}' is like '{texts[0]}'" if texts else ""
            raise DataError(
                f"{self.path}: none of {len(ids):,} {self.side}s has a row in it. Ids of {self.side}s are like "
                f"'{ids[0]}'{like}. Type dataset.{self.side}_id=COLUMN, or write ids alike."
            )
        if says:
            also = f", {num_otherwise:,} of them as 1 for 1.0 or the other way round" if num_otherwise else ""
            level = logging.INFO if 2 * num_matched >= len(ids) else logging.WARNING
            log.log(level, "%s: %d of %d %ss have a row%s", self.path, num_matched, len(ids), self.side, also)
        return found

    def measure(self, ids: Sequence[str]) -> FeatureColumns:
        """Vocabularies, means and deviations over the users or items of the catalog."""
        wanted = self.wanted()
        rows = self.read([(column.name, column.read_kind) for column in wanted], ids, says=True)
        return measure_columns(rows.stores, None, wanted)

    def encode(self, columns: FeatureColumns, ids: Sequence[str]) -> Tuple[np.ndarray, np.ndarray]:
        """(id_EF int32 from 0 on, number_EM float32) of all, by the columns of a network."""
        rows = self.read([(column.name, column.kind) for column in columns.columns], ids)
        return FeatureEncoder(columns)(rows, np.arange(len(ids)))


def match_ids(ids: Sequence[str], texts: Sequence[str]) -> Tuple[List[int], int]:
    """Finds ids among the texts of a column.

    pandas writes whole numbers of a column with missing cells as 1.0. So an id that is no text matches the one that is
    the same number, `1` and `1.0`, if only one id and one text are that number.

    Returns:
        The place of each id in `texts` from 1 on, `MISSING_CODE` if it is not there; and how many match as
        numbers alone.
    """
    code_of = {text: code for code, text in enumerate(texts, start=1)}
    found = [code_of.get(one, MISSING_CODE) for one in ids]
    open_ids = [index for index, code in enumerate(found) if code == MISSING_CODE]
    number_of = {index: number for index in open_ids if (number := whole_number(ids[index]))}
    if not number_of:
        return found, 0
    codes: Dict[str, List[int]] = {}
    for text, code in code_of.items():
        codes.setdefault(whole_number(text), []).append(code)
    counts = Counter(map(whole_number, ids))
    num_otherwise = 0
    for index, number in number_of.items():
        if counts[number] == 1 and len(codes.get(number, ())) == 1:
            found[index] = codes[number][0]
            num_otherwise += 1
    return found, num_otherwise


def whole_number(text: str) -> str:
    """Returns the digits of `12` and `12.0`; empty for another text."""
    found = _WHOLE.fullmatch(text)
    return found[1] if found else ""
