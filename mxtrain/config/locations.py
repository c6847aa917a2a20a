"""Locations of mxtrain's own files. Imports neither MXNet nor Hydra."""

from __future__ import annotations

from pathlib import Path


def conf_dir() -> Path:
    """Returns the folder of mxtrain's YAML files: inside the package in a wheel, at the top level in a checkout."""
    inside = Path(__file__).resolve().parent.parent / "conf"
    return inside if inside.is_dir() else inside.parent.parent / "conf"
