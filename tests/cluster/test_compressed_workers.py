"""Compressed gradients between real workers: what was left over survives a kill, and what cannot work is refused."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any, List

import pytest
from running import SMALL, Process, assert_same, checkpoints, has_steps, status, verify
from test_workers import nobody_is_left, processes

from mxtrain.checkpoint import open_checkpoint
from mxtrain.checkpoint.contents import read_checkpoint
from mxtrain.errors import ConfigError
from mxtrain.training.resume import differences

WAYS = {
    "bf16": ["kvstore=dist_device_sync", "kvstore.compression=bf16", "parallel=data", "parallel.devices=cpu:2"],
    "2bit": ["kvstore=dist_sync", "kvstore.compression=2bit", "kvstore.threshold=0.01", "trainer.clip_global_norm=5"],
    "topk": ["kvstore=p3", "cluster.servers=2", "kvstore.compression=topk", "kvstore.ratio=0.05"],
}
TWO = (
    "cluster.workers=2",
    "cluster.backoff=0.1",
    *SMALL,
    "model.hidden=[64]",
    "trainer.max_epochs=8",
    "optimizer=sgd",
    "optimizer.lr=0.1",
    "checkpoint.every_steps=20",
    "early_stopping=off",
)


@pytest.mark.zoo
def test_a_killed_run_ends_with_the_same_weights(tmp_path: Path) -> None:
    """Covers a compression that casts and keeps scales; test_threads.py covers all, also those that pack bits."""
    (tmp_path / "tmp").mkdir()
    Process(tmp_path / "undisturbed", *TWO, *WAYS["bf16"]).end()
    run_dir = tmp_path / "run"
    run = Process(run_dir, *TWO, *WAYS["bf16"], env={"TMPDIR": str(tmp_path / "tmp")}).wait_until(
        has_steps(run_dir, 45)
    )
    os.kill(processes(run_dir)["worker1"][0], signal.SIGKILL)
    run.end()
    assert "restart 1 of 3" in run.output
    assert_same(run_dir, tmp_path / "undisturbed")
    assert status(run_dir)["best"]["value"] > 0.85
    checkpoint = read_checkpoint(run_dir / "checkpoints" / checkpoints(run_dir)[-1])
    residual, weights = checkpoint.arrays("residual"), checkpoint.arrays("model")
    for name, weight in weights.items():
        own, other = residual[f"{name}:0"], residual[f"{name}:1"]
        assert own.shape == weight.shape and (own != other).any() and own.any() and other.any()
    nobody_is_left(tmp_path)
    assert not list((tmp_path / "tmp").iterdir())


@pytest.mark.zoo
def test_another_number_of_workers_continues(describe_run: Any, tmp_path: Path) -> None:
    run_dir, given = tmp_path / "run", (*TWO, *WAYS["2bit"])
    Process(run_dir, *given, "trainer.max_steps=30").end(75)
    before = read_checkpoint(run_dir / "checkpoints" / checkpoints(run_dir)[-1]).arrays("residual")
    now = describe_run(*given, "kvstore.compression=topk", "kvstore.threshold=null").config
    described = open_checkpoint(str(run_dir)).state["run"]["description"]
    assert "  kvstore.compression: was 2bit, now topk" in differences(described, now)
    done = Process(run_dir, *given, "cluster.workers=3").end()
    assert "gradients of 2 workers is split evenly over 3" in done.output
    after = read_checkpoint(run_dir / "checkpoints" / checkpoints(run_dir)[-1]).arrays("residual")
    assert {name[:-1] for name in after} == {name[:-1] for name in before} and len(after) == len(before) * 3 // 2
    assert status(run_dir)["best"]["value"] > 0.75  # the threshold suits the parts of two


@pytest.mark.zoo
def test_saving_by_the_clock_is_the_same_step_for_all(tmp_path: Path) -> None:
    """Gathering what was left over needs all workers: if each went by its own clock, they would wait for ever."""
    Process(
        tmp_path / "run",
        *TWO,
        *WAYS["topk"],
        "checkpoint.every_steps=null",
        "checkpoint.every_epochs=null",
        "checkpoint.every_minutes=0.0005",
        "checkpoint.keep_last=100",
    ).end()
    assert len(checkpoints(tmp_path / "run")) > 3


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides, words",
    [
        (["kvstore.compression=2bit"], ["kvstore.threshold"]),
        (["kvstore.compression=2bit", "kvstore.threshold=0"], ["kvstore.threshold", "greater than 0"]),
        (["kvstore.compression=topk", "kvstore.ratio=0"], ["kvstore.ratio", "greater than 0"]),
        (["kvstore.compression=topk", "kvstore.ratio=1.5"], ["kvstore.ratio", "less than 1"]),
        (["kvstore.compression=topk", "kvstore.ratio=0.3"], ["kvstore.ratio=0.3", "1.2 times the bytes"]),
        (["kvstore.compression=topkk"], ["kvstore.compression", "topk"]),
        (["kvstore.treshold=0.1"], ["kvstore.threshold"]),
    ],
)
def test_impossible_settings_are_refused(describe_run: Any, overrides: List[str], words: List[str]) -> None:
    """test_workers.py shows that nothing is written."""
    with pytest.raises(ConfigError) as refused:
        describe_run("kvstore=dist_sync", "cluster.workers=2", *overrides)
    assert all(word in str(refused.value) for word in words), refused.value


@pytest.mark.zoo
def test_verify_refuses_gradient_compression() -> None:
    done = verify("kvstore=dist_sync", "cluster.workers=2", "kvstore.compression=fp16")
    assert done.returncode == 2 and "kvstore.compression=none" in done.stderr, done.stdout + done.stderr
