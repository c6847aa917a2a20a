"""Metrics on the host: against SciPy, whoever measured which samples."""

from __future__ import annotations

from typing import Any, List

import numpy as np
import pytest
from in_threads import Rendezvous, ThreadStore
from scipy import stats

from mxtrain.kvstore.store import Store
from mxtrain.kvstore.world import World
from mxtrain.metric.host import Collected, PairMetric, Pairs, Pearson, Spearman, all_gather

RNG = np.random.RandomState(0)
TARGETS = RNG.randint(0, 6, 97).astype(np.float32)  # with ties
PREDICTIONS = (TARGETS + RNG.randn(97)).round(1).astype(np.float32)
EXPECTED = {
    Pearson: stats.pearsonr(PREDICTIONS.astype(np.float64), TARGETS)[0],
    Spearman: stats.spearmanr(PREDICTIONS, TARGETS)[0],
}


def measured(metric: PairMetric, store: Store, batches: List[np.ndarray]) -> float:
    collected = metric.collects()
    for index in batches:
        collected.update(index, PREDICTIONS[index], TARGETS[index], None)
    all_gather(collected, store)
    return metric.compute(collected)


@pytest.mark.parametrize("kind", EXPECTED)
def test_correlation_equals_scipy(kind: Any) -> None:
    order = RNG.permutation(97)
    assert measured(kind(), Store(), np.array_split(order, 7)) == pytest.approx(EXPECTED[kind], abs=1e-12)


@pytest.mark.parametrize("kind", EXPECTED)
def test_result_does_not_depend_on_the_measuring_worker(kind: Any) -> None:
    """To the bit; one worker has nothing, and a sample that two have seen counts once."""
    alone = measured(kind(), Store(), [np.arange(97)])
    for shares in ([range(60), range(60, 97), []], [range(1, 97, 2), [], range(0, 97, 2)], [range(97), [5], [6, 7]]):
        rendezvous = Rendezvous(3)

        def work(world: World, shares: Any = shares, rendezvous: Rendezvous = rendezvous) -> float:
            index = np.array(list(shares[world.rank]), int)
            return measured(kind(), ThreadStore(world, rendezvous), [index] if len(index) else [])

        assert rendezvous.run(work) == [alone] * 3


def test_correlation_is_undefined_for_constant_targets_and_0_for_constant_predictions() -> None:
    constant, varied = np.full(5, 0.1), TARGETS[:5].astype(float)
    for metric in (Pearson(), Spearman()):
        assert metric.of_samples(constant, varied) == 0.0
        assert np.isnan([metric.of_samples(varied[:size], constant[:size]) for size in (5, 1, 0)]).all()


def test_forgotten_samples_do_not_count() -> None:
    collected = Pairs()
    collected.update(np.arange(50), PREDICTIONS[:50][::-1], TARGETS[:50], None)
    collected.reset()
    collected.update(np.arange(97), PREDICTIONS, TARGETS, None)
    assert Pearson().compute(collected) == pytest.approx(EXPECTED[Pearson], abs=1e-12)


class Words(Collected):
    """Any number of rows for each sample."""

    width = 1


def test_a_sample_may_have_any_number_of_rows_and_counts_once() -> None:
    """Holds for rows collected by any worker in any order."""
    first, second = Words(), Words()
    first.add(7, np.array([[1.0], [2.0]]))
    first.add(3, np.zeros((0, 1)))
    second.add(5, np.array([[9.0]]))
    second.add(7, np.array([[1.0], [2.0]]))
    first.merge(second.rows())
    assert first.samples().tolist() == [[5, 0, 9], [7, 0, 1], [7, 1, 2]]
