"""The manifests of a dataset: one file or several for each split."""

from __future__ import annotations

from typing import Callable, List, Optional, Tuple, TypeVar, Union

from mxtrain.types import PathText

Files = Union[PathText, List[PathText]]
"""A manifest, or several."""
Line = TypeVar("Line")


def read_parts(
    read: Callable[[str], List[Line]], train: Files, val: Optional[Files], test: Optional[Files]
) -> Tuple[str, List[Line], Optional[List[Line]], Optional[List[Line]]]:
    """Returns the name of a dataset, and its utterances for training, validation and test; None if there is no
    manifest.

    Args:
        read: reads one manifest.
        train: manifests of training utterances.
        val: likewise for validation.
        test: likewise for testing.
    """
    trained = _read(read, train)
    held_out, tested = (None if files is None else _read(read, files) for files in (val, test))
    return ", ".join(_each(train)), trained, held_out, tested


def _read(read: Callable[[str], List[Line]], files: Files) -> List[Line]:
    return [line for path in _each(files) for line in read(path)]


def _each(files: Files) -> List[str]:
    return [files] if isinstance(files, str) else files
