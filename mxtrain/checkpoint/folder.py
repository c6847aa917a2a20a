"""Names and lists the checkpoints in the folder of a run. A name contains the step and the number of the copy.

A checkpoint is written as `.tmp-...` and gets its name by one rename after it is on the disk. To remove it, it is
renamed to `.tmp-...` first. So folders named `step-...` are complete, whenever the process is killed.
"""

from __future__ import annotations

import os
import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import List, NamedTuple, Optional

from mxtrain.checkpoint.contents import Checkpoint, read_checkpoint
from mxtrain.errors import DamagedCheckpoint, UnreadableCheckpoint

TEMPORARY = ".tmp-"
CHECKPOINTS = "checkpoints"
"""Folder of the checkpoints in a run directory."""
AVERAGED = "averaged"
"""Folder of the averaged checkpoints in a run directory, each of which has a folder of its own."""

# The second number counts the copies of one step: a step that is saved again with other content gets the next one,
# so that the old copy stays until the new one is there. A rename cannot replace a directory that holds files.
NAME = re.compile(r"step-(\d{8,})(?:-(\d+))?\Z")


class CheckpointFolder(NamedTuple):
    """A `step-...` directory. Tuples sort by step and copy, so by age."""

    step: int
    copy: int
    path: Path


def run_dir_of(path: Path) -> Path:
    """Returns the run directory that a checkpoint lies in, or the current folder if it was copied out of one."""
    folder = Path(os.path.abspath(path)).parent  # abspath, unlike resolve, does not follow links
    return folder.parent if folder.name in (CHECKPOINTS, AVERAGED) else Path.cwd()


def scan(directory: Path) -> List[CheckpointFolder]:
    """Returns the `step-...` directories, oldest first; an empty list if the folder does not exist.

    Raises:
        UnreadableCheckpoint: the folder exists, but cannot be read.
    """
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UnreadableCheckpoint(f"The checkpoints in {directory} cannot be read: {error.strerror}.") from error
    # The names are the index: there is no pointer to the newest that could be wrong.
    matches = [(NAME.match(name), directory / name) for name in names]
    return sorted(CheckpointFolder(int(match[1]), int(match[2] or 1), path) for match, path in matches if match)


def read_named(path: Path, *, verify_arrays: bool = True) -> Checkpoint:
    """Reads a checkpoint with `read_checkpoint`, and checks that the step in its name is that of its state.

    Raises:
        DamagedCheckpoint: the steps differ, for example because the directory was renamed.
        CheckpointError: see `read_checkpoint`.
    """
    checkpoint = read_checkpoint(path, verify_arrays=verify_arrays)
    match = NAME.match(path.name)
    if match is None or int(match[1]) != checkpoint.step:
        raise DamagedCheckpoint(f"The checkpoint {path} cannot be used: it holds step {checkpoint.step}.")
    return checkpoint


def can_open_files(path: Path) -> bool:
    """Returns True if all existing files of a checkpoint can be opened."""
    try:
        for name in os.listdir(path):
            os.close(os.open(path / name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError:
        return False
    return True


def discard(path: Path) -> None:
    """Removes a checkpoint. It is renamed first, so that a partly removed one never has its name."""
    hidden = path.parent / f"{TEMPORARY}discarded-{path.name}-{os.getpid()}"
    shutil.rmtree(hidden, ignore_errors=True)
    os.rename(path, hidden)
    shutil.rmtree(hidden)


def remove_leftovers(directory: Path) -> None:
    """Removes unfinished checkpoints of dead processes. Only the holder of the run's lock may call it."""
    if directory.is_dir():
        for name in os.listdir(directory):
            if name.startswith(TEMPORARY):
                shutil.rmtree(directory / name, ignore_errors=True)


def available(folder: Path, but: Optional[Path] = None) -> str:
    """Returns a sentence for messages that lists the checkpoints: ` Available in x: a, b.`; "" if there are none."""
    for directory in (folder / CHECKPOINTS, folder):
        with suppress(UnreadableCheckpoint):
            names = [checkpoint.path.name for checkpoint in scan(directory) if checkpoint.path != but]
            if names:
                return f" Available in {directory}: {', '.join(names)}."
    return ""
