"""Tables on parameter servers with real processes."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
from pathlib import Path
from typing import Any, Dict, List, Tuple

import pytest
from running import Process, checkpoints, has_steps, rows, status, steps, train_here, verify
from test_workers import nobody_is_left, processes

from mxtrain.checkpoint.contents import read_checkpoint
from mxtrain.cli.dispatch import run as mxtrain


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
        "task=tabular",
        "dataset=feature_table",
        f"dataset.train={table}",
        "model=deepfm",
        "model.hidden=[8]",
        "dataset.columns={a: hashed, b: hashed}",
        "dataset.batch_size=64",
        "optimizer=adam",
        "optimizer.lr=0.02",
        "optimizer.lazy_update=true",
        "trainer.max_epochs=6",
        "early_stopping=off",
        "trainer.log_interval=5",
        "cluster.backoff=0.1",
        *further,
    )


def kill(run: Process, victim: str, after: int) -> int:
    """Kills one of the processes when that many further rows are written, and waits until it was noticed."""
    run_dir, log = run.run_dir, run.run_dir / "workers" / "supervisor.log"
    before = log.read_text().count("restart") if log.exists() else 0
    written = len(rows(run_dir)) if (run_dir / "metrics.jsonl").exists() else 0
    run.wait_until(has_steps(run_dir, written + 1))
    pid = processes(run_dir)[victim][0]
    run.wait_until(has_steps(run_dir, written + after))
    os.kill(pid, signal.SIGKILL)
    run.wait_until(lambda: log.exists() and log.read_text().count("restart") > before)
    name = re.sub(r"(\d)", r" \1", victim)
    assert re.search(rf"{name}[ \d]* ?\(process {pid}\) was ended by SIGKILL.*restart \d of 3", log.read_text())
    return pid


@pytest.mark.zoo
def test_synchronous_served_tables_equal_local_tables_bit_for_bit(table: Path, tmp_path: Path) -> None:
    """Also when another number of servers goes on, and one of them, and then a worker, is killed. A process without
    servers goes on too."""
    common, run_dir = settings(table, "checkpoint.every_steps=10"), tmp_path / "run"
    servers = (*common, "kvstore=dist_sync", "cluster.workers=2", "kvstore.tables=servers")
    Process(tmp_path / "whole", *common, "kvstore=dist_sync", "cluster.workers=2").end()
    Process(run_dir, *servers, "cluster.servers=3", "trainer.max_steps=15").end(75)
    shutil.copytree(run_dir, tmp_path / "alone")
    run = Process(run_dir, *servers, "cluster.servers=2")
    kill(run, "server", 10)
    kill(run, "worker1", 10)
    run.end()
    found, wanted = status(run_dir), status(tmp_path / "whole")
    assert found["weights_sha256"] == wanted["weights_sha256"] and found["best"] == wanted["best"]
    assert steps(run_dir) == list(range(1, found["step"] + 1)) and found["metrics"]["test/roc_auc"] > 0.8
    assert arrays(run_dir) == arrays(tmp_path / "whole")
    train_here(tmp_path / "alone", *common, "kvstore=local")
    alone = status(tmp_path / "alone")["metrics"]["test/roc_auc"]
    assert alone == pytest.approx(found["metrics"]["test/roc_auc"], abs=0.01)
    nobody_is_left(tmp_path)


def arrays(run_dir: Path) -> Dict[str, bytes]:
    """All of the last checkpoint, tables and the optimizer's state included."""
    checkpoint = read_checkpoint(run_dir / "checkpoints" / checkpoints(run_dir)[-1])
    return {
        f"{stem} {name}": array.tobytes()
        for stem in checkpoint.stems
        for name, array in checkpoint.arrays(stem).items()
    }


@pytest.mark.zoo
def test_asynchronous_workers_learn_and_one_is_one_device(table: Path, tmp_path: Path) -> None:
    """Workers go on when one of them is killed."""
    given = settings(table, "kvstore=dist_async", "cluster.servers=2", "kvstore.tables=servers")
    run = Process(tmp_path / "run", *given, "cluster.workers=2", "checkpoint.every_steps=10")
    kill(run, "worker1", 25)
    run.end()
    found = status(tmp_path / "run")
    assert found["metrics"]["test/roc_auc"] > 0.8, found["metrics"]
    assert steps(tmp_path / "run") == list(range(1, found["step"] + 1)) and found["epoch"] == 6
    assert re.search(r"the servers go on from step [1-9]\d*: what they had applied after it", run.output), run.output
    done = verify(*given, "cluster.workers=1", "trainer.sparse_grad=true", "optimizer.lazy_update=false")
    assert done.returncode == 0 and "linear.table" in done.stdout, done.stdout + done.stderr
    nobody_is_left(tmp_path)


def ratings(folder: Path) -> Path:
    """Ratings in MovieLens's format: users rate films of their own group only."""
    draw, lines = random.Random(0), ["userId,movieId,rating,timestamp"]
    for user in range(120):
        for film in draw.sample(range(user % 4, 60, 4), 9):
            lines.append(f"{user},{film},{draw.randrange(1, 6)},{draw.randrange(10**6)}")
    (folder / "ratings.csv").write_text("\n".join(lines) + "\n")
    return folder / "ratings.csv"


@pytest.mark.usefixtures("own_cache")
@pytest.mark.zoo
def test_a_recommender_under_p3_is_stopped_early_as_without_servers(tmp_path: Path, capfd: Any) -> None:
    """Worker 0 is killed; two replicas in one process with tables of their own make the same bits, ranks and lists."""
    given = (
        "task=recommendation",
        "dataset=movielens",
        f"dataset.root={ratings(tmp_path)}",
        "dataset.sampled_negatives=15",
        "dataset.batch_size=32",
        "model=neumf",
        "model.units=8",
        "model.hidden=[16,8]",
        "optimizer.lr=0.02",
        "trainer.sparse_grad=true",
        "trainer.log_interval=5",
        "early_stopping=on",
        "early_stopping.patience=2",
        "checkpoint.every_steps=10",
        "cluster.backoff=0.1",
    )
    wanted_dir, run_dir = tmp_path / "wanted", tmp_path / "run"
    train_here(wanted_dir, *given, "parallel=data", "parallel.devices=cpu:2")
    run = Process(run_dir, *given, "kvstore=p3", "cluster.workers=2", "cluster.servers=2", "kvstore.tables=servers")
    kill(run, "worker0", 40)
    run.end()
    found, wanted = status(run_dir), status(wanted_dir)
    assert wanted["state"] == found["state"] == "stopped_early" and found["step"] == wanted["step"] > 60
    assert found["weights_sha256"] == wanted["weights_sha256"] and found["best"]["step"] == wanted["best"]["step"]
    assert arrays(run_dir) == arrays(wanted_dir) and steps(run_dir) == list(range(1, found["step"] + 1))
    for name, value in wanted["metrics"].items():
        assert found["metrics"][name] == pytest.approx(value, abs=1e-6), name
    assert found["metrics"]["test/hr_at_k"] > 0.8 and found["metrics"]["val/ndcg_at_k"] < 0.9
    said = [used(one, capfd) for one in (run_dir, wanted_dir)]
    assert said[0] == said[1] and len(said[0]) == 121
    nobody_is_left(tmp_path)


def used(run_dir: Path, capfd: Any) -> List[str]:
    """Returns the metrics of `eval` and the recommendations of `predict` for 120 users."""
    capfd.readouterr()
    assert mxtrain(["eval", str(run_dir), "task.baselines=false"]) == 0
    measured = re.findall(r"(\w+_at_k\w*) (\d\.\d+)", capfd.readouterr().out)
    expected = status(run_dir)["metrics"]
    assert sorted(f"test/{name}" for name, _ in measured) == sorted(n for n in expected if re.match("test/.*_at_", n))
    for name, value in measured:
        assert float(value) == pytest.approx(expected[f"test/{name}"], abs=1e-4)
    assert mxtrain(["predict", str(run_dir), "all", "top_k=3"]) == 0
    return [str(measured), *[line for line in capfd.readouterr().out.splitlines() if line.startswith("{")]]


@pytest.mark.zoo
def test_failed_steps_are_repeated_with_tables_of_the_checkpoint(table: Path, tmp_path: Path) -> None:
    """A worker has no tables, so the bundle names the step: `replay` reads its batch and the checkpoint again."""
    common = settings(
        table,
        "kvstore=dist_sync",
        "cluster.workers=2",
        "kvstore.tables=servers",
        "checkpoint.every_steps=10",
        "trainer.log_interval=1",
    )
    Process(tmp_path / "nan", *common, "optimizer.lr=1e38").end(3)
    bundles = sorted((tmp_path / "nan/replay").iterdir())
    assert bundles and all(not (one / "arrays.npz").exists() for one in bundles)
    assert mxtrain(["replay", str(bundles[0])]) == 0
    run_dir = tmp_path / "killed"
    run = Process(run_dir, *common, "checkpoint.keep_last=100")
    kill(run, "worker1", 12)
    run.end()
    (bundle,) = (run_dir / "replay").iterdir()
    assert bundle.name.endswith("-worker-1") and "SIGKILL" in (bundle / "bundle.json").read_text()
    step = int(bundle.name.split("-")[1])
    assert f"repeats step {step} layer by layer" in (run_dir / "workers/supervisor.log").read_text()
    found = mxtrain(["replay", str(run_dir), f"step={step}", f"output={tmp_path}/out.json"])
    assert found == 0 and '"loss"' in (tmp_path / "out.json").read_text()


@pytest.mark.zoo
def test_class_centres_on_servers_equal_those_of_one_process(tmp_path: Path) -> None:
    """A run whose worker is killed ends with the same bits."""
    words = ("task=metric_learning", "task.sampled_classes=4", "trainer.sparse_grad=true", "model.hidden=8")
    words += ("kvstore=dist_sync", "cluster.workers=2", "trainer.max_epochs=3", "trainer.log_interval=5")
    words += ("checkpoint.every_steps=10", "cluster.backoff=0.1")
    servers = ("cluster.servers=2", "kvstore.tables=servers")
    done = verify(*words, *servers)
    assert done.returncode == 0 and "centres" in done.stdout and "every bit is equal" in done.stdout, done.stderr
    Process(tmp_path / "whole", *words).end()
    run = Process(tmp_path / "run", *words, *servers)
    kill(run, "worker1", 10)
    run.end()
    assert arrays(tmp_path / "run") == arrays(tmp_path / "whole")
    nobody_is_left(tmp_path)
