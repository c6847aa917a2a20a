"""The choice of segments whose activations are recomputed."""

import pytest

from mxtrain.parallel.cut import Cuttable
from mxtrain.parallel.segments import StageMemory, pack


class Chain(Cuttable):
    """Operators in a row: each reads the output of the one before."""

    def __init__(self, count):
        self.operators = list(range(count))
        self._produced_at = {number: number for number in range(count)}
        self._last_read = {(number, 0): number + 1 for number in range(count)}


def memory_of(sizes, num_held=1, keeps_last=True, every=1):
    """Returns the memory of a chain whose operators have outputs of `sizes` floats, with bounds at every so many."""
    shapes = {(number, 0): (size,) for number, size in enumerate(sizes)}
    bounds = [*range(0, len(sizes), every), len(sizes)]
    return StageMemory(Chain(len(sizes)), shapes, bounds, num_held, keeps_last)


def test_borders_the_kept_segment_and_the_largest_recomputed_one_are_in_memory():
    sizes = [1, 9, 2, 9, 3, 9, 4, 9]
    memory = memory_of(sizes, every=2)
    assert memory.blocks == [4 * 10, 4 * 11, 4 * 12, 4 * 13]
    assert memory.needed([0, 1, 3]) == 4 * (9 + 9) + 4 * 13 + 4 * (11 + 12)
    assert memory.needed([0]) == 4 * sum(sizes)  # nothing is recomputed


def test_each_microbatch_in_flight_keeps_its_own_tensors_but_one_is_recomputed_at_a_time():
    sizes = [1, 9, 2, 9, 3, 9]
    assert memory_of(sizes, 3, every=2).needed([0, 1, 2]) == 3 * 4 * (9 + 9 + 12) + 4 * 11
    assert memory_of(sizes, 3, keeps_last=False, every=2).needed([0, 1, 2]) == 3 * 4 * (9 + 9) + 4 * 12


@pytest.mark.parametrize(
    "share, begins",
    [
        (0.91, [0, 1, 2]),  # 8 kept blocks of 20, 1 recomputed, and 2 borders of 1: 182 of 200
        (0.7, [0, 1, 2, 3, 4, 5]),
        (0.625, [0, 1, 2, 3, 4, 5]),  # 125 of 200
        (0.62, [0, 1, 2, 3, 4, 5, 6]),
        (0.01, list(range(10))),  # cannot be reached
    ],
)
def test_as_few_blocks_are_recomputed_as_the_share_allows(share, begins):
    memory = memory_of([19, 1] * 10, every=2)
    assert memory.choose(share) == begins
    reached = memory.needed(begins) / sum(memory.blocks)
    assert reached <= share or reached == 49 / 200


def test_small_blocks_are_recomputed_together():
    """A border of 10 before each block would need more than a larger segment."""
    assert memory_of([10] * 16).choose(0.01) == [0, 5, 10, 15]


def test_stages_before_the_last_one_recompute_everything_with_the_least_memory():
    memory = memory_of([19, 1] * 4, num_held=2, keeps_last=False, every=2)
    assert memory.choose(0.9) == memory.choose(0.1) == [0, 1, 2, 3]


def test_networks_whose_division_saves_nothing_stay_whole():
    assert memory_of([5, 1, 1]).choose(0.5) == [0]
    assert memory_of([5]).choose(0.5) == [0]


@pytest.mark.parametrize(
    "sizes, count, begins",
    [([2, 2, 2, 2], 2, [0, 2]), ([1, 5, 1, 1], 4, [0, 1, 2]), ([3, 1, 1, 1], 1, [0]), ([2, 2, 2], 2, [0, 1, 2])],
)
def test_runs_are_at_most_a_part_of_the_sum_or_the_largest_size(sizes, count, begins):
    assert pack(sizes, count) == begins


def test_a_single_segment_is_recomputed_where_several_microbatches_wait():
    """Three microbatches keep a border and the last block, 21 each, instead of 40; one at a time is recomputed."""
    assert memory_of([19, 1] * 2, num_held=3, every=2).choose(0.7) == [0, 1]
