"""`cluster.balance=dynamic` with real processes: a slow worker, a worker that is killed, a stop and a resume."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any, Dict, List, Tuple

import pytest
from running import ROOT, Process, rows, status
from test_workers import nobody_is_left, processes

from mxtrain.checkpoint.contents import read_checkpoint
from mxtrain.errors import ConfigError

NETWORK = """
import os, pathlib, time, zlib

RANK = os.environ.get("MXTRAIN_WORKER", "0")

def network(num_classes, folder, sleep_s):
    from mxnet import autograd, gluon

    class Sleepy(gluon.Block):
        def __init__(self):
            super().__init__()
            self.output = gluon.nn.Dense(num_classes)

        def forward(self, x):
            if autograd.is_training():
                with (pathlib.Path(folder) / f"seen-{RANK}").open("a") as file:
                    file.writelines(f"{zlib.crc32(row.tobytes())}\\n" for row in x.asnumpy())
                time.sleep(sleep_s * x.shape[0] * (2 if RANK == "1" else 1))
            return self.output(x.reshape((x.shape[0], -1)))

    return Sleepy()
"""
SAMPLES = 1257
BATCH = 40
STEPS = -(-SAMPLES // BATCH)


@pytest.fixture
def sleepy(tmp_path: Path) -> Path:
    (tmp_path / "sleepy_chunks.py").write_text(NETWORK)
    (tmp_path / "conf" / "model").mkdir(parents=True)
    settings = f"_target_: sleepy_chunks.network\nsleep_s: 0.002\nfolder: {tmp_path}\n"
    (tmp_path / "conf" / "model" / "sleepy.yaml").write_text(settings)
    return tmp_path


def run(folder: Path, workers: int, epochs: int, *overrides: str) -> Process:
    words = [
        "--config-dir",
        str(folder / "conf"),
        "model=sleepy",
        "kvstore=dist_async",
        f"cluster.workers={workers}",
        "cluster.balance=dynamic",
        "cluster.backoff=0.1",
        f"dataset.batch_size={BATCH}",
        f"trainer.max_epochs={epochs}",
        "early_stopping=off",
        "trainer.test=false",
        "dataset.augment.crop_padding=0",
        *overrides,
    ]
    return Process(folder / "run", *words, env={"PYTHONPATH": f"{ROOT}:{folder}"})


def seen(folder: Path) -> Dict[str, List[str]]:
    return {path.name[-1]: path.read_text().split() for path in folder.glob("seen-*")}


def repeated(folder: Path, epochs: int) -> int:
    """Returns the number of times that samples were computed beyond once an epoch; no sample may be missing."""
    counts = Counter(one for samples in seen(folder).values() for one in samples)
    assert len(counts) > 0.9 * SAMPLES and min(counts.values()) >= epochs  # some digits are equal
    return sum(counts.values()) - epochs * SAMPLES


def updates(run_dir: Path) -> Tuple[int, int]:
    """Returns the step of the last checkpoint, and the updates that the servers had applied."""
    folder = max((run_dir / "checkpoints").glob("step-*"))
    checkpoint = read_checkpoint(folder)
    counts = set(checkpoint.state["optimizer"]["update_counts"].values())
    assert len(counts) == 1
    return checkpoint.step, counts.pop()


@pytest.mark.slow
def test_a_slow_worker_takes_fewer_chunks_and_a_stopped_run_continues(sleepy: Path) -> None:
    run(sleepy, 2, 2, "cluster.servers=2", f"trainer.max_steps={STEPS + 7}").end(75)
    step, num_updates = updates(sleepy / "run")
    assert (step, num_updates) == (STEPS + 7, 2 * (STEPS + 7))
    done = run(sleepy, 2, 2, "cluster.servers=2").end()
    assert repeated(sleepy, 2) == 0
    num_samples = {rank: len(samples) for rank, samples in seen(sleepy).items()}
    assert 0.2 < num_samples["1"] / (2 * SAMPLES) < 0.45, num_samples
    assert updates(sleepy / "run") == (2 * STEPS, 4 * STEPS), done.output
    found = rows(sleepy / "run")
    train = [row["step"] for row in found if row["split"] == "train"]
    assert train == sorted(set(train)) and len(train) > 1.2 * STEPS
    assert [row["step"] for row in found if row["split"] == "val"] == [STEPS, 2 * STEPS]
    nobody_is_left(sleepy)


@pytest.mark.slow
def test_chunks_of_a_killed_worker_are_taken_by_the_others(sleepy: Path) -> None:
    process = run(sleepy, 3, 3)
    # In the middle of the second epoch.
    process.wait_until(lambda: sum(map(len, seen(sleepy).values())) > 1.4 * SAMPLES)
    os.kill(processes(sleepy / "run")["worker2"][0], signal.SIGKILL)
    done = process.end()
    assert "2 of 3 workers go on without it, and take its chunks of the data" in done.output
    assert "worker 2 was lost" in done.output and "restart" not in done.output
    # Chunks that the lost worker had computed and not sent are computed again, and no update is applied twice.
    assert 0 <= repeated(sleepy, 3) <= 4 * BATCH // 3 + 4
    assert updates(sleepy / "run") == (3 * STEPS, 3 * 3 * STEPS)
    assert status(sleepy / "run")["state"] == "finished"
    nobody_is_left(sleepy)


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides, words",
    [
        (["kvstore=dist_sync"], ["cluster.balance=dynamic with kvstore=dist_sync", "kvstore=dist_async"]),
        (["kvstore=dist_async", "kvstore.compression=fp16"], ["kvstore.compression=fp16", "kvstore.compression=none"]),
        (["kvstore=dist_async", "kvstore.tables=servers"], ["kvstore.tables=servers", "kvstore.tables=workers"]),
        (["kvstore=dist_async", "cluster.balance_every=5"], ["taken, not measured", "Type cluster.balance=speed"]),
        (["kvstore=dist_async", "cluster.launcher=nodes"], ["cluster.launcher=nodes", "Type cluster.balance=speed"]),
        (["kvstore=dist_async", "task=reinforcement_learning"], ["needs equal_shares", "Type cluster.balance=equal"]),
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_dynamic_shards_that_cannot_work_are_refused(describe_run: Any, overrides: List[str], words: List[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        describe_run("cluster.workers=2", "cluster.balance=dynamic", *overrides)
    assert all(word in str(refused.value) for word in words), refused.value
