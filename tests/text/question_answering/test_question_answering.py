"""Answers: loss and its padding, metrics over windows, no answers, what `predict` writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mxtrain.cli.dispatch import run
from mxtrain.engine.backend import autograd, nd
from mxtrain.errors import ConfigError
from mxtrain.text.losses import SpanSoftmaxCrossEntropy
from mxtrain.text.question_answering.answer_window import Window, WindowSettings
from mxtrain.text.question_answering.best_answer import answer_of
from mxtrain.text.question_answering.metrics import AnswerF1, CollectedAnswers, ExactMatch
from mxtrain.text.question_answering.questions import Answer, Question

pytestmark = pytest.mark.usefixtures("own_cache")
TEXT = "red cat big dog old cow"
SPANS = np.array([[n * 4, n * 4 + 3] for n in range(6)])
SETTINGS = WindowSettings(2, 4, 3, False, True, 1.0)
GOLD = (Answer("big dog", 8),)


def window(number: int, first: int, answers: Any = GOLD, settings: WindowSettings = SETTINGS) -> Window:
    """Three words from `first` on, behind a question of one token."""
    return Window(number, Question(f"q{number}", "?", 0, answers), TEXT, SPANS[first : first + 3], 3, settings)


def scores(begin: int, end: int, height: float, null: float = -4.0) -> np.ndarray:
    found = np.full((7, 2), -5.0, np.float32)
    found[0] = null
    found[begin, 0] = found[end, 1] = height
    return found


def collected(*samples: Any) -> CollectedAnswers:
    made = CollectedAnswers()
    meta = np.empty(len(samples), object)
    meta[:] = [one for one, _ in samples]
    made.update(np.arange(len(samples)), [found for _, found in samples], np.zeros((len(samples), 2)), meta)
    return made


def test_loss_equals_numpy_and_ignores_padding() -> None:
    rng = np.random.RandomState(0)
    score_BT2, length_B = rng.randn(3, 6, 2).astype(np.float32), np.array([6, 4, 2])
    span_B2 = np.array([[1, 5], [0, 0], [1, 1]], np.float32)
    found = nd.array(score_BT2)
    found.attach_grad()
    block = SpanSoftmaxCrossEntropy().build(2, True)
    block.hybridize()
    with autograd.record():
        loss_B = block(found, nd.array(span_B2), nd.array(length_B))
    loss_B.backward()
    expected = []
    for score_T2, span, length in zip(score_BT2.astype(np.float64), span_B2.astype(int), length_B):
        log_p_T2 = score_T2[:length] - np.log(np.exp(score_T2[:length]).sum(axis=0))
        expected.append(-(log_p_T2[span[0], 0] + log_p_T2[span[1], 1]) / 2)
    np.testing.assert_allclose(loss_B.asnumpy(), expected, rtol=1e-5)
    gradient = found.grad.asnumpy()
    assert not gradient[1, 4:].any() and not gradient[2, 2:].any() and gradient[0].all()


def test_the_best_answer_over_windows_counts_on_any_worker() -> None:
    right, wrong = (window(0, 2), scores(3, 4, 3.0)), (window(0, 0), scores(4, 4, 2.0))
    first, second = collected(wrong), CollectedAnswers()
    second.update(np.array([1]), [right[1]], np.zeros((1, 2)), np.array([right[0]], object))
    first.merge(second.rows())
    assert ExactMatch().compute(first) == AnswerF1().compute(first) == 1.0
    lower = collected(wrong, (window(0, 2), scores(3, 4, 1.0)))
    assert ExactMatch().compute(lower) == AnswerF1().compute(lower) == 0.0
    part = collected((window(0, 2), scores(3, 3, 1.0)))  # "big"
    assert ExactMatch().compute(part) == 0.0 and AnswerF1().compute(part) == pytest.approx(2 / 3)
    assert np.isnan(ExactMatch().compute(CollectedAnswers()))


def test_row_has_best_answer_score_and_lowest_no_answer_score() -> None:
    row = answer_of([(window(0, 0), scores(3, 3, 1.0, 0.5)), (window(0, 2), scores(3, 4, 3.0, 0.25))])
    assert (row["answer"], row["begin"], row["score"], row["score_of_none"]) == ("big dog", 8, 6.0, 0.5)
    row = answer_of([(window(0, 0), scores(3, 3, 1.0, 2.0)), (window(0, 2), scores(3, 4, 0.5, 3.0))])
    assert (row["answer"], row["begin"], row["score"], row["score_of_none"]) == ("", None, 2.0, 4.0)


def test_a_context_without_tokens_has_an_empty_answer_without_a_score() -> None:
    empty = Window(0, window(0, 0).question, " ", np.zeros((0, 2), np.int64), 3, SETTINGS)
    row = answer_of([(empty, scores(3, 3, 1.0, 0.5))])
    assert (row["answer"], row["begin"], row["score"], row["score_of_none"]) == ("", None, None, 1.0)


def test_no_answer_is_predicted_above_the_threshold() -> None:
    def of(null_1: float, null_2: float, settings: WindowSettings = SETTINGS) -> float:
        samples = [
            (window(0, 0, (), settings), scores(3, 3, 1.0, null_1)),
            (window(0, 2, (), settings), scores(3, 3, 0.5, null_2)),
        ]
        return ExactMatch().compute(collected(*samples))

    assert of(1.6, 2.0) == 1.0  # 3.2 against 2.0 and the threshold of 1
    assert of(1.4, 2.0) == 0.0 and of(2.0, 1.4) == 0.0
    assert of(1.6, 2.0, SETTINGS._replace(may_be_null=False)) == 0.0


@pytest.mark.slow
@pytest.mark.parametrize(
    "words, said",
    [
        (["model=bert", "dataset.max_length=128", "dataset.exact_match=true"], "Type dataset.exact_match=false"),
        (["loss.label_smoothing=0.1"], "Type loss.label_smoothing=0"),
        (["loss._target_=mxnet.gluon.loss.SoftmaxCELoss"], "a loss of your own takes scores"),
    ],
)
def test_wrong_settings_are_refused(describe_run: Any, words: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        describe_run("task=question_answering", *words)


@pytest.mark.slow
def test_predict_answers_each_question_once(train_run: Any, tmp_path: Path, capsys: Any) -> None:
    paragraphs = [
        {
            "context": f"{TEXT} {n}",
            "qas": [{"id": str(n), "question": "what", "answers": [{"text": "big dog", "answer_start": 8}]}],
        }
        for n in range(30)
    ]
    (tmp_path / "train.json").write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    train_run(
        "task=question_answering",
        f"dataset.root={tmp_path}",
        "dataset.train=train.json",
        "dataset.val=null",
        "dataset.max_length=8",
        "dataset.max_question=2",
        "dataset.doc_stride=2",
        "dataset.vocab_size=100",
        "model.units=8",
        "model.embed_size=8",
        "trainer.max_epochs=1",
        "trainer.limit_train_batches=1",
    )
    lines = [{"question": "who", "context": " ".join([TEXT] * 4), "id": "a"}, {"question": "why", "context": "cat"}]
    (tmp_path / "x.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    capsys.readouterr()
    assert run(["predict", str(tmp_path / "run"), str(tmp_path / "x.jsonl"), "which=last"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["id"], row["file"].split("/")[-1]) for row in rows] == [("a", "x.jsonl:1"), ("2", "x.jsonl:2")]
    begin, answer = rows[0]["begin"], rows[0]["answer"]
    assert answer and lines[0]["context"][begin : begin + len(answer)] == answer
    assert run(["predict", str(tmp_path / "run"), str(tmp_path / "x.jsonl"), "which=last", "format=squad"]) == 0
    assert json.loads(capsys.readouterr().out) == {"a": answer, "2": rows[1]["answer"]}
    (tmp_path / "x.jsonl").write_text(f"{json.dumps(lines[0])}\n" * 2)
    assert run(["predict", str(tmp_path / "run"), str(tmp_path / "x.jsonl"), "which=last", "format=squad"]) == 2
    assert "x.jsonl:2: another question has the id 'a', too" in capsys.readouterr().err
