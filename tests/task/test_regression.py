"""Regression: rows of numbers and pairs of texts, against NumPy."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mxtrain.cli import main
from mxtrain.dataset.base import open_splits
from mxtrain.errors import ConfigError, DataError

pytestmark = pytest.mark.usefixtures("own_cache")

LINEAR = ("task=regression", "model.hidden=[]", "optimizer=sgd", "optimizer.lr=0.01", "optimizer.momentum=0",
          "lr_scheduler=constant", "trainer.max_steps=5", "trainer.max_epochs=null")  # fmt: skip


def write_table(path: Path, size: int, seed: int = 0) -> None:
    rng = np.random.RandomState(seed)
    rows = np.c_[rng.randn(size, 2) * [3, 0.1] + [5, -1], np.zeros(size)]
    rows[:, 2] = 2 * rows[:, 0] - 7 * rows[:, 1] + 0.5
    with path.open("w", newline="") as stream:
        csv.writer(stream).writerows([["height", "width", "target"], *rows.tolist()])


def test_each_step_is_that_of_least_squares(describe_run: Any, tmp_path: Path) -> None:
    """Weights and rows of five steps of gradient descent on half the mean squared difference, in NumPy."""
    from mxtrain.build import build_run

    description = describe_run(*LINEAR)
    run = build_run(description, tmp_path / "run")
    strategy, loader = run.runner._step.strategy, run.runner._data.train
    (weight_name,), (bias_name,) = ([n for n in strategy.values if n.endswith(k)] for k in ("weight", "bias"))
    weight, bias = strategy.values[weight_name].asnumpy()[0].astype(float), 0.0
    train = open_splits(description.dataset).train
    value = train.value_NF.astype(float)
    mean, std = value.mean(0), value.std(0)
    expected = []
    for batch in list(loader.epoch(0))[:5]:
        x, t = (value[batch.index_B] - mean) / std, train.target_N[batch.index_B].astype(float)
        difference = x @ weight + bias - t
        expected.append((0.5 * (difference**2).mean(), np.sqrt((difference**2).mean())))
        weight, bias = weight - 0.01 * difference @ x / len(t), bias - 0.01 * difference.mean()
    run.runner.train(run.info)
    np.testing.assert_allclose(strategy.values[weight_name].asnumpy()[0], weight, rtol=1e-4)
    np.testing.assert_allclose(strategy.values[bias_name].asnumpy(), [bias], rtol=1e-4)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    found = [(row["loss"], row["root_mean_squared_error"]) for row in rows if row["split"] == "train"]
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_eval_and_predict_agree_sample_by_sample(train_run: Any, tmp_path: Path, capsys: Any) -> None:
    write_table(tmp_path / "train.csv", 90)
    write_table(tmp_path / "test.csv", 21, seed=1)
    train_run("task=regression", f"dataset.train={tmp_path}/train.csv", f"dataset.test={tmp_path}/test.csv",
              "trainer.max_epochs=2")  # fmt: skip
    run_dir = str(tmp_path / "run")
    assert main(["eval", run_dir]) == 0
    measured = json.loads((tmp_path / "run" / "eval" / "test" / "metrics.json").read_text())
    assert main(["predict", run_dir, f"{tmp_path}/test.csv", f"output={tmp_path}/out.csv"]) == 0
    with (tmp_path / "out.csv").open() as stream:
        predicted = [float(row["value"]) for row in csv.DictReader(stream)]
    with (tmp_path / "run" / "eval" / "test" / "predictions.csv").open() as stream:
        rows = [(float(row["predicted"]), float(row["target"])) for row in csv.DictReader(stream)]
    np.testing.assert_allclose(predicted, [row[0] for row in rows], atol=1e-5)
    difference = np.subtract(*np.array(rows).T)
    assert measured["root_mean_squared_error"] == pytest.approx(np.sqrt((difference**2).mean()), rel=1e-5)
    assert measured["pearson"] == pytest.approx(np.corrcoef(np.array(rows).T)[0, 1], rel=1e-5)
    assert measured["samples"] == len(predicted) == 21


def test_the_similarity_of_sentences_is_read_as_published(describe_run: Any, tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    (tmp_path / "STS-B").mkdir()
    names = "index genre filename year old_index source1 source2 sentence1 sentence2 score".split()
    for name in ("train", "dev"):
        rows = [["0", "g", "f", "2012", "1", "s", "s", "A plane takes off.", f"A {name} leaves.", "4.25"],
                ["1", "g", "f", "2012", "2", "s", "s", "A man sings.", "A dog barks.", "0.000"]]  # fmt: skip
        lines = ["\t".join(row) for row in [names, *rows]]
        (tmp_path / "STS-B" / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    given = ("dataset=glue", "dataset.task=stsb", f"dataset.root={tmp_path}")
    description = describe_run("task=regression", "model=bert", *given)
    splits = open_splits(description.dataset)
    assert splits.train.pairs[0] == ("A plane takes off.", "A train leaves.")
    np.testing.assert_array_equal(splits.val.label_N, np.float32([4.25, 0]))
    with pytest.raises(ConfigError, match="its samples are for task=regression. Type that"):
        describe_run("model=bert", *given)


@pytest.mark.parametrize(
    "change, words",
    [
        (
            lambda text: text.replace("target", "goal", 1),
            "train.csv, line 1: there is no column 'target'. Type dataset.target=NAME, with one of",
        ),
        (lambda text: text.replace("\n", "\nmany,1,2\n", 1), "row 1: 'height' is 'many', no number"),
        (lambda text: text.replace("\n", "\n1,nan,2\n", 1), "row 1: 'width' is nan"),
        (lambda text: text.replace("\n", "\n1,2\n", 1), "line 2: it has 2 columns"),
    ],
)
def test_tables_that_cannot_be_used_are_refused(describe_run: Any, tmp_path: Path, change: Any, words: str) -> None:
    write_table(tmp_path / "train.csv", 40)
    path = tmp_path / "train.csv"
    path.write_text(change(path.read_text().replace("\r\n", "\n")))
    with pytest.raises(DataError, match=words):
        open_splits(describe_run("task=regression", f"dataset.train={path}").dataset)


@pytest.mark.parametrize(
    "overrides, words",
    [
        (("task=regression", "loss=softmax_cross_entropy"), "not for task=regression. Type loss=l2"),
        (("task=regression", "metric=[accuracy]"), "metric.accuracy: Accuracy is for classification"),
        (("task=regression", "loss.label_smoothing=0.1"), "task=regression has no classes to smooth over"),
        (("task=regression", "dataset=digits"), "its samples are for task=classification"),
        (("task=regression", "model=lenet"), "model takes images, and dataset gives numbers. Type model=mlp"),
        (("task=regression", "trainer.monitor=train/pearson"), "nothing measures that"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(describe_run: Any, overrides: Any, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        describe_run(*overrides)
    assert words in str(refused.value)


def test_names_of_columns_may_stand_in_quotes(describe_run: Any, tmp_path: Path) -> None:
    path = tmp_path / "train.csv"
    write_table(path, 40)
    head, _, rows = path.read_text().partition("\n")
    path.write_text(",".join(f'"{name.strip()}"' for name in head.split(",")) + "\n" + rows)
    splits = open_splits(describe_run("task=regression", f"dataset.train={path}").dataset)
    assert splits.class_names == [name.strip() for name in head.split(",") if name.strip() != "target"]
