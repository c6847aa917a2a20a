"""Hands snapshots to the store, and says when one of them could not be written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Optional, Union

from mxtrain.training.callback_list import CallbackList

if TYPE_CHECKING:
    from mxtrain.checkpoint import Checkpoint, Snapshot
    from mxtrain.checkpoint.store import CheckpointStore, SaveOutcome


class NoStore:
    """Takes the place of the store in the workers that write nothing.

    Args:
        directory: where the checkpoint came from that the run continues, if it is the run's own.
    """

    def __init__(self, directory: Optional[Path] = None):
        self.directory = directory

    def save(self, snapshot: Snapshot) -> None:
        """Another worker does it."""

    def poll(self) -> None:
        """Does nothing: this worker saves nothing."""

    wait = latest = best = require_in_place = poll


class Saving:
    """Saves and finds the checkpoints of a run, for the runner.

    Args:
        store: a `CheckpointStore`, or `NoStore`.
        callbacks: are told of failures.
    """

    def __init__(self, store: Union[CheckpointStore, NoStore], callbacks: CallbackList):
        self._store, self._callbacks = store, callbacks
        self.saved_step = -1
        """The step whose checkpoint is in the store, or on its way there."""
        self.failure = ""
        """Why the newest checkpoint could not be written; empty if it was."""

    def require_in_place(self) -> None:
        """Raises: RunDirectoryLost: what the run writes goes nowhere any more."""
        self._store.require_in_place()

    def save(self, snapshot: Snapshot) -> None:
        """Writes in the background; waits only for the save before this one."""
        self.require_in_place()
        # Failures of the thread that writes become known only when they are asked for.
        self._report(self._store.poll())
        self._store.save(snapshot)
        self.saved_step = snapshot.step

    def synchronize(self) -> None:
        """Waits for the save under way."""
        self._report(self._store.wait())

    def latest(self) -> Optional[Checkpoint]:
        """The newest good checkpoint, after the save under way."""
        self.synchronize()
        return self._store.latest()

    def best(self) -> Optional[Checkpoint]:
        """The checkpoint with the best monitored value."""
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
                    "on_message", f"the checkpoint of step {outcome.step} could not be written: {outcome.error}. "
                    "Training goes on; earlier checkpoints are kept.",
                )  # fmt: skip
            elif outcome.error:
                self._callbacks.notify("on_message", f"after the checkpoint of step {outcome.step}: {outcome.error}.")
            outcome = self._store.poll()
