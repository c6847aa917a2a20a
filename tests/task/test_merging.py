"""Merged outputs of several passes: probabilities, compared with NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from mxtrain.engine.backend import nd
from mxtrain.task.merging import log_mean_exp, merge_class_scores, merge_class_set_scores, merge_values


def softmax(score: np.ndarray, axis: int) -> np.ndarray:
    exponential = np.exp(score - score.max(axis=axis, keepdims=True))
    return exponential / exponential.sum(axis=axis, keepdims=True)


@pytest.mark.parametrize("shape, axis", [((4, 3), -1), ((2, 5, 3, 4), 1)])
def test_softmax_of_merged_scores_is_the_mean_probability(shape: tuple, axis: int) -> None:
    score_V = 5 * np.random.RandomState(0).randn(3, *shape).astype(np.float32)
    further = nd.ones((2,))
    outputs = [
        (nd.array(score), *([further] if number == 0 else [nd.zeros((2,))])) for number, score in enumerate(score_V)
    ]
    merged, kept = merge_class_scores(outputs, axis)
    expected = np.mean([softmax(score.astype(np.float64), axis) for score in score_V], axis=0)
    np.testing.assert_allclose(softmax(merged.asnumpy(), axis), expected, atol=1e-6)
    assert kept is further  # further outputs are those of the unchanged samples


def test_sigmoid_of_merged_class_set_scores_is_the_mean_probability() -> None:
    score_VBK = 4 * np.random.RandomState(1).randn(2, 3, 6).astype(np.float32)
    (merged,) = merge_class_set_scores([(nd.array(score_BK),) for score_BK in score_VBK])
    expected = (1 / (1 + np.exp(-score_VBK.astype(np.float64)))).mean(axis=0)
    np.testing.assert_allclose(1 / (1 + np.exp(-merged.asnumpy())), expected, atol=1e-6)


def test_extreme_scores_stay_finite() -> None:
    """In float32 these probabilities are 0 and 1, so a loss of their logarithm would be infinite."""
    low, high = nd.array([[-300.0, 300.0]]), nd.array([[-200.0, 400.0]])
    (merged,) = merge_class_set_scores([(low,), (high,)])
    np.testing.assert_allclose(merged.asnumpy(), [[-200 - np.log(2), 300 + np.log(2)]], rtol=1e-5)
    (scores,) = merge_class_scores([(low,), (nd.array([[-400.0, 200.0]]),)])
    np.testing.assert_allclose(scores.asnumpy(), [[-600, 0]], rtol=1e-5, atol=1e-5)


def test_log_mean_exp_and_values() -> None:
    first, second = nd.array([0.0, -1000.0]), nd.array([1.0, -1000.0])
    np.testing.assert_allclose(log_mean_exp([first, second]).asnumpy(), [np.log((1 + np.e) / 2), -1000], rtol=1e-6)
    (value,) = merge_values([(first,), (second,)])
    np.testing.assert_allclose(value.asnumpy(), [0.5, -1000])
