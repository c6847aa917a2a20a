"""Base of the descriptions of loggers."""

from __future__ import annotations

from typing import Optional

from mxtrain.types import Callback, Spec


class Logger(Spec):
    """Describes one way to watch a run. A new kind is a subclass with `build` and one YAML in conf/logger/."""

    @property
    def writes_to(self) -> Optional[str]:
        """Returns the file in the run directory that it writes rows to, and cuts back when a run resumes; None: it has
        none."""
        return None

    def build(self) -> Callback:
        """Make the callback that watches one run.

        Returns:
            A callback that never stops a run because it cannot write: it says so once and goes on.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say how to build its callback.")
