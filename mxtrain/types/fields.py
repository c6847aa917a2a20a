"""Types of the fields of descriptions: numbers with limits, names, paths."""

from __future__ import annotations

import datetime
import os
from typing import List, TypeVar, Union

import pydantic
from typing_extensions import Annotated, Literal

MAX_COUNT = 2**31 - 1
"""MXNet 1.9.1 counts in 32 bits: elements of an array, seeds, steps of a schedule."""
Positive = Annotated[int, pydantic.Field(gt=0, le=MAX_COUNT)]
NonNegative = Annotated[int, pydantic.Field(ge=0, le=MAX_COUNT)]
Finite = Annotated[float, pydantic.Field(allow_inf_nan=False)]
PositiveFloat = Annotated[float, pydantic.Field(gt=0, allow_inf_nan=False)]
NonNegativeFloat = Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)]
BatchSize = Union[Literal["auto"], Positive]
Fraction = Annotated[float, pydantic.Field(ge=0, le=1)]
ProperFraction = Annotated[float, pydantic.Field(gt=0, lt=1)]
OpenFraction = Annotated[float, pydantic.Field(ge=0, lt=1)]

Number = TypeVar("Number", int, float)


def _ordered(values: List[Number]) -> List[Number]:
    smallest, largest = values
    if smallest > largest:
        raise ValueError(f"must be [smallest, largest], got {values}")
    return values


Range = Annotated[List[Number], pydantic.Field(min_length=2, max_length=2), pydantic.AfterValidator(_ordered)]
"""Smallest and largest."""


def expand_path(text: str) -> str:
    """Expands `~` and `$NAME` in a path like a shell, also in quoted overrides and in YAML files."""
    return os.path.expanduser(os.path.expandvars(text))


def require_quoted(names: object) -> object:
    """Checks that all names in a list are strings. YAML parses unquoted names such as 1E5, no, 0x1F, 10:30 as values of
    other types.

    Raises:
        ValueError: a name is not a string. The message does not repeat it, because its original spelling is lost.
    """
    other = next((name for name in names if not isinstance(name, str)), None) if isinstance(names, list) else None
    if other is not None:
        # bool comes before int, of which it is a subclass.
        kinds = ((bool, "true or false"), ((int, float), "a number"), (datetime.date, "a date"), (object, "no text"))
        kind = next(kind for types, kind in kinds if isinstance(other, types))
        raise ValueError(
            f"these are names, and one without quotes was read as {kind}. Put quotes around the names as they are "
            'written in the data, e.g. \'["1E5","no"]\''
        )
    return names


Names = Annotated[List[str], pydantic.BeforeValidator(require_quoted)]
"""Names as descriptions hold them: strings, each as it is written in the data."""
PathText = Annotated[str, pydantic.AfterValidator(expand_path)]
"""A path that a user gives, of a file or a folder."""
Files = Union[None, PathText, List[PathText]]
"""Files of a split: one path or several; null = none."""
FilesInRoot = Union[str, List[str]]
"""Files of a split, relative to the folder of a dataset."""
