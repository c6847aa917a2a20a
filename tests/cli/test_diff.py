"""`mxtrain diff`: what it finds in files, where curves part, and the first layer by replay of real runs."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any, Dict, Iterator

import numpy as np
import pytest
from run_directories import tree, write_checkpoint, write_run
from running import train_here

from mxtrain.archive.compare import Parting, WeightsDifference, find_parting
from mxtrain.checkpoint.contents import Snapshot, read_checkpoint, write_contents
from mxtrain.cli.dispatch import run as main
from mxtrain.workflows.diff import layers_sentence
from mxtrain.workflows.layer_comparison import LayerComparison

OVERRIDES = (
    "model=mlp",
    "model.hidden=[8,6]",
    "trainer.max_epochs=1",
    "dataset.batch_size=200",
    "trainer.test=false",
    "checkpoint.every_steps=1",
    "checkpoint.keep_last=99",
    "~logger.tensorboard",
)


def compared(capsys: pytest.CaptureFixture, *arguments: object) -> Dict[str, Any]:
    capsys.readouterr()
    assert main(["diff", *map(str, arguments), "format=json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run with the checkpoints of all steps."""
    path = tmp_path_factory.mktemp("trained") / "a"
    train_here(path, *OVERRIDES)
    yield path
    shutil.rmtree(path)


def losses_of(run_dir: Path) -> Dict[int, float]:
    rows = map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())
    return {row["step"]: row["loss"] for row in rows if row["split"] == "train"}


@pytest.mark.slow
def test_different_learning_rate_separates_curves_after_one_update(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    train_here(tmp_path / "b", *OVERRIDES, "optimizer.lr=0.01")
    found = compared(capsys, trained, tmp_path / "b")
    assert found["settings"] == [{"name": "optimizer.lr", "first": "0.001", "second": "0.01"}]
    assert found["data"] == [] and found["versions"] == []
    mine, other = losses_of(trained), losses_of(tmp_path / "b")
    assert found["curves"]["step"] == min(step for step in mine if mine[step] != other[step]) == 2
    assert found["curves"]["losses"] == [mine[2], other[2]] and found["curves"]["last_equal"] == 1
    one, two = (read_checkpoint(run / "checkpoints/step-00000001").arrays("model") for run in (trained, tmp_path / "b"))
    assert found["weights"]["largest"] == pytest.approx(max(float(np.abs(one[n] - two[n]).max()) for n in one))
    assert found["weights"]["step"] == 1 and found["replay"]["same_batch"] is True
    assert found["replay"]["num_layers"] <= 1 and found["replay"]["kind"] == "Dense"


@pytest.mark.parametrize(
    "step, last_equal, cause",
    [
        (3, 2, "the loss or its target"),
        (5, 4, "an update of the weights from step 3 on: the optimizer"),
        (10, None, "the loss, its target, the optimizer"),
    ],
)
def test_equal_layers_and_batches_indicate_loss_or_update(step: int, last_equal: int, cause: str) -> None:
    """The checkpoints are those after step 2."""
    result = LayerComparison(2, "", "", 0.0, 6, same_batch=True)
    parting = Parting(step, (1.0, 2.0), last_equal, step, 1)
    assert cause in layers_sentence(result, WeightsDifference(2, 6, [], [], 0.0), parting)


@pytest.mark.slow
def test_a_changed_layer_is_named_after_the_equal_ones(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Only the second layer of the second checkpoint is changed, by a known amount on one bias."""
    other = tmp_path / "b"
    shutil.copytree(trained, other)
    place = other / "checkpoints" / "step-00000003"
    checkpoint = read_checkpoint(place)
    arrays = {stem: dict(checkpoint.arrays(stem)) for stem in checkpoint.stems}
    biases = [name for name in arrays["model"] if name.endswith("bias")]
    arrays["model"][biases[1]] = arrays["model"][biases[1]] + np.float32(0.25)
    shutil.rmtree(place)
    write_contents(Snapshot(3, checkpoint.epoch, arrays, checkpoint.state, checkpoint.metric), place)
    lines = [json.loads(line) for line in (other / "metrics.jsonl").read_text().splitlines()]
    for row in lines:
        row["loss"] += 0.5 if row["step"] >= 4 else 0
    (other / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    before = tree(other)
    found = compared(capsys, trained, other)
    assert found["curves"]["step"] == 4 and found["weights"]["different"] == [biases[1]]
    assert found["replay"]["layer"] == biases[1].rpartition(".")[0]
    assert found["replay"]["difference"] == pytest.approx(0.25, abs=1e-5) and found["replay"]["num_layers"] >= 2
    assert tree(other) == before
    assert main(["diff", str(trained), str(other)]) == 0
    said = capsys.readouterr().out
    assert f"the first layer whose output differs is '{found['replay']['layer']}' (Dense)" in said
    assert "settings: no difference" in said and "the next batch is the same in both runs" in said


@pytest.mark.slow
def test_another_activation_and_another_seed(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    train_here(tmp_path / "tanh", *OVERRIDES, "model.activation=tanh", "trainer.max_steps=2", exit_code=75)
    found = compared(capsys, trained, tmp_path / "tanh")
    assert found["curves"]["step"] == 1 and found["weights"]["different"] == [] and found["weights"]["step"] == 0
    assert found["replay"]["kind"] in ("Activation", "Dense") and found["replay"]["same_batch"] is True
    train_here(tmp_path / "seed", *OVERRIDES, "trainer.seed=5", "trainer.max_steps=2", exit_code=75)
    found = compared(capsys, trained, tmp_path / "seed")
    assert found["replay"]["same_batch"] is False and found["weights"]["different"]


@pytest.mark.slow
def test_missing_checkpoints_are_explained(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    other = tmp_path / "b"
    shutil.copytree(trained, other)
    text = (other / "metrics.jsonl").read_text().splitlines()
    changed = [line.replace('"loss": ', '"loss": 1', 1) if json.loads(line)["step"] == 3 else line for line in text]
    (other / "metrics.jsonl").write_text("\n".join(changed) + "\n")
    for step in (0, 1, 2):
        shutil.rmtree(other / "checkpoints" / f"step-{step:08d}")
    found = compared(capsys, trained, other)
    assert found["curves"]["step"] == 3 and found["replay"] is None
    assert "a checkpoint of step 2 or before" in found["said"]
    assert "checkpoint.every_steps=2 checkpoint.keep_last=1000" in found["said"]
    for step in (0, 1):
        shutil.copytree(trained / "checkpoints" / f"step-{step:08d}", other / "checkpoints" / f"step-{step:08d}")
    found = compared(capsys, trained, other)
    assert found["weights"]["step"] == 1 and "step 2 is the last before, and has none" in found["said"]


def test_origins_and_settings_are_read_from_files(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    metas = [
        {
            "git": {"commit": commit, "dirty": False},
            "packages": {"mxnet": "1.9.1", "numpy": version},
            "python": "3.9",
            "data": {"splits": {"train": {"samples": 10, "sha256": digest}}},
            "host": {"name": "x"},
        }
        for commit, version, digest in (("aaa", "1.0", "00"), ("bbb", "2.0", "11"))
    ]
    for name, meta, lr in (("a", metas[0], 0.1), ("b", metas[1], 0.2)):
        write_run(tmp_path / name, meta=meta, lr=lr, metrics={"val/loss": lr}, best=lr)
    found = compared(capsys, tmp_path / "a", tmp_path / "b")
    assert {
        name: [(one["name"], one["first"], one["second"]) for one in found[name]]
        for name in ("settings", "code", "versions", "data", "machine")
    } == {
        "settings": [("optimizer.lr", "0.1", "0.2")],
        "code": [("commit", "aaa", "bbb")],
        "versions": [("numpy", "1.0", "2.0")],
        "data": [("train", "10 samples, 00", "10 samples, 11")],
        "machine": [],
    }
    assert {"name": "val/loss", "first": 0.1, "second": 0.2} in found["metrics"]
    assert found["curves"]["said"] == "the runs have logged no common step"


def test_curves_diverge_at_the_first_unequal_common_step(tmp_path: Path) -> None:
    """One run logs every step, the other every second one; a killed run's last line is incomplete."""
    for name, steps, changed in (("a", range(1, 9), None), ("b", range(2, 9, 2), 6)):
        rows = [{"step": s, "split": "train", "loss": 1.0 / s * (1.001 if s == changed else 1)} for s in steps]
        rows.append({"step": 9, "split": "train", "loss": 5.0 if name == "a" else None})
        write_run(tmp_path / name, rows=rows)
    with open(tmp_path / "b" / "metrics.jsonl", "a") as file:
        file.write('{"step": 10, "split": "tr')
    found = find_parting(str(tmp_path / "a"), str(tmp_path / "b"))
    assert (found.step, found.last_equal, found.visible_step, found.num_common) == (6, 4, 9, 5)
    assert found.losses == (1 / 6, 1 / 6 * 1.001)
    same = find_parting(str(tmp_path / "a"), str(tmp_path / "a"))
    assert (same.step, same.num_common) == (None, 9)


def test_networks_of_other_shapes_and_damaged_checkpoints(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    for name, loss in (("a", 1.0), ("b", 2.0)):
        write_run(tmp_path / name, rows=[{"step": 1, "split": "train", "loss": loss}])
        write_checkpoint(tmp_path / name / "checkpoints" / "step-00000000", 0, 0.5, weight=loss)
    found = compared(capsys, tmp_path / "a", tmp_path / "b", "replay=false")
    assert found["weights"] is None and found["said"] == ""
    found = compared(capsys, tmp_path / "a", tmp_path / "b")
    assert found["weights"]["different"] == ["0.weight"] and found["weights"]["largest"] == 1.0
    assert "No batch could be run through both" in found["said"]  # no description in these checkpoints
    file = tmp_path / "b" / "checkpoints" / "step-00000000" / "model.params"
    os.truncate(file, 10)
    found = compared(capsys, tmp_path / "a", tmp_path / "b")
    assert "cannot be used" in found["said"]


@pytest.mark.parametrize(
    "arguments, said",
    [
        ([], "none was given"),
        (["a"], "1 was given"),
        (["a", "bb"], "there is no folder 'bb'"),
        (["a", "folder"], "folder is no run directory"),
        (["a", "a", "repaly=false"], "Did you mean 'replay'?"),
    ],
)
def test_mistakes(
    arguments: Any, said: str, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path / "a")
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    assert main(["diff", *arguments]) == 2
    captured = capsys.readouterr()
    assert said in captured.err and captured.out == ""


@pytest.mark.parametrize(
    "path, of_whole_run, of_step",
    [
        ("trainer.max_epochs", True, False),
        ("trainer.max_steps", True, False),
        ("trainer.epoch_budget", True, False),
        ("trainer.val_interval", True, False),
        ("trainer.val_interval_unit", True, False),
        ("trainer.limit_val_batches", True, False),
        ("trainer.limit_test_batches", True, False),
        ("early_stopping.patience", True, False),
        ("callback.prune.sparsity", True, False),
        ("model.weights", True, False),
        ("checkpoint.resume", True, False),
        ("optimizer.lr", True, True),
        ("kvstore.compression", True, True),
        ("logger.csv.file_name", False, False),
        ("runtime.threads", False, False),
        ("dataset.root", False, False),
        ("trainer.log_interval", False, False),
        ("checkpoint.keep_last", False, False),
        ("cluster.workers", False, False),
        ("trainer.max_time", True, False),
        ("kvstore._target_", True, False),
        ("trainer.test", True, False),
    ],
)
def test_whole_run_depends_on_more_settings_than_one_step(path: str, of_whole_run: bool, of_step: bool) -> None:
    from mxtrain.training.resume import changes_result, settings_that_differ

    assert (changes_result(path, whole_run=True), changes_result(path)) == (of_whole_run, of_step)
    before, after = ({path.split(".")[0]: {path.partition(".")[2]: value}} for value in (8, 100))
    assert bool(settings_that_differ(before, after, whole_run=True)) is of_whole_run
    assert bool(settings_that_differ(before, after)) is of_step
