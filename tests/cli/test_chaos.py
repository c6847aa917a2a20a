"""`debug=chaos`: real faults in real processes, and the same bits in the end."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from typing import Any, Callable, List

import pytest
from running import ROOT, assert_same, status

from mxtrain.callback.chaos import CHILD, Chaos
from mxtrain.cli import main
from mxtrain.cli.chaos import disk_that_may_be_full
from mxtrain.errors import ConfigError
from mxtrain.kvstore import spec as kvstore

SLOW = ("model=mlp", "model.hidden=[512,512]", "trainer.log_interval=1", "early_stopping=off", "runtime.threads=1")


@pytest.fixture(autouse=True)
def own_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes of the group start outside of this folder."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def chaos(run_dir: Path, *overrides: str) -> int:
    return main(["debug=chaos", f"hydra.run.dir={run_dir}", *SLOW, *overrides])


@pytest.mark.slow
def test_killed_and_damaged_run_has_the_same_bits(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    given = (
        "trainer.max_epochs=9",
        "trainer.max_steps=30",
        "callback.chaos.faults=[corrupt]",
        "callback.chaos.count=1",
    )
    assert chaos(tmp_path / "run", *given) == 0
    out = capfd.readouterr().out
    assert "the same result as without faults" in out
    assert "both runs ended at step 30, by trainer.max_steps" in out
    assert re.search(r"corrupt +after step \d+ +the run was ended, and byte \d+ of step-\d+/\S+ changed", out), out
    assert_same(tmp_path / "run", tmp_path / "run-reference")
    log = (tmp_path / "run-chaos.log").read_text()
    assert log.count("loading MXNet") == 3  # undisturbed, until the fault, after it
    # A third run would begin where these are.
    assert chaos(tmp_path / "run", *given) == 2
    assert "is not empty" in capfd.readouterr().err


ALL: List[List[str]] = [
    ["callback.chaos.count=6", "trainer.max_epochs=40"],
    ["callback.chaos.count=5", "trainer.max_epochs=20", "kvstore=dist_sync", "cluster.workers=2"],
    ["callback.chaos.count=5", "trainer.max_epochs=20", "kvstore=horovod", "cluster.workers=2"],
]


@pytest.mark.zoo
@pytest.mark.parametrize("overrides", ALL, ids=["one process", "two workers", "ring"])
def test_all_faults(tmp_path: Path, overrides: List[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert chaos(tmp_path / "run", *overrides) == 0, capfd.readouterr().out
    out = capfd.readouterr().out
    with_workers = "cluster.workers=2" in overrides
    is_ring = "kvstore=horovod" in overrides
    kinds = ["pause", "corrupt", "full", *(["delay"] if with_workers else []), *([] if is_ring else ["kill"])]
    assert all(re.search(rf"(?m)^ *{kind} ", out) for kind in kinds), out
    if with_workers:  # a step sends its gradients through the link
        senders = "the workers" if is_ring else "worker [01]"
        assert re.search(rf"what {senders} sent was held back for 0.5 s \([1-9][\d,]* bytes\)", out), out
    assert_same(tmp_path / "run", tmp_path / "run-reference")


def test_schedule_depends_on_the_seed_alone() -> None:
    schedule = Chaos(count=8).schedule(100)
    assert schedule == Chaos(count=8).schedule(100) != Chaos(count=8, seed=1).schedule(100)
    assert [fault.step for fault in schedule] == sorted(fault.step for fault in schedule)
    assert sorted(fault.kind for fault in Chaos(count=10).schedule(100)) == sorted(
        ["kill", "pause", "corrupt", "full", "delay"] * 2
    )
    assert "delay" not in {fault.kind for fault in Chaos(count=10).schedule(100, left_out={"delay"})}
    assert all(1 <= fault.step < 100 for fault in schedule)
    assert [fault.step for fault in Chaos(count=2).schedule(1)] == [1, 1]


def test_full_disk_is_one_for_writes_to_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flag = tmp_path / "full"
    monkeypatch.setenv(CHILD, str(flag))
    real = os.write
    fd = os.open(tmp_path / "file", os.O_WRONLY | os.O_CREAT)
    reader, writer = os.pipe()
    try:
        with disk_that_may_be_full():
            assert os.write(fd, b"abc") == 3
            flag.touch()
            with pytest.raises(OSError) as caught:
                os.write(fd, b"def")
            assert caught.value.errno == errno.ENOSPC
            assert os.write(writer, b"x") == 1  # pipes are no disk
            flag.unlink()
            assert os.write(fd, b"ghi") == 3
    finally:
        for one in (fd, reader, writer):
            os.close(one)
    assert os.write is real and (tmp_path / "file").read_bytes() == b"abcghi"


@pytest.mark.parametrize(
    "overrides, said",
    [
        (["kvstore=dist_async", "cluster.workers=2"], "no two runs"),
        (["kvstore=dist_sync", "cluster.workers=2", "cluster.launcher=slurm"], "only processes of this machine"),
        (["logger=csv"], "metrics.jsonl"),
        (["checkpoint=off"], "checkpoint"),
        (["trainer.max_time=60"], "trainer.max_steps=N"),
        (["callback.chaos.faults=[delay]"], "no link to delay"),
        (["callback.chaos.faults=[kill]", "kvstore=horovod", "cluster.workers=2"], "divide the batch"),
    ],
)
def test_runs_that_cannot_be_compared_are_refused(
    overrides: List[str], said: str, describe_run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kvstore, "has_horovod", lambda: False)  # both problems are reported at once
    with pytest.raises(ConfigError, match=said):
        describe_run("callback=chaos", *overrides)


def test_processes_of_a_run_with_faults_accept_its_settings(
    describe_run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CHILD, "/nowhere/full")
    describe_run("callback=chaos", "callback.chaos.faults=[delay]")


@pytest.mark.zoo
def test_reference_fails_as_the_run_would(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert chaos(tmp_path / "run", "optimizer=sgd", "optimizer.lr=1e30", "trainer.max_epochs=1") == 3
    assert "the undisturbed run ended with exit code 3" in capfd.readouterr().out
    assert not (tmp_path / "run").exists()
    assert status(tmp_path / "run-reference")["state"] == "failed"
