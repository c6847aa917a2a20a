"""The folder with the checkpoints of a run, and their names, which contain step and copy.

A checkpoint appears under its name by one rename, after all of it is on the disk; until then it is called `.tmp-...`.
It is removed by a rename to `.tmp-...` first. So folders named `step-...` are complete whenever the process dies.
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
"""The folder of a run directory."""

# The second number counts the copies of one step: a step that is saved again with other content gets the next one,
# so that the old copy stays until the new one is there. A rename cannot replace a directory that holds files.
NAME = re.compile(r"step-(\d{8,})(?:-(\d+))?\Z")


class Place(NamedTuple):
    """A `step-...` directory; sorts by age."""

    step: int
    copy: int
    path: Path


def scan(directory: Path) -> List[Place]:
    """The `step-...` directories by age, oldest first; empty if there is no such folder.

    Raises:
        UnreadableCheckpoint: there is one, but it cannot be read.
    """
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UnreadableCheckpoint(f"The checkpoints in {directory} cannot be read: {error.strerror}.") from error
    matches = [(NAME.match(name), directory / name) for name in names]
    return sorted(Place(int(match[1]), int(match[2] or 1), path) for match, path in matches if match)


def read_named(path: Path, *, verify_arrays: bool = True) -> Checkpoint:
    """As `read_checkpoint`, for a directory whose name says the step: it must be true."""
    checkpoint = read_checkpoint(path, verify_arrays=verify_arrays)
    match = NAME.match(path.name)
    if match is None or int(match[1]) != checkpoint.step:
        raise DamagedCheckpoint(f"The checkpoint {path} cannot be used: it holds step {checkpoint.step}.")
    return checkpoint


def opens(path: Path) -> bool:
    """Returns True if all files of a checkpoint can be opened, or are not there."""
    try:
        for name in os.listdir(path):
            os.close(os.open(path / name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError:
        return False
    return True


def discard(path: Path) -> None:
    """Remove a checkpoint so that no half of it is ever seen under its name."""
    hidden = path.parent / f"{TEMPORARY}discarded-{path.name}-{os.getpid()}"
    shutil.rmtree(hidden, ignore_errors=True)
    os.rename(path, hidden)
    shutil.rmtree(hidden)


def remove_leftovers(directory: Path) -> None:
    """Removes what dead processes left half written. Only for who holds the lock of the run."""
    if directory.is_dir():
        for name in os.listdir(directory):
            if name.startswith(TEMPORARY):
                shutil.rmtree(directory / name, ignore_errors=True)


def available(folder: Path, but: Optional[Path] = None) -> str:
    """The end of a message, which names the checkpoints there are: ` Available in x: a, b.`; empty without any."""
    for place in (folder / CHECKPOINTS, folder):
        with suppress(UnreadableCheckpoint):
            names = [found.path.name for found in scan(place) if found.path != but]
            if names:
                return f" Available in {place}: {', '.join(names)}."
    return ""
