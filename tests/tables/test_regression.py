"""Regression: rows of numbers and pairs of texts, against NumPy."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mxtrain.cli import main
from mxtrain.data.loading.loader import LoaderOptions
from mxtrain.data.loading.target_scale import with_target_scale
from mxtrain.data.signature import Signature
from mxtrain.data.spec import open_splits
from mxtrain.errors import CheckpointError, ConfigError, DamagedCheckpoint, DataError
from mxtrain.tables.number_table import NumberTable

pytestmark = pytest.mark.usefixtures("own_cache")

LINEAR = (
    "task=regression",
    "model.hidden=[]",
    "optimizer=sgd",
    "optimizer.lr=0.01",
    "optimizer.momentum=0",
    "lr_scheduler=constant",
    "trainer.max_steps=5",
    "trainer.max_epochs=null",
)


def write_table(path: Path, size: int, seed: int = 0) -> None:
    rng = np.random.RandomState(seed)
    rows = np.c_[rng.randn(size, 2) * [3, 0.1] + [5, -1], np.zeros(size)]
    rows[:, 2] = 2 * rows[:, 0] - 7 * rows[:, 1] + 0.5
    with path.open("w", newline="") as stream:
        csv.writer(stream).writerows([["height", "width", "target"], *rows.tolist()])


@pytest.mark.slow
def test_each_step_equals_least_squares(describe_run: Any, tmp_path: Path) -> None:
    """Weights and rows of five steps of gradient descent on half the mean squared difference, in NumPy. Targets are
    standardised; the root mean squared error is in their own unit."""
    from mxtrain.training.build import build_run

    description = describe_run(*LINEAR, "dataset=number_table")
    run = build_run(description, tmp_path / "run")
    strategy, loader = run.runner.context.step.strategy, run.runner.context.data.train
    (weight_name,), (bias_name,) = ([n for n in strategy.values if n.endswith(k)] for k in ("weight", "bias"))
    weight, bias = strategy.values[weight_name].asnumpy()[0].astype(float), 0.0
    train = open_splits(description.dataset).train
    value, target = train.value_NF.astype(float), train.target_N.astype(float)
    mean, std = value.mean(0), value.std(0)
    expected = []
    for batch in list(loader.epoch(0))[:5]:
        x, t = (value[batch.index_B] - mean) / std, (target[batch.index_B] - target.mean()) / target.std()
        difference = x @ weight + bias - t
        expected.append((0.5 * (difference**2).mean(), target.std() * np.sqrt((difference**2).mean())))
        weight, bias = weight - 0.01 * difference @ x / len(t), bias - 0.01 * difference.mean()
    run.runner.train(run.info)
    np.testing.assert_allclose(strategy.values[weight_name].asnumpy()[0], weight, rtol=1e-4)
    np.testing.assert_allclose(strategy.values[bias_name].asnumpy(), [bias], rtol=1e-4)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    found = [(row["loss"], row["root_mean_squared_error"]) for row in rows if row["split"] == "train"]
    np.testing.assert_allclose(found, expected, rtol=1e-4)


@pytest.mark.slow
def test_eval_and_predict_agree_sample_by_sample(train_run: Any, describe_run: Any, tmp_path: Path) -> None:
    write_table(tmp_path / "train.csv", 90)
    write_table(tmp_path / "test.csv", 21, seed=1)
    train_run(
        "task=regression",
        f"dataset.train={tmp_path}/train.csv",
        f"dataset.test={tmp_path}/test.csv",
        "trainer.max_epochs=2",
    )
    run_dir = str(tmp_path / "run")
    assert main(["eval", run_dir]) == 0
    measured = json.loads((tmp_path / "run" / "eval" / "test" / "metrics.json").read_text())
    assert main(["predict", run_dir, f"{tmp_path}/test.csv", f"output={tmp_path}/out.csv"]) == 0
    with (tmp_path / "out.csv").open() as stream:
        predicted = [float(row["value"]) for row in csv.DictReader(stream)]
    with (tmp_path / "run" / "eval" / "test" / "predictions.csv").open() as stream:
        rows = [(float(row["predicted"]), float(row["true"])) for row in csv.DictReader(stream)]
    np.testing.assert_allclose(predicted, [row[0] for row in rows], atol=1e-5)
    difference = np.subtract(*np.array(rows).T)
    assert measured["root_mean_squared_error"] == pytest.approx(np.sqrt((difference**2).mean()), rel=1e-5)
    assert measured["pearson"] == pytest.approx(np.corrcoef(np.array(rows).T)[0, 1], rel=1e-5)
    assert measured["samples"] == len(predicted) == 21
    with (tmp_path / "run" / "eval" / "test" / "models.csv").open() as stream:
        own, mean = csv.DictReader(stream)
    files = (f"dataset.train={tmp_path}/train.csv", f"dataset.test={tmp_path}/test.csv")
    description = describe_run("task=regression", "dataset=number_table", *files)
    trained = open_splits(description.dataset).train.target_N.astype(float)
    target = np.array([row[1] for row in rows])
    assert float(own["root mean squared error"]) == pytest.approx(measured["root_mean_squared_error"], rel=1e-4)
    deviation = np.sqrt(((target - trained.mean()) ** 2).mean())
    assert float(mean["root mean squared error"]) == pytest.approx(deviation, rel=1e-4)
    assert float(mean["mean absolute error"]) == pytest.approx(np.abs(target - trained.mean()).mean(), rel=1e-4)


@pytest.mark.slow
def test_targets_are_learned_independently_of_their_unit(describe_run: Any, tmp_path: Path) -> None:
    """The same weights, and errors in units of the target's deviation, whatever its unit and zero are."""
    from mxtrain.training.build import build_run

    found = []
    for unit, zero in ((1.0, 0.0), (2.0**17, 2.0**19)):
        write_table(tmp_path / "train.csv", 90)
        with (tmp_path / "train.csv").open() as stream:
            head, *rows = list(csv.reader(stream))
        rows = [[*row[:2], repr(float(row[2]) * unit + zero)] for row in rows]
        (tmp_path / "train.csv").write_text("\n".join(",".join(row) for row in [head, *rows]))
        run_dir = tmp_path / f"run{unit}"
        run = build_run(describe_run(*LINEAR, f"dataset.train={tmp_path}/train.csv"), run_dir)
        run.runner.train(run.info)
        values = [v.asnumpy() for _, v in sorted(run.runner.context.step.strategy.values.items())]
        last = json.loads((run_dir / "metrics.jsonl").read_text().splitlines()[-1])
        found.append((values, last["root_mean_squared_error"] / unit))
    (weights, error), (same, scaled) = found
    for one, other in zip(weights, same):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
    assert scaled == pytest.approx(error, rel=1e-3)


@pytest.mark.slow
def test_the_scale_of_targets_is_kept_and_belongs_to_the_network(describe_run: Any, tmp_path: Path) -> None:
    write_table(tmp_path / "train.csv", 90)
    dataset = describe_run("task=regression", "dataset=number_table", f"dataset.train={tmp_path}/train.csv").dataset
    splits = open_splits(dataset)
    signature = dataset.infer_signature(splits, None)
    target = splits.train.target_N.astype(float)
    assert (signature.target_mean, signature.target_std) == pytest.approx((target.mean(), target.std()), rel=1e-12)
    kept = type(signature).from_json(json.loads(json.dumps(signature.to_json())))
    assert kept == signature
    error = splits.val.target_N - target.mean()
    said = dataset.remark(signature, splits)
    assert f"root mean squared error {np.sqrt((error**2).mean()):.6g}" in said
    assert f"mean absolute error {np.abs(error).mean():.6g}" in said
    dataset.check_compatible(signature, kept, "here")
    with pytest.raises(CheckpointError, match="here was trained with targets of mean 1 and deviation"):
        dataset.check_compatible(signature, replace(signature, target_mean=1.0), "here")
    with pytest.raises(CheckpointError, match="by a version that did not standardise targets"):
        dataset.check_compatible(signature, replace(signature, target_mean=0.0, target_std=1.0), "here")
    for wrong in ({"target_std": 0.0}, {"target_std": -1.0}, {"target_mean": float("nan")}):
        with pytest.raises(DamagedCheckpoint, match="its targets have mean"):
            replace(signature, **wrong)


def test_a_constant_target_has_no_deviation_to_divide_by() -> None:
    signature = with_target_scale(Signature((2,)), np.full(7, 0.1, np.float32))
    assert signature.target_std == 1.0 and signature.target_mean == pytest.approx(0.1)


def small_table(tmp_path: Path, header: str, rows: Any) -> str:
    (tmp_path / "t.csv").write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return str(tmp_path / "t.csv")


def test_missing_features_are_the_mean_of_their_column(tmp_path: Path) -> None:
    rows = [f'{number},{"NA" if number % 5 == 0 else number},"${number + 1000:,}"' for number in range(40)]
    dataset = NumberTable(train=small_table(tmp_path, "id,age,target", rows), batch_size=40)
    splits = dataset.open()
    signature = dataset.infer_signature(splits, None)  # type: ignore[arg-type]
    age = splits.train.value_NF[:, 0].astype(float)  # type: ignore[attr-defined]
    assert splits.class_names == ["age"] and np.isnan(age).any()
    options = LoaderOptions(batch_size=40, prefetch=0)
    (batch,) = dataset.build_loader(splits.train, signature, options).epoch(0)
    expected = np.nan_to_num((age - np.nanmean(age)) / np.nanstd(age))
    np.testing.assert_allclose(batch.inputs[0].asnumpy()[:, 0], expected, rtol=1e-5, atol=1e-6)
    assert 1000 <= splits.train.target_N.min()  # type: ignore[attr-defined]
    assert f"age: {np.isnan(age).sum()}" in dataset.remark(signature, splits)


@pytest.mark.parametrize(
    "header, cell, words",
    [
        ("age,city,target", "3,Paris,{}", r"the column 'city' holds texts.* Type dataset=feature_table"),
        ("age,age,target", "3,4,{}", "two columns are called 'age'"),
        ("age,target", "3,NA", "line 2: 'target' is 'NA', a missing number. Give the number[.]"),
        ("age,target", "3_0,{}", "the column 'age' holds texts"),
        ("age,target", "3,1_{}", "line 2: 'target' is '1_0', no number"),
        ("age,target", '"3,5",{}', "'age' has numbers with the decimal sign ','"),
    ],
)
def test_columns_and_cells_that_are_not_numbers_are_refused(tmp_path: Path, header: str, cell: str, words: str) -> None:
    with pytest.raises(DataError, match=words):
        NumberTable(train=small_table(tmp_path, header, [cell.format(number) for number in range(30)])).open()


@pytest.mark.slow
def test_ids_are_copied_beside_predictions(train_run: Any, tmp_path: Path, capsys: Any) -> None:
    rows = [f"house {number},{number % 7},{number % 3},{number}" for number in range(60)]
    path = small_table(tmp_path, "house_id,rooms,age,target", rows)
    train_run("task=regression", f"dataset.train={path}", "trainer.max_epochs=1")
    found = {}
    for keep in ("", "keep=[age,rooms]", "keep=[]"):
        words = [path, f"output={tmp_path}/out.csv", *([keep] if keep else [])]
        assert main(["predict", str(tmp_path / "run"), *words]) == 0
        with (tmp_path / "out.csv").open() as stream:
            found[keep] = list(csv.DictReader(stream))
    assert list(found[""][5]) == ["file", "house_id", "value"] and found[""][5]["house_id"] == "house 5"
    assert found[""][0]["file"] == f"{path}:2" and found[""][59]["file"] == f"{path}:61"
    assert [row["age"] + row["rooms"] for row in found["keep=[age,rooms]"]] == [f"{n % 3}{n % 7}" for n in range(60)]
    assert list(found["keep=[]"][0]) == ["file", "value"]
    assert main(["predict", str(tmp_path / "run"), path, "keep=[hous]"]) == 2
    assert "no column 'hous'" in capsys.readouterr().err


@pytest.mark.slow
def test_the_similarity_of_sentences_is_read_as_published(describe_run: Any, tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    (tmp_path / "STS-B").mkdir()
    names = "index genre filename year old_index source1 source2 sentence1 sentence2 score".split()
    for name in ("train", "dev"):
        rows = [
            ["0", "g", "f", "2012", "1", "s", "s", "A plane takes off.", f"A {name} leaves.", "4.25"],
            ["1", "g", "f", "2012", "2", "s", "s", "A man sings.", "A dog barks.", "0.000"],
        ]
        lines = ["\t".join(row) for row in [names, *rows]]
        (tmp_path / "STS-B" / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    given = ("dataset=glue", "dataset.task=stsb", f"dataset.root={tmp_path}")
    description = describe_run("task=regression", "model=bert", *given)
    splits = open_splits(description.dataset)
    assert splits.train.pairs[0] == ("A plane takes off.", "A train leaves.")
    np.testing.assert_array_equal(splits.val.label_N, np.float32([4.25, 0]))
    signature = description.dataset.infer_signature(splits, description.model)
    assert (signature.target_mean, signature.target_std) == (2.125, 2.125)
    assert "this mean, predicted for each" in description.dataset.remark(signature, splits)
    with pytest.raises(ConfigError, match="its samples are for task=regression. Type that"):
        describe_run("model=bert", *given)


@pytest.mark.parametrize(
    "change, words",
    [
        (
            lambda text: text.replace("target", "goal", 1),
            "train.csv, line 1: there is no column 'target'. Type dataset.target=height, or another of",
        ),
        (lambda text: text.replace("\n", "\nmany,1,2\n", 1), "line 2: 'height' is 'many', no number"),
        (lambda text: text.replace("\n", "\n1,2,nan\n", 1), "line 2: 'target' is 'nan', a missing number"),
        (lambda text: text.replace("\n", "\n1,2\n", 1), "line 2: it has 2 columns"),
    ],
)
def test_tables_that_cannot_be_used_are_refused(describe_run: Any, tmp_path: Path, change: Any, words: str) -> None:
    write_table(tmp_path / "train.csv", 40)
    path = tmp_path / "train.csv"
    path.write_text(change(path.read_text().replace("\r\n", "\n")))
    with pytest.raises(DataError, match=words):
        open_splits(describe_run("task=regression", "dataset=number_table", f"dataset.train={path}").dataset)


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides, words",
    [
        (("task=regression", "loss=softmax_cross_entropy"), "not for task=regression. Type loss=l2"),
        (("task=regression", "metric=[accuracy]"), "metric.accuracy: Accuracy is for classification"),
        (("task=regression", "loss.label_smoothing=0.1"), "task=regression has no classes to smooth over"),
        (("task=regression", "dataset=digits"), "its samples are for task=classification"),
        (("task=regression", "model=lenet"), "model takes images, and dataset gives features. Type model=mlp"),
        (("task=regression", "trainer.monitor=train/pearson"), "this run does not measure it"),
    ],
)
def test_wrong_settings_are_refused(describe_run: Any, overrides: Any, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        describe_run(*overrides)
    assert words in str(refused.value)


def test_column_names_may_be_quoted(describe_run: Any, tmp_path: Path) -> None:
    path = tmp_path / "train.csv"
    write_table(path, 40)
    head, _, rows = path.read_text().partition("\n")
    path.write_text(",".join(f'"{name.strip()}"' for name in head.split(",")) + "\n" + rows)
    splits = open_splits(describe_run("task=regression", "dataset=number_table", f"dataset.train={path}").dataset)
    assert splits.class_names == [name.strip() for name in head.split(",") if name.strip() != "target"]
