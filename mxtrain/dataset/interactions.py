"""Interactions from tables whose columns are named: CSV, TSV, JSON lines and Parquet."""

from __future__ import annotations

from pathlib import Path
from typing import List, Optional

import pydantic

from mxtrain.dataset.checking.problems import Findings
from mxtrain.dataset.loading.text_stream import ending_of
from mxtrain.dataset.recommendation.base import InteractionDataset
from mxtrain.dataset.recommendation.rows import Columns, read_pairs
from mxtrain.dataset.recommendation.source import InteractionRows
from mxtrain.dataset.table.column_kinds import header_of
from mxtrain.dataset.table.columns import Column, require_table, stream_rows
from mxtrain.types import PathText


class InteractionTable(InteractionDataset):
    """A table with a row for each interaction: user, item, and where there are, rating and time."""

    path: PathText = "data/interactions.csv"
    """The file: .csv, .tsv, .jsonl (also with .gz behind) or .parquet."""
    header: bool = True
    """Whether the first row of a CSV or TSV names the columns; else they are numbers from 0."""
    user: Column = "user"
    """Column of the user's id, which may be any text."""
    item: Column = "item"
    """Column of the item's id, likewise."""
    rating: Optional[Column] = None
    """Column of ratings; null = there is none."""
    timestamp: Optional[Column] = None
    """Column of times, numbers that grow; null = there is none, and `split_seed` chooses what is held out."""
    min_rating: Optional[float] = None
    """Rows of lower ratings do not count; null = all do."""

    @pydantic.model_validator(mode="after")
    def _check_rating(self) -> InteractionTable:
        if self.rating is None and (self.feedback == "explicit" or self.min_rating is not None):
            asked = "feedback=explicit" if self.feedback == "explicit" else "min_rating"
            raise ValueError(f"{asked} needs rating=COLUMN, which says how users rate items")
        named = [name for name in self._columns() if isinstance(getattr(self, name), str)]
        if named and not self.header and ending_of(self.path) in (".csv", ".tsv"):
            typed = " ".join(f"dataset.{name}={number}" for number, name in enumerate(self._columns()))
            raise ValueError(f"header=false: columns have no names then, but numbers from 0. Type e.g. {typed}")
        return self

    def _columns(self) -> List[str]:
        """The settings that name a column, in the order in which rows are read."""
        return ["user", "item", *(name for name in ("rating", "timestamp") if getattr(self, name) is not None)]

    @property
    def named(self) -> str:
        return f"dataset.path={self.path}"

    def read(self, findings: Findings) -> InteractionRows:
        """See `InteractionDataset.read`."""
        chosen = {name: getattr(self, name) for name in self._columns()}
        require_table(self.path)
        if self.header and ending_of(self.path) != ".jsonl":  # of which each row has names of its own
            for name, column in chosen.items():
                header_of(self.path, [column] if isinstance(column, str) else [], f"dataset.{name}={column}")
        rows = stream_rows(self.path, list(chosen.values()), self.header, findings=findings)
        columns = Columns(self.rating is not None, self.timestamp is not None, self.min_rating)
        return read_pairs(Path(self.path), rows, columns, findings)
