"""Names of the files in a run directory, states that they hold, and a check of the names that users choose."""

from __future__ import annotations

import pydantic
from typing_extensions import Annotated

STATUS_FILE = "status.json"
"""Progress and result."""
META_FILE = "meta.json"
"""Command, configuration, versions, host and data of the run."""
ROWS_FILE = "metrics.jsonl"
"""Rows of losses and metrics, as `logger=jsonl` names the file unless another name is chosen."""
INTERRUPTED, PRUNED = "interrupted", "pruned"
"""States in status.json of a run that ended before its last step, and of such a trial after a pruner of `tune` has
ended it."""
OWN_FILES = (
    "checkpoints",
    "workers",
    "previous",
    ".hydra",
    ".lock",
    STATUS_FILE,
    META_FILE,
    "train.log",
    "timeline.json",
    "eval",
    "averaged",
    "replay",
)
"""Names of the files and folders that every run directory has."""


def inside_run_directory(name: str) -> str:
    """Checks that a name is that of a file directly in the run directory, which no other file there uses.

    Returns:
        The name, unchanged.

    Raises:
        ValueError: the name is empty, a path, too long, or the name of another file.
    """
    if not name.strip() or name in (".", "..") or "/" in name or "\0" in name:
        raise ValueError("should be a file's name inside the run directory, without '/'")
    if name in OWN_FILES or name.startswith("events.out."):
        raise ValueError("is the name of something else in the run directory")
    if len(name.encode("utf-8", "surrogateescape")) > 200:
        raise ValueError("should have at most 200 bytes")
    return name


FileName = Annotated[str, pydantic.AfterValidator(inside_run_directory)]
