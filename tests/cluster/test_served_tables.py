"""Tables on parameter servers with real processes."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
from pathlib import Path
from typing import Dict, Tuple

import pytest
from running import Process, checkpoints, has_steps, status, steps, verify
from test_workers import nobody_is_left, processes

from mxtrain.checkpoint.contents import read_checkpoint


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two columns of codes and a number; the codes say most of the answer."""
    path, draw = tmp_path_factory.mktemp("table") / "rows.csv", random.Random(0)
    lines = ["a,b,x,target"]
    for _ in range(1200):
        a, b, x = draw.randrange(40), draw.randrange(40), draw.gauss(0, 1)
        lines.append(f"a{a},b{b},{x:.3f},{int((a % 3 == 0) + (b % 2 == 0) + 0.2 * x > 0.9)}")
    path.write_text("\n".join(lines) + "\n")
    return path


def settings(table: Path, *further: str) -> Tuple[str, ...]:
    return (
        "task=tabular", "dataset=feature_table", f"dataset.train={table}", "model=deepfm", "model.hidden=[8]",
        "dataset.columns={a: hashed, b: hashed}", "dataset.batch_size=64", "optimizer=adam", "optimizer.lr=0.02",
        "optimizer.lazy_update=true", "trainer.max_epochs=4", "early_stopping=off",
        "cluster.backoff=0.1", *further,
    )  # fmt: skip


def test_synchronous_workers_make_the_bits_of_tables_at_the_workers(table: Path, tmp_path: Path) -> None:
    """Also when another number of servers goes on, and one of them is killed. A process without servers goes on too."""
    common, run_dir = settings(table, "checkpoint.every_steps=10"), tmp_path / "run"
    servers = (*common, "kvstore=dist_sync", "cluster.workers=2", "kvstore.tables=servers")
    Process(tmp_path / "whole", *common, "kvstore=dist_sync", "cluster.workers=2").end()
    Process(run_dir, *servers, "cluster.servers=2", "trainer.max_steps=15").end(75)
    shutil.copytree(run_dir, tmp_path / "alone")
    run = Process(run_dir, *servers, "cluster.servers=3").wait_until(has_steps(run_dir, 25))
    os.kill(processes(run_dir)["server"][0], signal.SIGKILL)
    run.end()
    assert re.search(r"server \d .*was ended by SIGKILL.*restart 1 of 3", run.output), run.output
    found, wanted = status(run_dir), status(tmp_path / "whole")
    assert found["weights_sha256"] == wanted["weights_sha256"] and found["best"] == wanted["best"]
    assert steps(run_dir) == list(range(1, found["step"] + 1)) and found["metrics"]["test/roc_auc"] > 0.8
    assert arrays(run_dir) == arrays(tmp_path / "whole")
    Process(tmp_path / "alone", *common, "kvstore=local").end()
    alone = status(tmp_path / "alone")["metrics"]["test/roc_auc"]
    assert alone == pytest.approx(found["metrics"]["test/roc_auc"], abs=0.01)
    nobody_is_left(tmp_path)


def arrays(run_dir: Path) -> Dict[str, bytes]:
    """All of the last checkpoint, tables and the optimizer's state included."""
    checkpoint = read_checkpoint(run_dir / "checkpoints" / checkpoints(run_dir)[-1])
    return {f"{stem} {name}": array.tobytes() for stem in checkpoint.stems
            for name, array in checkpoint.arrays(stem).items()}  # fmt: skip


def test_asynchronous_workers_learn_and_one_is_one_device(table: Path, tmp_path: Path) -> None:
    given = settings(table, "kvstore=dist_async", "cluster.servers=2", "kvstore.tables=servers")
    Process(tmp_path / "run", *given, "cluster.workers=2", "checkpoint.every_steps=10").end()
    found = status(tmp_path / "run")
    assert found["metrics"]["test/roc_auc"] > 0.8, found["metrics"]
    done = verify(*given, "cluster.workers=1", "trainer.sparse_grad=true", "optimizer.lazy_update=false")
    assert done.returncode == 0 and "linear.table" in done.stdout, done.stdout + done.stderr
    nobody_is_left(tmp_path)
