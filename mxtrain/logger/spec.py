"""Base of the descriptions of loggers."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, List, Mapping, Optional, Tuple

from mxtrain.callback.protocol import Callback
from mxtrain.types import Spec


class Logger(Spec):
    """Describes one way to watch a run. A new kind is a subclass with `build` and one YAML in conf/logger/."""

    shows_end: ClassVar[bool] = False
    """True if it tells the person who started a run how it ended."""
    writes_events: ClassVar[bool] = False
    """True if it writes files into the run directory that TensorBoard shows."""
    shown_once: ClassVar[Mapping[str, bool]] = {}
    """Setting -> its value in a sweep, or in a cross validation after the first fold: it hides output that is the same
    for all runs."""

    def commands_for(self, folder: Path) -> List[Tuple[str, str]]:
        """Returns (purpose, command) for the runs of a sweep in a folder, to suggest when it has ended."""
        return []

    @property
    def writes_to(self) -> Optional[str]:
        """Returns the file of rows in the run directory, which is truncated when a run resumes; None: it has none."""
        return None

    def build(self) -> Callback:
        """Builds the callback that watches one run.

        Returns:
            A callback that does not raise if it cannot write while a run goes on: it logs one warning.
        """
        raise NotImplementedError
