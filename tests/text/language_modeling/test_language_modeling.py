"""Language modeling: perplexity against NumPy, continuations, n-grams beside it, and what is refused."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any, Tuple

import numpy as np
import pytest

from mxtrain.cli.dispatch import run
from mxtrain.errors import ConfigError, DataError
from mxtrain.text.language_modeling.plain_text import PlainText
from mxtrain.text.language_modeling.sampling import Sampling
from mxtrain.training.verification import verify

pytestmark = pytest.mark.usefixtures("own_cache")
SCORES = np.log(np.array([[0.5, 0.25, 0.15, 0.1], [0.1, 0.2, 0.3, 0.4]]))


@pytest.mark.parametrize(
    "settings, wanted",
    [
        ({}, [[0.5, 0.25, 0.15, 0.1], [0.1, 0.2, 0.3, 0.4]]),
        ({"temperature": 0.0}, [[1, 0, 0, 0], [0, 0, 0, 1]]),
        ({"top_k": 2}, [[2 / 3, 1 / 3, 0, 0], [0, 0, 3 / 7, 4 / 7]]),
        ({"top_p": 0.6}, [[2 / 3, 1 / 3, 0, 0], [0, 0, 3 / 7, 4 / 7]]),
        ({"top_p": 0.3}, [[1, 0, 0, 0], [0, 0, 0, 1]]),
        ({"temperature": 0.5, "top_k": 2}, [[0.8, 0.2, 0, 0], [0, 0, 0.36, 0.64]]),
    ],
)
def test_tokens_are_drawn_with_these_probabilities(settings: Any, wanted: Any) -> None:
    found = Sampling(**settings).probabilities(SCORES)
    np.testing.assert_allclose(found, wanted, atol=1e-12)


def test_draws_follow_the_probabilities_and_are_a_function_of_seed_text_and_place() -> None:
    scores = np.repeat(SCORES[:1], 20_000, axis=0)
    index, number = np.arange(20_000), np.full(20_000, 3)
    drawn = Sampling().choose(scores, index, number)
    np.testing.assert_allclose(np.bincount(drawn, minlength=4) / 20_000, np.exp(SCORES[0]), atol=0.015)
    assert np.array_equal(Sampling().choose(scores[:5], index[:5], number[:5]), drawn[:5])
    assert not np.array_equal(Sampling(seed=1).choose(scores, index, number), drawn)
    assert not np.array_equal(Sampling().choose(scores, index, number + 1), drawn)


SMALL = (
    "task=language_modeling",
    "dataset.max_length=8",
    "dataset.vocab_size=300",
    "dataset.batch_size=4",
    "dataset.eval_batch_size=3",
    "trainer.max_epochs=1",
    "task.new_tokens=6",
    "task.ngrams=[2]",
)
LSTM = ("model.units=16", "model.hidden_size=16")
GPT = ("model=gpt", "model.units=16", "model.num_heads=2", "model.num_layers=2")


@pytest.fixture
def text(tmp_path: Path) -> Tuple[str, str]:
    rng = np.random.RandomState(0)
    words = "one two three four five six seven eight nine ten".split()
    lines = [" ".join(rng.choice(words, 12)) for _ in range(60)]
    for name, part in (("train", lines[:50]), ("val", lines[50:])):
        (tmp_path / f"{name}.txt").write_text("\n".join(part) + "\n")
    return f"dataset.train={tmp_path}/train.txt", f"dataset.val={tmp_path}/val.txt"


@pytest.mark.slow
@pytest.mark.parametrize("model", [LSTM, GPT], ids=["lstm", "gpt"])
def test_a_run_is_measured_and_continues_texts(
    train_run: Any, text: Any, tmp_path: Path, capsys: Any, model: Any
) -> None:
    made, result = train_run(*SMALL, *model, *text)
    assert result.exit_code == 0
    metrics, size = result.metrics, (tmp_path / "val.txt").stat().st_size
    assert metrics["val/perplexity"] == pytest.approx(math.exp(metrics["val/loss"]), rel=1e-6)
    (signature,) = set(made.info.metric_signatures.values())
    assert signature.startswith("vocabulary=tokenizers,")
    assert run(["eval", str(tmp_path / "run"), "split=val"]) == 0
    folder = tmp_path / "run" / "eval" / "val"
    measured = json.loads((folder / "metrics.json").read_text())
    assert measured["perplexity"] == pytest.approx(metrics["val/perplexity"], rel=1e-5)
    assert measured["bits_per_byte"] == pytest.approx(metrics["val/bits_per_byte"], rel=1e-5)
    header, own, ngram = csv.reader((folder / "language_models.csv").read_text().splitlines())
    assert header == ["model", "perplexity", "bits per byte"] and ngram[0] == "interpolated Kneser-Ney 2-gram"
    assert float(own[1]) == pytest.approx(measured["perplexity"], abs=1e-3)
    assert float(own[2]) == pytest.approx(measured["bits_per_byte"], abs=1e-4)
    tokens = float(own[2]) * size * math.log(2) / measured["loss"]
    assert tokens == pytest.approx(round(tokens), abs=0.05), "all tokens of the split, over all of its bytes"
    (tmp_path / "prompts").write_text("one two\n\nthree\n")
    said = []
    for seed in (0, 0, 1):
        given = [f"task.sampling_seed={seed}"] if seed else []
        capsys.readouterr()
        assert run(["predict", str(tmp_path / "run"), str(tmp_path / "prompts"), "task.temperature=2.0", *given]) == 0
        said.append([json.loads(line) for line in capsys.readouterr().out.splitlines()])
    assert [row["file"] for row in said[0]] == [f"{tmp_path}/prompts:1", f"{tmp_path}/prompts:3"]
    assert all(isinstance(row["continuation"], str) for row in said[0])
    assert said[0] == said[1] != said[2]


@pytest.mark.slow
def test_validation_leaves_no_trace_in_training(train_run: Any, text: Any, tmp_path: Path) -> None:
    """Saving and shown texts leave none, either."""
    words = (*SMALL, *LSTM, *text, "trainer.val_interval_unit=steps", "model.output_dropout=0.1")
    found = [
        train_run(
            *words,
            f"trainer.val_interval={interval}",
            f"checkpoint.every_steps={interval}",
            run_dir=tmp_path / str(interval),
        )[1]
        for interval in (1, 1000)
    ]
    assert found[0].weights_sha256 == found[1].weights_sha256


@pytest.mark.slow
def test_a_stopped_run_continues_under_another_placement(train_run: Any, text: Any, tmp_path: Path) -> None:
    whole = train_run(*SMALL, *LSTM, *text, run_dir=tmp_path / "whole")[1]
    alone = train_run(*SMALL, *LSTM, *text, "trainer.max_steps=5", run_dir=tmp_path / "parts")[1]
    assert alone.step == 5 < whole.step
    moved = train_run(*SMALL, *LSTM, *text, "parallel=data", run_dir=tmp_path / "parts")[1]
    assert moved.step == whole.step
    assert moved.metrics["val/loss"] == pytest.approx(whole.metrics["val/loss"], rel=1e-5)


@pytest.mark.slow
def test_the_state_makes_a_difference(
    train_run: Any, text: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mxtrain.parallel.recurrent_state import RecurrentState

    whole = train_run(*SMALL, *LSTM, *text, run_dir=tmp_path / "carried")[1]
    forget = lambda self, shards: setattr(self, "_rows", [0 * array for array in shards[0]])  # noqa: E731
    monkeypatch.setattr(RecurrentState, "leave", forget)
    without = train_run(*SMALL, *LSTM, *text, run_dir=tmp_path / "forgotten")[1]
    assert whole.metrics["val/loss"] != without.metrics["val/loss"]


@pytest.mark.zoo_except("parallel=hybrid parallel.microbatches=2")
@pytest.mark.slow
@pytest.mark.parametrize(
    "placement",
    [
        ("parallel=data",),
        ("parallel=pipeline", "parallel.microbatches=2"),
        ("parallel=hybrid", "parallel.microbatches=2"),
    ],
    ids=" ".join,
)
def test_gpt_is_the_same_under_every_placement(describe_run: Any, text: Any, placement: Any) -> None:
    found = verify(describe_run(*SMALL, *GPT, *text, *placement), steps=3, tolerance=1e-6)
    assert found.passed and found.bits, found


EXPERTS = (*GPT, "model.num_layers=1", "model.experts=4", "model.capacity_factor=1")


@pytest.mark.slow
def test_experts_on_several_devices_equal_one_device(describe_run: Any, text: Any) -> None:
    placement = ("parallel=pipeline", "parallel.microbatches=2", "parallel.cut_before=[layers.0.mixture.experts.2]")
    found = verify(describe_run(*SMALL, *EXPERTS, *text, *placement), steps=3, tolerance=1e-6)
    assert found.passed and found.bits, found


@pytest.mark.slow
def test_a_stopped_run_with_experts_continues_to_the_same_bits_and_shows_their_load(
    train_run: Any, text: Any, tmp_path: Path
) -> None:
    words = (*SMALL, *EXPERTS, *text)
    whole = train_run(*words, run_dir=tmp_path / "whole")[1]
    assert train_run(*words, "trainer.max_steps=5", run_dir=tmp_path / "parts")[1].step == 5
    parts = train_run(*words, run_dir=tmp_path / "parts")[1]
    assert parts.weights_sha256 == whole.weights_sha256
    assert 0.5 < whole.metrics["val/expert_balance"] <= 1
    assert run(["eval", str(tmp_path / "whole"), "split=val"]) == 0
    (row,) = csv.DictReader((tmp_path / "whole" / "eval" / "val" / "experts.csv").read_text().splitlines())
    assert sum(float(row[f"expert {number}"]) for number in range(4)) == pytest.approx(1, abs=1e-3)


@pytest.mark.slow
def test_generation_is_limited_by_the_context(train_run: Any, text: Any, tmp_path: Path) -> None:
    settings = [word for word in SMALL if not word.startswith("task.new_tokens")]
    made, result = train_run(*settings, *GPT, *text, "trainer.max_epochs=null", "trainer.max_steps=1")
    assert result.exit_code == 0 and made.info.network is not None
    with pytest.raises(ConfigError, match="sees at most 8 tokens.*Type task.new_tokens=4"):
        train_run(*settings, *GPT, *text, "task.new_tokens=8", "trainer.max_steps=1", run_dir=tmp_path / "other")


@pytest.mark.slow
@pytest.mark.parametrize(
    "words, said",
    [
        (("dataset.rows=shuffled",), "this model carries its state from batch to batch"),
        (("loss.label_smoothing=0.1",), "TokenCrossEntropy smooths nothing"),
        (("kvstore=horovod", "cluster.workers=2"), "needs carried_rows"),
        (("kvstore=dist_async", "cluster.workers=2"), "Type kvstore=dist_sync"),
        (("model=bert",), "task=language_modeling and the model Bert do not fit"),
        (("loss=l2",), "Type loss=token_cross_entropy."),
        (("dataset.keep_empty_lines=true",), "is for tokenizer=words"),
        (("dataset.val=x.txt",), "val and test need train"),
        (("task.top_p=0",), "task.top_p"),
    ],
)
def test_wrong_settings_are_refused(describe_run: Any, words: Any, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        describe_run("task=language_modeling", *words)
    assert said in str(refused.value)


@pytest.mark.slow
def test_stateless_network_has_no_needs(describe_run: Any) -> None:
    description = describe_run("task=language_modeling", "model=gpt", "kvstore=dist_async", "cluster.workers=2")
    assert description.dataset.rows == "shuffled"
    assert describe_run("task=language_modeling").dataset.rows == "go_on"


def test_files_are_found_by_their_endings_and_a_folder_without_any_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    with pytest.raises(DataError, match="dataset.train=.*texts: there is no file of .txt or"):
        PlainText(train=str(folder)).open()
    (folder / "wiki.train.tokens").write_text("one two\n" * 50)
    (folder / "other.py").write_text("nothing of this")
    splits = PlainText(train=str(folder), tokenizer="words", vocab_size=100, test_fraction=0.1).open()
    assert splits.test is not None
    assert [len(part) for part in (splits.train, splits.val, splits.test)] == [41, 4, 5]
    with pytest.raises(DataError, match="there is no such file or folder. Did you mean 'wiki.txt'"):
        (tmp_path / "wiki.txt").write_text("one two\n")
        PlainText(train=str(tmp_path / "wikki.txt")).open()
    with pytest.raises(DataError, match="is too short to hold out .* dataset.val=FILE"):
        PlainText(train=str(tmp_path / "wiki.txt")).open()
    with pytest.raises(DataError, match="or type dataset.val_fraction=0.1, or give"):
        PlainText(train=str(folder), val_fraction=0.0).open()


@pytest.mark.parametrize("lines", [3, 40, 6000])
def test_a_short_text_is_divided_at_its_lines(tmp_path: Path, lines: int) -> None:
    (tmp_path / "poem.txt").write_text("".join(f"one two {number}\n" for number in range(lines)))
    splits = PlainText(train=str(tmp_path / "poem.txt")).open()
    train, val = ("".join(split.column) for split in (splits.train, splits.val))
    assert train + val == (tmp_path / "poem.txt").read_text() and val.endswith(f"one two {lines - 1}\n")
    assert val.count("\n") == pytest.approx(max(lines * 0.08, 1), rel=0.3)
