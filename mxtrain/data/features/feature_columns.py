"""Columns of a table as features: categories become ids of one joined table of embeddings, numbers are standardised.

A checkpoint keeps them, so that `eval` and `predict` read a table as training did, without the training data.

Legend: F fields (columns with ids), N numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, Dict, Literal, Mapping, Optional, Tuple

from mxtrain.errors import DamagedCheckpoint
from mxtrain.files.json_form import NUMBER
from mxtrain.types import LARGEST_COUNT, Shape

if TYPE_CHECKING:
    from mxtrain.annotations import Json, JsonObject, Wanted

Kind = Literal["category", "hashed", "number", "indexed"]
KINDS: Tuple[Kind, ...] = ("category", "hashed", "number", "indexed")
MISSING, UNSEEN = 0, 1
"""Ids within a field: of an empty cell, and of a value that no vocabulary has. Hashed fields have no unseen values."""
FIRST_VALUE, FIRST_BUCKET = 2, 1
"""Ids within a field of the first value of a vocabulary, and of the first bucket of hashes."""
FEATURE_COLUMNS_STATE: Wanted = [
    {
        "name": str, "kind": str, "vocabulary?": [str], "buckets?": int, "mean?": NUMBER, "std?": NUMBER,
        "log?": bool, "indicator?": bool, "length?": int,
    }
]  # fmt: skip
"""The form of columns in a checkpoint, which may come from anybody."""


@dataclass(frozen=True)
class FeatureColumn:
    """One column.

    Attributes:
        name: as the table's header has it.
        kind: category = each value of a vocabulary has an id; hashed = each bucket of a hash has one; number; indexed =
            all features of a row as ids and values; must be the only column.
        vocabulary: of a category, in the order of ids from `FIRST_VALUE` on.
        buckets: of a hashed column, whose ids are from `FIRST_BUCKET` on; of an indexed one the ids, from 0 on.
        mean, std: of a number, over the training rows that have one, after the logarithm; a missing number is the mean.
        log: whether a number x enters as log(1 + max(x, 0)), as counts do.
        indicator: True if a number is followed by a second one, which is 1 if the first is missing, else 0.
        length: of an indexed one: the ids that a row has at most.
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

    @property
    def num_ids(self) -> int:
        """Returns the number of ids of the field; 0 for a number."""
        if self.kind in ("number", "indexed"):
            return self.buckets
        return FIRST_VALUE + len(self.vocabulary) if self.kind == "category" else FIRST_BUCKET + self.buckets

    @property
    def num_numbers(self) -> int:
        """Returns the number of numeric inputs; 0 if it has ids."""
        return 1 + self.indicator if self.kind == "number" else 0

    @cached_property
    def id_of(self) -> Mapping[str, int]:
        """Returns the id within the field of each value of the vocabulary."""
        return {value: number for number, value in enumerate(self.vocabulary, start=FIRST_VALUE)}


@dataclass(frozen=True)
class FeatureColumns:
    """Columns in the order of the network's inputs: ids (F,) of categorical columns, then numbers (N,) of numeric
    columns. An input without columns is left out.

    Attributes:
        columns: all that are read, in the table's order.
    """

    columns: Tuple[FeatureColumn, ...]

    @cached_property
    def fields(self) -> Tuple[FeatureColumn, ...]:
        """Columns encoded as ids."""
        return tuple(column for column in self.columns if column.num_ids)

    @cached_property
    def numbers(self) -> Tuple[FeatureColumn, ...]:
        """Numeric columns."""
        return tuple(column for column in self.columns if not column.num_ids)

    @property
    def field_sizes(self) -> Tuple[int, ...]:
        """Returns the number of ids of each field; the ids of a field begin at the sum of the sizes of the previous
        fields."""
        return tuple(column.num_ids for column in self.fields)

    @property
    def num_numbers(self) -> int:
        """Returns the count of columns of numbers, N."""
        return sum(column.num_numbers for column in self.numbers)

    @property
    def num_indices(self) -> Optional[int]:
        """Returns the number of ids if rows are ids and values; else None."""
        return self.columns[0].buckets if self.columns[0].kind == "indexed" else None

    @property
    def shapes(self) -> Tuple[Shape, ...]:
        """Shapes of what enters the network of one sample: (F,), (N,), or one of them; of ids and values (L,) and
        (L,)."""
        if self.num_indices is not None:
            return ((self.columns[0].length,),) * 2
        return tuple((size,) for size in (len(self.fields), self.num_numbers) if size)

    def to_json(self) -> Json:
        """Returns the plain values that differ from their defaults."""
        return [
            {
                one.name: list(value) if isinstance(value, tuple) else value
                for one in fields(column) if (value := getattr(column, one.name)) != one.default
            }
            for column in self.columns
        ]  # fmt: skip

    @classmethod
    def from_json(cls, values: Any) -> FeatureColumns:
        """Inverse of `to_json`, of values in the form of `FEATURE_COLUMNS_STATE`.

        Raises:
            DamagedCheckpoint: they are no columns.
        """
        found = cls(tuple(_column_from(value) for value in values))
        names = [column.name for column in found.columns]
        if not names or len(set(names)) < len(names) or sum(found.field_sizes) > LARGEST_COUNT:
            raise DamagedCheckpoint("The checkpoint cannot be used: it has no columns, a name twice or too many ids.")
        return found


def _column_from(values: JsonObject) -> FeatureColumn:
    given: Dict[str, Any] = dict(values)
    if "vocabulary" in given:
        given["vocabulary"] = tuple(given["vocabulary"])
    found = FeatureColumn(**given)
    has_buckets = found.kind in ("hashed", "indexed")
    is_odd = (found.kind == "number" and not found.std > 0) or (found.kind == "indexed") != (found.length > 0)
    if found.kind not in KINDS or has_buckets != (found.buckets > 0) or is_odd:
        raise DamagedCheckpoint(
            f"The checkpoint cannot be used: its column '{found.name}' is of kind '{found.kind}' with {found.buckets} "
            f"buckets, a length of {found.length} and a deviation of {found.std}."
        )
    return found
