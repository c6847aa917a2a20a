"""A run that is described and checked, and that has not started."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Callable, Protocol

from mxtrain.config.groups import Description

if TYPE_CHECKING:
    from mxtrain.runtime import RuntimeReport


class RunEnd(Protocol):
    """The end of a run."""

    @property
    def exit_code(self) -> int:
        """0 if it finished; see `mxtrain.errors`."""

    @property
    def run_dir(self) -> str:
        """Its run directory."""

    @property
    def cause(self) -> str:
        """Why it ended before its end; else empty."""


@dataclass(frozen=True)
class PreparedRun:
    """A run that is described and checked, and that has not started.

    Attributes:
        description: description of the run.
        run_dir: its run directory, which may not exist.
        train: trains to the end, and shows the progress; raises `MxtrainError` if nothing was started.
        set_environment: sets the environment variables that MXNet reads when it is imported.
    """

    description: Description
    run_dir: Path
    train: Callable[[], RunEnd]
    set_environment: Callable[[], RuntimeReport]
