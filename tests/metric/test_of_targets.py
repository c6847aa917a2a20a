"""Metrics of several targets, of quantiles and of intervals, against scikit-learn and NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sklearn.metrics as reference

from mxtrain.data.number_rows import described_numbers, number_row, numbers_of
from mxtrain.data.signature import Signature, TargetScale
from mxtrain.errors import DamagedCheckpoint
from mxtrain.metric.given import GivenMetric
from mxtrain.metric.host import R2, Pairs, Pearson, SampleWeights
from mxtrain.metric.meter import LossWeights, Meter
from mxtrain.metric.metrics import MeanAbsoluteError, RootMeanSquaredError
from mxtrain.metric.of_targets import (
    IntervalCoverage,
    IntervalWidth,
    Margins,
    TargetLayout,
    TargetRows,
    conformal_margin,
    metric_of_targets,
)
from mxtrain.task.regression import Regression

RNG = np.random.default_rng(5)
N = 40
TARGETS = RNG.normal(size=(N, 2)) * [1, 50] + [100, -3]
SCALES = [(100.0, 2.0), (-3.0, 60.0)]
RAW = RNG.normal(size=(N, 6))  # three quantiles of two targets, which cross
LEVELS = [0.1, 0.5, 0.9]
WEIGHTS = np.r_[0.0, RNG.integers(1, 4, N - 1)] * 1.0
LAYOUT = TargetLayout(["a", "b"], SCALES, LEVELS)
NUMBERS = numbers_of(RAW.reshape(N, 2, 3), np.array(SCALES), True, np.array([0.25, 4.0]))
POINTS = NUMBERS[:, :, 0]


def collected() -> TargetRows:
    rows = TargetRows()
    for part in np.array_split(np.random.default_rng(1).permutation(N), 3):
        rows.update(part, NUMBERS[part], TARGETS[part], None)
    return rows


def test_quantiles_do_not_cross_and_intervals_have_margins() -> None:
    expected = np.sort(RAW.reshape(N, 2, 3), axis=2) * [[[2], [60]]] + [[[100], [-3]]]
    np.testing.assert_allclose(NUMBERS[:, :, 1:4], expected)
    np.testing.assert_allclose(POINTS, expected[:, :, 1])
    np.testing.assert_allclose(NUMBERS[:, :, 4], expected[:, :, 0] - [0.25, 4])
    np.testing.assert_allclose(NUMBERS[:, :, 5], expected[:, :, 2] + [0.25, 4])
    assert numbers_of(RAW[0, :2, None], np.array(SCALES), False, None).shape == (2, 1)


def test_decoded_predictions_equal_those_of_exported_networks() -> None:
    from mxtrain.engine.backend import nd

    targets = tuple(TargetScale(name, *scale) for name, scale in zip("ab", SCALES))
    signature = Signature((3,), targets=targets)
    task = Regression(quantiles=LEVELS, interval=0.8).restored({"margins": {"values": [0.25, 4.0]}})
    decode = task.build_decode(None, signature)  # type: ignore[arg-type]  # it needs no description
    found = decode((nd.array(RAW),), None)  # type: ignore[arg-type]  # nor a batch
    np.testing.assert_allclose(found.asnumpy(), NUMBERS, rtol=1e-4, atol=1e-3)  # type: ignore[union-attr]


def test_rows_of_predictions() -> None:
    row = number_row(["a", "b"], NUMBERS[0], LEVELS, True)
    assert list(row["values"]) == ["a", "b"]
    first = row["values"]["a"]
    assert first["value"] == first["quantiles"]["0.5"] and list(first["quantiles"]) == ["0.1", "0.5", "0.9"]
    assert first["low"] == round(NUMBERS[0, 0, 4], 6) and first["high"] == round(NUMBERS[0, 0, 5], 6)
    assert number_row([], np.array([[2.0]]), [], False) == {"value": 2.0}
    signature = {
        "signature": {"targets": [{"name": n, "mean": m, "std": s} for n, (m, s) in zip("ab", SCALES)]},
        "facts": {"quantiles": LEVELS, "margins": [0.25, 4.0]},
    }
    assert described_numbers(signature, RAW[:1]) == row
    assert described_numbers({"signature": {"target_mean": 1.0, "target_std": 2.0}}, np.ones((1, 1))) == {"value": 3.0}
    for facts in ({"quantiles": LEVELS[:2]}, {"quantiles": LEVELS, "margins": [1.0]}, {"quantiles": "abc"}):
        with pytest.raises(ValueError, match="signature does not fit the output"):
            described_numbers({**signature, "facts": facts}, RAW[:1])


@pytest.mark.parametrize("weighted", [False, True])
def test_metrics_on_the_device_equal_scikit_learn(weighted: bool) -> None:
    from mxnet import nd

    metrics = {"mae": MeanAbsoluteError(), "rmse": RootMeanSquaredError()}
    chosen = {"": [0, 1], "/a": [0], "/b": [1]}
    wrapped = {f"{n}{s}": metric_of_targets(m, LAYOUT, t) for n, m in metrics.items() for s, t in chosen.items()}
    assert all(metric.better_direction == "min" for metric in wrapped.values())
    meter = Meter(wrapped, 6, LossWeights(weighted, are_of_samples=weighted))
    weights = [nd.array(WEIGHTS)] if weighted else []
    sums = meter(nd.zeros(N), *weights, nd.array(RAW), nd.array(TARGETS), *weights).asnumpy().astype(float)
    values = meter.values(sums, N)
    options = {"sample_weight": WEIGHTS if weighted else None, "multioutput": "raw_values"}
    absolute = reference.mean_absolute_error(TARGETS, POINTS, **options)
    square = reference.mean_squared_error(TARGETS, POINTS, **options) ** 0.5
    for name, value in (("mae", absolute), ("rmse", square)):
        assert values[name] == pytest.approx(value.mean(), rel=1e-4)
        assert [values[f"{name}/a"], values[f"{name}/b"]] == pytest.approx(value.tolist(), rel=1e-4)


def test_metrics_on_the_host_equal_scikit_learn() -> None:
    metric = metric_of_targets(R2(), LAYOUT, [0, 1])
    assert metric.compute(collected()) == pytest.approx(reference.r2_score(TARGETS, POINTS))  # type: ignore[attr-defined]
    found = metric.compute_weighted(collected(), WEIGHTS)  # type: ignore[attr-defined]
    assert found == pytest.approx(reference.r2_score(TARGETS, POINTS, sample_weight=WEIGHTS))
    second = metric_of_targets(Pearson(), LAYOUT, [1]).compute(collected())  # type: ignore[attr-defined]
    assert second == pytest.approx(np.corrcoef(TARGETS[:, 1], POINTS[:, 1])[0, 1])
    own = GivenMetric.model_construct()
    assert metric_of_targets(own, LAYOUT, [0]) is own


def test_r2_of_one_target_equals_scikit_learn() -> None:
    pairs = Pairs()
    pairs.update(np.arange(N), POINTS[:, 0], TARGETS[:, 0], None)
    assert R2().compute(pairs) == pytest.approx(reference.r2_score(TARGETS[:, 0], POINTS[:, 0]))
    constant: Any = Pairs()
    constant.update(np.arange(N), POINTS[:, 0], np.full(N, 0.1), None)
    assert np.isnan(R2().compute(constant)) and np.isnan(R2().compute(Pairs()))


def test_coverage_and_width_of_intervals() -> None:
    inside = (NUMBERS[:, :, 4] <= TARGETS) & (TARGETS <= NUMBERS[:, :, 5])
    assert IntervalCoverage.of([0, 1]).compute(collected()) == pytest.approx(inside.mean())
    weights = SampleWeights()
    weights.update(np.arange(N), np.zeros(N), WEIGHTS, None)
    found = IntervalCoverage.of([1]).compute_weighted(collected(), weights.weights())
    assert found == pytest.approx(np.average(inside[:, 1], weights=WEIGHTS))
    width = NUMBERS[:, :, 5] - NUMBERS[:, :, 4]
    assert IntervalWidth.of([0, 1]).compute(collected()) == pytest.approx(width.mean())
    assert np.isnan(IntervalWidth.of([0]).compute(TargetRows()))


def test_margins_reach_the_level_and_are_kept() -> None:
    keeper = Margins()
    coverage = IntervalCoverage.of([0, 1], 0.8, keeper).compute(collected())
    for number, margin in enumerate(keeper.values):
        low, high, true = NUMBERS[:, number, 4], NUMBERS[:, number, 5], TARGETS[:, number]
        score = np.sort(np.maximum(low - true, true - high))
        assert margin == score[int(np.ceil((N + 1) * 0.8)) - 1]
    assert 0.8 <= coverage < 0.9
    restored = Margins()
    restored.load_state({}, keeper.save_state()[1], "")
    assert restored.values == keeper.values
    width = IntervalWidth.of([0], 0.8).compute(collected())
    assert width == pytest.approx((NUMBERS[:, 0, 5] - NUMBERS[:, 0, 4]).mean() + 2 * keeper.values[0])


def test_the_margin_is_that_of_repeated_samples_and_at_most_the_largest_distance() -> None:
    score = np.array([3.0, 1.0, 2.0, 9.0])
    zeros, ones = np.zeros(4), np.ones(4)
    assert conformal_margin(zeros, zeros, score, 0.4, ones) == 2  # the second of four, as 5 * 0.4 = 2
    assert conformal_margin(zeros, zeros, -score, 0.99, ones) == 9
    assert conformal_margin(zeros, zeros, score, 0.5, np.array([1.0, 0, 0, 1])) == 9
    assert conformal_margin(zeros, zeros, score, 0.5, np.array([8.0, 1, 1, 0])) == 3
    assert conformal_margin(zeros, zeros, score, 0.4, np.array([0.0, 1, 0, 1])) == 9  # as of 1 and 9 alone
    assert conformal_margin(zeros - 10, zeros + 10, score, 0.4, ones) == -8
    assert 25 * 0.28 > 7  # by rounding, which must not choose the next distance
    assert conformal_margin(np.zeros(24), np.zeros(24), np.arange(24) + 1.0, 0.28, np.ones(24)) == 7


def test_intervals_of_new_samples_contain_the_level() -> None:
    """Split-conformal prediction guarantees the level on average over calibration samples."""
    rng, found = np.random.default_rng(0), []
    for _ in range(400):
        true, new = rng.normal(size=30), rng.normal(size=50)
        found.append((np.abs(new) <= conformal_margin(np.zeros(30), np.zeros(30), true, 0.9, np.ones(30))).mean())
    assert 0.895 < np.mean(found) < 0.915


def test_damaged_targets_of_a_signature_are_refused() -> None:
    from mxtrain.data.signature import Signature, TargetScale

    good = Signature((3,), targets=(TargetScale("a", 1.0, 2.0), TargetScale("b", 0.0, 1.0)))
    assert Signature.from_json(good.to_json()).targets == good.targets
    for second in (TargetScale("a", 0.0, 1.0), TargetScale("b", 0.0, 0.0), TargetScale("b", float("nan"), 1.0)):
        with pytest.raises(DamagedCheckpoint, match="target"):
            Signature((3,), targets=(TargetScale("a", 1.0, 2.0), second))
