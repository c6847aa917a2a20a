"""`--dry-run` of the command line: the table, what it refuses, and that nothing is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from mxtrain.cli import main
from mxtrain.training.estimate import Estimate
from mxtrain.workflows.dry_run import dry_run

TASKS = sorted(path.stem for path in (Path(__file__).resolve().parents[2] / "conf/task").glob("*.yaml"))


@pytest.mark.parametrize(
    "typed, words",
    [
        ("--dryrun", ["no flag '--dryrun'", "'--dry-run'"]),
        ("--dry_run", ["'--dry-run'"]),
        ("verify --dry-run", ["--dry-run goes with train"]),
        ("predict x --dry-run", ["--dry-run goes with train"]),
        ("-m --dry-run optimizer.lr=0.1,0.2", ["leave out -m"]),
        ("--dry-run hydra.mode=MULTIRUN", ["leave out -m"]),
        ("--dry-run --cfg job", ["--cfg and --dry-run exclude each other"]),
        ("--dry-run model=lenett", ["model=lenett", "'lenet'"]),
    ],
)
def test_wrong_input(typed, words, capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(typed.split()) == 2
    error = capsys.readouterr().err
    assert error.startswith("error:") and all(word in error for word in words), error
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_table_and_next_command(capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["--dry-run", "model=mlp", "hydra.run.dir=run", "dataset.batch_size=50", "trainer.max_epochs=3"]) == 0
    shown = capsys.readouterr().out
    rows = dict(line.split(maxsplit=1) for line in shown.splitlines() if line[:1].isalpha())
    assert rows["data"] == "train 1,257, val 270, test 270"
    assert rows["network"].startswith("17,226 parameters")  # (64 + 1) 128 + (128 + 1) 64 + (64 + 1) 10
    assert rows["steps"].startswith("26 an epoch, 78 in all")  # 1257 / 50, rounded up
    assert "iB" in rows["memory"] and "an epoch" in rows["time"]
    assert shown.splitlines()[-1].endswith(
        "mxtrain model=mlp hydra.run.dir=run dataset.batch_size=50 trainer.max_epochs=3"
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(
    "estimate, warned, said",
    [
        (Estimate(1 << 50, None, 0, True), True, "about 1e+06 GiB"),
        (Estimate(1 << 20, None, 0, True), False, "about 1 MiB"),
        (None, False, "none: the network cannot be traced"),
    ],
)
def test_too_much_memory_is_warned_of(describe_run, monkeypatch, estimate, warned, said) -> None:
    monkeypatch.setattr("mxtrain.workflows.dry_run.estimate_training", lambda *parts, **options: estimate)
    found = dry_run(describe_run("model=mlp"))
    assert any("training needs more memory than there is. " in text for text in found.warnings) is warned
    assert said in dict(found.rows).values()


@pytest.mark.slow
def test_missing_data(capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["--dry-run", "dataset=image_folder", "dataset.root=nowhere"]) == 2
    assert "nowhere" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides, devices",
    [
        (["parallel=hybrid"], "cpu(0), cpu(1), cpu(2), cpu(3)"),
        (["kvstore=dist_sync", "cluster.workers=2"], "2 workers x cpu(0)"),
    ],
)
def test_placements_and_workers(describe_run, overrides, devices) -> None:
    assert dict(dry_run(describe_run("model=mlp", *overrides)).rows)["devices"] == devices


@pytest.mark.zoo_except("classification", "reinforcement_learning", "speech_recognition")
@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_each_task(describe_run, task) -> None:
    found = dict(dry_run(describe_run(f"task={task}")).rows)
    assert {"data", "network", "devices", "steps", "memory", "time"} <= set(found)
