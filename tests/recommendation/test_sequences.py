"""Sequences of items: split by leave-last-out, histories, batches, candidates, baselines and generated data."""

from __future__ import annotations

from pathlib import Path
from typing import Any, List

import numpy as np
import pytest

from mxtrain.data.checking.dataset_check import CollectedFindings
from mxtrain.data.checking.problems import STRICT, DataLocations
from mxtrain.data.loading.loader import LoaderOptions
from mxtrain.errors import DataError
from mxtrain.kvstore.world import World
from mxtrain.recommendation.catalog import Catalog
from mxtrain.recommendation.given_histories import histories_from, open_histories
from mxtrain.recommendation.item_sequences import ItemSequences
from mxtrain.recommendation.ranking import ranks_in
from mxtrain.recommendation.sequence_loader import SequenceLoader
from mxtrain.recommendation.sequence_report import next_items, popularity, ranks_of
from mxtrain.recommendation.sequences import SequenceSamples, leave_last_out, samples_of_histories
from mxtrain.recommendation.source import FEW_ITEMS, InteractionRows
from mxtrain.recommendation.user_items import NO_ITEM

ITEMS = 9
SEQUENCES = {"a": [3, 1, 3, 5, 2], "b": [0, 4, 6], "c": [7, 8], "d": [2], "e": [1, 3, 2, 1, 3, 0, 5]}


def rows_of(sequences: Any) -> InteractionRows:
    """The sequences as rows in another order, with times."""
    rows = [(user, item, time) for user, items in enumerate(sequences) for time, item in enumerate(items)]
    array = np.array(rows)[np.random.RandomState(0).permutation(len(rows))]
    catalog = Catalog(tuple(SEQUENCES)[: len(sequences)], tuple(f"i{item}" for item in range(ITEMS)))
    places = DataLocations(["x.csv"], np.arange(len(array)))
    ones = np.ones(len(array), np.float32)
    return InteractionRows(catalog, array[:, 0], array[:, 1], ones, array[:, 2].astype(float), places)


@pytest.fixture(scope="module")
def splits() -> List[SequenceSamples]:
    return leave_last_out(rows_of(SEQUENCES.values()), STRICT)


def described(source: SequenceSamples) -> List[Any]:
    """User, history and next item of each sample."""
    return [
        (source.catalog.users[user], source.history_of(index).tolist(), item)
        for index, (user, item) in enumerate(zip(source.user_N.tolist(), source.item_N.tolist()))
    ]


def test_last_items_are_held_out(splits: List[SequenceSamples]) -> None:
    train, val, test = splits
    assert described(test) == [("a", [3, 1, 3, 5], 2), ("b", [0, 4], 6), ("e", [1, 3, 2, 1, 3, 0], 5)]
    assert described(val) == [("a", [3, 1, 3], 5), ("b", [0], 4), ("e", [1, 3, 2, 1, 3], 0)]
    assert described(train) == [
        ("a", [3], 1),
        ("a", [3, 1], 3),
        ("c", [7], 8),
        *[("e", SEQUENCES["e"][:end], SEQUENCES["e"][end]) for end in (1, 2, 3, 4)],
    ]
    assert [train.train_items.items_of(user).tolist() for user in range(5)] == [[1, 3], [0], [7, 8], [2], [1, 2, 3]]
    assert train.all_items.items_of(0).tolist() == [1, 2, 3, 5]
    assert val.locations is not None and train.locations is not None and val.locations[0].file == "x.csv"


def test_users_with_few_items_are_reported() -> None:
    findings = CollectedFindings()
    leave_last_out(rows_of(SEQUENCES.values()), findings)
    assert [problem.fact.partition(": ")[2] for problem in findings.shown[FEW_ITEMS]] == [
        "user c has 2 items, and 3 are needed to hold any out.",
        "user d has 1 items, and 3 are needed to hold any out.",
    ]
    with pytest.raises(DataError, match="nothing to train on"):
        leave_last_out(rows_of([[1, 2, 3], [3]]), STRICT)


def test_equal_times_keep_the_order_of_rows() -> None:
    rows = rows_of([[1, 2, 3, 4, 5]])
    rows = rows._replace(time_P=np.zeros(5))
    assert leave_last_out(rows, STRICT)[2].item_N.tolist() == [rows.item_P[-1]]


def test_histories_are_cut_to_the_newest_items_and_padded_at_the_end(splits: List[SequenceSamples]) -> None:
    item_BH, length_B = splits[2].histories(np.array([0, 1, 2]), 4)
    assert item_BH.tolist() == [[3, 1, 3, 5], [0, 4, 0, 0], [2, 1, 3, 0]]
    assert length_B.tolist() == [4, 2, 4] and (item_BH.dtype, length_B.dtype) == (np.int32, np.float32)


def test_all_items_are_history_in_predictions(splits: List[SequenceSamples]) -> None:
    source = splits[0].for_users(np.array([4, 3]))
    assert described(source) == [("e", SEQUENCES["e"], NO_ITEM), ("d", [2], NO_ITEM)]
    given = samples_of_histories([np.array([4, 4]), np.array([1])], ["x", "y"], splits[0].catalog.items)
    assert described(given) == [("x", [4, 4], NO_ITEM), ("y", [1], NO_ITEM)]


def batches(source: SequenceSamples, train: bool, negatives: int = 0, world: Any = None, **more: Any) -> List[Any]:
    options = LoaderOptions(
        batch_size=4, seed=more.get("seed", 3), train=train, prefetch=0, world=world or World(), in_order=True
    )
    loader = SequenceLoader(source, options, 4, negatives, more.get("split_seed", 0))
    return list(loader.epoch(more.get("epoch", 0)))


def test_batches_have_the_next_item_and_items_that_the_user_lacks(splits: List[SequenceSamples]) -> None:
    for train, source in ((True, splits[0]), (False, splits[1])):
        seen = []
        for batch in batches(source, train, negatives=3):
            history, length_B = (array.asnumpy() for array in batch.inputs)
            expected = source.histories(batch.index_B, 4)
            assert (history == expected[0]).all() and (length_B == expected[1]).all()
            candidate_BC = batch.targets[0].asnumpy()
            assert candidate_BC.shape == (len(history), 4) and candidate_BC.dtype == np.int32
            assert (candidate_BC[:, 0] == source.item_N[batch.index_B]).all()
            items = source.train_items if train else source.all_items
            for index, negatives in zip(batch.index_B, candidate_BC[:, 1:]):
                assert not set(negatives.tolist()) & set(items.items_of(int(source.user_N[index])).tolist())
            seen += batch.index_B.tolist()
        assert sorted(seen) == list(range(len(source)))
    assert batches(splits[1], False)[0].targets[0].shape == (3, 1)


def test_candidates_depend_on_the_epoch_in_training_only(splits: List[SequenceSamples]) -> None:
    def candidates(train: bool, **more: Any) -> List[Any]:
        return sorted(
            row
            for batch in batches(splits[0 if train else 1], train, 3, **more)
            for row in zip(batch.index_B.tolist(), batch.targets[0].asnumpy().tolist())
        )

    assert candidates(True) == candidates(True) != candidates(True, epoch=1)
    assert candidates(True) != candidates(True, seed=4) and candidates(True) == candidates(True, split_seed=4)
    assert candidates(False) == candidates(False, epoch=1, seed=4) != candidates(False, split_seed=4)


def test_seen_items_are_known_in_evaluations_only(splits: List[SequenceSamples]) -> None:
    (batch,) = batches(splits[2], False)
    assert [seen.tolist() for seen in batch.meta] == [[1, 3, 5], [0, 4], [0, 1, 2, 3]]
    assert batches(splits[0], True)[0].meta is None
    again = splits[2].for_users(np.array([0]))
    assert batches(again, False)[0].meta[0].tolist() == [1, 2, 3, 5]


def test_baselines_match_a_loop(splits: List[SequenceSamples]) -> None:
    train = [[3, 1, 3], [0], [7, 8], [2], [1, 3, 2, 1, 3]]
    source = splits[2]
    for name, scores in (("popular", popularity(source)), ("next", next_items(source))):
        found = scores(np.array([3, 1, 8]))
        for last, row in zip((3, 1, 8), found):
            for item in range(ITEMS):
                count = sum(items.count(item) for items in train)
                follows = sum(pair == (last, item) for items in train for pair in zip(items, items[1:]))
                assert row[item] == pytest.approx(count if name == "popular" else follows + count / 13)
    score_BI = np.stack([next_items(source)(np.array([history[-1]]))[0] for history in ([5], [4], [0])])
    assert ranks_of(next_items(source), source, False).tolist() == ranks_in(score_BI, source.item_N).tolist()
    score_BI[0, [1, 3, 5]] = score_BI[1, [0, 4]] = score_BI[2, [0, 1, 2, 3]] = -np.inf
    assert ranks_of(next_items(source), source, True).tolist() == ranks_in(score_BI, source.item_N).tolist()


def test_generated_items_follow_the_last_two() -> None:
    dataset = ItemSequences(num_users=200, num_items=20, groups=3, noise=0.0)
    rows = dataset.read(STRICT)
    follows: Any = {}
    for user in range(200):
        items = rows.item_P[rows.user_P == user].tolist()
        assert 5 <= len(items) <= 20
        for before, last, item in zip(items, items[1:], items[2:]):
            assert follows.setdefault((before % 3, last), item) == item
    assert len(follows) == 60
    again, other = dataset.read(STRICT), ItemSequences(num_users=200, data_seed=1).read(STRICT)
    assert (again.item_P == rows.item_P).all() and not np.array_equal(other.user_P, rows.user_P)
    noisy = ItemSequences(num_users=200, num_items=20, groups=3, noise=1.0).read(STRICT)
    assert np.bincount(noisy.item_P).min() > 50


def test_unreadable_histories_are_errors_of_data(tmp_path: Path) -> None:
    catalog = Catalog((), ("i3", "i4"))
    folder, lines = tmp_path / "folder.jsonl", tmp_path / "lines.jsonl"
    folder.mkdir()
    lines.write_text('{"history": ["i33"]}\n')
    with pytest.raises(DataError, match="folder.jsonl' cannot be read: it is a folder"):
        open_histories([str(folder)], catalog, False, {})
    with pytest.raises(DataError, match="no item 'i33'. Did you mean 'i3'[?] Or type skip_unreadable=true"):
        open_histories([str(lines)], catalog, False, {})
    with pytest.raises(DataError, match="Did you mean 'i3'[?]$"):
        histories_from([{"history": ["i33"]}], catalog)
    with pytest.raises(DataError, match="at least one item[.]$"):
        histories_from([{"history": []}], catalog)
