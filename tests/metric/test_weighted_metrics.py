"""Metrics of samples with weights, against scikit-learn's sample_weight and against repeated samples."""

from __future__ import annotations

from typing import Any, List, Sequence

import numpy as np
import pytest
import sklearn.metrics as reference
from scipy import stats

from mxtrain.metric.binary import (
    AveragePrecision,
    BrierScore,
    ClassScores,
    ExpectedCalibrationError,
    LogLoss,
    RocAuc,
    sigmoid,
)
from mxtrain.metric.host import Pairs, Pearson, SampleWeights, Spearman
from mxtrain.metric.meter import LossWeights, Meter, MeterOutputs
from mxtrain.metric.metrics import (
    F1,
    MCC,
    Accuracy,
    CrossEntropy,
    MeanAbsoluteError,
    MeanSquaredError,
    RootMeanSquaredError,
    TopKAccuracy,
)
from mxtrain.metric.multi_label import (
    ClassSetScores,
    HammingLoss,
    MacroF1,
    MeanAveragePrecision,
    MicroF1,
    SubsetAccuracy,
    choose_thresholds,
)

RNG = np.random.default_rng(7)
N, K = 50, 4
WEIGHTS = np.r_[0.0, 0.0, RNG.integers(1, 4, N - 2)] * 1.0
SCORES = RNG.normal(size=(N, K)).round(1)  # rounded, so that scores are equal
LABELS = np.r_[np.arange(K), RNG.integers(0, K, N - K)]
BINARY = (SCORES[:, 0] + RNG.normal(size=N) > 0).astype(int)
SETS = SCORES + RNG.normal(size=(N, K)) > 0.5
TARGETS = SCORES[:, 1] * 2 + RNG.normal(size=N).round(1)


def metered(metrics: Any, outputs: np.ndarray, targets: np.ndarray, is_binary: bool = False) -> Any:
    """Returns the values of metrics on the device, from two batches of samples with weights."""
    from mxnet import nd

    width = outputs.shape[1]
    weights = LossWeights(are_given=True, are_of_samples=True)
    meter = Meter(metrics, width, weights, MeterOutputs(is_binary=is_binary))
    total = np.zeros(meter.width)
    for part in (slice(0, 20), slice(20, None)):
        arrays = [nd.array(array[part]) for array in (WEIGHTS * 2, WEIGHTS, outputs, targets, WEIGHTS)]
        total += meter(*arrays).asnumpy()
    return meter.values(total, N)


def collected(collector: Any, prediction: np.ndarray, target: np.ndarray) -> Any:
    order = np.random.default_rng(1).permutation(N)
    for part in np.array_split(order, 3):
        collector.update(part, prediction[part], target[part], None)
    return collector


def weighted(metric: Any, collector: Any, prediction: np.ndarray, target: np.ndarray) -> float:
    weights = collected(SampleWeights(), prediction, WEIGHTS).weights()
    return metric.compute_weighted(collected(collector, prediction, target), weights)


def repeated(values: np.ndarray) -> np.ndarray:
    return np.repeat(values, WEIGHTS.astype(int), axis=0)


def test_metrics_of_classes_on_the_device_equal_scikit_learn() -> None:
    metrics = {
        "accuracy": Accuracy(),
        "top": TopKAccuracy(top_k=2),
        "entropy": CrossEntropy(),
        "log_loss": LogLoss(),
        "f1": F1(),
        "micro": F1(average="micro"),
        "mcc": MCC(),
    }
    predicted = SCORES.argmax(1)
    probabilities = np.exp(SCORES) / np.exp(SCORES).sum(1, keepdims=True)
    entropy = reference.log_loss(LABELS, probabilities, sample_weight=WEIGHTS, labels=range(K))
    rank = (SCORES > SCORES[np.arange(N), LABELS][:, None]).sum(1)
    expected = {
        "loss": 2.0,
        "accuracy": reference.accuracy_score(LABELS, predicted, sample_weight=WEIGHTS),
        "top": np.average(rank < 2, weights=WEIGHTS),
        "entropy": entropy,
        "log_loss": entropy,
        "f1": reference.f1_score(LABELS, predicted, average="macro", sample_weight=WEIGHTS),
        "micro": reference.f1_score(LABELS, predicted, average="micro", sample_weight=WEIGHTS),
        "mcc": reference.matthews_corrcoef(LABELS, predicted, sample_weight=WEIGHTS),
    }
    assert metered(metrics, SCORES, LABELS) == pytest.approx(expected, rel=1e-5)


def test_metrics_of_one_score_on_the_device_equal_scikit_learn() -> None:
    score, probability = SCORES[:, :1], sigmoid(SCORES[:, 0])
    expected = {
        "loss": 2.0,
        "accuracy": reference.accuracy_score(BINARY, score[:, 0] > 0, sample_weight=WEIGHTS),
        "log_loss": reference.log_loss(BINARY, probability, sample_weight=WEIGHTS),
    }
    values = metered({"accuracy": Accuracy(), "log_loss": LogLoss()}, score, BINARY, is_binary=True)
    assert values == pytest.approx(expected, rel=1e-5)


def test_errors_on_the_device_equal_scikit_learn() -> None:
    metrics = {"mse": MeanSquaredError(), "rmse": RootMeanSquaredError(), "mae": MeanAbsoluteError()}
    square = reference.mean_squared_error(TARGETS, SCORES[:, 1], sample_weight=WEIGHTS)
    absolute = reference.mean_absolute_error(TARGETS, SCORES[:, 1], sample_weight=WEIGHTS)
    expected = {"loss": 2.0, "mse": square, "rmse": square**0.5, "mae": absolute}
    assert metered(metrics, SCORES[:, 1:2], TARGETS) == pytest.approx(expected, rel=1e-5)


def test_metrics_without_weights_count_each_sample_once() -> None:
    class Plain(MeanAbsoluteError):
        takes_weights = False

    found = metered({"mae": Plain()}, SCORES[:, 1:2], TARGETS)["mae"]
    assert found == pytest.approx(np.abs(SCORES[:, 1] - TARGETS).mean(), rel=1e-5)


def test_ranking_and_calibration_of_two_classes_equal_scikit_learn() -> None:
    score, probability = SCORES[:, 0], sigmoid(SCORES[:, 0])
    values = [weighted(metric, ClassScores(), score, BINARY) for metric in (RocAuc(), AveragePrecision(), BrierScore())]
    assert values == pytest.approx(
        [
            reference.roc_auc_score(BINARY, score, sample_weight=WEIGHTS),
            reference.average_precision_score(BINARY, score, sample_weight=WEIGHTS),
            reference.brier_score_loss(BINARY, probability, sample_weight=WEIGHTS),
        ],
        rel=1e-12,
    )
    # scikit-learn has no calibration error: whole numbers as weights equal repeated samples.
    curve = ExpectedCalibrationError().curve(repeated(probability), repeated(BINARY))
    found = weighted(ExpectedCalibrationError(), ClassScores(), score, BINARY)
    assert found == pytest.approx(curve.expected_error(), rel=1e-12)


def test_ranking_of_several_classes_equals_repeated_samples() -> None:
    for metric in (RocAuc(), AveragePrecision(), BrierScore(), ExpectedCalibrationError()):
        expected = metric.of_classes(repeated(SCORES), repeated(np.eye(K)[LABELS]))
        assert weighted(metric, ClassScores(), SCORES, LABELS) == pytest.approx(expected, rel=1e-12), metric


def test_metrics_of_class_sets_equal_scikit_learn() -> None:
    probability = sigmoid(SCORES)
    predicted = probability >= 0.4
    weights = {"sample_weight": WEIGHTS}
    cases: Sequence[Any] = [
        (MeanAveragePrecision(), reference.average_precision_score(SETS, SCORES, average="macro", **weights)),
        (MicroF1(threshold=0.4), reference.f1_score(SETS, predicted, average="micro", **weights)),
        (MacroF1(threshold=0.4), reference.f1_score(SETS, predicted, average="macro", **weights)),
        (SubsetAccuracy(threshold=0.4), reference.accuracy_score(SETS, predicted, **weights)),
        (HammingLoss(threshold=0.4), reference.hamming_loss(SETS, predicted, **weights)),
    ]
    for metric, expected in cases:
        assert weighted(metric, ClassSetScores(), SCORES, SETS) == pytest.approx(expected, rel=1e-12), metric


def test_chosen_thresholds_have_the_highest_weighted_f1() -> None:
    for k, threshold in enumerate(choose_thresholds(SCORES, SETS, WEIGHTS)):
        probability = sigmoid(SCORES[:, k])
        of: List[float] = [
            reference.f1_score(SETS[:, k], probability >= each, sample_weight=WEIGHTS)
            for each in (threshold, *np.unique(probability))
        ]
        assert of[0] == pytest.approx(max(of))


def test_correlations_equal_those_of_repeated_samples() -> None:
    for metric, expected in (
        (Pearson(), stats.pearsonr(repeated(SCORES[:, 1]), repeated(TARGETS))[0]),
        (Spearman(), stats.spearmanr(repeated(SCORES[:, 1]), repeated(TARGETS))[0]),
    ):
        assert weighted(metric, Pairs(), SCORES[:, 1], TARGETS) == pytest.approx(expected, rel=1e-12)
    assert np.isnan(weighted(Pearson(), Pairs(), SCORES[:, 1], np.where(WEIGHTS > 0, 3.0, TARGETS)))
    assert weighted(Spearman(), Pairs(), np.where(WEIGHTS > 0, 3.0, TARGETS), TARGETS) == 0
