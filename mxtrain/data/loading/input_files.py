"""Finds and goes through the files that `predict` reads, of any kind."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Callable, Dict, Iterator, List, Sequence, Tuple, TypeVar, Union

from mxtrain.data.checking.problems import Findings, Problem
from mxtrain.data.loading.regular_files import exists
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


class MissingFileFindings(Findings):
    """Keeps the names in folders that lead to no regular file."""

    def __init__(self) -> None:
        self.facts: Dict[Path, str] = {}

    def refuse(self, *problems: Problem, sentence: str = "") -> None:
        """See `Findings.refuse`."""
        self.facts.update({Path(problem.place.file): problem.fact for problem in problems})

    @property
    def keeps_going(self) -> bool:
        """Returns True if there was one: a folder of such names is not an empty one."""
        return bool(self.facts)


def find_given(
    paths: Sequence[Union[str, Path]], list_folder: Callable[[Path, Findings], List[Path]], kind: str,
    skip_unreadable: bool = False,
) -> List[Path]:  # fmt: skip
    """Files as they are, folders as all files of a kind in them.

    Args:
        paths: Of both.
        list_folder: The files of that kind in a folder and below, sorted by path; its problems go to the findings.
        kind: "image", for example, for messages.
        skip_unreadable: Links to nothing and the like are among the files: that they cannot be read is said later.

    Raises:
        DataError: A path does not exist, or a folder holds no such file.
    """
    found: List[Path] = []
    for path in map(Path, paths):
        nothing = MissingFileFindings()
        if exists(path) and path.is_dir():
            listed = list_folder(path, nothing)
            found += sorted([*listed, *nothing.facts]) if nothing.facts else listed
        elif exists(path):
            found.append(path)
        elif os.path.islink(path):
            nothing.facts[path] = f"'{path}' is a link to nothing."
            found.append(path)
        else:
            is_pattern = any(sign in str(path) for sign in "*?[")
            hint = " The shell expands patterns: nothing matches this one, or it is quoted." if is_pattern else ""
            raise DataError(f"There is no {kind} file or folder '{path}'.{hint}")
        if nothing.facts and not skip_unreadable:
            fact = next(iter(nothing.facts.values()))
            raise DataError(f"{fact} Replace or remove it, or type skip_unreadable=true to go on without such files.")
    if not found:
        raise DataError(f"No {kind} file or folder was given.")
    return found
