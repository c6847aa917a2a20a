"""Writes a new folder that appears under its name only when it is complete."""

from __future__ import annotations

import contextlib
import os
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator

from mxtrain.errors import DataError, disk_advice
from mxtrain.files.durable import fsync_directory
from mxtrain.files.unused_folders import make_locked, remove_abandoned


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Creates a temporary folder beside `path`, which is renamed to `path` if the `with` block succeeds, else removed.

    Raises:
        DataError: `path` exists, or cannot be written.
    """
    require_new(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # A killed process leaves its draft behind, whose lock nobody holds any more.
        remove_abandoned(path.parent, _draft_prefix(path))
        draft, lock = make_locked(path.parent, _draft_prefix(path))
    except OSError as error:
        raise DataError(f"out={path}: it cannot be written: {error.strerror}.") from error
    try:
        draft.chmod(0o755)
        try:
            yield draft
        except OSError as error:
            is_ours = error.filename is None or Path(os.fsdecode(error.filename)).is_relative_to(draft)
            if is_ours and disk_advice(error):
                raise unwritable(draft, error) from error
            raise
        try:
            fsync_directory(draft)
            # An empty folder that was made meanwhile would be replaced; one with files is an error.
            os.rename(draft, path)
            fsync_directory(path.parent)
        except OSError as error:
            raise DataError(f"out={path}: it cannot be written: {error.strerror}.") from error
    finally:
        with contextlib.suppress(OSError):
            shutil.rmtree(draft, ignore_errors=True)
        os.close(lock)


def require_new(path: Path) -> None:
    """Raises a `DataError` if there is something at `path`, which is never overwritten."""
    if os.path.lexists(path):
        raise DataError(f"out={path}: it is there already, and is not overwritten. Remove it, or name another folder.")


def _draft_prefix(path: Path) -> str:
    return f".{path.name}-draft-"


def unwritable(draft: Path, error: OSError) -> DataError:
    """Returns the error about a draft that cannot be written, with the space that is left on its disk."""
    free = shutil.disk_usage(draft.parent).free
    return DataError(
        f"out: the folder cannot be written: {error.strerror or error}. {draft.parent} has {free:,} bytes left. "
        "Name a folder on another disk with out=FOLDER."
    )
