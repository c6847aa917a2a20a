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
"""Packages of pyproject.toml that only some data need: extras, or dependencies that a manual installation may lack.
Messages name them one by one, since mxtrain is not published: `pip install mxtrain[...]` would fail, or install an
unrelated package."""


def installing(*packages: str) -> str:
    """Returns the command that installs packages, or an extra, into this environment."""
    requirements = [requirement for package in packages for requirement in EXTRAS.get(package, (package,))]
    return shlex.join([sys.executable, "-m", "pip", "install", *requirements])


def require_library(name: str, package: str, needed_by: str) -> Any:
    """Imports a library, and returns it.

    Args:
        name: name of the module.
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
