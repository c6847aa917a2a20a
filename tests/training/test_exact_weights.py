"""Losses with weights: the gradient is that of sum(loss) / sum(weight) over the global batch, whoever computes what.

The expected values come from NumPy alone: a linear network, whose gradient is known in closed form.
"""

from __future__ import annotations

from typing import Any, Dict, List, Tuple

import numpy as np
import pytest
from in_threads import Rendezvous, ThreadStore

from mxtrain.engine.backend import gluon, mx, nd
from mxtrain.kvstore.mxnet_store import MXNetStore
from mxtrain.kvstore.world import World
from mxtrain.metric.meter import LossWeights, Meter
from mxtrain.metric.metrics import PositionAccuracy, PositionPerplexity
from mxtrain.model.prepare import initialize
from mxtrain.optimizer.ema import build_average
from mxtrain.optimizer.optimizers import SGD
from mxtrain.optimizer.updater import Updater
from mxtrain.parallel.objective import Objective
from mxtrain.parallel.spec import Data, Hybrid, Pipeline, Single
from mxtrain.text.losses import MaskedSoftmaxCrossEntropy
from mxtrain.training.step import TrainingStep
from mxtrain.types import Batch

POSITIONS, WIDTH, CLASSES, LR = 5, 4, 3, 0.5
PLACEMENTS: Dict[str, Tuple[Any, int]] = {
    "single": (Single(), 1),
    "accumulated": (Single(), 3),
    "data 2": (Data(devices="cpu:2"), 1),
    "data 3, accumulated": (Data(devices="cpu:3"), 2),
    "pipeline": (Pipeline(stages=2, microbatches=3), 1),
    "hybrid": (Hybrid(devices="cpu:4", stages=2, microbatches=2), 1),
}


METRICS = {"accuracy": PositionAccuracy(), "perplexity": PositionPerplexity()}


def step_of(placement: Any, parts: int, store: Any, clip: Any = None, cast: str = "float32") -> TrainingStep:
    network = gluon.nn.HybridSequential()
    network.add(gluon.nn.Dense(WIDTH, flatten=False, use_bias=False), gluon.nn.Dense(CLASSES, flatten=False))
    network.initialize()
    shape = (POSITIONS, WIDTH)
    network(nd.zeros((1, *shape)))
    initialize(network, "xavier", 0, mx.cpu(0))
    network.hybridize()
    meter = Meter(METRICS, CLASSES, LossWeights(True), training=True)
    loss = MaskedSoftmaxCrossEntropy().build(0, True)
    loss.hybridize()
    strategy = placement.build(Objective(network, loss, meter, shape, 12), parts, store)
    weights = {name: strategy.values[name] for name in strategy.trainable}
    updater = Updater(SGD(lr=LR, momentum=0.0, wd=0.0).build(1), weights, dict.fromkeys(weights, (1.0, 1.0)))
    return TrainingStep(strategy, store, updater, build_average(None, strategy.values, strategy.publish), clip, None)


def samples(size: int, counts: str) -> Tuple[np.ndarray, np.ndarray]:
    """Samples of which 0 to POSITIONS positions count: very unequal, so that a mean of means is another number."""
    rng = np.random.RandomState(size)
    label_BM = rng.randint(0, CLASSES, (size, POSITIONS)).astype(np.float32)
    number_B = {"unequal": np.arange(size) ** 2 % (POSITIONS + 1), "none": np.zeros(size, int)}[counts]
    label_BM[np.arange(POSITIONS)[None] >= number_B[:, None]] = -1
    return rng.randn(size, POSITIONS, WIDTH).astype(np.float32), label_BM


def expected_of(values: Dict[str, np.ndarray], data: np.ndarray, label: np.ndarray) -> Tuple[Dict[str, Any], float]:
    """Parameters after one step of gradient descent on sum(loss) / sum(weight), and that loss, in NumPy."""
    first, second, bias = (values[name].astype(np.float64) for name in ("0.weight", "1.weight", "1.bias"))
    hidden = data @ first.T
    scores = hidden @ second.T + bias
    p = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    counts = label >= 0
    target = np.eye(CLASSES)[np.maximum(label, 0).astype(int)]
    weight = counts.sum()
    d = (p - target) * counts[..., None] / max(weight, 1)
    gradients = {
        "0.weight": np.einsum("bmh,bmi->hi", d @ second, data),
        "1.weight": np.einsum("bmk,bmh->kh", d, hidden),
        "1.bias": d.sum((0, 1)),
    }
    loss = -(np.log((p * target).sum(-1)) * counts).sum() / max(weight, 1)
    return {name: values[name] - LR * gradients[name] for name in gradients}, float(loss)


def values_of(step: TrainingStep) -> Dict[str, np.ndarray]:
    return {name: array.asnumpy() for name, array in step.strategy.values.items()}


@pytest.mark.parametrize("counts", ["unequal", "none"])
@pytest.mark.parametrize("name", PLACEMENTS)
def test_gradients_are_divided_by_the_total_weight(name: str, counts: str) -> None:
    placement, parts = PLACEMENTS[name]
    step = step_of(placement, parts, MXNetStore("local"))
    data, label = samples(12, counts)
    expected, loss = expected_of(values_of(step), data, label)
    sums = step(Batch((nd.array(data),), (nd.array(label),), 12), LR, 1).asnumpy()
    found = values_of(step)
    for parameter, value in expected.items():
        np.testing.assert_allclose(found[parameter], value, rtol=2e-5, atol=1e-6)
    assert step.strategy.objective.meter.values(sums, 12)["loss"] == pytest.approx(loss, rel=1e-5)


@pytest.mark.parametrize("sizes", [(6, 6), (9, 3), (12, 0)])
def test_workers_divide_by_the_total_weight_of_all_workers(sizes: Tuple[int, int]) -> None:
    data, label = samples(12, "unequal")
    rendezvous = Rendezvous(2)
    bounds = [(0, sizes[0]), (sizes[0], 12)]

    def work(world: World) -> Tuple[Dict[str, np.ndarray], Dict[str, np.ndarray], np.ndarray]:
        step = step_of(Single(), 1, ThreadStore(world, rendezvous))
        before = values_of(step)
        begin, end = bounds[world.rank]
        whole = Batch((nd.array(data),), (nd.array(label),), 12)
        share = whole.slice(begin, end, 12) if end > begin else Batch((), (), 0, 12)
        sums = step(share, LR, 1).asnumpy()
        return before, values_of(step), sums

    found: List[Any] = rendezvous.run(work)
    expected, loss = expected_of(found[0][0], data, label)
    for _, after, sums in found:
        for parameter, value in expected.items():
            np.testing.assert_allclose(after[parameter], value, rtol=2e-5, atol=1e-6)
        meter = Meter(METRICS, CLASSES, LossWeights(True), training=True)
        assert meter.values(sums, 12)["loss"] == pytest.approx(loss, rel=1e-5)


def test_clipping_sees_the_gradient_of_the_mean_over_weights() -> None:
    step = step_of(Single(), 1, MXNetStore("local"), clip=1e-3)
    data, label = samples(12, "unequal")
    before = values_of(step)
    expected, _ = expected_of(before, data, label)
    norm = np.sqrt(sum((((before[name] - value) / LR) ** 2).sum() for name, value in expected.items()))
    step(Batch((nd.array(data),), (nd.array(label),), 12), LR, 1)
    assert step.grad_norm is not None and float(step.grad_norm.asscalar()) == pytest.approx(norm, rel=1e-4)
    moved = np.sqrt(sum((((before[name] - value) / LR) ** 2).sum() for name, value in values_of(step).items()))
    assert moved == pytest.approx(1e-3, rel=1e-3)
