"""Metrics on the host: against SciPy, whoever measured which samples."""

from __future__ import annotations

from typing import Any, List

import numpy as np
import pytest
from in_threads import Rendezvous, ThreadStore
from scipy import stats

from mxtrain.kvstore.store import Store
from mxtrain.kvstore.world import World
from mxtrain.metric.host import HostMetric, Pearson, Spearman, all_gather

RNG = np.random.RandomState(0)
TARGETS = RNG.randint(0, 6, 97).astype(np.float32)  # with ties
PREDICTIONS = (TARGETS + RNG.randn(97)).round(1).astype(np.float32)
EXPECTED = {
    Pearson: stats.pearsonr(PREDICTIONS.astype(np.float64), TARGETS)[0],
    Spearman: stats.spearmanr(PREDICTIONS, TARGETS)[0],
}


def measured(metric: HostMetric, store: Store, batches: List[np.ndarray]) -> float:
    measure = metric.start()
    for index in batches:
        measure.update(index, PREDICTIONS[index], [TARGETS[index]])
    all_gather(measure, store)
    return measure.compute()


@pytest.mark.parametrize("kind", EXPECTED)
def test_it_equals_scipys(kind: Any) -> None:
    order = RNG.permutation(97)
    assert measured(kind(), Store(), np.array_split(order, 7)) == pytest.approx(EXPECTED[kind], abs=1e-12)


@pytest.mark.parametrize("kind", EXPECTED)
def test_the_result_does_not_depend_on_who_measured_what(kind: Any) -> None:
    """To the bit; one worker has nothing, and a sample that two have seen counts once."""
    alone = measured(kind(), Store(), [np.arange(97)])
    for shares in ([range(60), range(60, 97), []], [range(1, 97, 2), [], range(0, 97, 2)], [range(97), [5], [6, 7]]):
        rendezvous = Rendezvous(3)

        def work(world: World, shares: Any = shares, rendezvous: Rendezvous = rendezvous) -> float:
            index = np.array(list(shares[world.rank]), int)
            return measured(kind(), ThreadStore(world, rendezvous), [index] if len(index) else [])

        assert rendezvous.run(work) == [alone] * 3


def test_what_does_not_vary_has_no_correlation() -> None:
    constant = np.ones(5)
    assert Pearson().of_samples(constant, TARGETS[:5].astype(float)) == 0.0
    assert Spearman().of_samples(np.zeros(1), np.zeros(1)) == 0.0


def test_forgotten_samples_do_not_count() -> None:
    measure = Pearson().start()
    measure.update(np.arange(50), PREDICTIONS[:50][::-1], [TARGETS[:50]])
    measure.reset()
    measure.update(np.arange(97), PREDICTIONS, [TARGETS])
    assert measure.compute() == pytest.approx(EXPECTED[Pearson], abs=1e-12)
