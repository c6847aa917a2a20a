"""Columns of a table as features: categories become ids of one joined table of embeddings, numbers are standardised.

A checkpoint stores them, so that `eval` and `predict` read a table as training did, without the training data.

Missing and unseen values are ids of their own, because a missing cell often carries information. Hashed columns use
CRC-32, which is the same on every machine; Python's `hash` differs in each process. One joined table means one
parameter whose gradient can be sparse.

Legend: F fields (columns with ids), M numbers, L ids of an indexed row.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, Dict, Literal, Mapping, Optional, Tuple

from mxtrain.data.table.cell_text import ids_of_texts
from mxtrain.errors import DamagedCheckpoint
from mxtrain.files.json_form import NUMBER
from mxtrain.types import MAX_COUNT, Shape

if TYPE_CHECKING:
    from mxtrain.types.annotations import Json, JsonForm, JsonObject

Kind = Literal["category", "hashed", "number", "indexed"]
KINDS: Tuple[Kind, ...] = ("category", "hashed", "number", "indexed")
MISSING, UNSEEN = 0, 1
"""Ids within a field of a missing cell, and of a value that is not in the vocabulary. Hashed fields have no unseen
values."""
FIRST_VALUE, FIRST_BUCKET = 2, 1
"""Ids within a field of the first value of a vocabulary, and of the first hash bucket."""
FEATURE_COLUMNS_STATE: JsonForm = [
    {
        "name": str,
        "kind": str,
        "vocabulary?": [str],
        "buckets?": int,
        "mean?": NUMBER,
        "std?": NUMBER,
        "log?": bool,
        "indicator?": bool,
        "length?": int,
        "canonical?": bool,
    }
]
"""Schema of columns in a checkpoint, which is untrusted."""


@dataclass(frozen=True)
class FeatureColumn:
    """One column.

    Attributes:
        name: name in the header of the table.
        kind: category = an id per value of a vocabulary; hashed = an id per hash bucket; number; indexed = all features
            of a row as ids and values, must be the only column.
        vocabulary: values of a category, in the order of their ids from `FIRST_VALUE` on.
        buckets: number of buckets of a hashed column, whose ids begin at `FIRST_BUCKET`; number of ids of an indexed
            column, from 0.
        mean, std: mean and standard deviation of a number over the training rows that have a value, after the
            logarithm; missing values are replaced by the mean.
        log: True if a number x is replaced by log(1 + max(x, 0)), as for counts.
        indicator: True if a number is followed by a second one, which is 1 if the first is missing, else 0.
        length: maximum number of ids per row of an indexed column.
        canonical: True if a hashed value is spelled as `table.cell_text.canonical` does; False in checkpoints of
            earlier versions.
    """

    name: str
    kind: Kind
    vocabulary: Tuple[str, ...] = ()
    buckets: int = 0
    mean: float = 0.0
    std: float = 1.0
    log: bool = False
    indicator: bool = False
    length: int = 0
    canonical: bool = False

    @property
    def num_ids(self) -> int:
        """Returns the number of ids of the field; 0 for a number."""
        if self.kind in ("number", "indexed"):
            return self.buckets  # 0 for a number
        return FIRST_VALUE + len(self.vocabulary) if self.kind == "category" else FIRST_BUCKET + self.buckets

    @property
    def num_numbers(self) -> int:
        """Returns the number of numeric inputs; 0 for a column with ids."""
        return 1 + self.indicator if self.kind == "number" else 0

    @cached_property
    def id_of(self) -> Mapping[str, int]:
        """Returns the id within the field of each value of the vocabulary, and of its canonical spelling."""
        return ids_of_texts(self.vocabulary, FIRST_VALUE)


@dataclass(frozen=True)
class FeatureColumns:
    """Columns in the order of the network's inputs: ids (F,) of categorical columns, then numbers (M,) of numeric
    columns. An input without columns is left out.

    Attributes:
        columns: all columns that are read, in the order of the table.
    """

    columns: Tuple[FeatureColumn, ...]

    @cached_property
    def fields(self) -> Tuple[FeatureColumn, ...]:
        """Returns the columns encoded as ids."""
        return tuple(column for column in self.columns if column.num_ids)

    @cached_property
    def numbers(self) -> Tuple[FeatureColumn, ...]:
        """Returns the numeric columns."""
        return tuple(column for column in self.columns if not column.num_ids)

    @property
    def field_sizes(self) -> Tuple[int, ...]:
        """Returns the number of ids of each field; the ids of a field begin at the sum of the sizes of the previous
        fields."""
        return tuple(column.num_ids for column in self.fields)

    @property
    def num_numbers(self) -> int:
        """Returns the number of numeric inputs, M."""
        return sum(column.num_numbers for column in self.numbers)

    @property
    def num_indices(self) -> Optional[int]:
        """Returns the number of ids of an indexed column; None for other columns."""
        return self.columns[0].buckets if self.columns[0].kind == "indexed" else None

    @property
    def shapes(self) -> Tuple[Shape, ...]:
        """Returns the input shapes of a sample: (F,), (M,), or one of them; for an indexed column (L,) and (L,)."""
        if self.num_indices is not None:
            return ((self.columns[0].length,),) * 2
        return tuple((size,) for size in (len(self.fields), self.num_numbers) if size)

    def to_json(self) -> Json:
        """Returns the plain values that differ from their defaults."""
        return [
            {
                field.name: list(value) if isinstance(value, tuple) else value
                for field in fields(column)
                if (value := getattr(column, field.name)) != field.default
            }
            for column in self.columns
        ]

    @classmethod
    def from_json(cls, values: Any) -> FeatureColumns:
        """Restores columns from `to_json`.

        Args:
            values: untrusted values in the form of `FEATURE_COLUMNS_STATE`.

        Raises:
            DamagedCheckpoint: the values are no columns.
        """
        columns = cls(tuple(_column_from(value) for value in values))
        names = [column.name for column in columns.columns]
        # A checkpoint may come from anybody: ids beyond the limit of MXNet's arrays would only
        # fail in the middle of a run.
        if not names or len(set(names)) < len(names) or sum(columns.field_sizes) > MAX_COUNT:
            raise DamagedCheckpoint("The checkpoint cannot be used: it has no columns, a name twice or too many ids.")
        return columns


def _column_from(values: JsonObject) -> FeatureColumn:
    arguments: Dict[str, Any] = dict(values)
    if "vocabulary" in arguments:
        arguments["vocabulary"] = tuple(arguments["vocabulary"])
    column = FeatureColumn(**arguments)
    has_buckets = column.kind in ("hashed", "indexed")
    is_invalid = (column.kind == "number" and not column.std > 0) or (column.kind == "indexed") != (column.length > 0)
    if column.kind not in KINDS or has_buckets != (column.buckets > 0) or is_invalid:
        raise DamagedCheckpoint(
            f"The checkpoint cannot be used: its column '{column.name}' is of kind '{column.kind}' with "
            f"{column.buckets} buckets, a length of {column.length} and a deviation of {column.std}."
        )
    return column
