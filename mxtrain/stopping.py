"""Why a run ends before its last step: signals, budgets, early stopping."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import dataclass
from types import FrameType
from typing import Any, Dict, Optional

from mxtrain.errors import EXIT_BUDGET, EXIT_SIGINT, EXIT_SIGTERM

EXIT_CODES = {signal.SIGINT: EXIT_SIGINT, signal.SIGTERM: EXIT_SIGTERM}


@dataclass(frozen=True)
class Stop:
    """A reason to end the run after the step under way."""

    state: str
    exit_code: int
    cause: str


class SignalStop:
    """Turns the first SIGINT or SIGTERM into a `Stop`; the second one ends the process at once.

    Used as a context manager around training. Outside of the main thread (a notebook's worker) it does nothing.
    """

    def __init__(self) -> None:
        self.stop: Optional[Stop] = None
        self._before: Dict[int, Any] = {}

    def __enter__(self) -> SignalStop:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._on_signal) for number in EXIT_CODES}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: Optional[FrameType]) -> None:
        name = signal.Signals(number).name
        self.stop = Stop("interrupted", EXIT_CODES[number], f"{name} received")
        for other in EXIT_CODES:
            # Not a Python handler: that would not run while the main thread waits inside MXNet.
            signal.signal(other, signal.SIG_DFL)
        os.write(2, f"\n{name}: finishing the step and saving; once more quits at once\n".encode())


class Budget:
    """The step and time limits of a run.

    Args:
        total_steps: where the description is complete, None if only time limits it.
        max_steps: step budget, which may lie before `total_steps`.
        max_time: seconds from now on.
    """

    def __init__(self, total_steps: Optional[int], max_steps: Optional[int], max_time: Optional[float]):
        self._total_steps, self._max_steps, self._max_time = total_steps, max_steps, max_time
        self._deadline = None if max_time is None else time.monotonic() + max_time

    def check(self, step: int) -> Optional[Stop]:
        """The reason to stop after `step`, or None."""
        if self._total_steps is not None and step >= self._total_steps:
            return Stop("finished", 0, "")
        if self._max_steps is not None and step >= self._max_steps:
            return Stop("interrupted", EXIT_BUDGET, f"trainer.max_steps={self._max_steps} reached")
        if self._deadline is not None and time.monotonic() >= self._deadline:
            return Stop("interrupted", EXIT_BUDGET, f"trainer.max_time={self._max_time:g} seconds reached")
        return None
