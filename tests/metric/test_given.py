"""Metrics that are given as objects: what they read, and the numbers that they may return."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from mxtrain.engine.backend import mx, nd
from mxtrain.errors import ConfigError
from mxtrain.metric.given import GivenMetric, PredictionsAndTargets

SMALLER = ("MAE", "MSE", "RMSE", "CrossEntropy", "NegativeLogLikelihood", "Perplexity", "Loss")
LARGER = ("Accuracy", "TopKAccuracy", "F1", "MCC", "PearsonCorrelation", "PCC")
ARGUMENTS = {"Perplexity": (-1,), "TopKAccuracy": (2,)}


def metric_of(value: Any) -> GivenMetric:
    return GivenMetric(given_as="metric.own", object="module.own").with_object(value)


def measured(value: Any, prediction_N: np.ndarray, target_N: np.ndarray) -> float:
    """The value over batches of up to three samples, of which one is measured twice."""
    collected = PredictionsAndTargets()
    for begin in range(0, len(target_N), 2):
        part = np.arange(begin, min(begin + 3, len(target_N)))
        collected.update(part, prediction_N[part], target_N[part], None)
    return metric_of(value).compute(collected)


@pytest.mark.parametrize("name", [*SMALLER, *LARGER])
def test_directions_of_mxnets_metrics(name: str) -> None:
    metric = getattr(mx.metric, name)(*ARGUMENTS.get(name, ()))
    assert GivenMetric.describe_object(metric) == {"better": "min" if name in SMALLER else "max"}


@pytest.mark.parametrize("value", [3, "accuracy", mx.metric.MAE, dict])
def test_other_objects_are_no_metrics(value: Any) -> None:
    with pytest.raises(ConfigError, match="must be an mxnet.metric.EvalMetric, a function"):
        GivenMetric.describe_object(value)


def test_predictions_and_targets_have_their_shapes() -> None:
    draw = np.random.default_rng(0)
    prediction_N, target_N = draw.normal(size=(7, 2, 3)).astype("float32"), draw.normal(size=(7, 4)).astype("float32")

    def metric(given_N: np.ndarray, predicted_N: np.ndarray) -> float:
        np.testing.assert_array_equal(given_N, target_N)
        np.testing.assert_array_equal(predicted_N, prediction_N)
        assert given_N.dtype == predicted_N.dtype == np.float32
        return 0.25

    assert measured(metric, prediction_N, target_N) == 0.25


def test_a_metric_starts_again() -> None:
    metric = mx.metric.MAE()
    prediction_N, target_N = np.float32([[1], [2], [3]]), np.float32([[1], [1], [1]])
    assert [measured(metric, prediction_N, target_N) for _ in range(2)] == [1.0, 1.0]
    assert measured(metric, target_N, target_N) == 0.0


def test_no_samples_have_no_value() -> None:
    def fail(*arrays: Any) -> float:
        raise AssertionError("called")

    assert math.isnan(metric_of(fail).compute(PredictionsAndTargets()))


@pytest.mark.parametrize("value", [2, 2.0, np.float32(2), np.array(2), np.array([2.0]), nd.array([2.0])])
def test_one_number_may_have_any_type(value: Any) -> None:
    result = measured(lambda *arrays: value, np.zeros((2, 1)), np.zeros(2))
    assert result == 2.0 and type(result) is float


@pytest.mark.parametrize("value", ["2", None, [2.0], np.zeros(2), nd.zeros(2), 2j])
def test_other_results_are_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"(?s)metric.own: module.own returned .* a metric must return one number"):
        measured(lambda *arrays: value, np.zeros((2, 1)), np.zeros(2))


def test_predictions_of_different_shapes_are_refused() -> None:
    with pytest.raises(ConfigError, match="differ in their shapes"):
        PredictionsAndTargets().update(np.arange(2), [np.zeros(1), np.zeros(2)], np.zeros(2), None)
