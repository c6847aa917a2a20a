"""Saves snapshots in the background and reports those that could not be written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Callable, Optional, Union

from mxtrain.training.callback_list import CallbackList

if TYPE_CHECKING:
    from mxtrain.checkpoint import Checkpoint, Snapshot
    from mxtrain.checkpoint.memory import MemoryState
    from mxtrain.checkpoint.store import CheckpointStore, SaveOutcome


class NoStore:
    """Null object in place of the checkpoint store, for workers other than rank 0, which write nothing.

    Args:
        directory: directory of the checkpoint that the run continues, if it belongs to this run.
    """

    def __init__(self, directory: Optional[Path] = None):
        self.directory = directory

    def save(self, snapshot: Snapshot) -> None:
        """Does nothing: rank 0 saves the checkpoint."""

    def poll(self) -> None:
        """Does nothing: this worker saves nothing."""

    wait = latest = best = require_in_place = poll

    def close(self, seconds_left: Callable[[], float]) -> None:
        """Does nothing: this worker uploads nothing."""


class Saving:
    """Saves and finds the checkpoints of a run, for the runner.

    Args:
        store: a `CheckpointStore`, or `NoStore`.
        callbacks: callbacks to notify of failures.
        memory: the last state in memory; None if there is none, as on workers other than rank 0.
    """

    def __init__(
        self,
        store: Union[CheckpointStore, NoStore],
        callbacks: CallbackList,
        memory: Optional[MemoryState] = None,
    ):
        self._store, self._callbacks, self._memory = store, callbacks, memory
        self.saved_step = -1
        """Step of the newest checkpoint that has been saved or is being written."""
        self.failure = ""
        """Reason why the newest checkpoint could not be written; empty if it was written."""

    def require_in_place(self) -> None:
        """Verifies that the run directory is still the one that the run began in.

        Raises:
            RunDirectoryLost: it was deleted or replaced.
        """
        self._store.require_in_place()

    def save(self, snapshot: Snapshot) -> None:
        """Writes in the background; waits only for the save before this one."""
        self.require_in_place()
        # The writing thread cannot raise here, so ask for the failure of the save before this one.
        self._report(self._store.poll())
        self._store.save(snapshot)
        self.saved_step = snapshot.step

    def keep_in_memory(self, snapshot: Snapshot) -> None:
        """Writes into memory in the background; waits only for the state before this one."""
        problem = "" if self._memory is None else self._memory.keep(snapshot)
        if problem:
            self._callbacks.notify("on_message", problem)

    def synchronize(self) -> None:
        """Waits for the save under way."""
        self._report(self._store.wait())

    def close(self, seconds_left: Callable[[], float]) -> None:
        """Waits for the save under way and for its upload. Call it at the end of the run.

        Args:
            seconds_left: returns the seconds for which it may still wait for the upload.
        """
        if self._memory is not None:
            self._memory.close()
        self._store.close(seconds_left)

    def latest(self) -> Optional[Checkpoint]:
        """Returns the newest good checkpoint, after the save under way."""
        self.synchronize()
        return self._store.latest()

    def best(self) -> Optional[Checkpoint]:
        """Returns the checkpoint with the best monitored value."""
        self.synchronize()
        return self._store.best()

    def holds(self, checkpoint: Checkpoint) -> bool:
        """Returns True if a checkpoint is one of this run's own, and not of the run that this one was started from."""
        return checkpoint.path.parent == self._store.directory

    def _report(self, outcome: Optional[SaveOutcome]) -> None:
        while outcome is not None:
            self.failure = outcome.error or "" if outcome.path is None else ""
            if outcome.error and outcome.path is None:
                self._callbacks.notify(
                    "on_message",
                    f"the checkpoint of step {outcome.step} could not be written: {outcome.error}. "
                    "Training goes on; earlier checkpoints are kept.",
                )
            elif outcome.error:
                self._callbacks.notify("on_message", f"after the checkpoint of step {outcome.step}: {outcome.error}.")
            outcome = self._store.poll()
