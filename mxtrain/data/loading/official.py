"""Checks files that are published somewhere: that they are there, and that they are the published ones."""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path
from typing import NoReturn, Sequence

from mxtrain.errors import DataError


def refuse_missing(option: str, root: Path, missing: Sequence[str], home: str, remark: str) -> NoReturn:
    """Raises a DataError that names the missing files and their download pages.

    Args:
        option: As in `dataset=...`.
        root: Where they were looked for.
        missing: File names.
        home: Official address.
        remark: A further sentence.
    """
    raise DataError(
        f"dataset={option}: '{root}' lacks {', '.join(missing)}. Officially published at {home} - put the files into "
        f"that folder, or name yours with dataset.root=FOLDER (or the folder above with MXTRAIN_DATA=FOLDER). {remark}"
    )


def verify(path: Path, content: bytes, checksum: str, home: str) -> None:
    """Compares the content of a file with a published checksum.

    Args:
        path: Path of the file, for the message.
        content: Content of the file.
        checksum: Hexadecimal; 32 digits are MD5, 40 are SHA-1.
        home: Official address.

    Raises:
        DataError: They differ.
    """
    kind = {32: "md5", 40: "sha1"}[len(checksum)]
    digest = hashlib.new(kind, content, usedforsecurity=False).hexdigest()
    if digest != checksum:
        raise DataError(
            f"'{path}' is not the official file: its {kind} is {digest}, the published one {checksum}. Fetch it again "
            f"from {home}, or, if it is your own data in this format, add dataset.verify_checksum=false."
        )


def sklearn_datasets(option: str) -> Path:
    """Returns the folder of the data that scikit-learn ships.

    Importing scikit-learn takes most of a second, reading one of its files a twentieth: `find_spec` imports nothing.

    Args:
        option: as in `dataset=...`.

    Raises:
        DataError: it is not installed.
    """
    spec = importlib.util.find_spec("sklearn")
    if spec is None or not spec.submodule_search_locations:
        raise DataError(
            f"dataset={option} reads a file of scikit-learn, which is not installed: pip install scikit-learn"
        )
    return Path(spec.submodule_search_locations[0]) / "datasets"
