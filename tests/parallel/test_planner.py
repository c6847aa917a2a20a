"""The planner, with names in the place of devices: no array is needed."""

from __future__ import annotations

from typing import Any, List

import pytest

from mxtrain.parallel.layout import Layout
from mxtrain.parallel.planner import assign_owners, assign_stages, isolate
from mxtrain.parallel.spec import Data, Hybrid, Pipeline, Single
from mxtrain.types import Batch


def grid(replicas: int, stages: int) -> List[List[Any]]:
    return [[f"device {replica}.{stage}" for stage in range(stages)] for replica in range(replicas)]


class Rows:
    """Numbers of samples, in the place of an array."""

    def __init__(self, numbers: range):
        self.numbers = numbers

    def __getitem__(self, rows: slice) -> Rows:
        return Rows(self.numbers[rows])


@pytest.mark.parametrize("size", [1, 2, 7, 23, 64])
@pytest.mark.parametrize("parts, replicas, microbatches", [(1, 1, 1), (2, 1, 1), (1, 3, 1), (1, 1, 4), (2, 3, 4)])
def test_every_sample_is_in_one_microbatch_in_order(size: int, parts: int, replicas: int, microbatches: int) -> None:
    layout = Layout(grid(replicas, 1), microbatches, parts)
    divided = layout.divide(Batch((Rows(range(size)),), (), size))  # type: ignore[arg-type]  # in an array's place
    batches = [one for shares in divided for share in shares for one in share]
    assert [number for one in batches for number in one.inputs[0].numbers] == list(range(size))  # type: ignore[attr-defined]
    assert len(divided) == min(parts, size) and all(len(shares) <= replicas for shares in divided)
    assert 0 < min(one.size for one in batches) <= max(one.size for one in batches) <= layout.microbatch_size(size)


def test_an_empty_batch_has_no_shares() -> None:
    assert Layout(grid(2, 1)).divide(Batch((), (), 0)) == []


@pytest.mark.parametrize(
    "parallel, devices, is_alone, batch_norm, accumulates",
    [
        (Single(batch_norm="global"), grid(1, 1), True, "per_device", False),
        (Single(batch_norm="global"), grid(1, 1), False, "global", False),
        (Data(batch_norm="replicas"), grid(2, 1), True, "replicas", False),
        (Pipeline(microbatches=4, batch_norm="global"), grid(1, 2), True, "global", True),
    ],
)
def test_joint_batch_norms_need_several_shards(
    parallel: Any, devices: Any, is_alone: bool, batch_norm: str, accumulates: bool
) -> None:
    layout = parallel.plan(devices, 1, is_alone)
    assert (layout.batch_norm, layout.accumulates) == (batch_norm, accumulates)
    assert parallel.plan(devices, 2, is_alone).accumulates


def test_shape() -> None:
    layout = Hybrid(replicas=3, stages=2, microbatches=5, schedule="gpipe").plan(grid(3, 2), 2, True)
    assert (layout.num_replicas, layout.num_stages, layout.num_devices) == (3, 2, 6)
    assert layout.microbatch_size(301) == 11  # 301 / (2 parts x 3 replicas x 5 microbatches) = 10.03
    actions = layout.order(2)
    assert sorted((one.stage, one.microbatch) for one in actions) == sorted(2 * [(0, 0), (0, 1), (1, 0), (1, 1)])


def test_owners_have_about_as_many_elements() -> None:
    sizes = {"a": 100, "b": 60, "c": 50, "d": 1, "table": 10}
    assert assign_owners(sizes, 2) == {"a": 0, "b": 1, "c": 1, "d": 0, "table": 0}
    assert assign_owners(sizes, 1) == dict.fromkeys(sizes, 0)
    found = assign_owners(sizes, 3, with_first={"table"})
    assert found == {"a": 0, "b": 1, "c": 2, "d": 2, "table": 0}


def test_stages_of_parameters() -> None:
    assert assign_stages([["a", "b"], [], ["c"]]) == {"a": 0, "b": 0, "c": 2}


@pytest.mark.parametrize(
    "alone, cuts, wanted",
    [
        ([], [], [(0, 0)]),
        ([2], [], [(0, 0), (2, 0), (3, 0)]),
        ([0, 1], [1], [(0, 0), (1, 1), (2, 1)]),
        ([3, 5], [3], [(0, 0), (3, 1), (4, 1), (5, 1)]),  # the last one ends the network
        ([1], [4], [(0, 0), (1, 0), (2, 0), (4, 1)]),
    ],
)
def test_single_operators(alone: Any, cuts: Any, wanted: Any) -> None:
    assert isolate(alone, cuts, 6) == wanted
