"""Tables with several classes, and numbers predicted from categories: metrics against scikit-learn, and runs."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any, List, Sequence

import numpy as np
import pytest
from sklearn import metrics

from mxtrain.cli import main
from mxtrain.data.spec import open_splits
from mxtrain.errors import ConfigError, DataError
from mxtrain.metric.binary import (
    AveragePrecision,
    BrierScore,
    ClassScores,
    ExpectedCalibrationError,
    RocAuc,
    log_odds,
)
from mxtrain.tables.feature_table import FeatureTable
from mxtrain.types.kinds import Number

pytestmark = pytest.mark.usefixtures("own_cache")

PLANS = ("basic", "plus", "pro")


def write_plans(path: Path, count: int = 120, price: bool = False) -> str:
    """Writes a table whose plan follows from age and town, and whose price is a sum of both."""
    draw = np.random.RandomState(0)
    rows: List[Sequence[object]] = [("age", "town", "price" if price else "plan")]
    for _ in range(count):
        age, town = int(draw.randint(18, 80)), ("Bonn", "Kiel", "Ulm")[draw.randint(3)]
        plan = PLANS[(age > 40) + (town == "Ulm")]
        rows.append((age, town, 2 * age + (50 if town == "Ulm" else 0) if price else plan))
    with path.open("w", newline="") as stream:
        csv.writer(stream).writerows(rows)
    return str(path)


def softmax(score_NK: np.ndarray) -> np.ndarray:
    exponential_NK = np.exp(score_NK - score_NK.max(axis=1, keepdims=True))
    return exponential_NK / exponential_NK.sum(axis=1, keepdims=True)


def test_metrics_of_several_classes_match_scikit_learn() -> None:
    draw = np.random.RandomState(1)
    score_NK, label_N = 2 * draw.randn(90, 4), draw.randint(0, 4, 90)
    share_NK, target_NK = softmax(score_NK), np.eye(4)[label_N]
    collected = [ClassScores(), ClassScores()]  # two workers, which share a sample
    for worker, part in zip(collected, (np.arange(60)[::-1], np.arange(59, 90))):
        worker.update(part, score_NK[part], label_N[part].astype(np.float32), None)
    collected[0].merge(collected[1].rows())
    np.testing.assert_allclose(collected[0].by_class()[0], score_NK)
    np.testing.assert_array_equal(collected[0].by_class()[1], target_NK)
    expected = {
        RocAuc(): metrics.roc_auc_score(label_N, share_NK, multi_class="ovr"),
        AveragePrecision(): metrics.average_precision_score(target_NK, share_NK),
        BrierScore(): ((share_NK - target_NK) ** 2).sum(axis=1).mean() / 2,
    }
    for metric, value in expected.items():
        assert metric.compute(collected[0]) == pytest.approx(value, rel=1e-9)
    best_N, right_N = share_NK.max(axis=1), share_NK.argmax(axis=1) == label_N
    bin_N = np.minimum((best_N * 10).astype(int), 9)
    gaps = [abs(best_N[bin_N == b].sum() - right_N[bin_N == b].sum()) for b in range(10)]
    assert ExpectedCalibrationError().compute(collected[0]) == pytest.approx(sum(gaps) / 90, rel=1e-9)
    np.testing.assert_allclose(log_odds(score_NK), np.log(share_NK / (1 - share_NK)), rtol=1e-6)
    assert np.isfinite(log_odds(np.array([[2000.0, -2000.0, 0.0]]))).all()


def test_classes_without_samples_are_left_out_of_the_mean() -> None:
    score_NK, target_NK = np.random.RandomState(2).randn(30, 3), np.eye(3)[np.arange(30) % 2]
    share_NK = softmax(score_NK)
    values = [metrics.roc_auc_score(target_NK[:, k], share_NK[:, k]) for k in (0, 1)]
    assert RocAuc().of_classes(score_NK, target_NK) == pytest.approx(np.mean(values))


@pytest.mark.slow
def test_several_classes_are_trained_on_measured_and_predicted(train_run: Any, tmp_path: Path) -> None:
    train = write_plans(tmp_path / "plans.csv")
    train_run(
        "task=tabular",
        "dataset=feature_table",
        f"dataset.train={train}",
        "dataset.target=plan",
        "trainer.max_epochs=15",
        "optimizer.lr=0.05",
        "early_stopping=off",
    )
    run = tmp_path / "run"
    assert main(["eval", str(run)]) == 0
    assert main(["predict", str(run), train, f"output={tmp_path}/out.jsonl"]) == 0
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    with open(train) as stream:
        label_N = np.array([PLANS.index(row["plan"]) for row in csv.DictReader(stream)])
    share_NK = np.array(
        [[{top["class"]: top["probability"] for top in row["top"]}[name] for name in PLANS] for row in rows]
    )
    share_NK /= share_NK.sum(axis=1, keepdims=True)  # they are rounded to six digits
    predicted_N = np.array([PLANS.index(row["class"]) for row in rows])
    assert (predicted_N == label_N).mean() > 0.9
    assert main(["predict", str(run), train, f"output={tmp_path}/out.csv", "keep=[town,plan]"]) == 0
    with open(train) as stream, open(tmp_path / "out.csv") as predictions:
        for row, cells, top in zip(csv.DictReader(stream), csv.DictReader(predictions), rows):
            assert list(cells)[:4] == ["file", "town", "plan", "class_1"] and cells["class_1"] == top["class"]
            assert (cells["town"], cells["plan"]) == (row["town"], row["plan"])
    test_N = open_splits(FeatureTable(train=train, target="plan")).test.row_N  # type: ignore[union-attr]
    measured = json.loads((run / "eval" / "test" / "metrics.json").read_text())
    label, share, predicted = label_N[test_N], share_NK[test_N], predicted_N[test_N]
    assert measured["log_loss"] == pytest.approx(metrics.log_loss(label, share, labels=[0, 1, 2]), abs=1e-5)
    assert measured["loss"] == pytest.approx(measured["log_loss"], rel=1e-6)
    assert measured["accuracy"] == pytest.approx((predicted == label).mean())
    assert measured["f1"] == pytest.approx(metrics.f1_score(label, predicted, average="macro"))
    assert measured["roc_auc"] == pytest.approx(metrics.roc_auc_score(label, share, multi_class="ovr"), abs=1e-6)
    with (run / "eval" / "test" / "models.csv").open() as stream:
        models = list(csv.DictReader(stream))
    assert [row["model"] for row in models] == ["this network", "logistic regression", "base rates"]
    assert float(models[0]["log loss"]) == pytest.approx(measured["log_loss"], abs=1e-4)
    count_K = np.bincount(label_N[open_splits(FeatureTable(train=train, target="plan")).train.row_N])  # type: ignore[attr-defined]
    constant = np.tile(count_K / count_K.sum(), (len(label), 1))
    assert float(models[2]["log loss"]) == pytest.approx(metrics.log_loss(label, constant, labels=[0, 1, 2]), abs=1e-4)
    assert (run / "eval" / "test" / "confusion.csv").is_file()


@pytest.mark.parametrize("model", ["deepfm", "factorization_machine", "mlp"])
def test_each_network_of_tables_scores_several_classes(model: str) -> None:
    """Each class of a factorization machine has vectors of its own: the scores are those of one machine per class."""
    from mxtrain.config.specs import build_spec
    from mxtrain.engine.backend import mx, nd

    spec = build_spec(
        {
            "_target_": {"deepfm": "mxtrain.tables.feature_models.DeepFM", "mlp": "mxtrain.model.mlp.MLP"}.get(
                model, "mxtrain.tables.feature_models.FactorizationMachine"
            )
        },
        "model",
        object,
        str,
    )  # type: ignore[arg-type]
    network = spec.build_features(3, [4, 5], 2)  # type: ignore[attr-defined]
    network.initialize(mx.init.Normal(0.5))
    ids, numbers = nd.array([[0, 4], [3, 8]], dtype="int32"), nd.array([[0.5, -1.0], [2.0, 0.0]])
    score_BK = network(ids, numbers).asnumpy()
    assert score_BK.shape == (2, 3) and len(np.unique(score_BK.round(6))) == 6
    if model != "factorization_machine":
        return
    values = {name: value.data().asnumpy() for name, value in network._collect_params_with_prefix().items()}
    vectors = np.concatenate(
        [values["vectors.table.weight"][ids.asnumpy()], values["vectors.number"] * numbers.asnumpy()[:, :, None]],
        axis=1,
    )
    linear = values["linear.table.weight"][ids.asnumpy()].sum(1) + numbers.asnumpy() @ values["linear.number.weight"].T
    vectors = vectors.reshape(2, 4, 3, -1)
    pairs = sum((vectors[:, i] * vectors[:, j]).sum(-1) for i in range(4) for j in range(i))
    np.testing.assert_allclose(score_BK, linear + values["linear.bias"] + pairs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "counts, classes",
    [
        ({"a": 50, "b": 30, "c": 20}, ["a", "b", "c"]),
        ({"2": 9, "10": 9, "1": 9}, ["1", "2", "10"]),
        ({"no": 90, "yes": 90, "yess": 4}, ["no", "yes"]),
        ({"no": 90, "yes": 90, "maybe": 5}, ["maybe", "no", "yes"]),
        ({"0": 900, "1": 90, "2": 6}, ["0", "1", "2"]),
        ({"False": 20, "true": 20, "1": 20}, ["0", "1"]),
        ({"a": 4, "b": 3, "c": 2}, ["a", "b", "c"]),
        ({"1.0": 9, "2.0": 9, "2": 3, "3.0": 9}, ["1.0", "2.0", "3.0"]),
        ({"a": 1200, "b": 1200, "c": 1200}, ["a", "b", "c"]),
        ({"p": 60, "q": 8, "rare": 4, "odd": 4}, None),
    ],
)
def test_values_of_a_target_are_its_classes(tmp_path: Path, counts: Any, classes: Any, caplog: Any) -> None:
    """Sorted by class. A few rows with another value are refused by line, with all classes to type."""
    lines = [f"{number},{name}" for name, count in counts.items() for number in range(count)]
    (tmp_path / "t.csv").write_text("\n".join(["age,target", *lines]) + "\n")
    dataset = FeatureTable(train=str(tmp_path / "t.csv"))
    classes = list(counts) if classes is None else classes
    if "yess" in counts:
        with pytest.raises(DataError, match=r"line 182: the target is 'yess'; allowed are 'no' and 'yes'.*name all cl"):
            dataset.open()
        assert "the values 'yess' of 'target' have fewer than 5 rows each" in caplog.text
        assert FeatureTable(train=dataset.train, classes=["no", "yes", "yess"]).open().class_names[2] == "yess"
    else:
        assert sorted(dataset.open().class_names) == sorted(classes)


@pytest.mark.slow
def test_a_number_is_predicted_from_categories(train_run: Any, tmp_path: Path) -> None:
    train = write_plans(tmp_path / "price.csv", 200, price=True)
    train_run(
        "task=regression",
        f"dataset.train={train}",
        "dataset.target=price",
        "trainer.max_epochs=40",
        "early_stopping=off",
    )
    run = tmp_path / "run"
    assert main(["eval", str(run), "split=val"]) == 0
    measured = json.loads((run / "eval" / "val" / "metrics.json").read_text())
    assert measured["root_mean_squared_error"] < 8  # without the towns it is above 20
    assert main(["predict", str(run), train, f"output={tmp_path}/out.csv"]) == 0
    with (tmp_path / "out.csv").open() as stream:
        predicted_N = np.array([float(row["value"]) for row in csv.DictReader(stream)])
    with open(train) as stream:
        target_N = np.array([float(row["price"]) for row in csv.DictReader(stream)])
    val_N = open_splits(FeatureTable(train=train, target="price").for_run(Number)).val.row_N  # type: ignore[attr-defined]
    error = np.sqrt(((predicted_N - target_N)[val_N] ** 2).mean())
    assert measured["root_mean_squared_error"] == pytest.approx(error, rel=1e-5)


def test_features_of_a_table_may_be_chosen(tmp_path: Path) -> None:
    train = write_plans(tmp_path / "price.csv", price=True)
    dataset = FeatureTable(train=train, target="price", features=["town"]).for_run(Number)
    assert list(dataset.kinds(train)) == ["town"]  # type: ignore[attr-defined]
    with pytest.raises(DataError, match=r"dataset.features: .* has no column 'twon'. Did you mean 'town'"):
        FeatureTable(train=train, target="price", features=["twon"]).for_run(Number).open()


@pytest.mark.parametrize(
    "words, message",
    [
        (("task=regression", "dataset.classes=[a,b]"), "task=regression predicts a number. Type task=tabular"),
        (("task=tabular", "dataset=feature_table", "dataset.features=[target]"), "features names the target"),
        (("task=tabular", "dataset=feature_table", "dataset.classes=[a,b,a]"), "must differ"),
    ],
)
def test_settings_that_contradict_the_target_are_refused(describe_run: Any, words: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        describe_run(*words)


@pytest.mark.slow
def test_losses_of_two_classes_are_refused_for_more(train_run: Any, tmp_path: Path) -> None:
    train = write_plans(tmp_path / "plans.csv", 30)
    words = ("task=tabular", "dataset=feature_table", f"dataset.train={train}", "dataset.target=plan")
    for setting, message in (
        ("loss=binary_cross_entropy", "is for two classes, and there are 3. Type loss=class_c"),
        ("loss.pos_weight=2", "of the second of two classes.*Type dataset.sampler=weighted"),
    ):
        with pytest.raises(ConfigError, match=message):
            train_run(*words, setting, "trainer.max_epochs=1")


@pytest.mark.parametrize(
    "cells, message",
    [
        (["1", "NA"], "line 3: 'target' is 'NA', a missing number. Give the number[.]$"),
        (["1", "two"], "line 3: 'target' is 'two', no number. Correct the cell, or type task=tabular"),
        (["1%", "2"], "line 3: .*Write all cells of the column in one way"),
    ],
)
def test_targets_that_are_not_numbers_are_refused(tmp_path: Path, cells: List[str], message: str) -> None:
    (tmp_path / "t.csv").write_text("age,target\n" + "".join(f"{n},{cells[n % 2]}\n" for n in range(30)))
    with pytest.raises(DataError, match=message):
        FeatureTable(train=str(tmp_path / "t.csv")).for_run(Number).open()
