"""Finds the data of a run if a command is started in another folder than the run was."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Collection, Dict, List

from mxtrain.archive.provenance import WORKING_FOLDER
from mxtrain.archive.run_records import read_meta_object
from mxtrain.config.groups import Description
from mxtrain.data.loading.described_paths import lost_paths, path_exists, with_paths


def find_data(run_dir: Path, description: Description, given_keys: Collection[str], needs_data: bool) -> Description:
    """Returns the description of a run, with relative paths of its dataset resolved against the folder of its start.

    Only paths that do not exist in the current folder, but exist in that folder, are changed; a line tells the user.

    Args:
        run_dir: run directory, whose meta.json has the folder of the start; copied checkpoints have no meta.json.
        description: description of the run, with the overrides of this command.
        given_keys: settings of this command, whose paths are relative to the current folder.
        needs_data: True to print a note about paths that exist in neither folder.
    """
    # The paths of a typed dataset are relative to the current folder.
    if "dataset" in given_keys:
        return description
    excluded = {*(f"dataset.{name}" for name in description.dataset.signature_class.held_settings), *given_keys}
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
        folder = read_meta_object(run_dir).get(WORKING_FOLDER)
    except (OSError, ValueError):
        return ""
    return folder if isinstance(folder, str) and os.path.isabs(folder) else ""


def _from(folder: str, path: str) -> str:
    return os.path.join(folder, path)  # absolute paths are unchanged


def _shown(paths: Dict[str, List[str]]) -> str:
    return " ".join(f"dataset.{name}={','.join(some)}" for name, some in paths.items())
