"""The description of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mxtrain.config.parts import RunParts

if TYPE_CHECKING:
    from mxtrain.task.spec import Task


@dataclass(frozen=True)
class Description(RunParts):
    """All settings of a run: one spec per group, and `config`, the same settings as plain nested dicts."""

    task: Task
