"""Tables with a column of weights: the loss, the metrics and the reports of the tasks, and wrong weights."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any, Dict, List

import numpy as np
import pytest
import sklearn.metrics as reference

from mxtrain.cli import main
from mxtrain.data.loading.loader import LoaderOptions
from mxtrain.data.sample_weights import require_some_weight
from mxtrain.data.spec import open_splits
from mxtrain.errors import ConfigError, DataError
from mxtrain.tables.feature_table import FeatureTable, NumericFeatureTable
from mxtrain.tables.number_table import NumberTable
from mxtrain.types.kinds import ClassSet, Number, RowClass

pytestmark = pytest.mark.usefixtures("own_cache")

HEADER = ["a", "b", "town", "price", "kind", "tags", "w"]
INPUTS: Dict[str, Any] = {"columns": {"a": "number", "b": "number", "town": "category"}, "others": "ignore"}
COLUMNS = "dataset.columns={a: number, b: number, town: category}"
SHORT = ("trainer.max_epochs=2", "dataset.others=ignore", COLUMNS, "dataset.weight=w", "dataset.batch_size=16")


def write_rows(path: Path, repeat: bool = False, count: int = 80) -> Path:
    """Writes rows whose weight is 0 to 3, or each row so many times with the weight 1."""
    rng = np.random.default_rng(3)
    rows: List[List[Any]] = []
    for number in range(count):
        a, b = rng.normal(size=2).round(3)
        row = [a, b, "xy"[number // 4 % 2], round(3 * a - b + 0.3 * rng.normal() + 50, 3)]
        row += ["no" if a + 0.5 * rng.normal() < 0 else "yes", "|".join(["p"] * (a > 0) + ["q"] * (b > 0))]
        weight = number % 4
        rows += [[*row, 1]] * weight if repeat else [[*row, weight]]
    with path.open("w", newline="") as stream:
        csv.writer(stream).writerows([HEADER, *rows])
    return path


def test_the_last_target_is_the_weight(tmp_path: Path) -> None:
    path = str(write_rows(tmp_path / "rows.csv"))
    expected = np.tile([0.0, 1, 2, 3], 20)
    for kind, target in ((Number, "price"), (RowClass, "kind"), (ClassSet, "tags")):
        dataset = FeatureTable(train=path, target=target, weight="w", val_fraction=0.2, **INPUTS).for_run(kind)
        splits = open_splits(dataset)
        signature = dataset.infer_signature(splits, None)  # type: ignore[arg-type]  # it needs no model
        assert [column.name for column in signature.columns.columns] == ["a", "b", "town"]  # type: ignore[attr-defined]
        for rows in (splits.train, splits.val):
            (batch,) = dataset.build_loader(rows, signature, LoaderOptions(batch_size=100)).epoch()
            assert len(batch.targets) == 2
            np.testing.assert_array_equal(batch.targets[1].asnumpy(), expected[rows.row_N])  # type: ignore[union-attr]
    table = NumberTable(train=path, target="price", features=["a", "b"], weight="w", test_fraction=0)
    splits = open_splits(table)
    signature = table.infer_signature(splits, None)  # type: ignore[arg-type]
    (batch,) = table.build_loader(splits.train, signature, LoaderOptions(batch_size=100)).epoch()
    lines = splits.train.locations.number_N - 2  # type: ignore[union-attr]
    np.testing.assert_array_equal(batch.targets[1].asnumpy(), expected[lines])
    assert "'w' weights loss and metrics: 0 to 3" in table.remark(signature, splits)


def test_a_weight_is_no_feature_unless_it_is_declared(tmp_path: Path) -> None:
    path = str(write_rows(tmp_path / "rows.csv"))
    assert "w" not in NumericFeatureTable(train=path, target="price", weight="w").kinds(path)
    assert "w" in NumericFeatureTable(train=path, target="price").kinds(path)
    for setting, more in (
        ("dataset.target", {"target": "w"}),
        ("dataset.features", {"features": ["a", "w"]}),
        ("dataset.columns", {"columns": {"w": "number"}}),
    ):
        with pytest.raises(ConfigError, match=f"dataset.weight=w is also named in {setting}"):
            FeatureTable(**{"train": path, "target": "price", "weight": "w", **more})
    with pytest.raises(ConfigError, match="also named in dataset.features"):
        NumberTable(train=path, target="price", weight="w", features=["w"])


@pytest.mark.parametrize("kind", [NumericFeatureTable, NumberTable])
@pytest.mark.parametrize("cell", ["-0.5", "", "NaN", "inf", "1e300", "many"])
def test_a_wrong_weight_is_refused_with_its_line(kind: Any, cell: str, tmp_path: Path) -> None:
    lines = write_rows(tmp_path / "rows.csv").read_text().splitlines()
    lines[6] = f"{lines[6].rpartition(',')[0]},{cell}"
    (tmp_path / "rows.csv").write_text("\n".join(lines))
    dataset = kind(train=str(tmp_path / "rows.csv"), target="price", features=["a", "b"], weight="w")
    with pytest.raises(DataError, match=rf"rows.csv, line 7: 'w' is '{cell}'; a weight is a finite number of at least"):
        open_splits(dataset)


@pytest.mark.parametrize("kind", [NumericFeatureTable, NumberTable])
def test_weights_that_are_all_0_and_missing_columns_are_refused(kind: Any, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.csv")
    settings = {"train": str(path), "target": "price", "features": ["a", "b"]}
    with pytest.raises(DataError, match="dataset.weight: .*rows.csv has no column 'W'. Did you mean 'w'"):
        open_splits(kind(**settings, weight="W"))
    with pytest.raises(ConfigError, match="dataset.weight=w: the default data have no such column"):
        open_splits(kind(weight="w"))
    header, *lines = path.read_text().splitlines()
    zeros = "\n".join([header, *(f"{line.rpartition(',')[0]},0" for line in lines)])
    (tmp_path / "zeros.csv").write_text(zeros)
    for name, split in (("val", "validation"), ("test", "test")):
        with pytest.raises(DataError, match=f"dataset.weight=w: all weights of the 80 {split} samples are 0"):
            open_splits(kind(**settings, weight="w", **{name: str(tmp_path / "zeros.csv")}))
    require_some_weight("w", {"test": np.zeros(0), "validation": None})  # without samples there is nothing to count


@pytest.mark.slow
def test_a_step_with_weights_equals_one_with_repeated_rows(describe_run: Any, tmp_path: Path) -> None:
    """One step of gradient descent on all rows: weights of 0 to 3, or rows repeated as often."""
    from mxtrain.training.build import build_run

    weights = []
    for repeat in (False, True):
        train = write_rows(tmp_path / f"{repeat}.csv", repeat)
        val = write_rows(tmp_path / "val.csv")
        options = [f"dataset.train={train}", f"dataset.val={val}", "dataset.test_fraction=0", "dataset.target=kind"]
        description = describe_run(
            *("task=tabular", "dataset=feature_table", "model=mlp", "model.hidden=[]", "dataset.weight=w", *options),
            *("optimizer=sgd", "optimizer.lr=0.5", "optimizer.momentum=0", "optimizer.wd=0"),
            *("dataset.batch_size=1000", "trainer.max_steps=1", "trainer.max_epochs=null", "lr_scheduler=constant"),
            *("dataset.columns={town: category}", "dataset.others=ignore"),  # numbers are scaled without weights
        )
        context = build_run(description, tmp_path / f"run{repeat}").runner.context
        (batch,) = context.data.train.epoch(0)
        sums = context.step(batch, 0.5, 1).asnumpy()
        assert sums[1] == sums[-1] == 120
        weights.append({name: one.asnumpy() for name, one in context.step.strategy.values.items()})
    for name, value in weights[0].items():
        np.testing.assert_allclose(value, weights[1][name], rtol=1e-5, atol=1e-7)


def rows_of(file: str) -> List[Dict[str, str]]:
    """Returns the rows of a file that `eval` has written."""
    return list(csv.DictReader(Path("run/eval/val", file).read_text().splitlines()))


@pytest.mark.slow
def test_eval_of_classes_equals_scikit_learn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_rows(Path("rows.csv"), count=200)
    data = ("dataset.train=rows.csv", "dataset.target=kind", "hydra.run.dir=run")
    assert main(["task=tabular", "dataset=feature_table", *SHORT, *data]) == 0
    assert main(["eval", "run", "split=val"]) == 0
    values, rows = json.loads(Path("run/eval/val/metrics.json").read_text()), rows_of("predictions.csv")
    weight = [float(row["weight"]) for row in rows]
    assert set(weight) == {0, 1, 2, 3}
    true, predicted = ([row[key] for row in rows] for key in ("true", "predicted"))
    assert values["accuracy"] == pytest.approx(reference.accuracy_score(true, predicted, sample_weight=weight))
    assert values["f1"] == pytest.approx(reference.f1_score(true, predicted, average="macro", sample_weight=weight))
    shown = rows_of("models.csv")[0]
    assert float(shown["ROC AUC"]) == pytest.approx(values["roc_auc"], abs=6e-5)
    assert float(shown["log loss"]) == pytest.approx(values["log_loss"], abs=6e-5)
    assert values["loss"] == pytest.approx(values["log_loss"], rel=1e-5)


@pytest.mark.slow
def test_eval_of_numbers_equals_scikit_learn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_rows(Path("rows.csv"), count=200)
    assert main(["task=regression", *SHORT, "dataset.train=rows.csv", "dataset.target=price", "hydra.run.dir=run"]) == 0
    assert main(["eval", "run", "split=val"]) == 0
    values, rows = json.loads(Path("run/eval/val/metrics.json").read_text()), rows_of("predictions.csv")
    weight, true, predicted = ([float(row[key]) for row in rows] for key in ("weight", "true", "predicted"))
    error = reference.mean_squared_error(true, predicted, sample_weight=weight) ** 0.5
    assert values["root_mean_squared_error"] == pytest.approx(error, rel=1e-5)
    shown = rows_of("models.csv")[0]
    assert float(shown["root mean squared error"]) == pytest.approx(error, rel=1e-5)
    absolute = reference.mean_absolute_error(true, predicted, sample_weight=weight)
    assert float(shown["mean absolute error"]) == pytest.approx(absolute, rel=1e-5)


@pytest.mark.slow
def test_eval_of_class_sets_counts_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_rows(Path("rows.csv"), count=200)
    data = ("dataset.train=rows.csv", "dataset.target=tags", "task.class_weights={p: 2}", "hydra.run.dir=run")
    assert main(["task=multi_label", "dataset=feature_table", "model=mlp", *SHORT, *data]) == 0
    assert main(["eval", "run", "split=val"]) == 0
    values, rows = json.loads(Path("run/eval/val/metrics.json").read_text()), rows_of("predictions.csv")
    weight = [float(row["weight"]) for row in rows]
    true, predicted = ([["p" in row[key], "q" in row[key]] for row in rows] for key in ("true", "predicted"))
    for name, value in (
        ("micro_f1", reference.f1_score(true, predicted, average="micro", sample_weight=weight)),
        ("macro_f1", reference.f1_score(true, predicted, average="macro", sample_weight=weight)),
        ("subset_accuracy", reference.accuracy_score(true, predicted, sample_weight=weight)),
    ):
        assert values[name] == pytest.approx(value), name
    shown = rows_of("classes.csv")
    assert [float(row["F1"]) for row in shown] == pytest.approx(
        reference.f1_score(true, predicted, average=None, sample_weight=weight), abs=6e-5
    )


@pytest.mark.slow
@pytest.mark.parametrize("placement", ["parallel=data", "parallel=hybrid"])
def test_verify_with_weights(placement: str, tmp_path: Path, capsys: Any) -> None:
    path = write_rows(tmp_path / "rows.csv")
    data = (f"dataset.train={path}", "dataset.target=price")
    assert main(["verify", "task=regression", *SHORT, *data, placement]) == 0
    assert "the same as on one device" in capsys.readouterr().out
