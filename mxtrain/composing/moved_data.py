"""Data of a run that is looked at from another folder than the one in which it was started."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Collection, Dict, List

from mxtrain.archive.provenance import WORKING_FOLDER
from mxtrain.archive.run_records import read_meta
from mxtrain.config.groups import Description
from mxtrain.data.loading.described_paths import lost_paths, path_exists, with_paths


def find_data(run_dir: Path, description: Description, typed: Collection[str], needs_data: bool) -> Description:
    """Returns the description of a run with those relative paths of its dataset that lead nowhere from here as they
    were meant where the run was started, if they lead somewhere from there; says so.

    Args:
        run_dir: its meta.json says where it was started; copied checkpoints do not.
        description: of the run, with what was typed.
        typed: settings of this command, which mean this folder.
        needs_data: whether a path that leads nowhere is worth a note.
    """
    # A typed dataset means paths as seen from here.
    if "dataset" in typed:
        return description
    excluded = {*(f"dataset.{name}" for name in description.dataset.signature_class.held_settings), *typed}
    lost = {
        name: paths
        for name, paths in lost_paths(description.dataset).items()
        if f"dataset.{name}" not in excluded and not any(map(os.path.isabs, paths))
    }
    folder = _started_in(run_dir)
    relocated = {
        name: paths
        for name, paths in lost.items()
        if folder and all(path_exists(_from(folder, path)) for path in paths)
    }
    if relocated:
        print(f"{_shown(relocated)}: read from {folder}, where the run was started", file=sys.stderr)
    missing = {name: paths for name, paths in lost.items() if name not in relocated}
    if missing and needs_data:
        also = f"nor from {folder}, where the run was started" if folder else "and nothing says where it was started"
        print(
            f"note: {_shown(missing)} of the run leads nowhere from here, {also}. Start this where that was, or "
            f"type {' '.join(f'dataset.{name}=PATH' for name in missing)}.",
            file=sys.stderr,
        )
    if not relocated:
        return description
    return replace(description, dataset=with_paths(description.dataset, relocated, partial(_from, folder)))


def _started_in(run_dir: Path) -> str:
    """Returns the folder in which a run was started; empty if its meta.json does not say it."""
    try:
        folder = read_meta(run_dir).get(WORKING_FOLDER)
    except (OSError, ValueError):
        return ""
    return folder if isinstance(folder, str) and os.path.isabs(folder) else ""


def _from(folder: str, path: str) -> str:
    return os.path.join(folder, path)  # an absolute one stays


def _shown(paths: Dict[str, List[str]]) -> str:
    return " ".join(f"dataset.{name}={','.join(some)}" for name, some in paths.items())
