"""Shows the state of srun's job while it waits in Slurm's queue, and cancels the job if the run ends meanwhile."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any, Callable, Optional

from mxtrain.cluster.relayed import Channel

FIRST_S, NEXT_S = 1.0, 10.0
"""Seconds from the start until the first query of the state, and between two queries."""
TIMEOUT_S = 5.0
"""Timeout of a command of Slurm."""
_QUEUED = re.compile(r"srun: job (\d+) queued")


class SlurmChannel(Channel):
    """The connection to the relays of srun.

    Args:
        arguments: arguments of `Channel`.
    """

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self.job = ""
        """Id of the job while it waits in the queue, according to the output of srun; otherwise empty."""
        self._display = QueueDisplay(self._state)

    def exchange_messages(self) -> None:
        super().exchange_messages()
        # A relay that has answered proves that the job runs, so there is nothing to show or to cancel.
        if self.heartbeat_at or self.end is not None:
            self.job = ""
            self._display.close()
            return
        self.job = self.job or next((found[1] for found in map(_QUEUED.match, self.last_lines) if found), "")
        if self.job:
            self._display.update()

    def close(self) -> None:
        self.kill()
        job, self.job = self.job, ""
        self._display.close()
        if job:  # killing srun leaves its job in the queue
            with suppress(OSError, subprocess.TimeoutExpired):
                subprocess.run(["scancel", job], capture_output=True, timeout=TIMEOUT_S, check=False)
            print(f"job {job} was taken out of Slurm's queue", file=sys.stderr, flush=True)
        super().close()

    def _state(self) -> str:
        """Returns a line about the job; empty if Slurm does not answer."""
        command = ["squeue", "-h", "-j", self.job, "-o", "%T, reason %r, expected start %S"]
        with suppress(OSError, subprocess.TimeoutExpired):
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
            line = done.stdout.strip()
            return f"Slurm's job {self.job}: {line} (Ctrl-C cancels it)" if line else ""
        return ""


class QueueDisplay:
    """Shows a state on standard error: in one line on a terminal, otherwise only when it changes.

    Args:
        state: returns the line; empty if it is not known.
    """

    def __init__(self, state: Callable[[], str]):
        self._state = state
        self._next_s = time.monotonic() + FIRST_S
        self._shown: Optional[str] = None

    def update(self) -> None:
        """Asks for the state if it is time to."""
        if time.monotonic() < self._next_s:
            return
        line, self._next_s = self._state(), time.monotonic() + NEXT_S
        if line and line != self._shown:
            start, end = ("\r\x1b[K", "") if sys.stderr.isatty() else ("", "\n")
            print(f"{start}{line}", end=end, file=sys.stderr, flush=True)
            self._shown = line

    def close(self) -> None:
        """Ends the line."""
        if self._shown is not None and sys.stderr.isatty():
            print(file=sys.stderr, flush=True)
        self._shown, self._next_s = None, float("inf")
