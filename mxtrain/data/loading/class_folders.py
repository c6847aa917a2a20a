"""Folders of classes, in datasets that have one folder for each class."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Dict, Iterable, List, Sequence, Tuple

from mxtrain.data.checking.problems import (
    EMPTY_CLASS,
    LISTED_TWICE,
    UNDECODABLE_TEXT,
    UNKNOWN_CLASS,
    DataLocation,
    Findings,
    Problem,
    call_or_report,
)
from mxtrain.data.loading.dataset_files import (
    FileId,
    exists,
    file_error,
    id_of,
    is_hidden,
    normalize_name,
    suggest_existing,
)
from mxtrain.errors import DataError
from mxtrain.files.regular_files import AnyPath


def folders_in(folder: Path) -> List[str]:
    """Returns the sorted names of the folders in a folder that are not hidden."""
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir() and not is_hidden(entry.name))


def require_root(root: Path, option: str, contents: str) -> None:
    """Checks that the root of a dataset is a folder.

    Args:
        root: the root.
        option: chooses the dataset, for messages.
        contents: content of the folders of classes, e.g. "images".

    Raises:
        DataError: it is no folder.
    """
    if not exists(root) or not root.is_dir():
        raise DataError(
            f"{option}: there is no folder '{root}'.{suggest_existing(root)} It must hold one folder per class with "
            f"{contents}, or train/CLASS/ with val/CLASS/ beside. Name yours with dataset.root=FOLDER."
        )


def require_two_classes(folder: Path, names: Sequence[str], option: str, remedy: str) -> None:
    """Checks that the training split has at least two classes.

    Args:
        folder: the training split.
        names: names of its folders of classes.
        option: chooses the dataset, for messages.
        remedy: end of the message.

    Raises:
        DataError: there are fewer than two.
    """
    if len(names) < 2:
        found = f"only one, '{names[0]}'" if names else "none"
        raise DataError(
            f"{option}: '{folder}' must hold one folder for each of at least two classes, but holds {found}. {remedy}"
        )


def refuse_undecodable(folder: Path, names: Sequence[str], findings: Findings) -> None:
    """Refuses folders of classes whose names are not UTF-8."""
    for name in names:
        check = partial(_require_utf8, name, f"The class folder in '{folder}'")
        call_or_report(findings, DataLocation(str(folder / name)), check, UNDECODABLE_TEXT)


def _require_utf8(name: str, subject: str) -> None:
    """Rejects a name that is not UTF-8, which neither JSON nor tables can contain.

    Raises:
        DataError: the name has bytes that are not UTF-8.
    """
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        escaped = os.fsencode(name).decode("utf-8", "backslashreplace")
        raise DataError(f"{subject} is called '{escaped}', which is no UTF-8. Rename it.") from None


def match_classes(
    folder: Path, names: Sequence[str], class_names: Sequence[str], contents: str, findings: Findings
) -> List[str]:
    """Returns the name of the folder of each class in a split; refuses folders of other classes.

    Args:
        folder: the split.
        names: names of its folders.
        class_names: names of the classes.
        contents: content of the folders, e.g. "images".
        findings: collects unknown classes.
    """
    # Accented letters may be decomposed in the file system.
    folder_of = {normalize_name(name): name for name in names}
    matched = [name if name in names else folder_of.get(normalize_name(name), name) for name in class_names]
    findings.refuse(
        *(
            Problem(
                UNKNOWN_CLASS,
                DataLocation(str(folder / name)),
                f"'{folder}' holds the class '{name}', which the training {contents} do not have.",
                f"Theirs are: {', '.join(class_names[:20])}.",
            )
            for name in sorted(set(names) - set(matched))
        )
    )
    return matched


def refuse_linked_classes(files: Iterable[Tuple[object, AnyPath]], sample: str, findings: Findings) -> None:
    """Refuses files that links put into two classes of a split.

    Args:
        files: class and path of each file, or folder.
        sample: a file in messages, e.g. "a video".
        findings: collects the problems.

    Raises:
        DataError: a file has two classes, or cannot be read.
    """
    class_of: Dict[FileId, Tuple[object, AnyPath]] = {}
    for label, path in files:
        try:
            earlier_label, earlier = class_of.setdefault(id_of(path), (label, path))
        except OSError as error:
            raise file_error(path, error) from error
        if earlier_label != label:
            fact = f"'{path}' and '{earlier}' are the same file, by a link: {sample} has one class."
            findings.refuse(Problem(LISTED_TWICE, DataLocation(str(path)), fact, "Remove one of the two."))


def refuse_empty_class(folder: Path, contents: str, extensions: Sequence[str], findings: Findings) -> None:
    """Refuses the folder of a class without files.

    Args:
        folder: the folder of the class.
        contents: content that it lacks, e.g. "images".
        extensions: extensions of such files.
        findings: collects the problem.
    """
    location = DataLocation(str(folder))
    fact = f"The class folder {location} holds no {contents} (files ending in {', '.join(extensions)})."
    findings.refuse(Problem(EMPTY_CLASS, location, fact, "Add some, or remove the folder."))
