"""Imports libraries that only some data needs."""

from __future__ import annotations

import importlib
import shlex
import sys
from typing import Any, Dict, Tuple

from mxtrain.errors import DataError

EXTRAS: Dict[str, Tuple[str, ...]] = {
    "dicom": ("pydicom>=2.4.4,<4",), "gymnasium": ("gymnasium>=0.29,<2", "pygame-ce>=2.1.3"),
    "parquet": ("pyarrow>=14.0.1,<19",), "sentencepiece": ("sentencepiece>=0.2.1,<0.2.2",),
}  # fmt: skip
"""The packages of pyproject.toml that only some data need: those of an extra, or dependencies that may be missing where
somebody installed them by hand. They are named in messages one by one: mxtrain is not published, so pip would look for
`mxtrain[...]` in vain, or find a stranger's package."""


def installing(*packages: str) -> str:
    """The command that adds packages, or those of an extra, to this very environment."""
    wanted = [one for package in packages for one in EXTRAS.get(package, (package,))]
    return shlex.join([sys.executable, "-m", "pip", "install", *wanted])


def require_library(name: str, package: str, needed_by: str) -> Any:
    """Imports a library, and returns it.

    Args:
        name: of the module.
        package: what pip installs, or one of `EXTRAS`.
        needed_by: what needs it, for the message.

    Raises:
        DataError: it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        needed = name.partition(".")[0]
        raise DataError(f"{needed_by} needs the package {needed} ({error}): {installing(package)}") from error
