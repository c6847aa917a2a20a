"""Optimizer state divided among real workers of a Horovod ring: the bits and checkpoints of an undivided run."""

from __future__ import annotations

import os
import shutil
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


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three workers that divides nothing."""
    run_dir = tmp_path_factory.mktemp("undivided") / "whole"
    Process(run_dir, *RING, *MODEL, "cluster.workers=3", "trainer.max_steps=40").end(STOPPED)
    return run_dir


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run with divided state, one of whose workers was killed."""
    run_dir = tmp_path_factory.mktemp("divided") / "run"
    run = Process(run_dir, *RING, *MODEL, "cluster.workers=3", "trainer.max_steps=40", SHARDED)
    run.wait_until(has_steps(run_dir, 25))
    (pid,) = processes(run_dir)["worker1"]
    os.kill(pid, signal.SIGKILL)
    run.end(STOPPED)
    assert "was ended by SIGKILL" in run.output and "restart 1 of 3" in run.output, run.output
    return run_dir


@pytest.mark.slow
def test_a_killed_worker_changes_no_bits(whole: Path, killed: Path) -> None:
    assert outcome(killed) == outcome(whole)
    nobody_is_left(killed.parent)


@pytest.mark.slow
def test_another_number_of_workers_changes_no_bits(whole: Path, killed: Path, tmp_path: Path) -> None:
    """Two workers continue the three: undivided what was divided, and the other way round."""
    words = (*RING, *MODEL, "cluster.workers=2", "trainer.max_steps=50")
    runs = []
    for name, earlier, more in (("undivided", killed, ()), ("divided", whole, (SHARDED,))):
        shutil.copytree(earlier, tmp_path / name)
        runs.append(Process(tmp_path / name, *words, *more))
    for run in runs:
        run.end(STOPPED)
    assert outcome(tmp_path / "undivided") == outcome(tmp_path / "divided")
    nobody_is_left(tmp_path)


@pytest.mark.zoo
@pytest.mark.parametrize("store", ["horovod", "dist_sync"])
def test_verify_proves_divided_updates(store: str) -> None:
    done = verify(f"kvstore={store}", SHARDED, "cluster.workers=2", *MODEL)
    assert done.returncode == 0 and "the same as on one device" in done.stdout, done.stdout + done.stderr
