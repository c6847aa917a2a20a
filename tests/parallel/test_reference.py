"""The reference of `verify`, against NumPy and against its own sources."""

from __future__ import annotations

import ast
import inspect
from typing import Any, List

import numpy as np
import pytest
from id_networks import FIELDS, NUMBERS, build_network
from id_networks import batch as id_batch

from mxtrain.engine.backend import gluon, mx, nd
from mxtrain.metric.meter import LossWeights, Meter
from mxtrain.model.parameters import distinct_parameters
from mxtrain.parallel import reference as module
from mxtrain.parallel.objective import Objective
from mxtrain.parallel.reference import BatchDivision, Reference, divide
from mxtrain.types import Batch


class WeightedSquares(gluon.HybridBlock):
    """(output (B, 1), target (B,), weight (B,)) -> weighted squared error (B,), weight (B,)."""

    def hybrid_forward(self, F, output, target, weight):
        return weight * F.square(output.reshape((-1,)) - target), weight


def test_reference_imports_no_training_code() -> None:
    """No strategy, executor, store or training step; `Strategy` is the protocol."""
    tree = ast.parse(inspect.getsource(module))
    used = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
    parallel = {name for name in used if name.startswith("mxtrain.parallel")}
    assert parallel == {f"mxtrain.parallel.{name}" for name in ("base", "chain", "cut", "objective")}
    assert not any(name.startswith(("mxtrain.kvstore", "mxtrain.training")) for name in used)


@pytest.mark.parametrize("dtype, tolerance", [("float64", 1e-6), ("float32", 1e-5)])
@pytest.mark.parametrize("clip", [None, 0.05])
def test_weighted_mean_and_momentum_as_in_numpy(dtype: str, tolerance: float, clip: Any) -> None:
    rng = np.random.RandomState(0)
    network = gluon.nn.Dense(1, in_units=3, use_bias=False)
    network.initialize()
    network.cast(dtype)
    objective = Objective(network, WeightedSquares(), Meter({}, 1, LossWeights(are_given=True), training=True), (3,), 7)
    optimizer, division = mx.optimizer.SGD(momentum=0.9, wd=0.01), BatchDivision(2, 2, 2, 2, "per_device")
    made = Reference(objective, division, optimizer, {"weight": (1.0, 1.0)}, clip)
    # Rates and the sum of the weights are float32 in either precision.
    weight_U, momentum_U = network.weight.data().asnumpy()[0].astype(np.float64), np.zeros(3)
    for _ in range(3):
        x_BU, y_B, w_B = rng.randn(7, 3), rng.randn(7), rng.rand(7)
        made.step(Batch((nd.array(x_BU, dtype=dtype),), tuple(nd.array(a, dtype=dtype) for a in (y_B, w_B)), 7), 0.1)
        gradient_U = 2 * (w_B * (x_BU @ weight_U - y_B)) @ x_BU / w_B.sum()
        if clip is not None:
            gradient_U *= min(clip / (np.linalg.norm(gradient_U) + 1e-6), 1)
        momentum_U = 0.9 * momentum_U - 0.1 * (gradient_U + 0.01 * weight_U)
        weight_U = weight_U + momentum_U
        np.testing.assert_allclose(made.gradients["weight"].asnumpy()[0], gradient_U, rtol=tolerance, atol=tolerance)
        np.testing.assert_allclose(made.values["weight"].asnumpy()[0], weight_U, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    "batch_norm, wanted",
    [
        ("per_device", [[[0, 1], [3, 4], [6]], [[2], [5], [7]], [[8, 9], [11], [13]], [[10], [12], [14]]]),
        ("replicas", [[[0, 1, 2, 8, 9, 10], [3, 4, 5, 11, 12], [6, 7, 13, 14]]]),
        ("global", [[[0, 1, 2, 8, 9, 10], [3, 4, 5, 11, 12], [6, 7, 13, 14]]]),
    ],
)
def test_batch_norms_have_the_samples_of_the_placement(batch_norm: str, wanted: List[List[List[int]]]) -> None:
    """15 samples of 2 workers x 3 parts x 2 replicas: the workers have 8 and 7, in parts of 3, 3, 2 and 3, 2, 2."""
    found = BatchDivision(2, 3, 2, 1, batch_norm).copies(15)
    assert [[[r for rows in shards for r in range(*rows)] for shards in passes] for passes in found] == wanted


@pytest.mark.parametrize(
    "batch_norm, wanted",
    [
        ("replicas", [[[0, 1, 4, 5], [2, 3, 6]]]),
        ("global", [[[0, 1, 2, 3, 4, 5, 6]]]),
    ],
)
def test_equally_numbered_microbatches_share_batch_norms(batch_norm: str, wanted: List[List[List[int]]]) -> None:
    found = BatchDivision(1, 1, 2, 2, batch_norm).copies(7)
    assert [[[r for rows in shards for r in range(*rows)] for shards in passes] for passes in found] == wanted


def test_moving_statistics_are_the_mean_over_copies() -> None:
    rng = np.random.RandomState(1)
    network = gluon.nn.HybridSequential()
    network.add(gluon.nn.BatchNorm(in_channels=2, momentum=0.5), gluon.nn.Dense(1, in_units=2))
    network.initialize()
    network.cast("float64")
    objective = Objective(network, WeightedSquares(), Meter({}, 1, LossWeights(are_given=True), training=True), (2,), 8)
    names = ["0.gamma", "0.beta", "1.weight", "1.bias"]
    made = Reference(
        objective, BatchDivision(1, 1, 2, 2, "per_device"), mx.optimizer.SGD(), dict.fromkeys(names, (1.0, 1.0))
    )
    x_BC = rng.randn(8, 2)
    ones = nd.ones((8,), dtype="float64")
    made.step(Batch((nd.array(x_BC, dtype="float64"),), (ones, ones), 8), 0.1)
    wanted = np.zeros(2)
    for replica in (x_BC[:4], x_BC[4:]):  # two microbatches each
        mean = 0.5 * (0.5 * 0 + 0.5 * replica[:2].mean(0)) + 0.5 * replica[2:].mean(0)
        wanted += mean / 2
    np.testing.assert_allclose(made.values["0.running_mean"].asnumpy(), wanted, rtol=1e-12)


def test_rows_that_a_batch_does_not_read_rest_in_a_lazy_update() -> None:
    network = build_network(True)
    from mxtrain.loss.losses import SoftmaxCrossEntropy

    loss = SoftmaxCrossEntropy().build(3, training=True)
    objective = Objective(network, loss, Meter({}, 3), ((FIELDS,), (NUMBERS,)), 8)
    names = [name for name in distinct_parameters(network)]
    made = Reference(
        objective,
        BatchDivision(1, 1, 2, 1, "per_device"),
        mx.optimizer.Adam(wd=0.1),
        dict.fromkeys(names, (1.0, 1.0)),
        lazy=True,
    )
    before = {name: array.asnumpy() for name, array in made.values.items()}
    batch = id_batch(0)
    made.step(batch, 0.1)
    read = np.unique(batch.inputs[0].asnumpy())
    for name in ("first.weight", "second.weight"):
        moved = (made.values[name].asnumpy() != before[name]).any(axis=1)
        assert moved[read].all() and moved.sum() == len(read)


@pytest.mark.parametrize("count, parts, sizes", [(7, 3, [3, 2, 2]), (2, 4, [1, 1]), (0, 2, []), (6, 2, [3, 3])])
def test_division(count: int, parts: int, sizes: List[int]) -> None:
    found = divide((10, 10 + count), parts)
    assert [end - begin for begin, end in found] == sizes
    assert [row for begin, end in found for row in range(begin, end)] == list(range(10, 10 + count))


class Skipping(gluon.HybridBlock):
    """A tensor that passes over a cut, and a head that is made before it."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.first, self.second = gluon.nn.Dense(4, in_units=4), gluon.nn.Dense(4, in_units=4)
            self.norm, self.last = gluon.nn.BatchNorm(in_channels=4), gluon.nn.Dense(1, in_units=4)

    def hybrid_forward(self, F, x):
        early = F.tanh(self.first(x))
        return self.last(early + self.norm(self.second(early)) * early)


@pytest.mark.parametrize("cut_before", [["second"], ["last"], ["second", "norm", "last"]])
def test_network_in_pieces_equals_the_whole_network(cut_before: List[str]) -> None:
    rng = np.random.RandomState(0)
    whole, cut = Skipping(), Skipping()
    for network in (whole, cut):
        mx.random.seed(1)
        network.initialize(mx.init.Normal(0.5))
        network.hybridize()
        network.cast("float64")
    made = []
    for network, layers in ((whole, []), (cut, cut_before)):
        meter = Meter({}, 1, LossWeights(are_given=True), training=True)
        objective = Objective(network, WeightedSquares(), meter, (4,), 8)
        multipliers = dict.fromkeys(distinct_parameters(network), (1.0, 1.0))
        division = BatchDivision(1, 1, 1, 2, "per_device")
        made.append(Reference(objective, division, mx.optimizer.SGD(), multipliers, cut_before=layers))
    for _ in range(2):
        arrays = [nd.array(array, dtype="float64") for array in (rng.randn(8, 4), rng.randn(8), rng.rand(8))]
        for one in made:
            one.step(Batch((arrays[0],), tuple(arrays[1:]), 8), 0.1)
    for name, array in made[0].values.items():
        found = made[1].values[name].asnumpy()
        np.testing.assert_allclose(found, array.asnumpy(), rtol=1e-12, atol=1e-12, err_msg=name)
        if name in made[0].gradients:
            assert np.abs(made[0].gradients[name].asnumpy()).max() > 1e-6 or name == "second.bias"
