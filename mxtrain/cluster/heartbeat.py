"""Heartbeat of a process: a thread writes a line of JSON to the supervisor twice a second.

Lines that stop coming mean that the process was stopped. Lines whose number of batches does not change mean that it is
stuck. A process with a long computation differs from both.
"""

from __future__ import annotations

import json
import os
import threading
import time
from contextlib import suppress
from typing import Optional

INTERVAL_S = 0.5


class Heartbeat:
    """Reports the progress of this process. Does nothing until `begin` finds a file descriptor."""

    def __init__(self) -> None:
        self.step = 0
        """Finished or begun optimizer steps."""
        self.batches = 0
        """Number of batches begun, of any kind. If it does not change, the process is stuck."""
        self.waits = False
        """True if the process has finished its part and waits for the others."""
        self.generation = 0
        """Generation of the ring of workers that it wants to join, from 1."""
        self._thread: Optional[threading.Thread] = None
        self._file = -1

    @property
    def has_listener(self) -> bool:
        """Returns True if a supervisor receives the heartbeats."""
        return self._thread is not None

    def begin(self, variable: str) -> None:
        """Starts writing heartbeats into the file descriptor whose number is in an environment variable.

        Child processes do not inherit the variable or the descriptor: they must not write heartbeats for this process.
        """
        number = os.environ.pop(variable, "")
        if number and self._thread is None:
            self._file = int(number)
            os.set_inheritable(self._file, False)
            self._thread = threading.Thread(target=self._beat, name="mxtrain-heartbeat", daemon=True)
            self._thread.start()

    def emit(self) -> None:
        """Writes one heartbeat now, if a supervisor listens."""
        line = {"step": self.step, "batches": self.batches, "waits": self.waits, "generation": self.generation}
        with suppress(OSError):  # the supervisor has ended
            if self._file >= 0:
                # A single short write to a pipe is atomic, so heartbeats of two threads do not mix.
                os.write(self._file, json.dumps(line).encode() + b"\n")

    def begin_batch(self) -> None:
        """Counts a batch. The first one is reported immediately: from then on, the run can lose progress."""
        self.batches += 1
        if self.batches == 1:
            self.emit()

    def end(self) -> None:
        """Reports that this process has finished its part and only waits for the others."""
        self.waits = True
        self.emit()

    def _beat(self) -> None:
        while True:
            self.emit()
            time.sleep(INTERVAL_S)


HEARTBEAT = Heartbeat()
"""The heartbeat of this process."""
