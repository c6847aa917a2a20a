"""Notifies the callbacks of a run in order; at the end it notifies all, whatever one of them raises."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Optional, Sequence

from mxtrain.errors import EXIT_CRASHED, EXIT_FINISHED, LESS_MEMORY, out_of_memory
from mxtrain.types import Callback, Result

_LOG = logging.getLogger(__name__)


class Watchers:
    """The callbacks of a run."""

    def __init__(self, callbacks: Sequence[Callback]):
        self._callbacks = list(callbacks)

    def notify(self, event: str, *values: object) -> None:
        """Calls the method `event` of each.

        Raises:
            Exception: whatever one of them raised; those after it are not told.
        """
        for callback in self._callbacks:
            getattr(callback, event)(*values)

    def end(self, result: Result, error: Optional[BaseException]) -> Result:
        """Notifies all callbacks of the end of the run, and returns the result.

        Args:
            error: what broke the run, raised again when all were told.

        Raises:
            BaseException: `error`, or the first that a callback's own `on_end` raised; those after it are told of it.
        """
        for callback in self._callbacks:
            try:
                callback.on_end(result)
            except Exception as problem:
                _LOG.exception("%s.on_end failed", type(callback).__name__)
                error = error or problem
                if result.exit_code == EXIT_FINISHED:
                    result = replace(result, state="failed", exit_code=EXIT_CRASHED, cause=describe_error(problem))
        if error is not None:
            raise error
        return result


def describe_error(error: BaseException, less_memory: str = LESS_MEMORY) -> str:
    """The class and the message, as the last line of a traceback has them; where memory was the cause a sentence, and
    what to do about it."""
    return out_of_memory(error, less_memory) or f"{type(error).__name__}: {error}"
