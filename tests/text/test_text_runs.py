"""Runs on text from the command line's words to predictions, and the same numbers under any placement."""

from __future__ import annotations

import json

import numpy as np
import pytest
from low_precision import needs_bfloat16

from mxtrain.cli.dispatch import run
from mxtrain.training.verification import verify

pytest.importorskip("tokenizers")
SMALL = (
    "model=bert",
    "model.num_layers=3",
    "model.units=16",
    "model.hidden_size=32",
    "model.num_heads=2",
    "dataset.max_length=16",
    "dataset.vocab_size=400",
    "dataset.batch_size=16",
)


pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.mark.slow
@pytest.mark.parametrize(
    "placement",
    [
        ("parallel=data", "trainer.grad_accumulation=2"),
        pytest.param(("parallel=pipeline", "parallel.microbatches=4"), marks=pytest.mark.zoo),
        pytest.param(("dataset=masked_text", "parallel=hybrid", "parallel.microbatches=2"), marks=pytest.mark.zoo),
        pytest.param(("parallel=hybrid", "parallel.microbatches=2", "optimizer=lamb"), marks=pytest.mark.zoo),
    ],
)
def test_every_placement_is_one_device(describe_run, placement):
    found = verify(describe_run(*SMALL, *placement), steps=2, tolerance=1e-6)
    assert found.passed and found.bits, found


WIDE = (*SMALL, "amp=bfloat16", "model.num_layers=2", "model.units=64", "model.hidden_size=64")


@pytest.mark.slow
@needs_bfloat16
def test_bfloat16_under_a_placement_is_bfloat16_on_one_device(describe_run):
    given = (*WIDE, "dataset=masked_text", "parallel=pipeline", "parallel.microbatches=2")
    found = verify(describe_run(*given), steps=2, tolerance=1e-6)
    assert found.passed and found.dtype == "bfloat16" and found.low is not None, found


@pytest.mark.slow
@needs_bfloat16
def test_bfloat16_learns_as_well_as_float32(train_run, table, tmp_path):
    settings = (
        *WIDE,
        f"dataset.train={table}",
        "dataset.sentence=text",
        "dataset.label=kind",
        "optimizer.lr=0.003",
        "model.num_layers=1",
        "model.dropout=0",
        "trainer.max_epochs=8",
        "trainer.val_interval=4",
    )
    low, exact = (train_run(*settings, f"amp={amp}", run_dir=tmp_path / amp)[1].metrics for amp in ("bfloat16", "off"))
    assert min(low["val/accuracy"], exact["val/accuracy"]) > 0.9
    assert low["val/loss"] == pytest.approx(exact["val/loss"], abs=0.02) and low["val/loss"] != exact["val/loss"]


@pytest.fixture
def table(tmp_path):
    """A file of texts whose class is a word in them."""
    rng = np.random.RandomState(0)
    words = "one two three four five six seven eight".split()
    rows = ["text,kind"]
    for number in range(200):
        kind = ("good", "bad")[number % 2]
        middle = " ".join(rng.choice(words, rng.randint(2, 9)))
        rows.append(f'"{middle} {kind}, {middle}",{kind}')
    path = tmp_path / "texts.csv"
    path.write_text("\n".join(rows) + "\n")
    return path


@pytest.mark.zoo
def test_a_run_on_a_table_learns_resumes_and_predicts(train_run, table, tmp_path, capsys):
    settings = (
        *SMALL,
        f"dataset.train={table}",
        "dataset.sentence=text",
        "dataset.label=kind",
        "optimizer.lr=0.01",
        "model.dropout=0.1",
        "trainer.max_epochs=12",
        "trainer.val_interval=4",
    )
    whole, whole_result = train_run(*settings, run_dir=tmp_path / "whole")
    assert whole_result.metrics["val/accuracy"] > 0.9
    train_run(*settings, "trainer.max_steps=13", run_dir=tmp_path / "parts")
    _, result = train_run(*settings, run_dir=tmp_path / "parts")
    assert result.weights_sha256 == whole_result.weights_sha256

    (tmp_path / "new.txt").write_text("two three good\nbad, two\n")
    assert run(["predict", str(tmp_path / "whole"), str(tmp_path / "new.txt")]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert [(row["file"].rpartition("/")[2], row["class"]) for row in rows] == [
        ("new.txt:1", "good"),
        ("new.txt:2", "bad"),
    ]
    assert run(["eval", str(tmp_path / "whole")]) == 0
    assert "precision" in capsys.readouterr().out


@pytest.mark.zoo
def test_hidden_tokens_are_learned_and_evaluated(train_run, tmp_path, capsys):
    (tmp_path / "text.txt").write_text("\n\n".join(["one two three four five six seven eight nine"] * 400))
    train_run(
        *SMALL,
        "dataset=masked_text",
        f"dataset.train={tmp_path / 'text.txt'}",
        "model.num_layers=2",
        "model.units=64",
        "model.hidden_size=128",
        "model.dropout=0.0",
        "dataset.batch_size=32",
        "optimizer.lr=0.003",
        "trainer.max_epochs=60",
        "trainer.val_interval=30",
        run_dir=tmp_path / "run",
    )
    assert run(["eval", str(tmp_path / "run"), "split=val"]) == 0
    values = json.loads((tmp_path / "run" / "eval" / "val" / "metrics.json").read_text())
    assert values["accuracy"] > 0.5  # a ninth by chance: the order of the words is learned
    assert "accuracy" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    "words, message",
    [
        (["model=bert", "dataset=digits"], "model takes text, and dataset gives images"),
        (["model=lenet", "dataset=text"], "model takes images, and dataset gives text"),
        (["model=bert", "dataset=masked_text", "loss=softmax_cross_entropy"], "loss=masked_softmax_cross_entropy"),
        (["model=bert", "metric=[masked_accuracy]"], r"metric=[accuracy]"),
        (["model=bert", "dataset=glue", "dataset.task=stsb"], "regression"),
        (["model=bert", "dataset=glue", "dataset.task=sst"], "sst2"),
        (["model=bert", "dataset.val=x.tsv"], "need train"),
        (["model=bert", "model.num_heads=3"], "num_heads must divide units"),
    ],
)
def test_wrong_settings_are_refused(words, message, capsys):
    assert run([*words, "logger=[]"]) == 2
    assert message in capsys.readouterr().err
