"""Base of the descriptions of loggers."""

from __future__ import annotations

from typing import Optional

from mxtrain.types import Callback, Spec


class Logger(Spec):
    """Describes one way to watch a run. A new kind is a subclass with `build` and one YAML in conf/logger/."""

    @property
    def writes_to(self) -> Optional[str]:
        """Returns the file of rows in the run directory, which is truncated when a run resumes; None: it has none."""
        return None

    def build(self) -> Callback:
        """Builds the callback that watches one run.

        Returns:
            A callback that does not raise if it cannot write while a run goes on: it logs one warning.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say how to build its callback.")
