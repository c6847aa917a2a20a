"""Ranks of held-out items: against a loop in NumPy, with ties and scores that are no numbers."""

from __future__ import annotations

import math
from typing import Any, List, Tuple

import numpy as np
import pytest
from in_threads import Rendezvous, ThreadStore

from mxtrain.engine.backend import nd
from mxtrain.kvstore.world import World
from mxtrain.metric.host import all_gather
from mxtrain.metric.meter import Meter
from mxtrain.recommendation.ranking import (
    HitRateAmongAll,
    HitRateAmongSampled,
    NDCGAmongAll,
    NDCGAmongSampled,
    Ranks,
    ReciprocalRankAmongAll,
    ranks_in,
)

USERS, ITEMS, OTHERS = 23, 30, 8
DRAW = np.random.RandomState(0)
SCORES = DRAW.randint(0, 9, (USERS, ITEMS)).astype(np.float32)  # with ties
CANDIDATES = np.stack([DRAW.permutation(ITEMS)[: 1 + OTHERS] for _ in range(USERS)]).astype(np.int32)
CANDIDATES[5, 6:] = -1
SCORES[7, CANDIDATES[7, 0]] = np.nan
SEEN = [DRAW.permutation(np.setdiff1d(np.arange(ITEMS), CANDIDATES[user]))[: user % 7] for user in range(USERS)]


def expected(k: int, among_all: bool) -> Tuple[float, float]:
    """HR@k and NDCG@k, item by item."""
    hits, gains = 0.0, 0.0
    for user in range(USERS):
        own = int(CANDIDATES[user, 0])
        if among_all:
            others = [item for item in range(ITEMS) if item != own and item not in SEEN[user]]
        else:
            others = [int(item) for item in CANDIDATES[user, 1:] if item >= 0]
        rank = 0
        for item in others:
            if not SCORES[user, item] < SCORES[user, own]:
                rank += 1
        if rank < k:
            hits += 1
            gains += 1 / math.log2(rank + 2)
    return hits / USERS, gains / USERS


def on_device(k: int) -> Any:
    metrics = {"hr": HitRateAmongSampled(k=k), "ndcg": NDCGAmongSampled(k=k)}
    meter, total = Meter(metrics, 1), np.zeros(3)
    for rows in np.array_split(np.arange(USERS), 4):
        item_BC = CANDIDATES[rows]
        score_BC = np.take_along_axis(SCORES[rows], np.maximum(item_BC, 0), axis=1)
        total += meter(nd.zeros(len(rows)), nd.array(score_BC), nd.array(item_BC, dtype="int32")).asnumpy()
    return meter.values(total, USERS)


@pytest.mark.parametrize("k", [1, 3, 10])
def test_among_sampled_items_on_the_device(k: int) -> None:
    found = on_device(k)
    assert (found["hr"], found["ndcg"]) == pytest.approx(expected(k, among_all=False), abs=1e-6)


def collected(rows: np.ndarray) -> Ranks:
    found = Ranks()
    masked = SCORES.copy()
    for user, items in enumerate(SEEN):
        masked[user, items] = -np.inf
    for part in np.array_split(rows, 3):
        if len(part):
            found.update(part, masked[part], CANDIDATES[part], None)
    return found


@pytest.mark.parametrize("k", [1, 3, 10])
def test_ranks_among_all_items_on_any_worker(k: int) -> None:
    metrics = (HitRateAmongAll(k=k), NDCGAmongAll(k=k))
    alone = [metric.compute(collected(np.arange(USERS))) for metric in metrics]
    assert alone == pytest.approx(expected(k, among_all=True), abs=1e-12)
    rendezvous = Rendezvous(2)

    def work(world: World) -> List[float]:
        found = collected(np.arange(world.rank, USERS, 2))
        all_gather(found, ThreadStore(world, rendezvous))
        return [metric.compute(found) for metric in metrics]

    assert rendezvous.run(work) == [alone] * 2


def test_ties_and_scores_that_are_not_numbers_are_not_in_favour_of_the_item() -> None:
    scores = np.array([[2.0, 2, 1], [3, 2, 1], [np.nan, 1, 2], [1, np.nan, 0], [-np.inf, -np.inf, -np.inf]])
    assert ranks_in(scores, np.zeros(5, int)).tolist() == [1, 0, 2, 1, 2]


def test_reciprocal_ranks_end_at_k() -> None:
    rank_N = ranks_in(SCORES, CANDIDATES[:, 0])
    found = ReciprocalRankAmongAll(k=4)
    assert found.gain(np.array([0, 1, 3, 4, 29])).tolist() == [1, 0.5, 0.25, 0, 0] and found.direction == "max"
    ranks = Ranks()
    ranks.update(np.arange(USERS), SCORES, CANDIDATES, None)
    assert found.compute(ranks) == pytest.approx(sum(1 / (rank + 1) for rank in rank_N if rank < 4) / USERS)


def test_signatures_name_the_compared_items() -> None:
    assert HitRateAmongAll(k=5).signature == "k=5,among=all_unseen_items,ties=worst"
    assert NDCGAmongSampled().signature == "k=10,among=sampled_unseen_items,ties=worst"
