"""Updates that are divided among workers in threads, compared bit by bit with those of one worker."""

from __future__ import annotations

import functools
from typing import Any, Callable, Dict, List, Mapping, Tuple

import numpy as np
import pytest
from in_threads import Rendezvous, ThreadStore

from mxtrain.engine.backend import nd
from mxtrain.errors import CheckpointError
from mxtrain.kvstore import joined_store
from mxtrain.kvstore.reduction import Reduction
from mxtrain.kvstore.sharded_updater import ShardedUpdater, divide
from mxtrain.kvstore.world import ALONE, World
from mxtrain.optimizer import optimizers
from mxtrain.optimizer.spec import Optimizer
from mxtrain.optimizer.updater import Updater

SHAPES = {
    "stem.weight": (8, 5),
    "stem.gamma": (3, 2),
    "body.weight": (5, 6),
    "body.gamma": (4, 2),
    "head.weight": (2, 3),
}
MULTIPLIERS = {name: (0.0 if name == "stem.gamma" else 1.0, 1.0) for name in SHAPES}
BUILT = {
    name: kind
    for name, kind in vars(optimizers).items()
    if isinstance(kind, type) and issubclass(kind, Optimizer) and kind.mxnet_name and kind.shardable
}


BUCKET_BYTES = 60
"""Two parameters at most share a bucket."""


def build(kind: Callable[[], Any], weights: Mapping[str, nd.NDArray]) -> Updater:
    return Updater(kind().build(5), weights, MULTIPLIERS)


class Worker:
    """Weights, and gradients that are the same in each worker, as after a reduction."""

    def __init__(self, kind: Callable[[], Any], world: World = ALONE, rendezvous: Any = None):
        draw = np.random.default_rng(3)
        self.weights = {name: nd.array(draw.normal(size=shape)) for name, shape in SHAPES.items()}
        self.weights["stem.gamma"][0, 0] = -0.0  # not trained, so it stays
        self.gradients = [nd.zeros(shape) for shape in SHAPES.values()]
        self.updater: Any = build(kind, self.weights)
        if rendezvous is not None:
            self.reductions = [Reduction(name, [array], 0) for name, array in zip(SHAPES, self.gradients)]
            store = ThreadStore(world, rendezvous, bucket_bytes=BUCKET_BYTES)
            self.updater = ShardedUpdater(store, functools.partial(build, kind), self.weights, self.reductions)

    def step(self, number: int) -> None:
        draw = np.random.default_rng(number)
        for gradient in self.gradients:
            gradient[:] = draw.normal(size=gradient.shape)
        # All that worker 0 of three trains, so its updates are fewer than those of the others.
        self.updater.freeze(["stem.weight"] if number == 1 else [])
        self.updater.update(self.gradients, 0.1 / number)

    def outcome(self) -> Tuple[Dict[str, bytes], Dict[str, Tuple[bytes, str]], Any]:
        """Returns the bits of the weights and of the saved state."""
        arrays, numbers = self.updater.save_state()
        host = {name: array if isinstance(array, np.ndarray) else array.asnumpy() for name, array in arrays.items()}
        state = {name: (array.tobytes(), str(array.dtype)) for name, array in host.items()}
        return {name: array.asnumpy().tobytes() for name, array in self.weights.items()}, state, numbers


def run(kind: Callable[[], Any], size: int, work: Callable[[Worker], Any]) -> List[Any]:
    """Returns the results of all workers; those of one that divides nothing for `size` 0."""
    if size == 0:
        return [work(Worker(kind))]
    rendezvous = Rendezvous(size)
    return rendezvous.run(lambda world: work(Worker(kind, world, rendezvous)))


def train(worker: Worker) -> Any:
    for number in (1, 2, 3):
        worker.step(number)
    return worker.outcome()


@pytest.mark.parametrize("name", sorted(BUILT))
def test_three_workers_compute_the_weights_and_the_state_of_one(name: str) -> None:
    ((weights, state, numbers),) = run(BUILT[name], 0, train)
    results = run(BUILT[name], 3, train)
    assert [result[0] for result in results] == [weights] * 3
    assert results[0][1:] == (state, numbers)


@pytest.mark.parametrize("before, after", [(3, 0), (0, 2), (2, 3)])
def test_another_number_of_workers_continues_exactly(before: int, after: int) -> None:
    kind = functools.partial(optimizers.Adam, wd=0.01)

    def first(worker: Worker) -> Any:
        worker.step(1)
        worker.step(2)
        arrays, numbers = worker.updater.save_state()
        host = {name: array if isinstance(array, np.ndarray) else array.asnumpy() for name, array in arrays.items()}
        return host, numbers, {name: array.asnumpy() for name, array in worker.weights.items()}

    arrays, numbers, weights = run(kind, before, first)[0]

    def second(worker: Worker) -> Any:
        for name, array in weights.items():
            worker.weights[name][:] = array
        worker.updater.load_state(arrays, numbers, "a checkpoint")
        worker.step(3)
        return worker.outcome()

    assert run(kind, after, second)[0] == run(kind, 0, train)[0]


def test_each_worker_holds_the_state_of_its_parameters_only() -> None:
    held = run(optimizers.Adam, 3, lambda worker: worker.updater._updater.names)
    assert sorted(name for names in held for name in names) == sorted(SHAPES)
    assert all(names for names in held)


@pytest.mark.parametrize("message", [1, 7, 64])
def test_state_travels_in_messages_of_any_size(message: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joined_store, "NUMBERS_PER_MESSAGE", message)
    ((*_, state, numbers),) = run(optimizers.Adam, 0, train)
    assert run(optimizers.Adam, 3, train)[0][1:] == (state, numbers)


def test_largest_buckets_are_divided_first() -> None:
    assert divide([3, 9, 4, 4, 1], 2) == [1, 0, 1, 1, 0]
    assert divide([5, 5, 5], 3) == [0, 1, 2]
    assert divide([7], 2) == [0]


def test_state_of_another_network_is_refused_by_all_workers() -> None:
    def load(worker: Worker) -> str:
        arrays, numbers = worker.updater.save_state()
        arrays = {name: array.asnumpy() for name, array in build(optimizers.Adam, worker.weights).arrays().items()}
        arrays["other.weight:0"] = np.zeros(2, np.float32)
        with pytest.raises(CheckpointError, match="other.weight") as refused:
            worker.updater.load_state(arrays, numbers, "a checkpoint")
        return str(refused.value)

    assert len(run(optimizers.Adam, 2, load)) == 2
