"""Imports libraries that only some data needs."""

from __future__ import annotations

import importlib
from typing import Any

from mxtrain.errors import DataError


def require_library(name: str, package: str, needed_by: str) -> Any:
    """Imports a library, and returns it.

    Args:
        name: of the module.
        package: what pip installs.
        needed_by: what needs it, for the message.

    Raises:
        DataError: it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        needed = name.partition(".")[0]
        raise DataError(f"{needed_by} needs the package {needed} ({error}): pip install {package}") from error
