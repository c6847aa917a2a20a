"""Items that users have and have not, against sets in plain Python."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest

from mxtrain.recommendation.loader import RecommendationDraw
from mxtrain.recommendation.user_items import NO_ITEM, UserItems, sample_distinct

USERS, ITEMS = 7, 12
DRAWN = np.random.RandomState(0)
PAIRS = sorted({(user, item) for user in range(USERS - 1) for item in DRAWN.randint(0, ITEMS, 2 * user)})
FULL = [(USERS - 1, item) for item in range(ITEMS)]
HAS = {user: sorted(item for other, item in (*PAIRS, *FULL) if other == user) for user in range(USERS)}


@pytest.fixture
def items() -> UserItems:
    pairs = np.array([*PAIRS, *FULL, *PAIRS[:5]])[DRAWN.permutation(len(PAIRS) + ITEMS + 5)]  # some twice
    return UserItems(pairs[:, 0], pairs[:, 1], USERS, ITEMS)


def test_the_items_of_each_user_are_ascending_and_each_once(items: UserItems) -> None:
    assert {user: items.items_of(user).tolist() for user in range(USERS)} == HAS
    assert items.count_U.tolist() == [len(HAS[user]) for user in range(USERS)]
    assert len(items) == sum(map(len, HAS.values()))
    assert items.without(USERS - 1, 3).tolist() == [item for item in range(ITEMS) if item != 3]


def test_missing_items_are_found_by_their_number(items: UserItems) -> None:
    for user in range(USERS - 1):
        missing = [item for item in range(ITEMS) if item not in HAS[user]]
        found = items.missing_at(np.array([user]), np.arange(len(missing))[None])
        assert found[0].tolist() == missing


def test_negatives_are_missing_items_and_a_function_of_seed_epoch_and_sample(items: UserItems) -> None:
    user_B = np.array([0, 3, 5, USERS - 1, 3])
    index_B = np.array([9, 4, 2, 7, 1])

    def draw(rows: list, seed: int = 1, epoch: int = 2) -> np.ndarray:
        return items.draw_missing(user_B[rows], index_B[rows], 5, seed, epoch, RecommendationDraw.NEGATIVE_ITEM)

    whole = draw([0, 1, 2, 3, 4])
    for row, user in enumerate(user_B.tolist()):
        expected = {NO_ITEM} if user == USERS - 1 else set(range(ITEMS)) - set(HAS[user])
        assert set(whole[row].tolist()) <= expected
    assert (draw([4, 2]) == whole[[4, 2]]).all(), "whoever asks, in any order"
    assert (draw([1], seed=2) != whole[1]).any() and (draw([1], epoch=3) != whole[1]).any()
    assert (whole[1] != whole[4]).any(), "another sample of the same user"


def test_each_missing_item_is_as_likely(items: UserItems) -> None:
    count = 20_000
    user_B = np.full(count, 3)
    drawn = items.draw_missing(user_B, np.arange(count), 1, 0, 0, RecommendationDraw.NEGATIVE_ITEM)
    missing = sorted(set(range(ITEMS)) - set(HAS[3]))
    share = np.bincount(drawn[:, 0], minlength=ITEMS)[missing] / count
    assert np.abs(share - 1 / len(missing)).max() < 0.012


def test_evaluation_compares_with_distinct_missing_items_of_each_user(items: UserItems) -> None:
    user_B = np.array([1, 4, 4])
    found = items.draw_different(user_B, 3, 5, RecommendationDraw.CANDIDATES)
    for row, user in zip(found.tolist(), user_B.tolist()):
        assert len(set(row)) == 3 and not set(row) & set(HAS[user])
    assert (found[1] == found[2]).all(), "of a user, whichever sample"
    assert (items.draw_different(user_B, 3, 6, RecommendationDraw.CANDIDATES) != found).any()
    every = items.draw_different(np.array([4]), ITEMS - len(HAS[4]), 5, RecommendationDraw.CANDIDATES)
    assert sorted(every[0].tolist()) == sorted(set(range(ITEMS)) - set(HAS[4]))


def test_every_choice_of_different_numbers_is_as_likely() -> None:
    drawn = np.random.RandomState(3).rand(30_000, 2)
    counts = Counter(tuple(sorted(sample_distinct(row, 4).tolist())) for row in drawn)
    assert set(counts) == set(itertools.combinations(range(4), 2))
    assert max(abs(count / 30_000 - 1 / 6) for count in counts.values()) < 0.01


def test_rows_are_cut_by_the_lowest_keys(items: UserItems) -> None:
    key_BN = np.array([[5, 4, 3, 2, 1, 0, 9, 9, 9, 9, 9, 9], [0.0] * 12])
    full, short = items.rows(np.array([USERS - 1, 1]), key_BN, np.array([0, NO_ITEM]), 3)
    assert full.tolist() == [4, 5, 6], "of 1, 2, ..., 11 those at places 3, 4 and 5"
    assert short.tolist() == HAS[1]
