"""The heartbeat of a process: a line to its supervisor, twice a second.

A thread writes a line each half second, so that the watcher can tell a process that was stopped from one that computes
for a long time; the line says how many batches are done, so that it can tell that from one that waits for ever.
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
    """The heartbeat of this process, which says how far it is. Without a file it does nothing."""

    def __init__(self) -> None:
        self.step = 0
        """Finished or begun optimizer steps."""
        self.batches = 0
        """Number of batches begun, of any kind. If it does not change, the process is stuck."""
        self.waits = False
        """True if the process has finished its part and waits for the others."""
        self.generation = 0
        """The ring of workers that it wants to be in, counted from 1."""
        self._thread: Optional[threading.Thread] = None
        self._file = -1

    @property
    def has_listener(self) -> bool:
        """True if a supervisor listens."""
        return self._thread is not None

    def begin(self, variable: str) -> None:
        """Starts writing heartbeats into the open file descriptor named by an environment variable."""
        number = os.environ.pop(variable, "")
        if number and self._thread is None:
            self._file = int(number)
            os.set_inheritable(self._file, False)
            self._thread = threading.Thread(target=self._beat, name="mxtrain-heartbeat", daemon=True)
            self._thread.start()

    def emit(self) -> None:
        """Writes one heartbeat now, if somebody listens."""
        line = {"step": self.step, "batches": self.batches, "waits": self.waits,
                "generation": self.generation}  # fmt: skip
        with suppress(OSError):  # the watcher has gone
            if self._file >= 0:
                os.write(self._file, json.dumps(line).encode() + b"\n")

    def begin_batch(self) -> None:
        """Counts a batch; the first is reported at once, for whoever has come so far has something to lose."""
        self.batches += 1
        if self.batches == 1:
            self.emit()

    def end(self) -> None:
        """Reports that this process has done its part, and only waits for the others."""
        self.waits = True
        self.emit()

    def _beat(self) -> None:
        while True:
            self.emit()
            time.sleep(INTERVAL_S)


HEARTBEAT = Heartbeat()
"""The heartbeat of this process."""
