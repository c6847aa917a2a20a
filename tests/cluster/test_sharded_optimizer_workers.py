"""Optimizer state divided among real workers of a Horovod ring: the bits and checkpoints of an undivided run."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any, Dict

import numpy as np
import pytest
from running import Process, checkpoints, has_steps, rows, status, verify
from test_workers import SLOW, nobody_is_left, processes

from mxtrain.checkpoint.contents import read_checkpoint
from mxtrain.kvstore.spec import has_horovod

pytestmark = [pytest.mark.skipif(not has_horovod(), reason="Horovod is not built here: scripts/horovod")]
RING = ("kvstore=horovod", "cluster.backoff=0.1")
SHARDED = "kvstore.shard_optimizer=true"
STOPPED = 75
"""Exit code of a run that has reached `trainer.max_steps`."""
# Three buckets, of which the largest holds one parameter.
MODEL = (
    *SLOW,
    "model.hidden=[1200,1200]",
    "trainer.max_epochs=4",
    "optimizer=adam",
    "optimizer.lr=0.001",
    "trainer.clip_global_norm=1",
)


def outcome(run_dir: Path) -> Any:
    """Rows, hash of the weights and optimizer state of a run."""
    saved = read_checkpoint(run_dir / "checkpoints" / checkpoints(run_dir)[-1])
    state: Dict[str, bytes] = {name: np.asarray(array).tobytes() for name, array in saved.arrays("optimizer").items()}
    return rows(run_dir), status(run_dir)["weights_sha256"], state, saved.state["optimizer"]


@pytest.mark.slow
def test_a_killed_worker_and_another_number_of_workers_change_no_bits(tmp_path: Path) -> None:
    whole, run_dir = tmp_path / "whole", tmp_path / "run"
    Process(whole, *RING, *MODEL, "cluster.workers=3", "trainer.max_steps=40").end(STOPPED)
    run = Process(run_dir, *RING, *MODEL, "cluster.workers=3", "trainer.max_steps=40", SHARDED)
    run.wait_until(has_steps(run_dir, 25))
    (pid,) = processes(run_dir)["worker1"]
    os.kill(pid, signal.SIGKILL)
    run.end(STOPPED)
    assert "was ended by SIGKILL" in run.output and "restart 1 of 3" in run.output, run.output
    assert outcome(run_dir) == outcome(whole)
    # Two workers continue the three: undivided what was divided, and the other way round.
    Process(run_dir, *RING, *MODEL, "cluster.workers=2", "trainer.max_steps=50").end(STOPPED)
    Process(whole, *RING, *MODEL, "cluster.workers=2", "trainer.max_steps=50", SHARDED).end(STOPPED)
    assert outcome(run_dir) == outcome(whole)
    nobody_is_left(tmp_path)


@pytest.mark.zoo
@pytest.mark.parametrize("store", ["horovod", "dist_sync"])
def test_verify_proves_divided_updates(store: str) -> None:
    done = verify(f"kvstore={store}", SHARDED, "cluster.workers=2", *MODEL)
    assert done.returncode == 0 and "the same as on one device" in done.stdout, done.stdout + done.stderr
