"""Interactions from tables whose columns are named: CSV, TSV, JSON lines and Parquet."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Dict, List, Literal, Mapping, Optional

import numpy as np
import pydantic
from typing_extensions import Annotated

from mxtrain.data.checking.problems import Findings
from mxtrain.data.exported_data import DatasetExport
from mxtrain.data.loading.text_stream import ending_of
from mxtrain.data.recognition import Certainty, FileTree, Recognised
from mxtrain.data.table.cells import MISSING_CELLS, CellTexts, Decimal
from mxtrain.data.table.column_kinds import ColumnSpec, as_column_specs, header_of
from mxtrain.data.table.columns import TABLES, names_of_columns, require_table, stream_rows
from mxtrain.data.table.text_rows import Column
from mxtrain.errors import name_override
from mxtrain.recommendation.base import InteractionDataset
from mxtrain.recommendation.interaction_cache import cached_interactions
from mxtrain.recommendation.rows import Columns, read_pairs, read_titles
from mxtrain.recommendation.side_features import SideFile
from mxtrain.recommendation.source import InteractionRows
from mxtrain.types import PathText, Positive

if TYPE_CHECKING:
    from mxtrain.data.signature import Signature

TIME_COLUMNS = ("timestamp", "time", "datetime", "date")
"""Names of columns by which `data guess` finds the times of interactions."""
FeatureSpecs = Annotated[Dict[str, ColumnSpec], pydantic.BeforeValidator(as_column_specs)]


class InteractionTable(InteractionDataset):
    """A table with a row for each interaction: user, item and, optionally, rating and time."""

    path: PathText = "data/interactions.csv"
    """File of interactions: .csv, .tsv, .jsonl (also compressed, .gz) or .parquet."""
    header: bool = True
    """If true, the first row of a CSV or TSV file names the columns; otherwise columns are numbered from 0."""
    user: Column = "user"
    """Column of the user's id, which may be any text."""
    item: Column = "item"
    """Column of the item's id, which may be any text."""
    rating: Optional[Column] = None
    """Column of ratings; null = there is none."""
    timestamp: Optional[Column] = None
    """Column of times: numbers, of which larger ones are later, such as seconds or milliseconds since 1970, or dates as
    in ISO 8601; null = no such column, and `split_seed` chooses the held-out
    interactions."""
    row_order: bool = False
    """If true, the rows of each user are in the order of time, so that no `timestamp` is needed."""
    min_rating: Optional[float] = None
    """Minimum rating; rows with a lower rating are ignored; null = all rows count."""
    titles: Optional[PathText] = None
    """Table of items with their titles, which predictions repeat; null = there is none."""
    title: str = "title"
    """Column of `titles` with the title. The column with the item's id is `item_id`, or as in `item`."""
    user_features: Optional[PathText] = None
    """Table of users with further columns, which networks for features (model=factorization_machine, wide_deep, deepfm)
    read; its first row names them."""
    item_features: Optional[PathText] = None
    """Table of items with further columns; see `user_features`."""
    user_id: Optional[str] = None
    """Column of `user_features` with the user's id; null = as in `user`."""
    item_id: Optional[str] = None
    """Column of `item_features` and of `titles` with the item's id; null = as in `item`."""
    user_columns: FeatureSpecs = {}
    """Kinds of the columns of `user_features`, by name: number, count, category, hashed or ignore, as for tables, e.g.
    {age: number, town: {kind: hashed, buckets: 5000}}."""
    item_columns: FeatureSpecs = {}
    """Kinds of the columns of `item_features`; see `user_columns`."""
    others: Literal["guess", "ignore"] = "guess"
    """Feature columns that are not named: guess = guess their kinds from the first rows, and log them; ignore = ignore
    them."""
    missing: CellTexts = list(MISSING_CELLS)
    """Cells that mean a missing value, in feature tables and in the columns of users and items."""
    decimal: Decimal = "."
    """Decimal sign of the numbers in feature tables, "." or ","."""
    buckets: Positive = 1000
    """Number of ids of a hashed column of users or items: each value has the id crc32(value) modulo this."""
    min_count: Positive = 1
    """Number of users or items that must have a category for it to get an id of its own."""

    @classmethod
    def recognise(cls, files: FileTree) -> Optional[Recognised]:
        """See `Recognising`."""
        for name in files.find(".csv", ".tsv", ".jsonl"):
            columns = {column.lower(): column for column in files.columns(name)}
            user, item = (
                next((columns[key] for key in (word, f"{word}_id", f"{word}id") if key in columns), "")
                for word in ("user", "item")
            )
            if user and item:
                named = {"user": user, "item": item}
                settings = {"path": files.typed(name), **{key: value for key, value in named.items() if key != value}}
                time = next((columns[word] for word in TIME_COLUMNS if word in columns), "")
                typed = name_override("dataset.timestamp", time)
                remark = f"If '{time}' tells the order, add {typed}: the last items are held out." if time else ""
                form = "a table of users and items"
                return Recognised(form, settings, "recommendation", Certainty.LIKELY, remark=remark)
        return None

    @pydantic.model_validator(mode="after")
    def _check_rating(self) -> InteractionTable:
        if self.rating is None and (self.feedback == "explicit" or self.min_rating is not None):
            setting = "feedback=explicit" if self.feedback == "explicit" else "min_rating"
            raise ValueError(f"{setting} needs rating=COLUMN, which says how users rate items")
        named_columns = [name for name in self._columns() if isinstance(getattr(self, name), str)]
        if named_columns and not self.header and ending_of(self.path) in (".csv", ".tsv"):
            typed = " ".join(f"dataset.{name}={number}" for number, name in enumerate(self._columns()))
            raise ValueError(f"header=false: columns have no names then, but numbers from 0. Type e.g. {typed}")
        return self

    @pydantic.model_validator(mode="after")
    def _check_order(self) -> InteractionTable:
        if self.row_order and self.timestamp is not None:
            raise ValueError("row_order=true and timestamp both tell the order. Leave one of them out")
        return self

    @pydantic.model_validator(mode="after")
    def _check_features(self) -> InteractionTable:
        for side, column in (("user", self.user), ("item", self.item)):
            has_features, id_ = getattr(self, f"{side}_features") is not None, getattr(self, f"{side}_id")
            has_titles = side == "item" and self.titles is not None
            if has_titles and id_ is None and not isinstance(column, str):
                raise ValueError("titles needs item_id=COLUMN, which says which item a row is of")
            if not has_features and (id_ is not None and not has_titles or getattr(self, f"{side}_columns")):
                raise ValueError(f"{side}_id and {side}_columns describe {side}_features=FILE, which is not given")
            if has_features and id_ is None and not isinstance(column, str):
                raise ValueError(f"{side}_features needs {side}_id=COLUMN, which says which {side} a row is of")
            if (id_ or column) in getattr(self, f"{side}_columns"):
                raise ValueError(f"{side}_columns names '{id_ or column}', which says which {side} a row is of")
        return self

    def side_file(self, side: str) -> Optional[SideFile]:
        """See `InteractionDataset.side_file`."""
        path = self.user_features if side == "user" else self.item_features
        if path is None:
            return None
        id_, columns = (
            (self.user_id or self.user, self.user_columns)
            if side == "user"
            else (self.item_id or self.item, self.item_columns)
        )
        return SideFile(
            side,
            path,
            str(id_),
            columns,
            self.others == "guess",
            tuple(self.missing),
            self.buckets,
            self.min_count,
            self.decimal,
        )

    def item_titles(self) -> Mapping[str, str]:
        """See `InteractionDataset.item_titles`."""
        if self.titles is None:
            return {}
        columns = [str(self.item_id or self.item), self.title]
        for setting, column in zip(("item_id", "title"), columns):
            header_of(self.titles, [column], f"dataset.{setting}={column}")
        return read_titles(self.titles, stream_rows(self.titles, columns, True, null=""))

    def for_file(self, path: str) -> Optional[InteractionDataset]:
        """See `InteractionDataset.for_file`."""
        if ending_of(path) not in TABLES or ending_of(path) == ".jsonl":
            return None
        # A table of user ids has no items.
        has_items = not isinstance(self.item, str) or self.item in names_of_columns(path)
        return self.model_copy(update={"path": path}) if has_items else None

    def exported(self, signature: Signature) -> DatasetExport:
        """See `BaseDataset.exported`: also how cells of features are read."""
        return super().exported(signature).with_facts({"missing": list(self.missing), "decimal": self.decimal})

    @property
    def feature_setting(self) -> str:
        """Returns the first of the settings that name a file of features; empty if there is none."""
        return "user_features" if self.user_features else "item_features" if self.item_features else ""

    def _columns(self) -> List[str]:
        """Returns the settings that name a column, in the order in which rows are read."""
        return ["user", "item", *(name for name in ("rating", "timestamp") if getattr(self, name) is not None)]

    @property
    def says_times(self) -> bool:
        """See `InteractionDataset.says_times`."""
        return not self.row_order

    @property
    def missing_order(self) -> str:
        """See `InteractionDataset.missing_order`."""
        if self.row_order or self.timestamp is not None:
            return ""
        return "dataset.timestamp=COLUMN, or dataset.row_order=true if the rows of each user are in the order of time"

    @property
    def data_name(self) -> str:
        return f"dataset.path={self.path}"

    def read(self, findings: Findings) -> InteractionRows:
        """See `InteractionDataset.read`."""
        chosen = {name: getattr(self, name) for name in self._columns()}
        require_table(self.path)
        if self.header and ending_of(self.path) != ".jsonl":  # of which each row has names of its own
            for name, column in chosen.items():
                header_of(self.path, [column] if isinstance(column, str) else [], f"dataset.{name}={column}")
        columns = Columns(self.rating is not None, self.timestamp is not None, self.min_rating, tuple(self.missing))

        def read() -> InteractionRows:
            rows = stream_rows(self.path, list(chosen.values()), self.header, findings=findings)
            return read_pairs(Path(self.path), rows, columns, findings)

        pairs = cached_interactions(Path(self.path), [list(chosen.values()), self.header], columns, read, findings)
        return pairs._replace(time_P=np.arange(len(pairs.user_P), dtype=np.float64)) if self.row_order else pairs
