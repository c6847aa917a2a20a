"""Finds and reads the input files of `predict`, of any kind."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Callable, Dict, Iterator, List, Sequence, Tuple, TypeVar, Union

from mxtrain.data.checking.problems import Findings, Problem
from mxtrain.data.loading.dataset_files import exists
from mxtrain.errors import DataError

Content = TypeVar("Content")


def key_of_file(number: int) -> int:
    """Returns the key of a file in `unreadable` of `BaseDataset.open_inputs`, if no sample was made of it.

    Other keys are indices of samples, so those of files are negative.
    """
    return -1 - number


def read_each(
    names: Sequence[str], read: Callable[[str], Content], skip_unreadable: bool, unreadable: Dict[int, str]
) -> Iterator[Tuple[str, Content]]:
    """Yields the names of files and their content; see `BaseDataset.open_inputs`."""
    for number, name in enumerate(names):
        try:
            content = read(name)
        except DataError as error:
            if not skip_unreadable:
                hint = " Or type skip_unreadable=true to go on without such files." if len(names) > 1 else ""
                raise DataError(f"{error}{hint}") from error
            unreadable[key_of_file(number)] = str(error)
            continue
        yield name, content


class MissingFileFindings(Findings):
    """Collects names in folders that lead to no regular file."""

    def __init__(self) -> None:
        self.facts: Dict[Path, str] = {}

    def refuse(self, *problems: Problem, sentence: str = "") -> None:
        """See `Findings.refuse`."""
        self.facts.update({Path(problem.location.file): problem.fact for problem in problems})

    @property
    def keeps_going(self) -> bool:
        """Returns True if there was such a name: a folder with only such names does not count as empty."""
        return bool(self.facts)


def find_given(
    paths: Sequence[Union[str, Path]],
    list_folder: Callable[[Path, Findings], List[Path]],
    kind: str,
    skip_unreadable: bool = False,
) -> List[Path]:
    """Returns files unchanged, and folders as all files of a kind in them.

    Args:
        paths: Files and folders.
        list_folder: The files of that kind in a folder and below, sorted by path; its problems go to the findings.
        kind: "image", for example, for messages.
        skip_unreadable: Also return broken links and the like; reading them fails later.

    Raises:
        DataError: A path does not exist, or a folder holds no such file.
    """
    files: List[Path] = []
    for path in map(Path, paths):
        missing = MissingFileFindings()
        if exists(path) and path.is_dir():
            folder_files = list_folder(path, missing)
            files += sorted([*folder_files, *missing.facts]) if missing.facts else folder_files
        elif exists(path):
            files.append(path)
        elif os.path.islink(path):
            missing.facts[path] = f"'{path}' is a link to nothing."
            files.append(path)
        else:
            is_pattern = any(sign in str(path) for sign in "*?[")
            hint = " The shell expands patterns: nothing matches this one, or it is quoted." if is_pattern else ""
            raise DataError(f"There is no {kind} file or folder '{path}'.{hint}")
        if missing.facts and not skip_unreadable:
            fact = next(iter(missing.facts.values()))
            raise DataError(f"{fact} Replace or remove it, or type skip_unreadable=true to go on without such files.")
    if not files:
        raise DataError(f"No {kind} file or folder was given.")
    return files
