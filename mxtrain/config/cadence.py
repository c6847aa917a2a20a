"""Intervals of saving, validating and logging.

The caller passes counters and time, so this module needs no clock and is deterministic. Steps and epochs count from the
start of training, so a resumed run has the same schedule.
"""

from __future__ import annotations

from typing import Optional

SECONDS_PER_MINUTE = 60.0


class Cadence:
    """An event that is due at each multiple of steps or epochs, or after a number of minutes.

    The rules are alternatives. Each due event restarts the minutes. Counters of steps and epochs never restart, so time
    does not change their schedule.

    >>> cadence = Cadence(every_steps=10)
    >>> cadence.start(step=0, epoch=0, now=0.0)
    >>> [step for step in range(1, 31) if cadence.due(step=step, epoch=0, now=0.0)]
    [10, 20, 30]

    Args:
        every_steps: optimizer steps; None switches a rule off.
        every_epochs: finished epochs.
        every_minutes: minutes of a monotonic clock.
    """

    def __init__(
        self,
        *,
        every_steps: Optional[int] = None,
        every_epochs: Optional[int] = None,
        every_minutes: Optional[float] = None,
    ) -> None:
        assert every_steps is None or every_steps > 0
        assert every_epochs is None or every_epochs > 0
        assert every_minutes is None or every_minutes > 0
        self.every_steps = every_steps
        self.every_epochs = every_epochs
        self.every_minutes = every_minutes
        self._step = 0
        self._epoch = 0
        self._since_s: Optional[float] = None

    @property
    def is_set(self) -> bool:
        """Returns True if the event is due at any time."""
        return any(rule is not None for rule in (self.every_steps, self.every_epochs, self.every_minutes))

    def __repr__(self) -> str:
        return f"Cadence(steps={self.every_steps}, epochs={self.every_epochs}, minutes={self.every_minutes})"

    def start(self, step: int, epoch: int, now: float) -> None:
        """Starts or restarts at these counters; nothing is due at them.

        Args:
            step: finished optimizer steps, including those before a resume.
            epoch: finished epochs.
            now: seconds of a monotonic clock.
        """
        self._step = step
        self._epoch = epoch
        self._since_s = now

    def due(self, step: int, epoch: int, now: float) -> bool:
        """Returns True if the event became due since the last call, and updates the counters.

        Args:
            step: finished optimizer steps; calls may skip some.
            epoch: finished epochs.
            now: seconds of the clock that `start` was given.
        """
        if self._since_s is None:
            self._since_s = now
        due = _passed(self.every_steps, self._step, step) or _passed(self.every_epochs, self._epoch, epoch)
        if self.every_minutes is not None and now - self._since_s >= self.every_minutes * SECONDS_PER_MINUTE:
            due = True
        if due:
            self._since_s = now
        # Updated also when nothing is due: the next call compares multiples since this one.
        self._step, self._epoch = step, epoch
        return due


def _passed(every: Optional[int], before: int, now: int) -> bool:
    # Compare multiples instead of `now % every == 0`: the caller may skip steps, and must not miss an event.
    return every is not None and now // every > before // every
