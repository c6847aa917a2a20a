"""Losses of an item against sampled ones: against NumPy in float64, and their gradients by finite differences."""

from __future__ import annotations

from typing import Any, Callable, Dict, Tuple

import numpy as np
import pytest

from mxtrain.engine.backend import autograd, nd
from mxtrain.recommendation.losses import BPR, RankingLoss, SampledBCE, SampledSoftmax

DRAW = np.random.RandomState(0)
SCORES = 3 * DRAW.randn(5, 4)
ITEMS = DRAW.randint(0, 9, (5, 4)).astype(np.int32)
ITEMS[1, 2:] = -1
ITEMS[3, 1] = -1


def bce(score: np.ndarray, counts: np.ndarray) -> Tuple[float, float]:
    probability = 1 / (1 + np.exp(-score))
    right = np.array([1.0] + [0.0] * (len(score) - 1))
    loss = -(right * np.log(probability) + (1 - right) * np.log(1 - probability))
    return float(loss[counts].sum()), float(counts.sum())


def bpr(score: np.ndarray, counts: np.ndarray) -> Tuple[float, float]:
    pairs = [-np.log(1 / (1 + np.exp(-(score[0] - score[n])))) for n in range(1, len(score)) if counts[n]]
    return float(np.sum(pairs)), float(len(pairs))


def softmax(score: np.ndarray, counts: np.ndarray) -> Tuple[float, float]:
    return float(np.log(np.exp(score[counts]).sum()) - score[0]), 1.0


FORMULAS: Dict[Any, Callable[[np.ndarray, np.ndarray], Tuple[float, float]]] = {
    SampledBCE: bce,
    BPR: bpr,
    SampledSoftmax: softmax,
}


@pytest.mark.parametrize("kind", FORMULAS)
@pytest.mark.parametrize("is_hybrid", [False, True])
def test_scores_follow_their_papers(kind: Any, is_hybrid: bool) -> None:
    loss: RankingLoss = kind()
    block = loss.build(1, training=True)
    if is_hybrid:
        block.hybridize()
    scores = nd.array(SCORES, dtype="float64")
    scores.attach_grad()
    with autograd.record():
        found = block(scores, nd.array(ITEMS, dtype="int32"))
        found = found if isinstance(found, (list, tuple)) else [found]
        total = found[0].sum()
    total.backward()
    expected = [FORMULAS[kind](row, items >= 0) for row, items in zip(SCORES, ITEMS)]
    assert found[0].asnumpy() == pytest.approx([value for value, _ in expected], abs=1e-9)
    if block.weighted:
        assert found[1].asnumpy().tolist() == [weight for _, weight in expected]
    else:
        assert len(found) == 1
    for place in np.ndindex(*SCORES.shape):
        ends = []
        for sign in (1, -1):
            moved = SCORES.copy()
            moved[place] += sign * 1e-5
            ends.append(FORMULAS[kind](moved[place[0]], ITEMS[place[0]] >= 0)[0])
        assert scores.grad.asnumpy()[place] == pytest.approx((ends[0] - ends[1]) / 2e-5, abs=1e-6)
