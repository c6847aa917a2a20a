"""Batches of interactions: candidates, histories, and that they are the same whoever computes which part."""

from __future__ import annotations

from typing import Any, List, Optional

import numpy as np
import pytest

from mxtrain.data.checking.problems import STRICT, DataLocations
from mxtrain.data.loading.loader import LoaderOptions
from mxtrain.kvstore.world import World
from mxtrain.recommendation.catalog import Catalog
from mxtrain.recommendation.loader import InteractionLoader
from mxtrain.recommendation.source import InteractionRows, Interactions, leave_one_out
from mxtrain.recommendation.user_items import NO_ITEM

USERS, ITEMS, OTHERS, HISTORY = 9, 40, 6, 5
CATALOG = Catalog(tuple(f"u{user}" for user in range(USERS)), tuple(f"i{item}" for item in range(ITEMS)))


@pytest.fixture(scope="module")
def splits() -> List[Interactions]:
    draw = np.random.RandomState(0)
    pairs = np.array([(user, item) for user in range(USERS) for item in draw.permutation(ITEMS)[: 3 + 2 * user]])
    rating_P = draw.randint(1, 6, len(pairs)).astype(np.float32)
    places = DataLocations(["x.csv"], np.arange(len(pairs)))
    rows = InteractionRows(CATALOG, pairs[:, 0], pairs[:, 1], rating_P, None, places)
    return leave_one_out(rows, 0, STRICT)


def batches(
    source: Interactions,
    train: bool = False,
    num_others: Optional[int] = OTHERS,
    seed: int = 3,
    epoch: int = 0,
    world: Any = None,
    split_seed: int = 0,
    batch_size: int = 8,
) -> List[Any]:
    options = LoaderOptions(batch_size=batch_size, seed=seed, train=train, prefetch=0, world=world or World())
    loader = InteractionLoader(source, options, num_negatives=num_others, max_history=HISTORY, split_seed=split_seed)
    return list(loader.epoch(epoch))


def test_training_sample_has_user_item_and_negatives(splits: List[Interactions]) -> None:
    source, seen = splits[0], set()
    for batch in batches(source, train=True):
        user_B, input_BC, item_BH, length_B = (array.asnumpy() for array in batch.inputs)
        assert all(array.dtype == np.int32 for array in batch.inputs[:3])
        assert (batch.targets[0].asnumpy() == input_BC).all()
        for index, user, items, history, length in zip(
            batch.index_B, user_B, input_BC.tolist(), item_BH.tolist(), length_B.astype(int)
        ):
            has = set(source.train_items.items_of(int(user)).tolist())
            own, *others = items
            assert (user, own) == (source.user_N[index], source.item_N[index])
            assert len(others) == OTHERS and not has & set(others)
            kept = history[:length]
            assert kept == sorted(set(kept)) and history[length:] == [0] * (len(history) - length)
            assert set(kept) <= has - {own} and len(kept) == min(len(has) - 1, HISTORY)
            seen.add((int(user), own))
    assert seen == set(zip(source.train_items.user_P.tolist(), source.train_items.item_P.tolist()))


def test_negatives_and_long_histories_are_drawn_again_in_each_epoch(splits: List[Interactions]) -> None:
    def by_sample(seed: int, epoch: int) -> Any:
        found = {}
        for batch in batches(splits[0], train=True, seed=seed, epoch=epoch):
            _, item_BC, item_BH, length_B = (array.asnumpy() for array in batch.inputs)
            for row, index in enumerate(batch.index_B.tolist()):
                found[index] = (item_BC[row].tolist(), item_BH[row, : int(length_B[row])].tolist())
        return found

    first = by_sample(3, 0)
    assert first == by_sample(3, 0)
    for other in (by_sample(3, 1), by_sample(4, 0)):
        assert all(first[index][0] != other[index][0] for index in first)
        assert any(first[index][1] != other[index][1] for index in first)


def test_an_evaluation_compares_with_items_in_no_split_and_is_always_the_same(splits: List[Interactions]) -> None:
    _, val, test = splits
    assert val.user_N.tolist() == test.user_N.tolist() == list(range(USERS))
    for source in (val, test):
        found = [batch.inputs[1].asnumpy() for batch in batches(source)]
        for user, items in enumerate(np.concatenate(found).tolist()):
            assert items[0] == source.item_N[user] and len(set(items)) == 1 + OTHERS
            assert not set(items[1:]) & set(source.all_items.items_of(user).tolist())
        again = [batch.inputs[1].asnumpy() for batch in batches(source, seed=9, epoch=4, batch_size=4)]
        assert (np.concatenate(again) == np.concatenate(found)).all()
        other = [batch.inputs[1].asnumpy() for batch in batches(source, split_seed=1)]
        assert (np.concatenate(other)[:, 1:] != np.concatenate(found)[:, 1:]).any()


def test_other_items_of_all_splits_stay_on_the_host(splits: List[Interactions]) -> None:
    for source in splits:
        for batch in batches(source):
            for index, items in zip(batch.index_B, batch.meta):
                user, item = int(source.user_N[index]), int(source.item_N[index])
                assert set(items.tolist()) == set(source.all_items.items_of(user).tolist()) - {item}


@pytest.mark.parametrize("train", [True, False])
def test_workers_have_the_parts_of_the_same_batches(splits: List[Interactions], train: bool) -> None:
    source = splits[0]
    whole = batches(source, train=train)
    shares = [batches(source, train=train, world=World(rank, 3)) for rank in range(3)]
    for number, batch in enumerate(whole):
        for place, array in enumerate((*batch.inputs, *batch.targets)):
            parts = [
                (*share[number].inputs, *share[number].targets)[place].asnumpy()
                for share in shares
                if share[number].size
            ]
            assert (np.concatenate(parts) == array.asnumpy()).all()


def test_ratings_have_one_candidate(splits: List[Interactions]) -> None:
    source = splits[0]
    for batch in batches(source, train=True, num_others=None):
        assert batch.inputs[1].asnumpy().tolist() == source.item_N[batch.index_B][:, None].tolist()
        assert batch.targets[0].asnumpy().tolist() == source.rating_N[batch.index_B].tolist()


def test_predictions_use_all_items_of_a_user(splits: List[Interactions]) -> None:
    source = splits[0].for_users(np.array([2, 8], np.int32))
    (batch,) = batches(source)
    assert batch.targets[0].asnumpy().tolist() == [[NO_ITEM], [NO_ITEM]] and (batch.inputs[1].asnumpy() == 0).all()
    seen = [set(source.all_items.items_of(user).tolist()) for user in (2, 8)]
    assert [set(items.tolist()) for items in batch.meta] == seen
    assert batch.inputs[3].asnumpy().tolist() == [min(len(source.all_items.items_of(user)), HISTORY) for user in (2, 8)]
    assert set(batch.inputs[2].asnumpy()[1].tolist()) <= set(source.all_items.items_of(8).tolist())
