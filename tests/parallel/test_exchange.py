"""The exchange of gradients is compared with sums over single messages."""

from __future__ import annotations

from typing import Dict, List, Tuple

import pytest

from mxtrain.kvstore.spec import DistSync, Horovod
from mxtrain.parallel.exchange import BUCKET_BYTES, Link, link_seconds, split_buckets, traffic

GIGABIT = Link(125e6, 0.001)


def test_the_size_of_a_bucket_is_that_of_the_stores() -> None:
    from mxtrain.kvstore import buckets

    assert BUCKET_BYTES == buckets.BUCKET_BYTES == DistSync().bucket_bytes == Horovod().bucket_bytes


def test_gradients_travel_in_buckets() -> None:
    assert split_buckets(BUCKET_BYTES) == [BUCKET_BYTES]
    assert split_buckets(2 * BUCKET_BYTES + 5) == [BUCKET_BYTES, BUCKET_BYTES, 5]
    assert split_buckets(5) == [5]
    assert split_buckets(5, bucket_bytes=2) == [2, 2, 1]


@pytest.mark.parametrize("num_workers", [2, 3, 8])
def test_a_ring_passes_each_share_round_twice(num_workers: int) -> None:
    """Every worker sends one share of a bucket in each round: W - 1 rounds until the sums exist, and W - 1 until all
    workers have them."""
    size = 10e6
    rounds: List[float] = []
    for _ in ("sum", "hand out"):
        for _ in range(num_workers - 1):
            rounds.append(0.001 + (size / num_workers) / 125e6)
    assert link_seconds("horovod", num_workers, [size, size], GIGABIT) == pytest.approx(2 * sum(rounds))


@pytest.mark.parametrize("num_workers, num_buckets", [(2, 1), (2, 3), (5, 4)])
def test_a_server_answers_while_it_receives(num_workers: int, num_buckets: int) -> None:
    """Each message is followed on the two directions of the server's link."""
    size = 4e6
    receiving_s = sending_s = 0.0
    ends: Dict[Tuple[int, int], float] = {}
    for bucket in range(num_buckets):
        for _ in range(num_workers - 1):
            receiving_s += size / 125e6
        sending_s = max(sending_s, receiving_s + 0.001)
        for worker in range(num_workers - 1):
            sending_s += size / 125e6
            ends[bucket, worker] = sending_s + 0.001
    found = link_seconds("dist_sync", num_workers, [size] * num_buckets, GIGABIT)
    assert found == pytest.approx(max(ends.values()))


def test_workers_on_one_machine_need_no_link() -> None:
    assert link_seconds("dist_sync", 8, [1e9], Link()) == 0.0


def test_traffic_of_a_ring_and_of_a_server() -> None:
    """A ring of two sends half of the bytes twice, and receives as much; a server handles those of all workers."""
    assert traffic("horovod", 2, 100.0) == (200.0, 200.0)
    assert traffic("horovod", 4, 100.0) == (300.0, 300.0)
    assert traffic("dist_sync", 4, 100.0) == (200.0, 200.0 + 4 * 200.0)
    assert traffic("dist_sync", 1, 100.0) == (0.0, 0.0)


def test_a_small_last_message_waits_for_the_answers_before_it() -> None:
    """Received after 32 and 40 ms; the first answer is sent from 33 to 65 ms, and the second one then, until 73 ms."""
    assert link_seconds("dist_sync", 2, [4e6, 1e6], GIGABIT) == pytest.approx(0.074)
