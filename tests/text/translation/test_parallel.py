"""Pairs of texts: as tokens, and batches of as many tokens."""

from __future__ import annotations

from typing import Any, Iterator, List, Optional, Sequence, Tuple

import numpy as np
import pytest

from mxtrain.data.loading.loader import LoaderOptions
from mxtrain.data.loading.sized import cut_by_size
from mxtrain.errors import DataError
from mxtrain.kvstore.world import World
from mxtrain.text.tokenizing.config import TokenizerConfig
from mxtrain.text.tokenizing.plain import train_characters
from mxtrain.text.translation.parallel import IGNORED_LABEL, InMemoryPairs, both_sides
from mxtrain.text.translation.parallel_loader import PairLoader

pytestmark = pytest.mark.usefixtures("own_cache")
LONGEST, TOKENS = 12, 60
OF_PAIRS = ("batch_tokens", "batches_per_pool")


def config(pairs: InMemoryPairs) -> Sequence[TokenizerConfig]:
    return [TokenizerConfig(train_characters(both_sides(pairs).texts(), 200, False), LONGEST)] * 2


def some_pairs(count: int = 97) -> InMemoryPairs:
    """Sources of 1 to 11 letters, targets of 1 to 10; no two are alike."""
    rng = np.random.RandomState(0)

    def text(most: int) -> str:
        return "".join(rng.choice(list("abcdefgh"), rng.randint(1, most + 1)))

    return InMemoryPairs([(text(LONGEST - 1), text(LONGEST - 2)) for _ in range(count)])


def loader(pairs: Optional[InMemoryPairs] = None, **options: Any) -> PairLoader:
    pairs = pairs or some_pairs()
    own = {"batch_tokens": TOKENS, **{name: options.pop(name) for name in OF_PAIRS if name in options}}
    settings = LoaderOptions(**{"batch_size": 8, "train": True, "prefetch": 0, "seed": 3, **options})
    return PairLoader(pairs, config(pairs), settings, **own)


def indices(found: PairLoader, epoch: int = 0, start: int = 0) -> List[List[int]]:
    return [batch.index_B.tolist() for batch in found.epoch(epoch, start)]  # type: ignore[union-attr]


def test_pairs_become_tokens_with_ends() -> None:
    pairs = InMemoryPairs([("ab", "c"), ("a", "bca"), ("abcabcabcabcabc", "a")])
    configs = config(pairs)
    tokens, tokenizer = pairs.tokens(configs), configs[0].tokenizer
    special, piece = tokenizer.special, {letter: tokenizer.find(letter) for letter in "abc"}
    source, length = tokens.source(np.array([0, 1]), 4)
    assert source.tolist() == [
        [piece["a"], piece["b"], special.eos, special.pad],
        [piece["a"], special.eos, special.pad, special.pad],
    ]
    assert length.tolist() == [3, 2]
    target, label = tokens.target(np.array([1, 0]), 4)
    assert target.tolist() == [
        [special.bos, piece["b"], piece["c"], piece["a"]],
        [special.bos, piece["c"], special.pad, special.pad],
    ]
    assert label.tolist() == [
        [piece["b"], piece["c"], piece["a"], special.eos],
        [piece["c"], special.eos, IGNORED_LABEL, IGNORED_LABEL],
    ]
    assert tokens.source_fits_N.tolist() == [True, True, False]
    assert InMemoryPairs([("a", "bcabcabcabcabca")]).tokens(configs).source_fits_N.tolist() == [True]
    assert tokens.fits_N.tolist() == [True, True, False] and tokens.size_N.tolist() == [3, 4, LONGEST]
    cut, length = tokens.source(np.array([2]), LONGEST)
    assert cut[0, -1] == special.eos and length[0] == LONGEST, "where it is not left out it is cut"


def test_bytes_of_a_truncated_target_are_counted_by_its_tokens() -> None:
    pairs = InMemoryPairs([("a", "bca"), ("abcabcabcabcabc", "ab"), ("a", "bc" * LONGEST), ("a", "")])
    assert pairs.tokens(config(pairs)).bytes_N.tolist() == [3, 2, LONGEST - 1, 0]


def test_missing_targets_are_the_start_token_and_ignored() -> None:
    pairs = InMemoryPairs([("ab", "c")])
    configs = config(pairs)
    target, label = InMemoryPairs([("ba", None), ("a", None)]).tokens(configs).target(np.array([0, 1]), 1)
    assert target.tolist() == [[configs[1].tokenizer.special.bos]] * 2 and label.tolist() == [[IGNORED_LABEL]] * 2


def test_an_epoch_has_each_pair_once_in_batches_of_as_many_tokens() -> None:
    found = loader()
    for epoch in range(3):
        batches = list(found.epoch(epoch))
        assert sorted(index for batch in batches for index in batch.index_B) == list(range(97))  # type: ignore[union-attr]
        assert len(batches) == len(found), "known before the first epoch"
        for batch in batches:
            source, length, target, label = batch.inputs
            assert max(source.shape[1], target.shape[1]) * batch.size <= TOKENS
            assert source.shape[1] == length.asnumpy().max() and target.shape[1] == (label.asnumpy() >= 0).sum(1).max()
            assert np.array_equal(batch.targets[0].asnumpy(), label.asnumpy())
    sizes = [batch.size for batch in found.epoch(0)]
    assert max(sizes) > 2 * min(sizes), "short pairs stand in large batches"


def test_no_batch_could_take_one_pair_more() -> None:
    for seed in range(20):
        size_N = np.sort(np.random.RandomState(seed).randint(1, 13, 50))
        begin = cut_by_size(size_N, 24)
        assert begin[0] == 0 and begin[-1] == 50 and (np.diff(begin) > 0).all()
        for first, end in zip(begin, begin[1:]):
            assert (end - first) * size_N[end - 1] <= 24
            assert end == 50 or (end + 1 - first) * size_N[end] > 24


def test_the_order_is_a_function_of_seed_and_epoch() -> None:
    assert indices(loader()) == indices(loader())
    orders = [indices(loader(), 0), indices(loader(), 1), indices(loader(seed=4), 0)]
    assert orders[0] != orders[1] != orders[2] != orders[0]
    members = [sorted(map(sorted, order)) for order in orders]
    assert members[0] != members[1], "pairs of one length meet others in each epoch"


@pytest.mark.parametrize("start", [0, 1, 5])
def test_an_epoch_continues_in_its_middle(start: int) -> None:
    whole, rest = loader().epoch(2), loader().epoch(2, start)
    for _ in range(start):
        next(whole)
    for one, other in zip(whole, rest):
        for array, wanted in zip((*other.inputs, *other.targets), (*one.inputs, *one.targets)):
            assert np.array_equal(array.asnumpy(), wanted.asnumpy())
    assert next(whole, None) is None and next(rest, None) is None


def shares(size: int) -> Iterator[Tuple[Any, ...]]:
    return zip(*(loader(world=World(rank, size)).epoch(1) for rank in range(size)))


@pytest.mark.parametrize("size", [2, 3, 7])
def test_workers_share_each_batch_in_one_shape(size: int) -> None:
    """Workers may have no pair of a batch of long ones."""
    empty = 0
    for whole, parts in zip(loader().epoch(1), shares(size)):
        empty += sum(part.size == 0 for part in parts)
        filled = [part for part in parts if part.size]
        assert all(part.global_size == whole.size for part in parts)
        for number, wanted in enumerate((*whole.inputs, *whole.targets)):
            joined = [(*part.inputs, *part.targets)[number].asnumpy() for part in filled]
            assert np.array_equal(np.concatenate(joined), wanted.asnumpy())
    assert empty == 0 or size == 7


def test_long_pairs_are_not_trained_on_but_measured() -> None:
    pairs = InMemoryPairs([*some_pairs(20).pairs, ("a" * 30, "b"), ("a", "b" * 30)])
    assert sorted(sum(indices(loader(pairs)), [])) == list(range(20))
    assert sorted(sum(indices(loader(pairs, batch_tokens=None)), [])) == list(range(20))
    measured = loader(pairs, train=False)
    assert sorted(sum(indices(measured), [])) == list(range(22)) and measured.num_samples == 22
    last = [batch.meta for batch in measured.epoch()][-1]
    assert last is not None and last[-1] == "b" * 30, "by the whole reference"
    with pytest.raises(DataError, match="no training pair has at most 12 tokens"):
        loader(pairs.take([20, 21]))


def test_partial_epoch_reports_its_coverage() -> None:
    found = loader(limit_batches=3)
    assert len(found) == 3 == len(list(found.epoch())) and found.coverage == f"3 of {len(loader())} batches"
    assert found.num_samples == sum(batch.size for batch in found.epoch())
    assert loader().num_samples == 97 and loader().coverage == ""


def test_batches_by_pairs_have_equal_numbers_of_pairs() -> None:
    found = loader(batch_tokens=None, batches_per_pool=4)
    sizes = [len(index) for index in indices(found)]
    assert sizes == [8] * 12 + [1] and sorted(sum(indices(found), [])) == list(range(97))
    assert found.num_samples == 97


def test_pairs_that_are_shown_keep_their_order_and_one_length() -> None:
    found = list(loader(train=False, in_order=True, batch_size=40).epoch())
    assert [batch.index_B.tolist() for batch in found] == [  # type: ignore[union-attr]
        list(range(40)),
        list(range(40, 80)),
        list(range(80, 97)),
    ]
    assert len({batch.targets[0].shape[1] for batch in found}) == 1
