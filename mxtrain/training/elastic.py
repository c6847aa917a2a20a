"""Continues a ring after workers were lost or have joined: all workers get the state of rank 0."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Callable, Optional

from mxtrain.checkpoint import Checkpoint, Snapshot
from mxtrain.checkpoint.contents import read_checkpoint, write_contents
from mxtrain.checkpoint.sharing import receive_checkpoint, send_checkpoint
from mxtrain.errors import PeersLost
from mxtrain.files.temporary import temporary_root
from mxtrain.kvstore.store import Store


def remark(lost: PeersLost, before: int, now: int, step: int) -> str:
    """Returns the message for a ring that was formed anew.

    Args:
        lost: the reason.
        before: number of workers of the previous ring.
        now: number of workers of the new ring.
        step: last completed step.
    """
    if now == before:
        return (
            f"{lost}: {now} workers go on after step {step}, one of them started anew. No step is lost, and shares of "
            "batches stay the same"
        )
    return (
        f"{lost}: {now} worker{'s' * (now > 1)} (before: {before}) go on after step {step}. No step is lost or repeated"
        ", but shares of batches change: the last bits differ from an uninterrupted run, and more "
        "if dropout or a batch norm works on a share"
    )


def share_state(workers: Store, take: Callable[[], Snapshot]) -> Optional[Checkpoint]:
    """Sends rank 0's state to all others. Collective.

    Args:
        workers: store of the new ring.
        take: function that returns the state; called by rank 0.

    Returns:
        The state that this worker continues from; None for rank 0 and for a single worker, which already have it.
    """
    world = workers.world
    if world.size == 1:
        return None
    # As at the start of a run, because workers that have just come do the same.
    if world.rank > 0:
        checkpoint = receive_checkpoint(workers.broadcast)
        workers.broadcast(None)
        return checkpoint
    with tempfile.TemporaryDirectory(prefix="mxtrain-", dir=temporary_root()) as folder:
        path = Path(folder) / "state"
        write_contents(take(), path)
        # This process has just written the files, so hashing them again would only delay the others.
        send_checkpoint(workers.broadcast, read_checkpoint(path, verify_arrays=False))
    workers.broadcast(b"")
    return None
