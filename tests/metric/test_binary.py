"""Metrics of scores and yes/no targets against scikit-learn's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn import metrics
from sklearn.calibration import calibration_curve as sklearns_curve

from mxtrain.engine.backend import nd
from mxtrain.metric import binary
from mxtrain.metric.meter import UNWEIGHTED, Meter, MeterOutputs

RNG = np.random.RandomState(0)
TARGETS = (RNG.rand(400) < 0.1).astype(np.float64)  # positive ones are rare
SCORES = (RNG.randn(400) + 1.5 * TARGETS - 2).round(1)  # with ties
PROBABILITIES = 1 / (1 + np.exp(-SCORES))
EXPECTED = {
    binary.RocAuc: metrics.roc_auc_score(TARGETS, SCORES),
    binary.AveragePrecision: metrics.average_precision_score(TARGETS, SCORES),
    binary.BrierScore: metrics.brier_score_loss(TARGETS, PROBABILITIES),
}


@pytest.mark.parametrize("kind", EXPECTED)
def test_metric_equals_scikit_learn(kind: Any) -> None:
    assert kind().of_samples(SCORES, TARGETS) == pytest.approx(EXPECTED[kind], abs=1e-12)


def test_log_loss_of_certain_predictions_equals_scikit_learn() -> None:
    meter = Meter({"log_loss": binary.LogLoss()}, 1, UNWEIGHTED, MeterOutputs(is_binary=True))
    scores, targets = np.append(SCORES, [60.0, -200.0]), np.append(TARGETS, [0.0, 1.0])
    sums = meter(nd.zeros(len(scores)), nd.array(scores).reshape((-1, 1)), nd.array(targets)).asnumpy()
    found = meter.values(sums.astype(float), len(scores))["log_loss"]
    ours = metrics.log_loss(TARGETS, PROBABILITIES) * len(TARGETS) + 60 + 200
    assert found == pytest.approx(ours / len(scores), rel=1e-5)


@pytest.mark.parametrize("strategy", ["uniform", "quantile"])
def test_calibration_curve_equals_scikit_learn(strategy: Any) -> None:
    score_N = RNG.randn(400) * 2 - 1  # without ties, about which they differ
    probability_N = binary.sigmoid(score_N)
    target_N = (RNG.rand(400) < probability_N**2).astype(float)
    share_D, mean_D = sklearns_curve(target_N, probability_N, n_bins=7, strategy=strategy)
    metric = binary.ExpectedCalibrationError(num_bins=7, strategy=strategy)
    curve = metric.curve(probability_N, target_N)
    np.testing.assert_allclose(curve.share_D, share_D)
    np.testing.assert_allclose(curve.probability_D, mean_D)
    assert curve.count_D.sum() == 400 and (curve.low_D <= mean_D).all() and (mean_D <= curve.high_D).all()
    wanted = sum(count * abs(p - s) for count, p, s in zip(curve.count_D, mean_D, share_D)) / 400
    assert metric.of_classes(score_N[:, None], target_N[:, None]) == pytest.approx(wanted) and wanted > 0.05
    assert metric.signature == f"num_bins=7 strategy={strategy}"


def test_right_probabilities_have_no_error() -> None:
    target_N = np.tile([0.0, 0.0, 0.0, 1.0], 25)
    for score, expected in ((-np.log(3), 0), (np.log(3), 0.5)):
        error = binary.ExpectedCalibrationError().of_classes(np.full((100, 1), score), target_N[:, None])
        assert error == pytest.approx(expected)


@pytest.mark.parametrize("size", [0, 1, 5])
@pytest.mark.parametrize("target", [0.0, 1.0])
def test_metrics_of_one_class_are_undefined(size: int, target: float) -> None:
    scores, targets = np.arange(size, dtype=float), np.full(size, target)
    assert np.isnan(binary.RocAuc().of_samples(scores, targets))
    precision = binary.AveragePrecision().of_samples(scores, targets)
    assert precision == 1.0 if target and size else np.isnan(precision)
    for metric in (binary.BrierScore(), binary.ExpectedCalibrationError()):
        assert np.isnan(metric.of_classes(scores[:, None], targets[:, None])) == (not size)


def test_scores_rank_samples_with_probabilities_rounded_to_1() -> None:
    score_N = np.float32([20, 30, 40])
    assert len(set(np.float32(1) / (1 + np.exp(-score_N)))) == 1
    assert binary.RocAuc().of_samples(score_N, np.float32([0, 1, 1])) == 1.0
    with np.errstate(all="raise", under="ignore"):
        np.testing.assert_allclose(binary.sigmoid(np.array([-800.0, 0.0, 800.0])), [0, 0.5, 1], atol=1e-300)
    assert binary.sigmoid(np.float32([20]))[0] == pytest.approx(1 / (1 + np.exp(-20)), rel=1e-15)


def test_scores_of_two_classes_are_one_column() -> None:
    collected = binary.ClassScores()
    assert [array.shape for array in collected.by_class()] == [(0, 1), (0, 1)]
    for part in np.array_split(np.random.RandomState(0).permutation(400), 3):
        collected.update(part, SCORES[part], TARGETS[part], None)
    np.testing.assert_array_equal(np.concatenate(collected.by_class(), axis=1), np.stack([SCORES, TARGETS], axis=1))
    for kind, expected in EXPECTED.items():
        assert kind().compute(collected) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("k", [0, 1, 2])
def test_ranking_of_a_single_class_is_undefined(k: int) -> None:
    score_NK, target_NK = RNG.randn(5, 3), np.tile(np.arange(3) == k, (5, 1)).astype(float)
    assert np.isnan(binary.RocAuc().of_classes(score_NK, target_NK))
    if k:
        assert np.isnan(binary.AveragePrecision().of_classes(score_NK, target_NK))


def test_several_classes_without_samples() -> None:
    for metric in (binary.RocAuc(), binary.AveragePrecision(), binary.BrierScore(), binary.ExpectedCalibrationError()):
        assert np.isnan(metric.of_classes(np.zeros((0, 3)), np.zeros((0, 3))))
