"""Locations of mxtrain's own files. Imports neither MXNet nor Hydra."""

from __future__ import annotations

from pathlib import Path


def conf_dir() -> Path:
    """Returns the folder of mxtrain's YAML files: inside the package in a wheel, at the top level in a checkout."""
    package = Path(__file__).resolve().parent.parent
    return package / "conf" if (package / "conf").is_dir() else package.parent / "conf"
