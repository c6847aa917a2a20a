"""Local SGD between workers in threads, compared with NumPy."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, Dict, List, Mapping, Tuple

import numpy as np
import pytest
from in_threads import Rendezvous, ThreadStore

from mxtrain.engine.backend import gluon, mx, nd
from mxtrain.errors import CheckpointError
from mxtrain.kvstore.compression import compressor_of
from mxtrain.kvstore.local_sgd import LocalSGDStore, OuterOptimizer, gather_named
from mxtrain.kvstore.reduction import Reduction
from mxtrain.runtime.memory import peak_memory, resident_memory

WORKERS, EVERY, STEPS = 3, 3, 8
SIZES = ((4, 4, 3), (1, 0, 0))
"""Samples of each worker in a step; every fourth step is the short last batch of an epoch."""
OUTER = {"average": OuterOptimizer(), "nesterov": OuterOptimizer(0.7, 0.9)}


class Momentum:
    """A worker's optimizer: w -= 0.1 v with v = 0.5 v + g."""

    def __init__(self, weight: nd.NDArray):
        self.weight, self.velocity = weight, nd.zeros_like(weight)

    def update(self, gradient: nd.NDArray) -> None:
        self.velocity[:] = 0.5 * self.velocity + gradient
        self.weight -= 0.1 * self.velocity

    def save_state(self) -> Tuple[Mapping[str, nd.NDArray], Mapping[str, Any]]:
        return {"weight:0": self.velocity}, {"count": 1}

    def load_state(self, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any], source: str) -> None:
        assert values == {"count": 1}
        self.velocity[:] = arrays["weight:0"]


class Worker:
    """A weight and a statistic that a step changes by random numbers."""

    def __init__(self, store: ThreadStore, outer: OuterOptimizer, every: int = EVERY):
        self.rank = store.world.rank
        self.values = {"weight": nd.ones((2, 3)), "running_mean": nd.zeros((2,))}
        self.gradient, self.published = nd.zeros((2, 3)), 0
        self.optimizer = Momentum(self.values["weight"])
        self.store = LocalSGDStore(store, every, outer)
        self.reductions = [Reduction("weight", [self.gradient], 0)]
        self.local_sgd = self.store.build_synchronization(
            self.values, self.reductions, ["running_mean"], self.optimizer, self.publish
        )

    def publish(self) -> None:
        self.published += 1

    def step(self, number: int) -> bool:
        gradient, statistic = drawn(number, self.rank)
        self.gradient[:] = gradient
        self.values["running_mean"] += nd.array(statistic)
        self.optimizer.update(self.gradient)
        sizes = SIZES[number % 4 == 0]
        return self.local_sgd.after_update(sizes[self.rank], sum(sizes))

    def arrays(self) -> Dict[str, np.ndarray]:
        arrays = {**self.values, "v": self.optimizer.velocity}
        return {name: array.asnumpy() for name, array in arrays.items()}


def drawn(step: int, rank: int) -> Tuple[np.ndarray, np.ndarray]:
    random = np.random.RandomState(100 * step + rank)
    return random.randn(2, 3), random.randn(2)


def expected(outer: OuterOptimizer, steps: int) -> Tuple[List[Dict[str, np.ndarray]], Dict[str, np.ndarray]]:
    """Returns the arrays of each worker after these steps in float64, and those of a synchronisation after them."""
    weights, statistics = (np.stack([start] * WORKERS) for start in (np.ones((2, 3)), np.zeros(2)))
    velocities, sizes = np.zeros_like(weights), np.zeros(WORKERS)
    shared, outer_velocity = weights[0].copy(), np.zeros((2, 3))
    for number in range(1, steps + 1):
        for rank in range(WORKERS):
            gradient, statistic = drawn(number, rank)
            velocities[rank] = 0.5 * velocities[rank] + gradient
            weights[rank] -= 0.1 * velocities[rank]
            statistics[rank] += statistic
        sizes += SIZES[number % 4 == 0]
        factors = sizes / sizes.sum()
        gradient = np.tensordot(factors, shared - weights, 1)
        next_velocity = outer.momentum * outer_velocity + gradient
        synchronised = {
            "weight": shared - outer.lr * (gradient + outer.momentum * next_velocity),
            "running_mean": factors @ statistics,
        }
        if number % EVERY == 0:
            shared, outer_velocity = synchronised["weight"], next_velocity
            weights[:], statistics[:], sizes[:] = shared, synchronised["running_mean"], 0
    arrays = [{"weight": w, "running_mean": s, "v": v} for w, s, v in zip(weights, statistics, velocities)]
    return arrays, synchronised


def run_workers(work: Any, count: int = WORKERS, **options: Any) -> List[Any]:
    rendezvous = Rendezvous(count)
    return rendezvous.run(lambda world: work(ThreadStore(world, rendezvous, **options)))


def assert_close(found: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray]) -> None:
    assert set(found) == set(wanted)
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("way", list(OUTER))
def test_weights_and_statistics_equal_those_of_numpy(way: str) -> None:
    def work(store: ThreadStore) -> Any:
        worker, found = Worker(store, OUTER[way]), []
        for number in range(1, STEPS + 1):
            synchronised = worker.step(number)
            arrays = worker.arrays()
            worker.local_sgd.apply()
            found.append((synchronised, arrays, worker.arrays()))
            worker.local_sgd.undo()
            np.testing.assert_array_equal(worker.arrays()["weight"], arrays["weight"])
        return found

    for rank, found in enumerate(run_workers(work)):
        assert [synchronised for synchronised, _, _ in found] == [n % EVERY == 0 for n in range(1, STEPS + 1)]
        for number, (synchronised, arrays, applied) in enumerate(found, start=1):
            wanted, wanted_applied = expected(OUTER[way], number)
            assert_close(arrays, wanted[rank])
            shown = arrays if synchronised else applied  # nothing is applied just after a synchronisation
            if not synchronised:
                assert_close(shown, {**wanted_applied, "v": wanted[rank]["v"]})


def test_nesterov_is_that_of_pytorch() -> None:
    """Numbers of torch.optim.SGD([1.], lr=0.7, momentum=0.9, nesterov=True) with the gradients 1 and -0.5."""
    weight, velocity = nd.ones((1,)), nd.zeros((1,))
    for gradient, wanted in ((1.0, -0.33), (-0.5, -0.232)):
        OUTER["nesterov"].step(weight.copy(), nd.array([gradient]), velocity, out=weight)
        np.testing.assert_allclose(weight.asnumpy(), [wanted], rtol=1e-5)


@pytest.mark.parametrize("at", range(1, EVERY + 2))
@pytest.mark.parametrize("way", list(OUTER))
def test_a_resumed_run_has_the_bits_of_an_unbroken_one(way: str, at: int) -> None:
    def unbroken(store: ThreadStore) -> Any:
        worker, saved = Worker(store, OUTER[way]), None
        for number in range(1, STEPS + 1):
            worker.step(number)
            if number == at:
                worker.local_sgd.apply()  # as a checkpoint does, which holds these weights as the model
                arrays, values = worker.local_sgd.save_state()
                saved = {name: array.asnumpy() for name, array in worker.values.items()}, dict(arrays), values
                saved = (*saved, worker.optimizer.velocity.asnumpy())
                worker.local_sgd.undo()
        return saved, worker.arrays()

    whole = run_workers(unbroken)
    model, arrays, values, velocity = whole[0][0]
    assert values["count"] == at % EVERY and [name for name in arrays if ":2" in name]
    assert not whole[1][0][1] or all(":" not in name for name in whole[1][0][1])  # rank 0 alone writes

    def resumed(store: ThreadStore) -> Any:
        worker = Worker(store, OUTER[way])
        for name, array in model.items():
            worker.values[name][:] = array
        worker.optimizer.velocity[:] = velocity
        worker.local_sgd.load_state(arrays, values, "step-1")
        for number in range(at + 1, STEPS + 1):
            worker.step(number)
        assert worker.published == (at % EVERY > 0)  # replicas must get the weights that only this worker had
        return worker.arrays()

    for (_, wanted), found in zip(whole, run_workers(resumed)):
        for name, array in wanted.items():
            np.testing.assert_array_equal(found[name], array, err_msg=name)


def test_another_number_of_workers_goes_on_from_the_synchronised_weights() -> None:
    def work(store: ThreadStore) -> Any:
        worker = Worker(store, OUTER["average"])
        worker.step(1)
        arrays, values = worker.local_sgd.save_state()
        return dict(arrays), values

    arrays, values = run_workers(work)[0]

    def fewer(store: ThreadStore) -> Any:
        worker = Worker(store, OUTER["average"])
        worker.values["weight"][:] = 5
        worker.local_sgd.load_state(arrays, values, "step-1")
        done = [worker.step(number) for number in range(2, 2 + EVERY)]
        return done, worker.values["weight"].asnumpy()

    (done, weight), (_, other) = run_workers(fewer, 2)
    assert done == [False, False, True] and abs(weight - 5).max() < 1
    np.testing.assert_array_equal(weight, other)


def test_a_shorter_interval_than_has_passed_is_refused() -> None:
    def work(store: ThreadStore) -> Any:
        worker = Worker(store, OUTER["average"])
        worker.step(1), worker.step(2)
        arrays, values = worker.local_sgd.save_state()
        with pytest.raises(CheckpointError, match="2 steps after a synchronisation, and kvstore.sync_every is 2 now"):
            Worker(store, OUTER["average"], every=2).local_sgd.load_state(arrays, values, "step-2")
        return True

    assert run_workers(work, 1) == [True]


def test_compression_carries_what_it_left_out_into_the_next_synchronisation() -> None:
    """One worker of which the others had seven of eleven samples."""
    build = compressor_of("2bit", threshold=0.25)

    def work(store: ThreadStore) -> Any:
        worker, found = Worker(store, OUTER["average"], every=1), []
        for number in range(1, 4):
            before = worker.values["weight"].asnumpy()
            worker.step(number)
            found.append(before - worker.values["weight"].asnumpy())
        residual = worker.store.residuals(worker.reductions)
        worker.store.restore_residuals(worker.reductions, residual)
        return found, residual, worker.local_sgd.scalars(), worker.optimizer.velocity.asnumpy()

    ((changes, residual, scalars, _),) = run_workers(work, 1, compressor=build)
    assert {abs(value).round(5) for change in changes for value in change.ravel()} <= {0.0, 0.25}
    wanted, velocity = 0.0, np.zeros((2, 3))
    for number in range(1, 4):
        velocity = 0.5 * velocity + drawn(number, 0)[0]
        wanted = wanted + SIZES[0][0] / sum(SIZES[0]) * 0.1 * velocity
    np.testing.assert_allclose(sum(changes) + residual["weight:0"], wanted, atol=1e-5)
    assert 0 < scalars["perf/sync_sent_MB"] < 3 * 4 * (6 + 2) / 1e6 + 1e-9


def test_gathered_arrays_have_the_bits_of_their_worker() -> None:
    special = np.array([-0.0, 0.0, np.inf, np.nan, 1e-45, -1.5], np.float32)

    def work(store: ThreadStore) -> Any:
        own = {"a": special * np.float32(store.world.rank + 1), "b": np.ones((1, 2), np.float16)}
        return gather_named(store, "optimizer", own, [0, 2])

    first, *others = run_workers(work)
    assert others == [{}, {}] and set(first) == {f"optimizer/{name}:{rank}" for name in "ab" for rank in (0, 2)}
    for rank in (0, 2):
        assert first[f"optimizer/a:{rank}"].tobytes() == (special * (rank + 1)).astype(np.float32).tobytes()
        assert first[f"optimizer/b:{rank}"].dtype == np.float16 and first[f"optimizer/b:{rank}"].shape == (1, 2)


def test_votes_are_collected_over_steps_and_summed_in_the_same_step_by_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 measures 0.25 s for a step; the others take twice as long, which does not count."""
    clocks = threading.local()
    monkeypatch.setattr("time.monotonic", lambda: getattr(clocks, "now", 0.0))

    def work(store: ThreadStore) -> Any:
        clocks.now = 0.0
        whole, rank = LocalSGDStore(store, 5, OuterOptimizer()), store.world.rank
        pending, found, sums = [], [], 0
        sum_in_place = store.sum_in_place
        store.sum_in_place = lambda arrays: (counts.append(1), sum_in_place(arrays))  # type: ignore[method-assign]
        counts: List[int] = []
        for number in range(1, 25):
            clocks.now += 0.25 * (1 + (rank > 0))
            pending.append(whole.votes_later([float(rank == 1 and number == 15), 0.0], 3))
            if len(pending) > 3:
                found.append(pending.pop(0)().tolist())
            sums = len(counts)
        return found, sums

    results = run_workers(work)
    assert results[1:] == results[:1] * 2
    found, sums = results[0]
    # Each step until the first answer is read in step 4, then each fourth: 1, 2, 3, 4, 5, 9, 13, 17, 21.
    assert [vote for vote, _ in found].count(1.0) == 1 and found.index([1.0, 0.0]) + 1 == 17 and sums == 9


def test_the_owner_of_a_parameter_synchronises_it() -> None:
    def work(store: ThreadStore) -> Any:
        weight = nd.full((2,), store.world.rank, ctx=mx.cpu(1))
        one = Reduction("weight", [nd.full((2,), 7, ctx=mx.cpu(device)) for device in range(2)], 1)
        whole = LocalSGDStore(store, 1, OuterOptimizer())
        local_sgd = whole.build_synchronization({"weight": weight}, [one], [], Momentum(weight), lambda: None)
        weight[:] = store.world.rank + 3
        local_sgd.after_update(1, 3)
        return one.replicas[0].asnumpy().tolist(), one.replicas[1].asnumpy().tolist()

    assert run_workers(work) == [([7.0, 7.0], [-3.0, -3.0])] * 3  # only the owner's gradient is written


def test_gradients_of_replicas_are_summed_within_the_worker() -> None:
    def work(store: ThreadStore) -> Any:
        one = Reduction("weight", [nd.ones((2,), ctx=mx.cpu(device)) for device in range(2)], 1)
        LocalSGDStore(store, 5, OuterOptimizer()).reduce([one])
        return one.replicas[1].asnumpy().tolist()

    assert run_workers(work) == [[2.0, 2.0]] * 3


def test_large_weights_are_synchronised_without_a_copy() -> None:
    """24 MiB each. Copies of differences, of weights, or of messages would be 24 MiB more at the peak."""

    def work(store: ThreadStore) -> Any:
        store.sums_elements_alike = True  # type: ignore[misc]
        values = {"weight": nd.ones((6 << 10, 1 << 10))}
        one = Reduction("weight", [nd.zeros_like(values["weight"])], 0)
        whole = LocalSGDStore(store, 2, OUTER["nesterov"])
        local_sgd = whole.build_synchronization(values, [one], [], Momentum(nd.ones((1,))), lambda: None)

        def step() -> bool:
            values["weight"] -= 1
            return local_sgd.after_update(1, 1)

        step()
        peaks = []
        for call in (local_sgd.apply, local_sgd.undo, step):
            nd.waitall()
            before = resident_memory()
            Path("/proc/self/clear_refs").write_text("5")  # the kernel counts the peak anew
            assert call()
            nd.waitall()
            peaks.append(peak_memory() - before)
        return peaks, values["weight"].asnumpy()

    rendezvous = Rendezvous(1)
    ((peaks, weight),) = rendezvous.run(lambda world: work(ThreadStore(world, rendezvous, bucket_bytes=1 << 20)))
    applied, undone, synchronised = peaks
    assert 24 << 20 <= applied < 40 << 20  # with the weights to which `undo` goes back
    assert max(undone, synchronised) < 16 << 20
    np.testing.assert_allclose(weight, 1 - 0.7 * (2 + 0.9 * 2), rtol=1e-5)


def test_applied_weights_of_several_sizes_are_not_compressed() -> None:
    """Top-k sends a quarter of the differences, and keeps the others for the next synchronisation."""

    def work(store: ThreadStore) -> Any:
        values = {name: nd.zeros((size,)) for name, size in (("small", 2), ("large", 40))}
        reductions = [Reduction(name, [nd.zeros_like(value)], 0) for name, value in values.items()]
        whole = LocalSGDStore(store, 2, OUTER["average"])
        local_sgd = whole.build_synchronization(values, reductions, [], Momentum(values["large"]), lambda: None)
        for value in values.values():
            value -= nd.arange(value.size) * (1 + store.world.rank)
        local_sgd.after_update(1, 2)
        local_sgd.apply()
        applied = {name: value.asnumpy() for name, value in values.items()}
        local_sgd.undo()
        residuals = [one._residual_RN.asnumpy() for one in store.compressors_of(reductions)]
        return applied, residuals

    for applied, residuals in run_workers(work, 2, compressor=compressor_of("topk", ratio=0.25)):
        for array in applied.values():
            np.testing.assert_allclose(array, -1.5 * np.arange(array.size), rtol=1e-5)
        assert not any(residual.any() for residual in residuals)


def test_weights_of_a_convolution_are_synchronised_after_inference() -> None:
    """oneDNN holds them in a layout of its own then, which must not be written to in parts."""

    def work(store: ThreadStore) -> Any:
        store.sums_elements_alike = True  # type: ignore[misc]
        network = gluon.nn.Conv2D(64, 3, in_channels=32, use_bias=False)
        network.initialize()
        network.hybridize(static_alloc=True, static_shape=True)
        image_NCHW, weight = nd.ones((2, 32, 8, 8)), network.weight.data()
        weight[:] = nd.array(np.random.RandomState(0).randn(*weight.shape))
        start, found = weight.asnumpy(), []
        one = Reduction("weight", [nd.zeros_like(weight)], 0)
        whole = LocalSGDStore(store, 2, OUTER["average"])
        local_sgd = whole.build_synchronization({"weight": weight}, [one], [], Momentum(weight), lambda: None)
        weight -= store.world.rank
        local_sgd.after_update(1, 2)
        for call in (local_sgd.apply, local_sgd.undo, local_sgd.apply, local_sgd.undo):
            network(image_NCHW).wait_to_read()
            call()
            found.append(weight.asnumpy() - start)
        network(image_NCHW).wait_to_read()
        local_sgd.after_update(1, 2)
        return [*found, weight.asnumpy() - start]

    for rank, found in enumerate(run_workers(work, 2, bucket_bytes=1 << 12)):
        for array, wanted in zip(found, (-0.5, -rank, -0.5, -rank, -0.5)):
            np.testing.assert_allclose(array, wanted, atol=1e-5)
