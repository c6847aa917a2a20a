"""Contract of the sums of every store that joins workers, with workers in threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from in_threads import Rendezvous, ThreadStore

from mxtrain.engine.backend import mx, nd
from mxtrain.kvstore import buckets
from mxtrain.kvstore.compression import compressor_of
from mxtrain.kvstore.reduction import Reduction
from mxtrain.kvstore.world import World


def run_workers(count: int, work: Any) -> Any:
    """Returns the result of `work(store)` of each worker."""
    rendezvous = Rendezvous(count)
    return rendezvous.run(lambda world: work(ThreadStore(world, rendezvous)))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("count", [2, 3])
def test_gather_returns_all_numbers_in_rank_order(count: int, dtype: str) -> None:
    own = [np.random.RandomState(rank).randn(5).astype(dtype) for rank in range(count)]

    def work(store: ThreadStore) -> Any:
        found = []
        for step in (9, 10):  # the second is timed
            store.begin_step(step, 4)
            found.append(store.gather(nd.array(own[store.world.rank], dtype=dtype)))
        return [(array.asnumpy(), array.dtype) for array in found]

    for found in run_workers(count, work):
        for array, kind in found:
            np.testing.assert_array_equal(array, own)
            assert np.dtype(kind) == dtype


def test_arrays_of_all_shapes_and_devices_are_summed() -> None:
    shapes = [((2, 3), "float32", 0), ((4,), "float32", 1), ((1, 1, 2), "float64", 0)]
    own = [
        [np.random.RandomState(10 * rank + i).randn(*shape) for i, (shape, _, _) in enumerate(shapes)]
        for rank in range(3)
    ]

    def work(store: ThreadStore) -> Any:
        arrays = [
            nd.array(value, ctx=mx.cpu(device), dtype=dtype)
            for value, (_, dtype, device) in zip(own[store.world.rank], shapes)
        ]
        store.all_reduce(arrays)
        return [array.asnumpy() for array in arrays]

    for found in run_workers(3, work):
        for position, (shape, dtype, _) in enumerate(shapes):
            expected = sum(one[position].astype(dtype) for one in own)
            assert found[position].shape == shape and found[position].dtype == dtype
            np.testing.assert_allclose(found[position], expected, rtol=1e-6)


@pytest.mark.parametrize("blob", [b"", b"x", b"ab", bytes(range(256)) * 9000, b"\xff" * 5])
def test_bytes_of_rank_0_arrive_unchanged(blob: bytes) -> None:
    assert run_workers(3, lambda store: store.broadcast(blob if store.world.rank == 0 else None)) == [blob] * 3


def test_totals_are_exact_and_votes_arrive_later() -> None:
    def work(store: ThreadStore) -> Any:
        rank = store.world.rank
        later = store.votes_later([rank, 1.0], 0)
        votes = store.votes_later([float(rank == 1)], 0)
        return store.total([2.0**-40, rank + 0.1]).tolist(), later().tolist(), votes().tolist()

    for found in run_workers(3, work):
        assert found == ([3 * 2.0**-40, pytest.approx(3.3, rel=1e-15)], [3.0, 3.0], [1.0])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gradients_are_summed_over_replicas_and_workers_in_every_step(dtype: str) -> None:
    """Float64 is `verify`'s. Shapes are such that each bucket holds several, of each owner."""
    shapes = [(3, 4), (5,), (2, 2), (6,)]

    def gradients(rank: int, replica: int, number: int, step: int) -> np.ndarray:
        return (
            np.random.RandomState(1000 * step + 100 * rank + 10 * replica + number).randn(*shapes[number]).astype(dtype)
        )

    def work(store: ThreadStore) -> Any:
        rank, found = store.world.rank, []
        made = [
            Reduction(str(n), [nd.zeros(shape, ctx=mx.cpu(r), dtype=dtype) for r in range(2)], n % 2)
            for n, shape in enumerate(shapes)
        ]
        for step in (9, 10, 11):
            for number, reduction in enumerate(made):
                for replica, array in enumerate(reduction.replicas):
                    array[:] = gradients(rank, replica, number, step)
            store.begin_step(step, 7 + rank)
            store.reduce(made)
            found.append([reduction.replicas[reduction.owner].asnumpy() for reduction in made])
        return found, store.times

    for found, times in run_workers(2, work):
        for step, arrays in zip((9, 10, 11), found):
            for number, array in enumerate(arrays):
                expected = sum(gradients(rank, replica, number, step) for rank in range(2) for replica in range(2))
                np.testing.assert_allclose(array, expected, rtol=1e-5, atol=1e-6)
        assert (times.step, times.sizes) == (10, [7, 8]) and times.exchange_s > 0
        assert len(times.compute_s) == 2 and all(0 < seconds < 60 for seconds in times.compute_s)


@pytest.mark.parametrize("bucket_bytes, messages", [(24, 3), (48, 2), (72, 1)])
def test_messages_have_the_size_of_the_buckets(bucket_bytes: int, messages: int) -> None:
    """Three gradients of 24 bytes each."""
    rendezvous = Rendezvous(2)

    def work(world: World) -> Any:
        store = ThreadStore(world, rendezvous, bucket_bytes=bucket_bytes)
        made = [Reduction(name, [nd.full((6,), world.rank + 1)], 0) for name in "abc"]
        store.reduce(made)
        return len(store.buckets_of(made)), [one.replicas[0].asnumpy().tolist() for one in made]

    assert rendezvous.run(work) == [(messages, [[3.0] * 6] * 3)] * 2


SHAPES = ((5,), (70, 3), (2, 2), (9,), (64,), (1,), (40, 2), (3,), (31,), (17,), (200,), (8,), (60,), (61,), (62,))


@pytest.mark.parametrize("compression", ["none", "fp16", "topk"])
@pytest.mark.parametrize("alike, dtype", [(False, "float32"), (True, "float32"), (True, "float64")])
def test_sums_in_turn_have_the_bits_of_sums_at_once(
    alike: bool, dtype: str, compression: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Buckets of 64 numbers, and memory for four of them."""
    monkeypatch.setattr(buckets, "WINDOW_BYTES", 0)
    rendezvous = Rendezvous(3)

    def work(world: World) -> Any:
        ratio = {"ratio": 0.25} if compression == "topk" else {}  # depends on all values of a bucket
        store = ThreadStore(world, rendezvous, bucket_bytes=256, compressor=compressor_of(compression, **ratio))
        store.sums_elements_alike = alike  # type: ignore[misc]
        ways = store.reduce, store.reduce_in_turn
        made = [[Reduction(f"{n}", [nd.zeros(s, dtype=dtype)], 0) for n, s in enumerate(SHAPES)] for _ in ways]
        store.share_buckets(made[1])
        for step in range(3):
            random = np.random.RandomState(10 * step + world.rank)
            for pair in zip(*made):
                drawn = random.randn(*pair[0].replicas[0].shape)
                for one in pair:
                    one.replicas[0][:] = drawn
            for way, reductions in zip(ways, made):
                way(reductions)
            for one, other in zip(*made):
                np.testing.assert_array_equal(one.replicas[0].asnumpy(), other.replicas[0].asnumpy(), str(step))
        return [[bucket.flat for bucket in store.buckets_of(one)] for one in made]

    for at_once, in_turn in rendezvous.run(work):
        sizes = [flat.size for flat in in_turn]
        assert sum(sizes) == sum(int(np.prod(shape)) for shape in SHAPES)
        if dtype == "float32" and alike and compression == "none":
            # Servers hold one array for each: four full ones, and the last one.
            assert set(sizes[:-1]) == {64} and len({id(flat) for flat in in_turn}) == 5
        elif dtype == "float32":
            assert sizes == [flat.size for flat in at_once]


def test_a_large_gradient_is_summed_in_its_own_memory() -> None:
    def work(store: ThreadStore) -> Any:
        large, small = nd.zeros((2 << 20,)), nd.zeros((3,))
        reductions = [Reduction("large", [large], 0), Reduction("small", [small], 0)]
        store.share_buckets(reductions)
        large[:] = 7
        small[:] = 7
        return {bucket.names[0]: bucket.flat.asnumpy().max() for bucket in store.buckets_of(reductions)}

    assert run_workers(1, work) == [{"large": 7, "small": 7}]
