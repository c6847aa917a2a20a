"""Checkpoints: atomic, checksummed, free of pickle and of placement; and the lock of the run directory.

    with lock_run_directory("outputs/run") as lock:
        store = CheckpointStore("outputs/run/checkpoints", keep_last=2, keep_top=1, lock=lock, report=print)
        checkpoint = store.latest()
        store.save(Snapshot(step=1, epoch=0, arrays={"model": arrays}, state={}))
        outcome = store.wait()

Importing this package imports neither MXNet nor numpy.
"""

from mxtrain.checkpoint.contents import Checkpoint, Snapshot
from mxtrain.checkpoint.ndarray_file import canonical_sha256, read_ndarrays, write_ndarrays
from mxtrain.checkpoint.run_directory import RunDirectoryLock, lock_run_directory, refuse_links
from mxtrain.checkpoint.run_state import require_run_state, require_same_arrays
from mxtrain.checkpoint.spec import CheckpointSpec
from mxtrain.checkpoint.store import CheckpointStore, SaveOutcome, holds_checkpoint, open_checkpoint

__all__ = [
    "Checkpoint",
    "CheckpointSpec",
    "CheckpointStore",
    "RunDirectoryLock",
    "SaveOutcome",
    "Snapshot",
    "canonical_sha256",
    "holds_checkpoint",
    "lock_run_directory",
    "open_checkpoint",
    "read_ndarrays",
    "refuse_links",
    "require_run_state",
    "require_same_arrays",
    "write_ndarrays",
]
