"""Tags of words: what is decoded, measured over parts of sentences, shown, and written by `predict`."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mxtrain.cli.dispatch import run
from mxtrain.data.signature import Signature
from mxtrain.engine.backend import nd
from mxtrain.errors import ConfigError
from mxtrain.metric.meter import LossWeights
from mxtrain.text.token_classification.conll_file import TaggedWords
from mxtrain.text.token_classification.metrics import CollectedTags, EntityF1, Scores
from mxtrain.text.token_classification.report import TokenReport
from mxtrain.text.token_classification.tagged import TaggedSentences
from mxtrain.text.token_classification.tags import TagCodes
from mxtrain.text.token_classification.task import TokenClassification
from mxtrain.types import Batch

pytestmark = pytest.mark.usefixtures("own_cache")
TASK = TokenClassification()
NAMES = ["O", "B-X", "I-X", "B-Y"]
SIGNATURE = Signature(((8,), (8,), ()), class_names=NAMES)
META = np.concatenate([[[0], [1], [1]], np.tile(TagCodes(NAMES).code_K, (3, 1))], axis=1)
TRUE = np.array([[-1, 1, -1, 2], [-1, 1, 2, -1], [-1, 2, 0, 3]], np.float32)
"""Three samples, of which the last two are one sentence: B-X I-X | B-X I-X I-X O B-Y."""


def of_words(prediction: np.ndarray) -> CollectedTags:
    collected = CollectedTags()
    collected.update(np.array([2, 0]), prediction[[2, 0]], TRUE[[2, 0]], META[[2, 0]])
    other = CollectedTags()
    other.update(np.array([1]), prediction[[1]], TRUE[[1]], META[[1]])
    collected.merge(other.rows())
    return collected


def test_only_first_tokens_of_words_are_decoded() -> None:
    scores = np.zeros((3, 4, 4), np.float32)
    scores[:, 1:, 3] = 1
    found = TASK.decode((nd.array(scores),), Batch((), (nd.array(TRUE),), 3)).asnumpy()
    np.testing.assert_array_equal(found, np.where(TRUE >= 0, 3, -1))
    assert TASK.row(SIGNATURE, found[0], 1) == {"tags": ["B-Y", "B-Y"]}


def test_entities_span_the_parts_of_a_sentence_on_any_worker() -> None:
    assert EntityF1().compute(of_words(TRUE)) == 1.0
    wrong = TRUE.copy()
    wrong[2, 1] = 0  # the last word of the second entity: B-X I-X O O B-Y
    assert EntityF1().compute(of_words(wrong)) == pytest.approx(2 / 3)
    assert EntityF1(average="macro").compute(of_words(wrong)) == pytest.approx((1 / 2 + 1) / 2)
    assert EntityF1(average="weighted").compute(of_words(wrong)) == pytest.approx((2 * 1 / 2 + 1) / 3)
    assert np.isnan(EntityF1().compute(CollectedTags()))
    none = CollectedTags()
    none.update(np.array([0]), TRUE[[1]], np.where(TRUE[[1]] < 0, -1, 0), META[[1]])  # no true entity, a predicted one
    assert all(np.isnan(EntityF1(average=kind).compute(none)) for kind in ("micro", "macro", "weighted"))
    assert Scores.from_counts(0, 3, 2) == (0.0, 0.0, 0.0) and np.isnan(Scores.from_counts(0, 3, 0).recall)


def test_metrics_of_entities_need_tags_that_mean_some() -> None:
    description: Any = SimpleNamespace(metric={"entity_f1": EntityF1()})
    with pytest.raises(ConfigError, match=r"metric.entity_f1: the tags \(NN, VB.*Type metric=\[token_accuracy\]"):
        TASK.build_meter(description, Signature(SIGNATURE.shape, class_names=["NN", "VB"]), LossWeights(True), False)


def test_rows_join_the_parts_of_a_sentence() -> None:
    source = TaggedSentences(TaggedWords([["a", "b"], ["c", "d", "e", "f", "g"]]), NAMES)
    rows = list(TASK.prediction_format().rows(SIGNATURE, source, enumerate(TRUE), 1))
    assert [number for number, _ in rows] == [0, 1]
    assert rows[1][1] == {
        "words": list("cdefg"),
        "tags": ["B-X", "I-X", "I-X", "O", "B-Y"],
        "entities": [
            {"type": "X", "text": "c d e", "begin": 0, "end": 3},
            {"type": "Y", "text": "g", "begin": 4, "end": 5},
        ],
    }
    assert (
        "".join(TASK.prediction_format().write_as("conll", SIGNATURE, [row for _, row in rows[:1]]))
        == "a B-X\nb I-X\n\n"
    )


def test_a_report_has_types_tags_and_the_worst_sentences() -> None:
    words = TaggedWords([["a", "b"], list("cdefg")], [["B-X", "I-X"], ["B-X", "I-X", "I-X", "O", "B-Y"]])
    wrong = TRUE.copy()
    wrong[2, 1] = 0
    report = TokenReport(lambda outputs, batch: outputs[0], SIGNATURE, TaggedSentences(words, NAMES))
    report.update(Batch((), (nd.array(TRUE),), 3, index_B=np.arange(3), meta=META), (nd.array(wrong),))
    shown = {artifact.name: artifact for artifact in report.artifacts("val")}
    rows = shown["entities"].rows
    assert [row[0] for row in rows] == ["X", "Y", "all (micro)"] and rows[0][1:] == [0.5, 0.5, 0.5, 2]
    assert rows[2][3] == pytest.approx(2 / 3) and shown["mistakes"].lines == ["c d e/I-X>O f g"]


@pytest.mark.slow
def test_predict_writes_sentences_of_lines_and_columns(train_run: Any, tmp_path: Path, capsys: Any) -> None:
    train = "\n\n".join(f"w{n} B-X\nx O\ny O\nz{n % 3} B-Y" for n in range(40))
    (tmp_path / "train.txt").write_text(train)
    words = (
        "task=token_classification",
        f"dataset.root={tmp_path}",
        "dataset.val=null",
        "dataset.test=null",
        "dataset.max_length=8",
        "dataset.vocab_size=100",
        "model.units=8",
        "model.embed_size=8",
        "trainer.max_epochs=1",
        "trainer.limit_train_batches=1",
    )
    train_run(*words)
    (tmp_path / "lines.txt").write_text("x y\n\n" + " ".join(["w1"] * 30) + "\n")
    (tmp_path / "columns.conll").write_text("x O\ny O\n\nz1 O\n")
    files = [str(tmp_path / name) for name in ("lines.txt", "columns.conll")]
    capsys.readouterr()
    assert run(["predict", str(tmp_path / "run"), *files, "which=last"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["file"].split("/")[-1] for row in rows] == [
        "lines.txt:1",
        "lines.txt:3",
        "columns.conll:1",
        "columns.conll:4",
    ]
    assert [len(row["tags"]) for row in rows] == [2, 30, 2, 1] and rows[1]["words"] == ["w1"] * 30
    assert run(["predict", str(tmp_path / "run"), *files, "which=last", "format=csv"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split(",")[1] == "x y"
