"""The learning-rate range test: what it reads from losses, and that the copy is trained at these rates. 20 s."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest

import mxtrain
from mxtrain.errors import ConfigError
from mxtrain.lr_scheduler.range_test import RangeTest
from mxtrain.training.lr_range import read_curve

RATES = np.geomspace(1e-6, 10, 100)


def test_rates_rise_exponentially() -> None:
    lr = RangeTest(start=1e-6, end=10.0, num_steps=100).build(0.1, 7, 100)
    np.testing.assert_allclose([lr(step) for step in range(100)], RATES, rtol=1e-12)


def test_range_is_where_the_loss_falls() -> None:
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
def test_no_range_is_no_silent_choice(losses, diverged, said) -> None:
    curve = read_curve(list(RATES[: len(losses)]), losses)
    assert curve.diverged is diverged and said in "\n".join(curve.reasons())


@pytest.mark.slow
def test_lr_find_trains_a_copy(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("model=mlp", "model.hidden=[16]", "optimizer=sgd", "dataset.batch_size=64", "lr_scheduler=cosine")
    curve = mxtrain.lr_find(*words, start=1e-4, end=1e4, steps=60, output="found")
    np.testing.assert_allclose(curve.rates, np.geomspace(1e-4, 1e4, 60)[: len(curve.rates)], rtol=1e-6)
    low, high = curve.range
    assert curve.diverged and 1e-3 < low < high < 10
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["found"]  # nothing of a run is left
    table = list(csv.DictReader((tmp_path / "found" / "curve.csv").read_text().splitlines()))
    assert [float(row["lr"]) for row in table] == list(curve.rates)
    assert json.loads((tmp_path / "found" / "curve.json").read_text())["range"] == [low, high]
    assert (tmp_path / "found" / "curve.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ConfigError, match="there is no 'optimizer.lrr'"):
        mxtrain.lr_find("optimizer.lrr=3")
    with pytest.raises(ConfigError, match="start=1 must be below end=0.1"):
        mxtrain.lr_find(start=1, end=0.1)
