"""A step where several workers take part: what each of them draws, clips and keeps."""

from __future__ import annotations

from typing import Any, Dict, List, Optional

import numpy as np
import pytest
from in_threads import Rendezvous, ThreadStore

from mxtrain.engine.backend import autograd, gluon, mx, nd
from mxtrain.kvstore.mxnet_store import MXNetStore
from mxtrain.kvstore.store import Store
from mxtrain.kvstore.world import World
from mxtrain.loss.losses import SoftmaxCrossEntropy
from mxtrain.metric.meter import Meter
from mxtrain.metric.metrics import Accuracy
from mxtrain.model.parameters import distinct_parameters
from mxtrain.model.prepare import initialize
from mxtrain.optimizer.clipping import multiply, norm_and_limit
from mxtrain.optimizer.ema import build_average
from mxtrain.optimizer.updater import Updater
from mxtrain.parallel.objective import Objective
from mxtrain.parallel.spec import Single
from mxtrain.training.step import TrainingStep
from mxtrain.types import Batch

WIDTH = 4


def build_step(store: Store, optimizer: Any, random_seed: Optional[int] = None, dropout: float = 0.0) -> TrainingStep:
    network = gluon.nn.HybridSequential()
    network.add(gluon.nn.Dense(8), gluon.nn.Dropout(dropout), gluon.nn.Dense(3))
    network.initialize()
    network(nd.zeros((1, WIDTH)))
    initialize(network, "xavier", 0, mx.cpu(0))
    loss = SoftmaxCrossEntropy().build(3, training=True)
    strategy = Single().build(Objective(network, loss, Meter({"accuracy": Accuracy()}, 3), (WIDTH,), 8), 1, store)
    weights = {name: strategy.values[name] for name in strategy.trainable}
    updater = Updater(optimizer, weights, dict.fromkeys(weights, (1.0, 1.0)))
    average = build_average(None, strategy.values, strategy.publish)
    return TrainingStep(strategy, store, updater, average, None, random_seed)


def whole_batch(size: int) -> Batch:
    rng = np.random.RandomState(size)
    return Batch((nd.array(rng.randn(size, WIDTH)),), (nd.array(rng.randint(0, 3, size)),), size)


def share(size: int, world: World) -> Batch:
    begin, end = world.share(size)
    return whole_batch(size).slice(begin, end, size) if end > begin else Batch((), (), 0, size)


def values(step: TrainingStep) -> Dict[str, np.ndarray]:
    return {name: array.asnumpy() for name, array in step.strategy.values.items()}


class UnansweredStore(Store):
    """Store of a worker whose peers add nothing: random numbers are its own or everybody's."""

    def __init__(self, rank: int, size: int) -> None:
        self.world = World(rank, size)

    def reduce(self, reductions: Any) -> None:
        pass


def test_step_equals_a_plain_gluon_loop() -> None:
    """Batches of several sizes, momentum and weight decay; the loss and the accuracy are those of before the update."""
    step = build_step(MXNetStore("local"), mx.optimizer.SGD(momentum=0.9, wd=0.01))
    plain = gluon.nn.HybridSequential()
    plain.add(gluon.nn.Dense(8), gluon.nn.Dense(3))
    plain.initialize()
    plain(nd.zeros((1, WIDTH)))
    own = values(step)
    for name, there in (("0.weight", "0.weight"), ("0.bias", "0.bias"), ("1.weight", "2.weight"), ("1.bias", "2.bias")):
        distinct_parameters(plain)[name].set_data(nd.array(own[there]))
    trainer = gluon.Trainer(plain.collect_params(), "sgd", {"momentum": 0.9, "wd": 0.01})
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    for number, size in enumerate((8, 3, 5), 1):
        (data,), (label,) = whole_batch(size).inputs, whole_batch(size).targets
        sums = step(whole_batch(size), 0.1 / number, number).asnumpy()
        trainer.set_learning_rate(0.1 / number)
        with autograd.record():
            scores = plain(data)
            loss_B = loss(scores, label)
        loss_B.backward()
        trainer.step(size)
        right = (scores.asnumpy().argmax(axis=1) == label.asnumpy()).sum()
        np.testing.assert_allclose(sums, [loss_B.sum().asscalar(), right], rtol=1e-5)
    found = values(step)
    for name, there in (("0.weight", "0.weight"), ("0.bias", "0.bias"), ("1.weight", "2.weight"), ("1.bias", "2.bias")):
        wanted = distinct_parameters(plain)[name].data().asnumpy()
        np.testing.assert_allclose(found[there], wanted, rtol=1e-5, atol=1e-6)
        assert np.abs(wanted - own[there]).max() > 1e-3


def test_random_numbers_of_an_optimizer_are_equal_on_all_workers() -> None:
    found = []
    for rank in range(3):
        step = build_step(UnansweredStore(rank, 3), mx.optimizer.SGLD(), random_seed=5)
        step(Batch(whole_batch(4).inputs, whole_batch(4).targets, 4, 12), 0.01, 1)
        found.append(values(step))
    for name, array in found[0].items():
        assert all((array == other[name]).all() for other in found[1:]), name


def test_random_numbers_of_a_network_differ_between_workers_and_steps() -> None:
    """Dropout that drops the same units of all workers' samples would be a smaller batch's."""
    sums = {}
    for rank in range(2):
        for number in (1, 2):
            step = build_step(UnansweredStore(rank, 2), mx.optimizer.SGD(), random_seed=5, dropout=0.5)
            sums[rank, number] = float(
                step(Batch(whole_batch(4).inputs, whole_batch(4).targets, 4, 8), 0.0, number)[0].asscalar()
            )
    assert len(set(sums.values())) == 4, sums


@pytest.mark.parametrize("size", [9, 4, 2, 1])
def test_workers_equal_one_worker_even_without_samples(size: int) -> None:
    alone = build_step(Store(), mx.optimizer.SGD(momentum=0.9))
    alone.store.reduce = lambda reductions: None
    expected_sums = [alone(whole_batch(size), 0.1, number).asnumpy() for number in (1, 2)]
    rendezvous = Rendezvous(3)

    def work(world: World) -> Any:
        step = build_step(ThreadStore(world, rendezvous), mx.optimizer.SGD(momentum=0.9))
        return [step(share(size, world), 0.1, number).asnumpy() for number in (1, 2)], values(step)

    for sums, weights in rendezvous.run(work):
        np.testing.assert_allclose(sums, expected_sums, rtol=1e-5)
        for name, array in values(alone).items():
            np.testing.assert_allclose(weights[name], array, rtol=1e-5, atol=1e-7)


def test_clipping_is_by_the_norm_of_all_gradients_on_all_devices() -> None:
    rng = np.random.RandomState(0)
    given = [rng.randn(3, 4), rng.randn(5), rng.randn(2, 2, 2)]
    norm = np.sqrt(sum((array**2).sum() for array in given))
    for limit in (0.5 * norm, 2 * norm):
        arrays = [nd.array(array, ctx=mx.cpu(number % 2)) for number, array in enumerate(given)]
        found, factor = norm_and_limit(arrays, limit)
        multiply(arrays, factor)
        assert found.context == arrays[0].context and found.shape == (1,)
        assert found.asscalar() == pytest.approx(norm, rel=1e-6)
        for array, before in zip(arrays, given):
            np.testing.assert_allclose(array.asnumpy(), before * min(limit / norm, 1.0), rtol=1e-5)


def test_clipping_leaves_tiny_gradients_alone() -> None:
    tiny = nd.array([1e-8, -1e-8])
    multiply([tiny], norm_and_limit([tiny], 1.0)[1])
    np.testing.assert_allclose(tiny.asnumpy(), [1e-8, -1e-8], rtol=1e-6)


def test_seeds_of_steps_are_stable(monkeypatch: Any) -> None:
    """A checkpoint is continued by the next version with the same numbers."""
    step, seeds = build_step(Store(), mx.optimizer.SGD(), random_seed=5), []
    monkeypatch.setattr(mx.random, "seed", seeds.append)
    for number, rank in ((1, 0), (2, 0), (1, 1)):
        step.seed_random(number, rank)
    assert seeds == [387329765, 387370268, 387398834]
    step.random_seed = None
    step.seed_random(3)
    assert len(seeds) == 3


class Settling:
    """An updater on servers, which has news or has not."""

    def __init__(self, has_news: bool) -> None:
        self.has_news, self.averaged = has_news, []

    def synchronize(self, own_arrays: List[Any]) -> bool:
        self.averaged += own_arrays
        return self.has_news


@pytest.mark.parametrize("has_news", [True, False])
def test_settling_averages_statistics_and_averages_and_publishes(has_news: bool, monkeypatch: Any) -> None:
    step, published = build_step(Store(), mx.optimizer.SGD()), []
    step.updater = Settling(has_news)
    step.average = build_average(0.5, step.strategy.values, step.strategy.publish)
    step._statistics = ["0.bias"]
    monkeypatch.setattr(step.strategy, "publish", lambda *names: published.append(names))
    step.synchronize()
    expected = [step.strategy.values["0.bias"], *step.average.arrays.values()]
    assert [id(array) for array in step.updater.averaged] == [id(array) for array in expected]
    assert published == [()] * has_news


def test_rows_count_the_whole_batch_with_updating_servers() -> None:
    """With updating servers a worker knows only its share: its sums are scaled to the batch that the row counts."""
    step, batch = build_step(Store(), mx.optimizer.SGD()), whole_batch(4)
    alone = step.strategy.forward_backward(batch).asnumpy()
    gradients = [reduction.replicas[0].asnumpy() for reduction in step.strategy.reductions]
    share = step.strategy.forward_backward(Batch(batch.inputs, batch.targets, 4, 12)).asnumpy()
    np.testing.assert_allclose(share, 3 * alone, rtol=1e-6)
    for reduction, gradient in zip(step.strategy.reductions, gradients):  # of the mean over its own samples
        np.testing.assert_allclose(reduction.replicas[0].asnumpy(), gradient, rtol=1e-6)
