"""Metrics are NaN if the samples do not define a value."""

from __future__ import annotations

import math
from typing import List

import numpy as np
import pytest
from sklearn.metrics import matthews_corrcoef

from mxtrain.metric.meter import LossWeights, Meter
from mxtrain.metric.metrics import (
    F1,
    MCC,
    Accuracy,
    BitsPerByte,
    Perplexity,
    PositionAccuracy,
    PositionPerplexity,
    RootMeanSquaredError,
    TokenPerplexity,
    perplexity,
)
from mxtrain.metric.spec import Metric
from mxtrain.recommendation.ranking import HitRateAmongAll, NDCGAmongSampled, Ranks
from mxtrain.reinforcement.metrics import EpisodeReturn, ExplainedVariance
from mxtrain.speech.frames import MelError
from mxtrain.task.confusion import per_class
from mxtrain.vision.segmentation.metrics import MeanIoU, PixelAccuracy


@pytest.mark.parametrize(
    "metric",
    [
        Accuracy(),
        Perplexity(),
        PositionAccuracy(),
        PositionPerplexity(),
        TokenPerplexity(),
        BitsPerByte(),
        F1(),
        F1(average="micro"),
        MCC(),
        RootMeanSquaredError(),
        PixelAccuracy(),
        MeanIoU(),
        MeanIoU(absent_classes="zero"),
        NDCGAmongSampled(),
        EpisodeReturn(),
        MelError(),
    ],
    ids=repr,
)
def test_sums_over_no_samples_are_undefined(metric: Metric) -> None:
    with np.errstate(all="raise"):
        assert math.isnan(metric.value(np.zeros(metric.size(2)), 0))


def test_perplexity_beyond_the_largest_float_is_infinite() -> None:
    assert perplexity(699.0) == math.exp(699) and perplexity(709.9) == perplexity(1e9) == math.inf
    assert math.isnan(perplexity(math.nan))


def test_ranks_of_no_samples_are_undefined() -> None:
    assert math.isnan(HitRateAmongAll().compute(Ranks()))


@pytest.mark.parametrize(
    "confusion, expected",
    [
        ([[4, 0], [0, 0]], math.nan),
        ([[0, 0], [2, 3]], math.nan),
        ([[4, 0], [5, 0]], 0.0),
        ([[3, 1], [2, 4]], None),
    ],
)
def test_correlation_of_labels_of_one_class_is_undefined(confusion: List[List[int]], expected: float) -> None:
    """A network that predicts one class for labels of several is as good as chance: it must not leave the mean."""
    label_N, predicted_N = np.repeat(np.argwhere(np.ones((2, 2))), np.ravel(confusion), axis=0).T
    wanted = matthews_corrcoef(label_N, predicted_N) if expected is None else expected
    assert MCC().of_confusion(np.array(confusion, float)) == pytest.approx(wanted, nan_ok=True)


def test_only_classes_that_occur_count_in_means() -> None:
    confusion_KK = np.array([[3.0, 1, 0], [0, 0, 0], [0, 0, 0]])  # the second class is predicted, the third never
    assert F1().of_confusion(confusion_KK) == pytest.approx((6 / 7 + 0) / 2)
    assert MeanIoU().of_confusion(confusion_KK) == pytest.approx((3 / 4 + 0) / 2)
    assert MeanIoU(absent_classes="zero").of_confusion(confusion_KK) == pytest.approx((3 / 4 + 0 + 0) / 3)
    (_, _, _, *first), (_, count, precision, *second), _ = per_class(confusion_KK.astype(int), "abc")
    assert first == pytest.approx([3 / 4, 6 / 7]) and (count, precision) == (0, 0.0) and np.isnan(second).all()


def test_explained_variance_of_constant_targets_is_undefined() -> None:
    def value(target_N: np.ndarray, value_N: np.ndarray) -> float:
        error_N = target_N - value_N
        columns = np.float32([target_N, target_N**2, error_N, error_N**2])
        return ExplainedVariance.model_construct().value(columns.sum(axis=1).astype(np.float64), len(target_N))

    draw = np.random.default_rng(0)
    assert math.isnan(value(np.full(1000, 0.3), draw.normal(size=1000)))
    target_N = draw.normal(size=1000)
    value_N = target_N + draw.normal(size=1000) / 2
    assert value(target_N, value_N) == pytest.approx(1 - np.var(target_N - value_N) / np.var(target_N), abs=1e-5)


@pytest.mark.parametrize(
    "weights, sums, count, expected",
    [
        (LossWeights(True), [0.0, 0.0], 4, math.nan),
        (LossWeights(True, least=1.0), [3.0, 0.0], 4, 3.0),
        (LossWeights(), [0.0], 0, math.nan),
        (LossWeights(True), [6.0, 4.0], 4, 1.5),
    ],
)
def test_loss_of_a_validation_without_weight_is_undefined(
    weights: LossWeights, sums: List[float], count: int, expected: float
) -> None:
    assert Meter({}, 3, weights).values(np.array(sums), count)["loss"] == pytest.approx(expected, nan_ok=True)
    in_training = Meter({}, 3, weights, training=True).values(np.array(sums), count)["loss"]
    assert in_training == (0.0 if math.isnan(expected) else expected)
