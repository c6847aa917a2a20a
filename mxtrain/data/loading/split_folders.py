"""Finds the folders of the training, validation and test split by the names that people give them."""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from typing import Dict, Iterable, List, Optional, Tuple

from mxtrain.data.loading.dataset_files import is_hidden
from mxtrain.errors import DataError

log = logging.getLogger(__name__)

WORDS = {
    "train": ("train", "training", "trainset", "trainingset", "trn"),
    "val": (
        "val",
        "valid",
        "validation",
        "validate",
        "valset",
        "validset",
        "validationset",
        "dev",
        "devset",
        "development",
    ),
    "test": ("test", "testing", "testset", "testingset", "tst"),
}
"""Split -> the words that mean it in the name of a folder, in lower case."""
_SPLIT_OF = {word: split for split, words in WORDS.items() for word in words}
_FILLERS = {"set", "data", "dataset", "images", "image", "imgs", "img", "split", "files", "folder"}


def parse_name(name: str) -> Optional[Tuple[str, str]]:
    """Reads the name of a folder as that of a split.

    Case, `set`, `data`, `images` and a year do not count: `Training_Set`, `train`, `train2017` and `TRAIN-images` all
    mean "train".

    Returns:
        (prefix, split), e.g. ("", "train"), or ("seg", "test") for `seg_test`; None if the name means no split.
    """
    words = [word for word in re.findall(r"[a-z]+|[0-9]+", name.lower()) if not re.fullmatch("(19|20)[0-9]{2}", word)]
    words = [word for word in words if word not in _FILLERS]
    if not words or words[-1] not in _SPLIT_OF:
        return None
    return "_".join(words[:-1]), _SPLIT_OF[words[-1]]


def name_splits(names: Iterable[str], option: str, where: str) -> Dict[str, str]:
    """Selects the folders whose names mean splits among sibling folders.

    Args:
        names: names of the folders.
        option: chooses the dataset, for messages.
        where: the folder that holds them, for messages.

    Returns:
        Split -> name, empty if no name means the training split. Names with a prefix (`seg_train`) count only if
        another split has the same prefix.

    Raises:
        DataError: two names mean the same split, or all mean validation or testing.
    """
    groups: Dict[str, Dict[str, List[str]]] = {}
    names = sorted(names)
    for name in names:
        parsed = parse_name(name)
        if parsed is not None:
            groups.setdefault(parsed[0], {}).setdefault(parsed[1], []).append(name)
    for prefix in sorted(groups, key=lambda prefix: (prefix != "", prefix)):
        names_by_split = groups[prefix]
        if "train" not in names_by_split or (prefix and len(names_by_split) == 1):
            continue
        for split, names_of_split in names_by_split.items():
            if len(names_of_split) > 1:
                raise DataError(
                    f"{option}: '{where}' holds {' and '.join(f'{name}/' for name in names_of_split)}, and each of "
                    f"these names means the split {split}. Leave one of them there, or rename the others."
                )
        return {split: names_by_split[split][0] for split in WORDS if split in names_by_split}
    if len(groups) == 1 and len(next(iter(groups.values()))) > 1 and all(map(parse_name, names)):
        (prefix,) = groups
        raise DataError(
            f"{option}: '{where}' holds {' and '.join(f'{name}/' for name in names)}, but no folder of the training "
            f"split. Add '{prefix + '_' if prefix else ''}train/', or rename one of these."
        )
    return {}


def find_splits(root: Path, option: str) -> Dict[str, Path]:
    """Finds the folders of splits in the root folder of a dataset.

    Args:
        root: the folder.
        option: chooses the dataset, for messages.

    Returns:
        Split -> folder, empty if no folder means the training split. A folder that holds nothing but one folder of the
        same name (`seg_train/seg_train/`, as archives are unpacked) is replaced by that.

    Raises:
        DataError: two folders mean the same split.
    """
    with os.scandir(root) as entries:
        names = [
            entry.name for entry in entries if not is_hidden(entry.name) and (entry.is_symlink() or entry.is_dir())
        ]
    folders = {split: _without_doubling(root / name) for split, name in name_splits(names, option, str(root)).items()}
    unusual = [
        f"{folder.relative_to(root)}/ is the split {split}"
        for split, folder in folders.items()
        if str(folder.relative_to(root)) != split
    ]
    if unusual:
        log.info("%s: in '%s', %s", option, root, ", ".join(unusual))
    return folders


def _without_doubling(folder: Path) -> Path:
    try:
        with os.scandir(folder) as entries:
            inside = [entry for entry in entries if not is_hidden(entry.name)]
    except OSError:
        return folder  # its reader reports the error
    doubled = len(inside) == 1 and inside[0].is_dir() and inside[0].name.lower() == folder.name.lower()
    return folder / inside[0].name if doubled else folder
