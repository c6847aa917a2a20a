"""Network, loss and meter as one graph: the same bits as one after the other, and when they are none."""

from __future__ import annotations

from typing import Any, List, Optional, Tuple

import numpy as np
import pytest

from mxtrain.engine.backend import gluon, mx, nd
from mxtrain.loss.blocks import AllArraysLoss, IndexLabelLoss, RegressionLoss
from mxtrain.metric.meter import LossWeights, Meter
from mxtrain.metric.metrics import Accuracy
from mxtrain.metric.spec import Metric
from mxtrain.parallel.executor import Pipelined
from mxtrain.parallel.grid import Grid
from mxtrain.parallel.objective import Objective
from mxtrain.parallel.spec import Data, Single
from mxtrain.training.network import hybridize
from mxtrain.types import Batch

nn = gluon.nn


class Squared(gluon.HybridBlock):
    """A weighted loss of two arrays that are one, which a network gives."""

    weighted = True

    def hybrid_forward(self, F, score_BK, target_B):
        return -F.pick(F.log_softmax(score_BK), target_B), target_B + 1


class Touching(gluon.Block):
    """A loss that needs real arrays."""

    def forward(self, score_BK, target_B):
        assert len(score_BK.shape) == 2
        return -nd.pick(nd.log_softmax(score_BK), target_B)


class Steep(Metric):
    """Its gradient is infinite where it is measured."""

    def measure(self, F, outputs, targets, num_classes):
        return F.sum(F.sqrt(F.abs(outputs[0] - F.BlockGrad(outputs[0])))).reshape((1,))


def network(kind: str) -> gluon.Block:
    made = nn.HybridSequential()
    if kind == "convolutions":
        for _ in range(2):
            made.add(nn.Conv2D(4, 3, padding=1), nn.BatchNorm(), nn.Activation("relu"))
    made.add(nn.Dense(8, activation="tanh"), nn.Dropout(0.3 if kind == "dropout" else 0.0), nn.Dense(3))
    mx.random.seed(3)
    made.initialize(mx.init.Xavier())
    made(nd.zeros((2, 2, 5, 5)))
    return hybridize(made)


def build(kind: str = "dense", parts: int = 1, loss: Optional[gluon.Block] = None, parallel: Any = None) -> Grid:
    weighted = loss is None
    loss = hybridize(Squared() if loss is None else loss)
    meter = Meter({"accuracy": Accuracy(), "steep": Steep()}, 3, LossWeights(weighted))
    objective = Objective(network(kind), loss, meter, (2, 5, 5), 8)
    made = (parallel or Single()).build(objective, parts)
    assert isinstance(made, Grid)
    return made


def batch(size: int, seed: int) -> Batch:
    rng = np.random.RandomState(seed)
    return Batch((nd.array(rng.randn(size, 2, 5, 5)),), (nd.array(rng.randint(0, 3, size)),), size)


def trained(made: Grid, fused: bool) -> List[np.ndarray]:
    """Sums, gradients and all parameters after three batches of two sizes."""
    executor = made._executors.train
    assert isinstance(executor, Pipelined) and executor.fused is not None
    if not fused:
        executor.fused = None
    found: List[np.ndarray] = []
    for number, size in enumerate((8, 8, 5)):
        mx.random.seed(number)
        found.append(made.forward_backward(batch(size, number)).asnumpy())
        found += [replica.asnumpy() for reduction in made.reductions for replica in reduction.replicas]
    return [*found, *(array.asnumpy() for array in made.values.values())]


@pytest.mark.parametrize(
    "kind, parts, parallel",
    [
        ("dense", 1, None),
        ("dropout", 1, None),
        ("convolutions", 1, None),
        ("convolutions", 2, None),
        ("convolutions", 1, Data(devices="cpu:2", batch_norm="per_device")),
    ],
)
def test_one_graph_gives_the_bits_of_three(kind: str, parts: int, parallel: Any) -> None:
    made = build(kind, parts, parallel=parallel)
    one = trained(made, True)
    assert made._executors.train.fused.takes(batch(8, 0))  # type: ignore[union-attr]
    for found, wanted in zip(one, trained(build(kind, parts, parallel=parallel), False)):
        assert np.isfinite(found).all(), "nothing is learned from what is measured, whose gradient is none"
        np.testing.assert_array_equal(found, wanted)


def test_a_loss_that_needs_real_arrays_is_called_with_them() -> None:
    made = build(loss=Touching())
    found = made.forward_backward(batch(8, 0)).asnumpy()
    assert not made._executors.train.fused.takes(batch(8, 0))  # type: ignore[union-attr]
    wanted = build(loss=gluon.loss.SoftmaxCrossEntropyLoss()).forward_backward(batch(8, 0)).asnumpy()
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


class Distance(gluon.HybridBlock):
    """A hybridizable loss of a user: mean squared distance of the outputs (B, K) from a number (B,) or (B, 1)."""

    def hybrid_forward(self, F, output_BK, target):
        return F.mean(F.square(F.broadcast_sub(output_BK, F.reshape(target, shape=(-1, 1)))), axis=1)


WRAPPED = {
    "regression": lambda block: RegressionLoss(block, 1.5, 2.0),
    "class indices": IndexLabelLoss,
    "all arrays": AllArraysLoss,
}


@pytest.mark.parametrize("name", WRAPPED)
def test_losses_around_hybridizable_blocks_join_the_graph(name: str) -> None:
    together, apart = build(loss=WRAPPED[name](Distance())), build(loss=WRAPPED[name](Distance()))
    for first, second in zip(trained(together, fused=True), trained(apart, fused=False)):
        np.testing.assert_array_equal(first, second)
    executor = together._executors.train
    assert isinstance(executor, Pipelined) and executor.fused is not None
    assert executor.fused.takes(batch(8, 0))


@pytest.mark.parametrize("name", WRAPPED)
def test_losses_around_blocks_that_need_real_arrays_get_them(name: str) -> None:
    made = build(loss=WRAPPED[name](Touching()))
    executor = made._executors.train
    assert isinstance(executor, Pipelined) and executor.fused is not None
    assert not executor.fused.takes(batch(8, 0))
    assert np.isfinite(made.forward_backward(batch(8, 0)).asnumpy()).all()


def test_hooks_of_a_network_are_called() -> None:
    made, seen = build(), list[Tuple[int, ...]]()
    made.objective.network.register_forward_hook(lambda block, given, output: seen.append(output.shape))
    made.forward_backward(batch(8, 0))
    assert seen == [(8, 3)]


def test_sums_of_a_step_are_not_overwritten() -> None:
    """The recorder reads them some steps later."""
    made = build()
    first = made.forward_backward(batch(8, 0))
    before = first.asnumpy()
    made.forward_backward(batch(8, 1))
    nd.waitall()
    np.testing.assert_array_equal(first.asnumpy(), before)
