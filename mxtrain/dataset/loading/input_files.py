"""Goes through the files that `predict` reads, of any kind."""

from __future__ import annotations

from typing import Callable, Dict, Iterator, Sequence, Tuple, TypeVar

from mxtrain.errors import DataError

Found = TypeVar("Found")


def read_each(
    names: Sequence[str], read: Callable[[str], Found], skip_unreadable: bool, unreadable: Dict[int, str]
) -> Iterator[Tuple[str, Found]]:  # fmt: skip
    """The names of files and what they hold; see `BaseDataset.open_inputs`."""
    for number, name in enumerate(names):
        try:
            found = read(name)
        except DataError as error:
            if not skip_unreadable:
                hint = " Or type skip_unreadable=true to go on without such files." if len(names) > 1 else ""
                raise DataError(f"{error}{hint}") from error
            unreadable[-1 - number] = str(error)  # nothing of it has a place
            continue
        yield name, found
