"""Local SGD in whole runs: real workers that are killed between two synchronisations, and workers in threads."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any, Dict, Tuple

import numpy as np
import pytest
from in_threads import Rendezvous, Threads
from running import Process, checkpoints, has_steps, rows, status
from test_workers import SLOW, nobody_is_left, processes

from mxtrain.checkpoint.contents import read_checkpoint
from mxtrain.kvstore.spec import has_horovod
from mxtrain.kvstore.world import World
from mxtrain.training.build import build_run

NESTEROV = ("kvstore.sync_every=7", "kvstore.outer_optimizer=nesterov", "cluster.backoff=0.1")
HOROVOD = pytest.mark.skipif(not has_horovod(), reason="Horovod is not built here: scripts/horovod")
STORES = [
    pytest.param(("kvstore=dist_sync", "cluster.workers=2"), marks=pytest.mark.slow),
    pytest.param(("kvstore=horovod", "cluster.workers=3"), marks=[HOROVOD, pytest.mark.zoo]),
]
IN_THREADS = (
    "kvstore._target_=in_threads.Threads",
    "cluster.workers=3",
    "model=lenet",
    "model.channels=[4,8]",
    "model.hidden=32",
    "model.dropout=0",
    "dataset.batch_size=210",
    "trainer.max_epochs=2",
    "early_stopping=off",
    "optimizer=sgd",
    "optimizer.lr=0.05",
    "optimizer.momentum=0.9",
    "logger=jsonl",
)


def results(run_dir: Path) -> Any:
    """Rows, hash of the weights and metrics of a run, without times and bytes."""
    found = status(run_dir)
    metrics = {name: value for name, value in found["metrics"].items() if not name.startswith("perf/")}
    return rows(run_dir), found["weights_sha256"], found["best"], metrics


@pytest.mark.parametrize("store", STORES, ids=["dist_sync", "horovod"])
def test_a_killed_and_interrupted_run_reaches_the_weights_of_an_unbroken_one(
    tmp_path: Path, store: Tuple[str, ...]
) -> None:
    """Checkpoints are written every 20 steps and after the signal, so between two synchronisations."""
    given, run_dir = (*store, *NESTEROV, *SLOW), tmp_path / "run"
    Process(tmp_path / "unbroken", *given).end()
    run = Process(run_dir, *given).wait_until(has_steps(run_dir, 25))
    (pid,) = processes(run_dir)["worker1"]
    os.kill(pid, signal.SIGKILL)
    run.wait_until(lambda: processes(run_dir).get("worker1", [pid]) != [pid])
    run.wait_until(has_steps(run_dir, 45)).kill(signal.SIGTERM).end(143)
    assert "was ended by SIGKILL" in run.output and "restart 1 of 3" in run.output, run.output
    saved = read_checkpoint(run_dir / "checkpoints" / checkpoints(run_dir)[-1])
    assert saved.state["states"]["local_sgd"]["count"] == saved.step % 7
    done = Process(run_dir, *given).end()
    assert results(run_dir) == results(tmp_path / "unbroken")
    assert status(run_dir)["metrics"]["perf/sync_sent_MB"] > 0 and "perf/sync_s" in done.output
    nobody_is_left(tmp_path)


def train(description: Any, run_dir: Path) -> Dict[str, np.ndarray]:
    """Trains with workers in threads; returns the weights of the last checkpoint."""

    def work(world: World) -> Any:
        made = build_run(description, run_dir, world=world)
        return made.runner.train(made.info)

    Threads.rendezvous = Rendezvous(3)
    assert [one.state for one in Threads.rendezvous.run(work)] == ["finished"] * 3
    return dict(read_checkpoint(run_dir / "checkpoints" / checkpoints(run_dir)[-1]).arrays("model"))


@pytest.mark.slow
def test_averaging_after_each_step_is_data_parallel_sgd(describe_run: Any, tmp_path: Path) -> None:
    """Momentum is linear in the gradients, so the mean of the workers' weights is that of the mean gradient, if the
    workers' shares of all batches are equal, as here."""
    plain = train(describe_run(*IN_THREADS), tmp_path / "plain")
    local = train(describe_run(*IN_THREADS, "kvstore.sync_every=1"), tmp_path / "local")
    rarely = train(describe_run(*IN_THREADS, "kvstore.sync_every=4"), tmp_path / "rarely")
    assert plain.keys() == local.keys()
    for name, array in plain.items():
        np.testing.assert_allclose(local[name], array, rtol=1e-3, atol=2e-5, err_msg=name)
    assert max(abs(rarely[name] - array).max() for name, array in plain.items()) > 1e-3


@pytest.mark.zoo
def test_replicas_of_a_worker_get_synchronised_weights_and_statistics(describe_run: Any, tmp_path: Path) -> None:
    """Each validation compares the copies of all replicas and workers bit by bit."""
    given = (*IN_THREADS, "parallel=data", "parallel.devices=cpu:2", "model=resnet", "model.depth=8")
    given = tuple(word for word in given if not word.startswith(("model.channels", "model.hidden", "model.dropout")))
    weights = train(
        describe_run(*given, "kvstore.sync_every=3", "trainer.val_interval=3", "trainer.val_interval_unit=steps"),
        tmp_path / "run",
    )
    assert any("running_mean" in name for name in weights)
