"""Regression of several targets of a table, with quantiles and intervals."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any, List

import numpy as np
import pytest
import sklearn.metrics as reference

from mxtrain.cli import main
from mxtrain.data.loading.number_targets import target_column_of
from mxtrain.data.spec import BaseDataset, open_splits
from mxtrain.engine.backend import nd
from mxtrain.errors import CheckpointError, ConfigError, DamagedCheckpoint, DataError
from mxtrain.metric.of_targets import TargetLayout
from mxtrain.tables.feature_table import FeatureTable, NumericFeatureTable
from mxtrain.task.regression import Regression
from mxtrain.task.targets_report import TargetsReport
from mxtrain.text.classification.text import NumberTexts
from mxtrain.types import Batch
from mxtrain.types.kinds import ClassSet, Number, RowClass
from mxtrain.vision.classification.digit_angles import DigitAngles
from mxtrain.vision.classification.image_table import NumberImages

pytestmark = pytest.mark.usefixtures("own_cache")

OPTIONS = (
    "task=regression",
    "dataset.train=rows.csv",
    "dataset.targets=[price,rent]",
    "dataset.features=[a,b]",
    "dataset.batch_size=32",
    "trainer.max_epochs=2",
    "metric=[root_mean_squared_error,mean_absolute_error,r2]",
)


def write_rows(path: Path, count: int = 200) -> Path:
    rng = np.random.default_rng(3)
    a, b = rng.normal(size=(2, count)).round(3)
    price, rent = (3 * a - b + 50).round(3), (1000 * b + 100 * rng.normal(size=count)).round(3)
    with path.open("w", newline="") as stream:
        csv.writer(stream).writerows([["a", "b", "price", "rent"], *np.stack([a, b, price, rent], axis=1).tolist()])
    return path


def test_targets_are_standardised_one_by_one(tmp_path: Path) -> None:
    path = str(write_rows(tmp_path / "rows.csv"))
    dataset = FeatureTable(train=path, targets=["price", "rent"]).for_run(Number)
    splits = open_splits(dataset)
    signature = dataset.infer_signature(splits, None)  # type: ignore[arg-type]  # it needs no model
    target = splits.train.read_labels()  # type: ignore[union-attr]
    assert target.shape == (len(splits.train), 2)
    assert [scale.name for scale in signature.targets] == ["price", "rent"]
    np.testing.assert_allclose([scale[1:] for scale in signature.targets], np.stack([target.mean(0), target.std(0)], 1))
    assert [column.name for column in signature.columns.columns] == ["a", "b"]  # type: ignore[attr-defined]
    assert "2 targets" in dataset.remark(signature, splits) and "rent: mean" in dataset.remark(signature, splits)
    dataset.check_compatible(signature, signature, "old")
    for names, reason in ((["rent", "price"], "the targets rent, price"), (["price"], "one target")):
        other = NumericFeatureTable(train=path, targets=names, features=["a", "b"])
        before = other.infer_signature(open_splits(other), None)  # type: ignore[arg-type]
        with pytest.raises(
            CheckpointError, match=f"old was trained with {reason}; now there are the targets price, rent"
        ):
            dataset.check_compatible(signature, before, "old")


def test_wrong_targets_are_refused(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.csv")
    for more, reason in (
        ({"targets": []}, "one or several different columns"),
        ({"targets": ["price", "price"]}, "one or several different columns"),
        ({"targets": ["price", "a"], "features": ["a"]}, "features names the target 'a'"),
        ({"targets": ["price", "a"], "columns": {"a": "number"}}, "columns names the target 'a'"),
    ):
        with pytest.raises(ConfigError, match=reason):
            FeatureTable(train=str(path), **more).for_run(Number)
    with pytest.raises(DataError, match="dataset.targets: .* has no column 'Rent'. Did you mean 'rent'"):
        open_splits(NumericFeatureTable(train=str(path), targets=["price", "Rent"]))
    with pytest.raises(ConfigError, match="the default data have one target"):
        open_splits(NumericFeatureTable(targets=["price", "rent"]))
    both = FeatureTable(train=str(path), target="a", targets=["price", "rent"])
    for kind in (Number, ClassSet):
        with pytest.raises(ConfigError, match="dataset.target=a and dataset.targets=.* both name what is predicted"):
            both.for_run(kind)
    with pytest.raises(ConfigError, match="task=regression and task=multi_label read"):
        FeatureTable(train=str(path), targets=["price", "rent"]).for_run(RowClass)
    lines = path.read_text().splitlines()
    lines[4] = f"{lines[4].rpartition(',')[0]},cheap"
    path.write_text("\n".join(lines))
    with pytest.raises(DataError, match="line 5: 'rent' is 'cheap'"):
        open_splits(NumericFeatureTable(train=str(path), targets=["price", "rent"]))


@pytest.mark.parametrize(
    "options, reason",
    [
        (("loss=quantile",), "Type task.quantiles=[0.05,0.5,0.95]"),
        (("task.quantiles=[0.1,0.5,0.9]",), "Type loss=quantile"),
        (("loss=quantile", "task.quantiles=[0.9,0.5,0.1]"), "must be different and ascending"),
        (("loss=quantile", "task.quantiles=[0.1,0.9]"), "with 0.5 among them"),
        (("loss=quantile", "task.quantiles=[0.5,0.9]"), "as many must be below 0.5 as above it"),
        (("task.interval=1.5",), "interval"),
    ],
)
def test_wrong_quantiles_are_refused(options: Any, reason: str, capsys: Any) -> None:
    assert main(["task=regression", *options]) == 2
    assert reason in capsys.readouterr().err


def rows_of(path: str) -> List[Any]:
    return list(csv.DictReader(Path(path).read_text().splitlines()))


@pytest.mark.slow
def test_run_with_quantiles_and_margins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training, eval against scikit-learn, and predictions equal to those of eval and of the exported folder."""
    monkeypatch.chdir(tmp_path)
    write_rows(Path("rows.csv"))
    quantiles = ("loss=quantile", "task.quantiles=[0.1,0.5,0.9]", "task.interval=0.8", "hydra.run.dir=run")
    assert main([*OPTIONS, *quantiles]) == 0
    assert main(["eval", "run"]) == 0
    values, rows = json.loads(Path("run/eval/test/metrics.json").read_text()), rows_of("run/eval/test/predictions.csv")
    columns = {name: np.array([float(row[name]) for row in rows]) for name in rows[0] if name not in ("file", "sample")}
    names = ("price", "rent")
    true, predicted = (np.stack([columns[f"{key}_{name}"] for name in names], axis=1) for key in ("true", "predicted"))
    square = reference.mean_squared_error(true, predicted, multioutput="raw_values") ** 0.5
    assert values["root_mean_squared_error"] == pytest.approx(square.mean(), rel=1e-5)
    assert values["root_mean_squared_error/rent"] == pytest.approx(square[1], rel=1e-5)
    absolute = reference.mean_absolute_error(true, predicted, multioutput="raw_values")
    assert values["mean_absolute_error/price"] == pytest.approx(absolute[0], rel=1e-5)
    assert values["r2"] == pytest.approx(reference.r2_score(true, predicted), rel=1e-5)
    inside = [
        (columns[f"low_{name}"] <= columns[f"true_{name}"]) & (columns[f"true_{name}"] <= columns[f"high_{name}"])
        for name in names
    ]
    assert values["interval_coverage"] == pytest.approx(np.mean(inside))
    assert values["interval_coverage/rent"] == pytest.approx(inside[1].mean())
    loss = [
        reference.mean_pinball_loss(true[:, 0], columns["predicted_price"], alpha=0.5),
    ]
    assert loss[0] == pytest.approx(absolute[0] / 2)
    (table,) = [row for row in rows_of("run/eval/test/targets.csv") if row["target"] == "rent"]
    assert float(table["R2"]) == pytest.approx(values["r2/rent"], rel=1e-4)
    assert float(table["in the interval"]) == pytest.approx(values["interval_coverage/rent"], rel=1e-4)

    assert main(["predict", "run", "rows.csv", "output=predicted.csv"]) == 0
    written = {row["file"]: row for row in rows_of("predicted.csv")}
    for row in rows:
        other = written[row["file"]]
        assert float(other["price"]) == pytest.approx(float(row["predicted_price"]), abs=1e-5)
        assert float(other["rent_high"]) == pytest.approx(float(row["high_rent"]), abs=1e-3)
        assert float(other["rent_quantile_0.1"]) <= float(other["rent"]) <= float(other["rent_quantile_0.9"])

    assert main(["export", "run", "out=folder"]) == 0
    from mxtrain.exporting.standalone import OpenedExport

    signature = json.loads(Path("folder/signature.json").read_text())
    assert signature["facts"]["quantiles"] == [0.1, 0.5, 0.9] and len(signature["facts"]["margins"]) == 2
    from mxtrain.data.features import exported_rows

    folder = OpenedExport(Path("folder"))
    read = list(exported_rows.predict(folder, Path("rows.csv").read_bytes(), "rows.csv"))
    assert read[3]["values"]["rent"]["low"] == pytest.approx(float(written["rows.csv:5"]["rent_low"]), abs=1e-3)


@pytest.mark.slow
def test_a_margin_alone_and_a_checkpoint_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "rows.csv")
    data = ("dataset.train=rows.csv", "dataset.target=price", "dataset.features=[a,b]", "dataset.batch_size=32")
    options = ("task=regression", "trainer.max_epochs=2", "task.interval=0.9", "hydra.run.dir=run", "loss=huber")
    assert main([*options, *data]) == 0
    assert main(["eval", "run", "split=val"]) == 0
    values, rows = json.loads(Path("run/eval/val/metrics.json").read_text()), rows_of("run/eval/val/predictions.csv")
    score = np.sort([abs(float(row["true"]) - float(row["predicted"])) for row in rows])
    margin = score[int(np.ceil((len(score) + 1) * 0.9)) - 1]
    assert values["interval_width"] == pytest.approx(2 * margin, rel=1e-4)
    assert values["interval_coverage"] >= 0.9
    assert float(rows[0]["high"]) - float(rows[0]["predicted"]) == pytest.approx(margin, rel=1e-4)
    assert [row["target"] for row in rows_of("run/eval/val/targets.csv")] == ["price"]


@pytest.mark.parametrize(
    "dataset, name",
    [
        (NumericFeatureTable(train="t.csv", target="price"), "price"),
        (NumericFeatureTable(train="t.csv", targets=["rent"]), "rent"),
        (NumericFeatureTable(train="t.csv", targets=["price", "rent"]), ""),
        (NumberTexts(train="t.csv", label="stars"), "stars"),
        (NumberTexts(train="t.csv", label=["taste", "price"]), ""),
        (NumberImages(train="t.csv", label="age"), "age"),
        (NumberImages(train="t.csv"), ""),
        (DigitAngles(), ""),
    ],
    ids=lambda value: value or "none" if isinstance(value, str) else type(value).__name__,
)
def test_the_report_of_one_target_names_its_column(dataset: BaseDataset, name: str) -> None:
    assert target_column_of(dataset) == name
    target_NT = nd.array([[1.0], [2.0]])
    batch = Batch((), (target_NT, target_NT), 2, index_B=np.arange(2))
    layout = TargetLayout([""], [(0.0, 1.0)], [])
    report = TargetsReport(lambda outputs, batch: outputs[0], layout, False, False, target_column_of(dataset))
    report.update(batch, (target_NT.expand_dims(2),))
    table, _ = report.artifacts("test")
    assert table.rows[0][0] == (name or "target")


def test_a_checkpoint_without_margins(caplog: Any) -> None:
    task = Regression(interval=0.9)
    assert task.restored({}).interval is None and "has no margins" in caplog.text
    assert task.restored({"margins": {"values": [1.5]}})._restored == [1.5]
    for damaged in ("x", [float("nan")], [True], {"a": 1}):
        with pytest.raises(DamagedCheckpoint, match="its margins are"):
            task.restored({"margins": {"values": damaged}})


@pytest.mark.slow
@pytest.mark.parametrize("placement", ["parallel=data", "parallel=hybrid"])
def test_verify_with_quantiles_of_several_targets(
    placement: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    write_rows(Path("rows.csv"))
    quantiles = ("loss=quantile", "task.quantiles=[0.1,0.5,0.9]")
    assert main(["verify", *OPTIONS, *quantiles, placement]) == 0
    assert "the same as on one device" in capsys.readouterr().out
