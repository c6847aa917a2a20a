"""Classification of a sample into one class: probabilities, rows and columns, shown samples, and the report."""

from __future__ import annotations

import csv
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mxtrain.data.loading.sources import MemorySource
from mxtrain.data.signature import Signature
from mxtrain.engine.backend import nd
from mxtrain.errors import DataError
from mxtrain.task.classification import Classification, ConfusionReport, texts_of
from mxtrain.task.fit import require_same_names
from mxtrain.task.prediction_format import class_name
from mxtrain.text.signature import TextSignature
from mxtrain.text.tokenizing.config import TokenizerConfig
from mxtrain.text.tokenizing.wordpiece import WordPiece
from mxtrain.types import Batch, Figure, Table
from mxtrain.workflows.eval_folder import write_artifacts

TASK = Classification()
IMAGES = Signature((1, 2, 3), [0.5], [0.25], ["cat", "dog", "cow"])
TEXTS = TextSignature(
    ((5,), (5,), ()),
    class_names=["cat", "dog", "cow"],
    tokenizer_config=TokenizerConfig(WordPiece(("x", "y"), True), 5),
)


def test_predictions_are_probabilities_in_float32() -> None:
    score_BK = np.random.RandomState(0).randn(4, 3)
    found = TASK.decode((nd.array(score_BK, dtype="float16"),), Batch((), (), 2))
    expected = np.exp(score_BK) / np.exp(score_BK).sum(axis=1, keepdims=True)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found.asnumpy(), expected, atol=2e-3)


@pytest.mark.parametrize("top_k, names", [(1, ["dog"]), (2, ["dog", "cat"]), (9, ["dog", "cat", "cow"])])
def test_a_row_names_the_likeliest_classes(top_k: int, names: Any) -> None:
    row = TASK.row(IMAGES, np.array([0.2, 0.6, 0.2], np.float32), top_k)  # of equal ones the first
    assert (row["class"], row["probability"]) == ("dog", 0.6)
    assert [one["class"] for one in row["top"]] == names
    cells = TASK.prediction_format().cells(row)
    assert list(cells) == [f"{name}_{n}" for n in range(1, len(names) + 1) for name in ("class", "probability")]
    assert [cells[f"class_{number}"] for number in range(1, len(names) + 1)] == names


def test_images_are_shown_as_a_figure_and_texts_as_a_table() -> None:
    probability_BK = np.array([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8]], np.float32)
    images = MemorySource(np.zeros((2, 1, 2, 3), np.uint8), np.array([0, 1], np.int32))
    (image,) = TASK.show(IMAGES, images, probability_BK, [np.array([0.0, 1.0])])
    assert isinstance(image, Figure) and image.name == "samples" and image.draw(2).mode == "RGB"
    texts = SimpleNamespace(pairs=[("one", None), ("two", "three")])
    (table,) = TASK.show(TEXTS, texts, probability_BK, [np.array([0.0, 1.0])])
    assert isinstance(table, Table) and table.header == ["text", "class", "predicted", "probability"]
    assert table.rows == [["one", "cat", "cat", "0.50"], ["two | three", "dog", "cow", "0.80"]]


def test_pairs_of_texts_are_shown_joined() -> None:
    source = SimpleNamespace(pairs=[("one", None), ("two", "three")])
    assert texts_of(source) == ["one", "two | three"]


def test_the_report_counts_every_batch_and_of_equal_scores_the_first(tmp_path: Any) -> None:
    report = ConfusionReport(["cat", "dog", "cow"])
    for scores, labels in (([[1, 1, 0], [0, 2, 1]], [0, 1]), ([[0, 0, 3]], [1])):
        report.update(Batch((), (nd.array(labels),), len(labels)), (nd.array(scores, dtype="float16"),))
    write_artifacts(report.artifacts("val, step 3"), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["confusion.csv", "confusion.png", "per_class.csv"]
    with open(tmp_path / "confusion.csv", newline="") as file:
        assert [row[1:] for row in csv.reader(file)][1:] == [["1", "0", "0"], ["0", "1", "1"], ["0", "0", "0"]]


def test_classes_that_were_not_trained_on_are_named() -> None:
    splits: Any = SimpleNamespace(class_names=("cat", "dog", "cow"))
    require_same_names(IMAGES, splits)
    splits.class_names = ("cat", "cow", "dog", "hen")
    with pytest.raises(DataError, match=r"4 classes are not .* on \(3\): cat, cow, dog, ... against cat, dog, cow\."):
        require_same_names(IMAGES, splits)


def test_the_score_of_the_likeliest_class_is_explained() -> None:
    """It stays that of the same class when the network is given something else."""
    score_BK = np.array([[1.0, 3.0, 2.0], [5.0, 0.0, 1.0]])
    found = TASK.explained(None, IMAGES, (nd.array(score_BK),), Batch((), (nd.array([1.0, 2.0]),), 2))
    assert (list(found.true), list(found.predicted)) == (["dog", "cow"], ["dog", "cat"])
    assert found.is_right_B.tolist() == [True, False]
    expected_BK = np.exp(score_BK) / np.exp(score_BK).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(found.probability_B, expected_BK.max(axis=1), rtol=1e-5)
    assert found.score((nd.array(score_BK),)).asnumpy().tolist() == [3.0, 5.0]
    assert found.score((nd.array(-score_BK),)).asnumpy().tolist() == [-3.0, -5.0]


@pytest.mark.parametrize("number, name", [(-1, "-1"), (0, "cat"), (1, "dog"), (2, "2")])
def test_names_of_classes(number: int, name: str) -> None:
    assert class_name(["cat", "dog"], number) == name


def test_a_class_that_has_no_name_is_a_number() -> None:
    found = TASK.explained(None, IMAGES, (nd.ones((1, 3)),), Batch((), (nd.array([-1.0]),), 1))
    assert list(found.true) == ["-1"] and not found.is_right_B[0]
