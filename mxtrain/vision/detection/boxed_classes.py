"""Names of classes of objects, and the lookup of classes by name."""

from __future__ import annotations

from pathlib import Path
from typing import List, Optional, Sequence

import pydantic
from typing_extensions import Annotated

from mxtrain.data.loading.dataset_files import exists, read_text
from mxtrain.errors import DataError
from mxtrain.files.text_lines import split_lines
from mxtrain.types import Names


def _distinct(names: List[str]) -> List[str]:
    """Validates class names; see `ClassNames`."""
    twice = first_twice(names)
    if twice is not None:
        raise ValueError(f"classes={names} names one twice: '{twice}'")
    if not all(name.strip() for name in names):
        raise ValueError(f"classes={names} has an empty name")
    return names


ClassNames = Annotated[Names, pydantic.AfterValidator(_distinct)]
"""Type of a setting with distinct, non-empty class names."""


def first_twice(names: Sequence[str]) -> Optional[str]:
    """Returns the first duplicate name; None if all differ."""
    seen = set()
    return next((name for name in names if name in seen or seen.add(name)), None)  # type: ignore[func-returns-value]


def choose_class_names(configured: Sequence[str], root: Path, default: Sequence[str] = ()) -> List[str]:
    """Returns the configured class names, otherwise the lines of `root/classes.txt`, otherwise the default.

    Raises:
        DataError: the file has no name, or a name twice.
    """
    if configured:
        return list(configured)
    path = root / "classes.txt"
    if not exists(path):
        return list(default)
    names = [line.strip() for line in split_lines(read_text(path)) if line.strip()]
    duplicate = first_twice(names)
    if duplicate is not None or not names:
        fault = "names no class" if duplicate is None else f"names the class '{duplicate}' twice"
        raise DataError(f"'{path}' {fault}. Write a name of its own for each class, one a line.")
    return names


class ClassLookup:
    """Finds classes by their names, exactly, or else ignoring case if only one class has that name."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)
        folded = [name.casefold() for name in names]
        self._number = {name: number for number, name in enumerate(folded) if folded.count(name) == 1}
        self._number.update({name: number for number, name in enumerate(names)})

    def find(self, name: str) -> Optional[int]:
        """Returns the index of the class with a name; None if there is none."""
        number = self._number.get(name)
        return self._number.get(name.casefold()) if number is None else number
