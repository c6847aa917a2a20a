"""Cross validation as a group of runs: what is trained, resumed, refused and summarized."""

from __future__ import annotations

import json
import math
import signal
import statistics
from pathlib import Path
from typing import Any, List

import pytest
from running import SMALL, Process, assert_same, image, status, train_here

import mxtrain
from mxtrain.cli.dispatch import run
from mxtrain.cluster.launch.folds import print_folds
from mxtrain.errors import ConfigError, DataError, MxtrainError
from mxtrain.training.fold_results import FOLDS_FILE, FoldResult, read_folds, summarize, write_folds
from mxtrain.training.spec import Trainer

CHEAP = (*SMALL, "trainer.max_epochs=1", "trainer.folds=3")


def metrics_of(run_dir: Path, name: str) -> List[float]:
    return [status(run_dir / f"fold-{number}")["metrics"][name] for number in (1, 2, 3)]


@pytest.mark.slow
def test_a_fold_is_an_ordinary_run_and_the_group_has_mean_and_deviation(tmp_path: Path, capsys: Any) -> None:
    output = train_here(tmp_path / "cv", *CHEAP)
    content = json.loads((tmp_path / "cv/folds.json").read_text())
    assert (content["state"], content["exit_code"], [one["run"] for one in content["runs"]]) == (
        "finished",
        0,
        ["fold-1", "fold-2", "fold-3"],
    )
    for name in ("val/accuracy", "val/loss", "test/accuracy"):  # one epoch: the best weights are the last
        values = metrics_of(tmp_path / "cv", name)
        assert content["metrics"][name] == pytest.approx(statistics.mean(values), rel=1e-12)
        assert content["std"][name] == pytest.approx(statistics.stdev(values), rel=1e-9)
    row = next(line.split() for line in output.splitlines() if line.startswith("val/accuracy "))
    assert row[1:] == [
        f"{value:.4f}"
        for value in (
            content["metrics"]["val/accuracy"],
            content["std"]["val/accuracy"],
            *metrics_of(tmp_path / "cv", "val/accuracy"),
        )
    ]
    # The same fold alone, as a run of its own.
    train_here(tmp_path / "alone", *CHEAP, "trainer.fold=2")
    assert_same(tmp_path / "alone", tmp_path / "cv/fold-2")
    # `eval` measures the fold that the run has not seen.
    assert run(["eval", str(tmp_path / "cv/fold-2"), "split=val"]) == 0
    measured = json.loads((tmp_path / "cv/fold-2/eval/val/metrics.json").read_text())
    assert measured["accuracy"] == pytest.approx(metrics_of(tmp_path / "cv", "val/accuracy")[1])
    assert run(["eval", str(tmp_path / "cv")]) == 2
    assert "holds the folds of a cross validation. Name one of its 3 runs" in capsys.readouterr().err
    # A second call trains nothing, and further repetitions only train what is missing.
    before = image(tmp_path / "cv/fold-1")
    again = train_here(tmp_path / "cv", *CHEAP, "trainer.fold_repeats=2")
    assert "fold 3 of 6 is finished" in again and "fold 4 of 6: " in again
    assert image(tmp_path / "cv/fold-1") == before
    assert len(read_folds(tmp_path / "cv")["runs"]) == 6
    # Folders of other runs are refused.
    before = image(tmp_path / "cv")
    assert "trainer.folds: was 3, now 4" in train_here(tmp_path / "cv", *CHEAP, "trainer.folds=4", exit_code=2)
    assert "fold-1 holds a run without folds" in train_here(tmp_path / "cv/fold-1", *CHEAP, exit_code=2)
    assert image(tmp_path / "cv") == before
    (tmp_path / "cv/folds.json").unlink()
    (tmp_path / "cv/folds.json").symlink_to(tmp_path / "elsewhere")
    assert "is a link" in train_here(tmp_path / "cv", *CHEAP, exit_code=2)


@pytest.mark.slow
def test_killed_group_resumes_at_the_stopped_fold(tmp_path: Path) -> None:
    settings = (*CHEAP, "trainer.max_epochs=4", "checkpoint.every_steps=3", "model.dropout=0.3")
    killed = Process(tmp_path / "cv", *settings)
    killed.wait_until(lambda: any((tmp_path / "cv/fold-2/checkpoints").glob("step-*")))
    killed.kill(signal.SIGKILL).end(-signal.SIGKILL)
    assert [one["run"] for one in read_folds(tmp_path / "cv")["runs"]] == ["fold-1"]
    before = image(tmp_path / "cv/fold-1")
    output = train_here(tmp_path / "cv", *settings)
    assert "fold 1 of 3 is finished" in output and image(tmp_path / "cv/fold-1") == before
    train_here(tmp_path / "whole", *settings, "trainer.fold=2")
    assert_same(tmp_path / "cv/fold-2", tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize(
    "words, said",
    [
        (["trainer.folds=1"], "trainer.folds=1: should be greater than or equal to 2"),
        (["trainer.fold=1"], "fold=1 needs the number of folds. Type trainer.folds=5"),
        (["trainer.folds=3", "trainer.fold=4"], "fold=4: there are 3 folds"),
        (
            ["trainer.folds=3", "task=reinforcement_learning"],
            "Gymnasium (task=reinforcement_learning) cannot be divided",
        ),
        (["trainer.folds=3", "task=language_modeling"], "cannot be divided into folds"),
        (["trainer.folds=3", "checkpoint.upload=s3://bucket/runs/a"], "each fold is a run, and would need an address"),
        (["trainer.folds=3", "trainer.fold_groups=patient"], "Digits cannot group samples by a column"),
        (["trainer.fold_group=patient"], "Did you mean 'trainer.fold_groups'"),
        (["-m", "trainer.folds=3", "model=mlp,lenet"], "Type trainer.fold=1,2,3 as well"),
        (["tune", "study", "trainer.folds=3", "optimizer.lr=log(1e-4,1e-1)"], "tune trains one fold in a run"),
        (["lr_find", "trainer.folds=3"], "lr_find trains one fold in a run"),
        (["trainer.folds=3000"], "every fold needs one. Type trainer.folds=1527 or less"),
    ],
)
def test_wrong_folds_are_refused_without_output(
    tmp_path: Path, monkeypatch: Any, capsys: Any, words: List[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(words) == 2
    assert said in capsys.readouterr().err
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.slow
def test_python(tmp_path: Path) -> None:
    import numpy as np

    rng = np.random.RandomState(0)
    x = rng.normal(size=(90, 4)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    made = mxtrain.train(
        "trainer.folds=3", "trainer.max_epochs=2", "logger=jsonl", model="mlp", dataset=(x, y), dir=tmp_path / "cv"
    )
    assert made.state == "finished" and len(made.folds) == 3
    values = [one.best["value"] for one in made.folds]
    assert made.metrics["val/accuracy"] == pytest.approx(statistics.mean(values))
    assert made.status["std"]["val/accuracy"] == pytest.approx(statistics.stdev(values))
    held = [batch["index"] for one in made.folds for batch in one.batches("val")]
    assert sum(map(len, held)) == 90
    loaded = mxtrain.load(tmp_path / "cv")
    assert [one.path.name for one in loaded.folds] == ["fold-1", "fold-2", "fold-3"] and not made.folds[0].folds
    with pytest.raises(DataError, match="is a cross validation"):
        loaded.history()
    with pytest.raises(ConfigError, match="cannot be divided into folds"):
        mxtrain.train("trainer.folds=3", "task=language_modeling", dir=tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_summary_is_over_the_values_that_all_folds_have() -> None:
    found = summarize([{"a": 1.0, "b": 2.0}, {"a": 4.0}, {"a": 7.0, "b": 3.0}])
    assert found == {"a": {"mean": 4.0, "std": 3.0, "defined": 3}}
    undefined = summarize([{"a": 1.0, "b": math.nan}, {"a": math.nan, "b": math.nan}, {"a": 4.0, "b": math.nan}])
    assert undefined["a"] == {"mean": 2.5, "std": pytest.approx(statistics.stdev([1.0, 4.0])), "defined": 2}
    assert undefined["b"]["defined"] == 0 and all(math.isnan(undefined["b"][name]) for name in ("mean", "std"))
    assert summarize([]) == {}
    assert summarize([{"a": 1.0}])["a"]["std"] != summarize([{"a": 1.0}])["a"]["std"]  # NaN: one value has no deviation


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{",
        '{"state": 1}',
        '{"state": "finished", "exit_code": 0, "cause": "", '
        '"num_folds": 2, "metrics": {}, "std": {}, "runs": [{"run": "../../x", "state": "", '
        '"exit_code": 0, "values": {}}]}',
    ],
)
def test_untrusted_fold_results_are_validated(tmp_path: Path, text: str) -> None:
    (tmp_path / "folds.json").write_text(text)
    with pytest.raises(MxtrainError, match="folds.json"):
        _ = mxtrain.load(tmp_path)


@pytest.mark.zoo
def test_several_workers_train_the_same_folds(tmp_path: Path) -> None:
    train_here(tmp_path / "one", *CHEAP)
    Process(tmp_path / "two", *CHEAP, "kvstore=dist_sync", "cluster.workers=2").end()
    for name in ("val/accuracy", "val/loss"):
        assert read_folds(tmp_path / "two")["metrics"][name] == pytest.approx(
            read_folds(tmp_path / "one")["metrics"][name], abs=1e-5
        )
    train_here(tmp_path / "data", *CHEAP, "parallel=data")
    assert read_folds(tmp_path / "data")["metrics"]["val/loss"] == pytest.approx(
        read_folds(tmp_path / "one")["metrics"]["val/loss"], abs=1e-5
    )


def test_folds_without_a_value_are_named_and_excluded(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "cv").mkdir()
    values = [
        {"val/roc_auc": 0.25, "val/pearson": math.nan},
        {"val/roc_auc": math.nan, "val/pearson": math.nan},
        {"val/roc_auc": 0.75, "val/pearson": math.nan},
    ]
    results = [FoldResult(f"fold-{number}", "finished", 0, values=one) for number, one in enumerate(values, start=1)]
    content = write_folds(tmp_path / "cv", Trainer(folds=3), results)
    print_folds(content, results, tmp_path / "cv")
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "val/roc_auc 0.5000 0.3536 0.2500 - 0.7500" in lines and "val/pearson - - - - -" in lines
    assert "val/roc_auc is undefined in 1 of 3 folds; mean and std are of the other 2" in lines
    assert "val/pearson is undefined in 3 of 3 folds" in lines
    read = read_folds(tmp_path / "cv")
    assert read["metrics"] == {"val/roc_auc": 0.5, "val/pearson": None} and read["defined"]["val/roc_auc"] == 2
    found = mxtrain.load(tmp_path / "cv")
    assert math.isnan(found.metrics["val/pearson"]) and found.metrics["val/roc_auc"] == 0.5


@pytest.mark.parametrize("count, is_shown", [(10, True), (11, False)])
def test_at_most_ten_folds_have_a_column(tmp_path: Path, capsys: Any, count: int, is_shown: bool) -> None:
    results = [FoldResult(f"fold-{number}", "finished", 0, values={"val/loss": 0.5}) for number in range(1, count + 1)]
    print_folds(write_folds(tmp_path, Trainer(folds=count), results), results, tmp_path)
    header = next(line for line in capsys.readouterr().out.splitlines() if "mean" in line)
    assert ("fold-1" in header) == is_shown and f"of {count} folds" in header


def test_finished_folds_name_their_file_in_one_line(tmp_path: Path, capsys: Any) -> None:
    folder = tmp_path / ("f" * 100)
    folder.mkdir()
    results = [FoldResult(f"fold-{number}", "finished", 0, values={"val/loss": 0.5}) for number in (1, 2)]
    print_folds(write_folds(folder, Trainer(folds=2), results), results, folder)
    printed = capsys.readouterr().out
    assert f"written to {folder / FOLDS_FILE}" in printed.splitlines()
    assert "undefined" not in printed and "not finished" not in printed
