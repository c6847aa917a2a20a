"""The learning-rate range test: what it reads from losses, and that the copy is trained at these rates. 20 s."""

from __future__ import annotations

import csv
import json
import math
from types import SimpleNamespace

import numpy as np
import pytest

import mxtrain
from mxtrain.cluster.launch import range_test as launch
from mxtrain.errors import ConfigError, DataError, MxtrainError
from mxtrain.lr_scheduler.schedules import RangeTest
from mxtrain.terminal.progress import WorkProgress
from mxtrain.training.lr_range import read_curve
from mxtrain.workflows.lr_find import LrFindSettings, checked_curve, range_test

RATES = np.geomspace(1e-6, 10, 100)


def test_rates_rise_exponentially() -> None:
    lr = RangeTest(start=1e-6, end=10.0, num_steps=100).build(0.1, 7, 100)
    np.testing.assert_allclose([lr(step) for step in range(100)], RATES, rtol=1e-12)


def test_suggested_range_has_falling_loss() -> None:
    """A loss that is flat up to 1e-3, falls until 0.1 and explodes from 1 on."""
    losses = np.interp(np.log10(RATES), [-6, -3, -1, 0, 1], [2.3, 2.3, 0.5, 0.5, 60])
    curve = read_curve(list(RATES), list(losses))
    low, high = curve.range
    assert 1e-3 < low < 1e-2 and 0.05 < high < 1 and curve.diverged and len(curve.rates) < 100
    smoothed = np.zeros(len(curve.smoothed))  # Kingma and Ba's corrected average, written once more
    for step in range(len(smoothed)):
        weights = 0.1 * 0.9 ** np.arange(step, -1, -1)
        smoothed[step] = (weights * losses[: step + 1]).sum() / weights.sum()
    np.testing.assert_allclose(curve.smoothed, smoothed, rtol=1e-9)


@pytest.mark.parametrize(
    "losses, diverged, said",
    [
        ([2.3] * 100, False, "no range: the loss did not fall"),
        ([2.3] * 20 + [float("nan")], True, "no range"),
        (list(np.linspace(-1, -5, 100)), False, "the loss did not diverge up to 10"),
    ],
)
def test_missing_range_is_reported(losses, diverged, said) -> None:
    curve = read_curve(list(RATES[: len(losses)]), losses)
    assert curve.diverged is diverged and said in "\n".join(curve.reasons())


def test_loss_that_is_not_finite_at_first_is_an_error() -> None:
    with pytest.raises(MxtrainError, match="no finite number in the first step already, at a learning rate of 1e-06"):
        checked_curve([1e-6, 1e-5], [math.nan, 1.0], LrFindSettings())


WORDS = ("model=mlp", "model.hidden=[16]", "optimizer=sgd", "dataset.batch_size=64", "lr_scheduler=cosine")


@pytest.mark.slow
def test_lr_find_trains_a_copy_here(tmp_path, monkeypatch, capfd) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launch, "train_measured", None)
    curve = mxtrain.lr_find(*WORDS, start=1e-4, end=1e4, steps=60, output="found")
    np.testing.assert_allclose(curve.rates, np.geomspace(1e-4, 1e4, 60)[: len(curve.rates)], rtol=1e-6)
    low, high = curve.range
    assert curve.diverged and len(curve.rates) < 60 and 1e-3 < low < high < 10
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["found"]  # nothing of a run is left
    table = list(csv.DictReader((tmp_path / "found" / "curve.csv").read_text().splitlines()))
    assert [float(row["lr"]) for row in table] == list(curve.rates)
    assert json.loads((tmp_path / "found" / "curve.json").read_text())["range"] == [low, high]
    assert (tmp_path / "found" / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert capfd.readouterr() == ("", "")
    with pytest.raises(ConfigError, match="there is no 'optimizer.lrr'"):
        mxtrain.lr_find("optimizer.lrr=3")
    with pytest.raises(ConfigError, match="start=1 must be below end=0.1"):
        mxtrain.lr_find(start=1, end=0.1)
    with pytest.raises(ConfigError, match="lr_find trains one fold in a run"):
        mxtrain.lr_find("trainer.folds=3")


@pytest.mark.slow
def test_range_test_ends_at_the_step_that_diverges(describe_run) -> None:
    class Counted(WorkProgress):
        steps = 0

        def advance(self, count: int) -> None:
            self.steps += count

    counted = Counted()
    settings = LrFindSettings(start=1e-4, end=1e4, steps=60)
    curve = range_test(describe_run(*WORDS), settings, counted)
    assert curve.diverged and counted.steps == len(curve.rates) < 60


@pytest.mark.slow
def test_losses_match_a_run_with_these_rates(tmp_path) -> None:
    """Of several epochs, with two devices and a batch size that does not divide the samples."""
    words = ("debug=fast", "model=lenet", "optimizer=adam", "parallel=data", "parallel.devices=cpu:2")
    words = (*words, "trainer.limit_train_batches=null", "dataset.batch_size=400", "dataset.eval_batch_size=400")
    curve = mxtrain.lr_find(*words, start=1e-5, end=1e-2, steps=12)
    scheduled = ("lr_scheduler=range_test", "lr_scheduler.start=1e-5", "lr_scheduler.end=1e-2", "logger=jsonl")
    lengths = ("lr_scheduler.num_steps=12", "trainer.max_epochs=null", "trainer.max_steps=12")
    run = mxtrain.train(*words, *scheduled, *lengths, dir=tmp_path / "run")
    rows = [row for row in run.history_rows() if row["split"] == "train"]
    assert rows[-1]["epoch"] > 1 and not curve.diverged
    assert list(curve.losses) == [row["loss"] for row in rows]
    assert list(curve.rates) == [row["lr"] for row in rows]


@pytest.mark.slow
def test_objects_stay_as_they_are() -> None:
    from mxnet import gluon

    x, y = np.random.default_rng(0).normal(size=(96, 5)).astype(np.float32), np.arange(96) % 3
    network = gluon.nn.Dense(3, in_units=5)
    network.initialize()
    before = network.weight.data().asnumpy()
    curve = mxtrain.lr_find("dataset.batch_size=32", model=network, dataset=(x, y), start=1e-3, end=1.0, steps=10)
    assert len(curve.losses) == 10 and np.isfinite(curve.losses).all()
    np.testing.assert_array_equal(network.weight.data().asnumpy(), before)
    with pytest.raises(ConfigError, match="lr_find: several workers with objects .*model, dataset"):
        mxtrain.lr_find("kvstore=dist_sync", "cluster.workers=2", model=network, dataset=(x, y))


@pytest.mark.slow
def test_several_workers_are_processes(describe_run) -> None:
    words = (*WORDS, "kvstore=dist_sync", "cluster.workers=2", "trainer.max_steps=3")
    curve = mxtrain.lr_find(*words, start=1e-4, end=1e-1, steps=12)
    alone = mxtrain.lr_find(*WORDS, start=1e-4, end=1e-1, steps=12)
    np.testing.assert_allclose(curve.rates, alone.rates, rtol=1e-12)
    np.testing.assert_allclose(curve.losses, alone.losses, rtol=1e-4)
    with pytest.raises(ConfigError, match="lr_find: this process is one worker"):
        range_test(describe_run(*words), LrFindSettings())
    with pytest.raises(ConfigError, match="none.csv: there is no such file"):
        mxtrain.lr_find(*words[-3:], "task=tabular", "dataset=feature_table", "dataset.train=none.csv")


def test_a_full_disk_leaves_no_part_of_a_file(tmp_path, small_disk, monkeypatch) -> None:
    curve = read_curve([0.1 * step for step in range(1, 13)], [3.0 - 0.1 * step for step in range(12)])
    picture = SimpleNamespace(savefig=lambda stream, format: stream.write(b"x" * 20_000))
    monkeypatch.setattr(type(curve), "_draw", lambda self: picture)
    assert [path.name for path in curve.write(tmp_path / "new")] == ["curve.png", "curve.csv", "curve.json"]
    folder = small_disk("8k")
    (folder / "curve.csv").write_text("of an earlier test")
    said = f"^'{folder}' cannot be written: No space left on device. Free some space, then repeat the same command.$"
    with pytest.raises(DataError, match=said):
        curve.write(folder)
    assert list(folder.iterdir()) == []
