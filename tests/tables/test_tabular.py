"""task=tabular: steps against NumPy, reports against scikit-learn, and runs over tables."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any, Dict, List

import numpy as np
import pytest
from low_precision import needs_bfloat16
from sklearn import metrics
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression

from mxtrain.cli import main
from mxtrain.data.spec import open_splits
from mxtrain.errors import CheckpointError, ConfigError
from mxtrain.training.loaders import build_sampler
from mxtrain.training.verification import verify

pytestmark = pytest.mark.usefixtures("own_cache")

LINEAR = (
    "task=tabular",
    "model=mlp",
    "model.hidden=[]",
    "optimizer=sgd",
    "optimizer.lr=0.1",
    "optimizer.momentum=0",
    "optimizer.wd=0",
    "lr_scheduler=constant",
    "trainer.max_steps=5",
    "trainer.max_epochs=null",
)


def write_table(path: Path, count: int, seed: int = 0) -> str:
    draw = np.random.RandomState(seed)
    towns = ["Rome", "Oslo", "Bonn", ""]
    with path.open("w", newline="") as stream:
        rows = [["town", "age", "sick"]]
        for _ in range(count):
            town, age = towns[draw.randint(4)], draw.randn()
            score = 2 * age - 1 + (2 if town == "Rome" else 0)
            sick = draw.rand() < 1 / (1 + np.exp(-score))
            rows.append([town, "" if draw.rand() < 0.1 else f"{age:.3f}", str(int(sick))])
        csv.writer(stream).writerows(rows)
    return str(path)


def read_rows(path: Path) -> List[Dict[str, str]]:
    with path.open() as stream:
        return list(csv.DictReader(stream))


@pytest.mark.slow
@pytest.mark.parametrize("pos_weight", [1.0, 3.0])
def test_each_step_equals_a_logistic_regression(describe_run: Any, tmp_path: Path, pos_weight: float) -> None:
    """Weights and losses of five steps of gradient descent on the weighted cross entropy, in NumPy."""
    from mxtrain.training.build import build_run

    description = describe_run(*LINEAR, f"loss.pos_weight={pos_weight}")
    run = build_run(description, tmp_path / "run")
    strategy, loader = run.runner.context.step.strategy, run.runner.context.data.train
    (weight_name,), (bias_name,) = ([n for n in strategy.values if n.endswith(k)] for k in ("weight", "bias"))
    weight, bias = strategy.values[weight_name].asnumpy()[0].astype(float), 0.0
    row_N = open_splits(description.dataset).train.row_N
    data = load_breast_cancer()
    value, target = data.data[row_N], 1.0 - data.target[row_N]
    x_N = (value - value.mean(0)) / value.std(0)
    expected = []
    for batch in list(loader.epoch(0))[:5]:
        x, t = x_N[batch.index_B], target[batch.index_B]
        p = 1 / (1 + np.exp(-(x @ weight + bias)))
        loss = -pos_weight * t * np.log(p) - (1 - t) * np.log(1 - p)
        plain = -t * np.log(p) - (1 - t) * np.log(1 - p)
        expected.append((loss.mean(), plain.mean()))
        slope = -pos_weight * t * (1 - p) + (1 - t) * p
        weight, bias = weight - 0.1 * slope @ x / len(t), bias - 0.1 * slope.mean()
    run.runner.train(run.info)
    np.testing.assert_allclose(strategy.values[weight_name].asnumpy()[0], weight, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(strategy.values[bias_name].asnumpy(), [bias], rtol=1e-3, atol=1e-5)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    found = [(row["loss"], row["log_loss"]) for row in rows if row["split"] == "train"]
    np.testing.assert_allclose(found, expected, rtol=1e-4)


@pytest.mark.slow
def test_report_includes_scikit_learn_logistic_regression(train_run: Any, tmp_path: Path) -> None:
    train_run("task=tabular", "trainer.max_epochs=3")
    assert main(["eval", str(tmp_path / "run")]) == 0
    folder = tmp_path / "run" / "eval" / "test"
    own, regression, constant = read_rows(folder / "models.csv")
    splits = open_splits(run_dataset())
    data = load_breast_cancer()
    x_N, y_N = data.data, 1 - data.target
    train, test = splits.train.row_N, splits.test.row_N
    mean, std = x_N[train].mean(0), x_N[train].std(0)
    fitted = LogisticRegression(C=1.0, max_iter=1000).fit((x_N[train] - mean) / std, y_N[train])
    probability_N = fitted.predict_proba((x_N[test] - mean) / std)[:, 1]
    assert float(regression["ROC AUC"]) == pytest.approx(metrics.roc_auc_score(y_N[test], probability_N), abs=1e-4)
    assert float(regression["PR AUC"]) == pytest.approx(
        metrics.average_precision_score(y_N[test], probability_N), abs=1e-4
    )
    assert float(regression["log loss"]) == pytest.approx(metrics.log_loss(y_N[test], probability_N), abs=1e-3)
    rate = y_N[train].mean()
    assert constant["model"] == f"base rate, {rate:.4g}" and float(constant["ROC AUC"]) == 0.5
    assert float(constant["log loss"]) == pytest.approx(metrics.log_loss(y_N[test], [rate] * len(test)), abs=1e-4)
    assert float(constant["PR AUC"]) == pytest.approx(y_N[test].mean(), abs=1e-4)
    measured = json.loads((folder / "metrics.json").read_text())
    assert float(own["ROC AUC"]) == pytest.approx(measured["roc_auc"], abs=1e-4)
    assert float(own["log loss"]) == pytest.approx(measured["log_loss"], abs=1e-4)
    assert float(own["ECE"]) == pytest.approx(measured["expected_calibration_error"], abs=1e-4)
    assert sum(int(row["samples"]) for row in read_rows(folder / "calibration.csv")) == len(test) == 142
    assert (folder / "calibration_curve.png").stat().st_size > 1000


def run_dataset() -> Any:
    from mxtrain.tables.breast_cancer import BreastCancer

    return BreastCancer()


@pytest.mark.slow
def test_a_table_is_trained_on_measured_and_predicted_for(train_run: Any, tmp_path: Path, capsys: Any) -> None:
    train, test = write_table(tmp_path / "train.csv", 300), write_table(tmp_path / "test.csv", 61, seed=1)
    words = ("task=tabular", "dataset=feature_table", f"dataset.train={train}", "dataset.target=sick")
    train_run(
        *words,
        f"dataset.test={test}",
        "dataset.columns={town: {kind: hashed, buckets: 50}}",
        "trainer.max_epochs=20",
        "optimizer.lr=0.01",
    )
    run_dir = str(tmp_path / "run")
    assert main(["eval", run_dir]) == 0
    measured = json.loads((tmp_path / "run" / "eval" / "test" / "metrics.json").read_text())
    own, regression, _ = read_rows(tmp_path / "run" / "eval" / "test" / "models.csv")
    assert float(own["ROC AUC"]) > float(regression["ROC AUC"]) - 0.03 > 0.75, "the ids of towns count in both"
    (tmp_path / "train.csv").unlink()  # a checkpoint is enough to predict
    assert main(["predict", run_dir, test, f"output={tmp_path}/out.csv"]) == 0
    predicted, rows = read_rows(tmp_path / "out.csv"), read_rows(tmp_path / "test.csv")
    assert [row["file"] for row in predicted] == [f"{test}:{number}" for number in range(2, 63)]
    probability_N, target_N = (
        np.array([float(row[key]) for row in some]) for some, key in ((predicted, "probability_1"), (rows, "sick"))
    )
    assert measured["roc_auc"] == pytest.approx(metrics.roc_auc_score(target_N, probability_N), abs=1e-4)
    assert measured["average_precision"] == pytest.approx(
        metrics.average_precision_score(target_N, probability_N), abs=1e-4
    )
    assert measured["log_loss"] == pytest.approx(metrics.log_loss(target_N, probability_N), abs=1e-4)
    # Of rows without a target, in another file and in another order of columns.
    lines = [f"{row['age']}\t1\t{row['town']}" for row in rows]
    (tmp_path / "new.tsv").write_text("\n".join(["age\tsick_leave\ttown", *lines]))
    capsys.readouterr()
    assert main(["predict", run_dir, f"{tmp_path}/new.tsv"]) == 0
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    found = [{one["class"]: one["probability"] for one in row["top"]}["1"] for row in printed]
    np.testing.assert_allclose(found, probability_N, atol=1e-5)
    for row, positive in zip(printed, found):
        assert row["class"] == ("1" if positive >= 0.5 else "0")
        assert row["probability"] == pytest.approx(max(positive, 1 - positive), abs=2e-6)
    (tmp_path / "short.csv").write_text("twon,age\nRome,1\n")
    assert main(["predict", run_dir, f"{tmp_path}/short.csv"]) == 2
    assert "line 1: there is no column 'town'. Did you mean 'twon'?" in capsys.readouterr().err
    assert main(["predict", run_dir, f"{tmp_path}/short.csv", test, "skip_unreadable=true"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 61


@pytest.mark.slow
def test_columns_of_a_checkpoint_cannot_be_changed(
    train_run: Any, describe_run: Any, tmp_path: Path, capsys: Any
) -> None:
    train = write_table(tmp_path / "train.csv", 200)
    words = (
        "task=tabular",
        "dataset=feature_table",
        f"dataset.train={train}",
        "dataset.target=sick",
        "trainer.max_epochs=1",
        "trainer.limit_train_batches=1",
    )
    train_run(*words)
    run_dir = str(tmp_path / "run")
    assert main(["eval", run_dir, "dataset.columns={town: hashed}"]) == 2
    assert "dataset.columns: " in (said := capsys.readouterr().err) and "keeps its columns" in said
    # A town more: its id is that of what is unseen, and the network is as it was.
    with (tmp_path / "train.csv").open("a") as stream:
        stream.writelines(["Paris,0.1,1\n"] * 100)
    assert main(["eval", run_dir, "split=val"]) == 0
    longer = (*words, "checkpoint.resume=auto", "trainer.max_epochs=2")
    with pytest.raises(CheckpointError, match="was trained on other data"):
        train_run(*longer)
    with pytest.raises(CheckpointError, match="was trained with other columns than there are now, .*: town, age"):
        train_run(*longer, "checkpoint.changes=[data]")


@pytest.mark.zoo_except("wide_deep")
@pytest.mark.slow
@pytest.mark.parametrize("model", ["factorization_machine", "deepfm", "wide_deep"])
def test_networks_are_the_same_under_placements(describe_run: Any, tmp_path: Path, model: str) -> None:
    words = (
        "task=tabular",
        f"model={model}",
        "dataset=feature_table",
        "dataset.target=sick",
        "dataset.batch_size=16",
        f"dataset.train={write_table(tmp_path / 'train.csv', 100)}",
    )
    placed = ("parallel=hybrid", "parallel.microbatches=2", "trainer.grad_accumulation=2")
    found = verify(describe_run(*words, *placed), 3, 1e-6)
    assert found.passed and found.bits, found


@needs_bfloat16
def test_bfloat16_is_the_same_under_a_placement(describe_run: Any) -> None:
    found = verify(describe_run("task=tabular", "dataset.batch_size=16", "amp=bfloat16", "parallel=data"), 3, 1e-6)
    assert found.passed and found.low is not None, found


@pytest.mark.slow
@needs_bfloat16
def test_bfloat16_ranks_as_well_as_float32(train_run: Any, tmp_path: Path) -> None:
    auc = {}
    for precision in ("bfloat16", "off"):
        _, result = train_run("task=tabular", f"amp={precision}", "logger=[]", run_dir=tmp_path / precision)
        auc[precision] = result.metrics["test/roc_auc"]
    assert auc["off"] > 0.98 and auc["bfloat16"] == pytest.approx(auc["off"], abs=0.005)


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["balanced", "weighted"])
def test_rare_positive_rows_can_be_drawn_more_often(describe_run: Any, tmp_path: Path, sampler: str) -> None:
    weights = "dataset.class_weights={malignant: 3.0}" if sampler == "weighted" else "dataset.class_weights={}"
    description = describe_run("task=tabular", f"dataset.sampler={sampler}", weights)
    splits = open_splits(description.dataset)
    label_N = splits.train.read_labels()
    sampler_of = build_sampler(description.dataset, splits, 0)
    drawn = sampler_of.draw(0) % len(label_N)
    share = label_N.mean()
    wanted = 0.5 if sampler == "balanced" else 0.75
    assert share == pytest.approx(0.373, abs=0.01) and label_N[drawn].mean() == pytest.approx(wanted, abs=0.01)


@pytest.mark.parametrize(
    "overrides, words",
    [
        (("task=tabular", "loss=l2"), "not for task=tabular. Type loss=class_cross_entropy"),
        (("task=tabular", "loss.label_smoothing=0.1"), "task=tabular smooths no targets"),
        (("task=tabular", "metric=[cross_entropy]"), "metric.cross_entropy: CrossEntropy is for classification"),
        (("task=tabular", "dataset=digits"), "its samples are for task=classification"),
        (("task=tabular", "model=lenet"), "the model LeNet do not fit: it is for .*. Type model=wide_deep"),
        pytest.param(
            ("task=tabular", "dataset=feature_table", "dataset.columns={target: number}"),
            "names the target 'target'",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ("task=tabular", "dataset=feature_table", "dataset.columns={a: text}"),
            "dataset.columns.*number",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ("task=tabular", "dataset=feature_table", "dataset.columns={a: {kind: hashed, bucket: 3}}"),
            "bucket",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ("task=tabular", "dataset=feature_table", "dataset.classes=[a,a]"), "must differ", marks=pytest.mark.slow
        ),
    ],
)
def test_wrong_settings_are_refused(describe_run: Any, overrides: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        describe_run(*overrides)
