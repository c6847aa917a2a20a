"""Every placement computes what one device computes."""

import json

import numpy as np
import pytest

from mxtrain.engine.backend import gluon, mx, nd
from mxtrain.errors import ConfigError
from mxtrain.kvstore.store import Store
from mxtrain.kvstore.world import World
from mxtrain.loss.losses import SoftmaxCrossEntropy
from mxtrain.metric.meter import Meter
from mxtrain.metric.metrics import Accuracy
from mxtrain.model.networks.classifier import build_mlp, build_resnet
from mxtrain.model.prepare import initialize
from mxtrain.parallel.balance import find_candidates
from mxtrain.parallel.cut import Graph
from mxtrain.parallel.objective import Objective
from mxtrain.parallel.spec import Data, Hybrid, ModelParallel, Pipeline, Single
from mxtrain.training.network import hybridize
from mxtrain.types import Batch

nn = gluon.nn
SHAPE = (3, 8, 8)


pytestmark = pytest.mark.usefixtures("own_cache")


class Skips(gluon.HybridBlock):
    """Tensors that jump over cuts, a tensor read by several later layers, a layer with two outputs."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.a, self.b, self.c = nn.Conv2D(4, 3, padding=1), nn.Conv2D(4, 3, padding=1), nn.Conv2D(8, 3, padding=1)
            self.out = nn.Dense(3)

    def hybrid_forward(self, F, x):
        a = F.tanh(self.a(x))
        b = F.tanh(self.b(a)) + a
        left, right = F.split(self.c(F.concat(b, a, x, dim=1)), num_outputs=2)
        return self.out(F.concat(left * b, right + a, dim=1))


class Flattens(gluon.Block):
    """Cannot be traced: it looks at real arrays."""

    def forward(self, x):
        return x.reshape((x.shape[0], -1))


def imperative(normalised):
    """A network that is cut between its blocks; batch norms whose graphs are in flight together if normalised."""
    network, features = nn.Sequential(), nn.HybridSequential()
    features.add(nn.Conv2D(4, 3), *([nn.BatchNorm()] * normalised), nn.Activation("tanh"), nn.Conv2D(4, 3))
    network.add(features, Flattens(), nn.Dense(8, activation="tanh"), nn.Dense(3))
    return network


def normalised(norm, relu):
    """With norms of another kind than BatchNorm, one of them without a scale of its own."""
    network = nn.HybridSequential(prefix="normalised_")
    with network.name_scope():
        network.add(nn.Conv2D(4, 3), norm(), *relu, nn.Conv2D(6, 3), norm(scale=False), *relu, nn.Dense(3))
    return network


class ReadsItsMean(gluon.HybridBlock):
    """Uses a batch norm in a way that only one device can."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.norm, self.out = nn.BatchNorm(in_channels=3), nn.Dense(3, in_units=192)

    def hybrid_forward(self, F, x):
        norm = self.norm
        gamma, beta, mean, var = (p.var() for p in (norm.gamma, norm.beta, norm.running_mean, norm.running_var))
        y, batch_mean, _ = F.BatchNorm(x, gamma, beta, mean, var, output_mean_var=True)
        return self.out(F.broadcast_add(y, batch_mean.reshape((1, -1, 1, 1))))


NETWORKS = {
    "relu_norm": lambda: normalised(nn.BatchNormReLU, []),
    "sync_norm": lambda: normalised(
        lambda scale=True: gluon.contrib.nn.SyncBatchNorm(num_devices=3, scale=scale), [nn.Activation("relu")]
    ),
    "mlp": lambda: build_mlp(3, [16, 12, 8], "tanh", 0.0),
    "skips": lambda: Skips(prefix="skips_"),
    "resnet": lambda: build_resnet(3, [1, 1], [4, 8], False, 1, False),
    "imperative": lambda: imperative(False),
    "imperative_norm": lambda: imperative(True),
}
PLACEMENTS = {
    "data2": Data(devices="cpu:2"),
    "data3": Data(devices="cpu:3"),
    "model2": ModelParallel(stages=2),
    "model3": ModelParallel(stages=3),
    "pipeline2": Pipeline(stages=2, microbatches=4),
    "gpipe3": Pipeline(stages=3, microbatches=4, schedule="gpipe"),
    "hybrid2x2": Hybrid(microbatches=2),
}


def batch(size, seed=0):
    rng = np.random.RandomState(seed)
    return Batch((nd.array(rng.randn(size, *SHAPE)),), (nd.array(rng.randint(0, 3, size)),), size)


def build(kind, placement, parts=1, workers=None):
    network = NETWORKS[kind]()
    network.initialize()
    network(nd.zeros((1, *SHAPE)))
    initialize(network, "xavier", 0, mx.cpu(0))
    hybridize(network)
    loss = SoftmaxCrossEntropy().build(3, training=True)
    return placement.build(Objective(network, loss, Meter({"accuracy": Accuracy()}, 3), SHAPE, 12), parts, workers)


class Told(Store):
    """One of two workers, whom rank 0 tells where it has cut."""

    def __init__(self, layers):
        self.world, self.layers = World(1, 2), layers

    def broadcast(self, blob):
        assert blob is None
        return json.dumps(self.layers).encode()


@pytest.mark.slow
def test_workers_use_the_cut_of_rank_0():
    """Each measures by itself, and buckets of gradients follow from the cut: they would not fit each other."""
    own = build("resnet", ModelParallel(stages=2)).layout.cut_before
    others = [before for before in candidates() if before != own][:2]
    for layers in (own, *others):
        assert build("resnet", ModelParallel(stages=2), workers=Told(layers)).layout.cut_before == layers
    given = ModelParallel(stages=2, cut_before=others[0])
    assert build("resnet", given, workers=Told(others[1])).layout.cut_before == others[0]  # nobody is asked


def candidates():
    """Returns the places at which the network can be cut in two."""
    graph = Graph(NETWORKS["resnet"]())
    return [[graph.beginnings()[position]] for position in find_candidates(graph, 2)]


def summed_gradients(strategy):
    return [
        np.sum([array.asnumpy() for array in reduction.replicas], axis=0, dtype=np.float64)
        for reduction in strategy.reductions
    ]


def assert_close(found, wanted):
    for a, b in zip(found, wanted):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-6)


@pytest.mark.parametrize("size", [12, 7, 2, 1])
@pytest.mark.parametrize("kind", ["mlp", "skips", "imperative"])
@pytest.mark.parametrize("name", PLACEMENTS)
def test_gradients_and_sums_match_one_device(name, kind, size):
    one, grid = build(kind, Single()), build(kind, PLACEMENTS[name])
    assert [r.name for r in one.reductions] == [r.name for r in grid.reductions]
    for seed in range(2):  # a second step must not see the first one's gradients
        sums = one.forward_backward(batch(size, seed)).asnumpy()
        np.testing.assert_allclose(grid.forward_backward(batch(size, seed)).asnumpy(), sums, rtol=1e-5)
        assert_close(summed_gradients(grid), summed_gradients(one))


@pytest.mark.parametrize("name", PLACEMENTS)
def test_scores_match_one_device(name):
    one, grid = build("resnet", Single()), build("resnet", PLACEMENTS[name])
    for size in (12, 5, 1):
        (found,), (expected,) = (made.predict(batch(size).inputs) for made in (grid, one))
        np.testing.assert_allclose(found.asnumpy(), expected.asnumpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, kind",
    [
        ("data2", "resnet"),
        ("data3", "resnet"),
        ("pipeline2", "resnet"),
        ("gpipe3", "resnet"),
        ("hybrid2x2", "resnet"),
        ("hybrid2x2", "relu_norm"),
        ("hybrid2x2", "sync_norm"),
    ],
)
def test_global_batch_norm_equals_one_device(name, kind):
    one = build(kind, Single())
    grid = build(kind, PLACEMENTS[name].model_copy(update={"batch_norm": "global"}))
    for size in (12, 7):
        sums = one.forward_backward(batch(size)).asnumpy()
        np.testing.assert_allclose(grid.forward_backward(batch(size)).asnumpy(), sums, rtol=1e-4)
        assert_close(summed_gradients(grid), summed_gradients(one))
    for key in one.values:
        np.testing.assert_allclose(grid.values[key].asnumpy(), one.values[key].asnumpy(), rtol=1e-4, atol=1e-6)
        assert all((copy.asnumpy() == grid.values[key].asnumpy()).all() for copy in grid._parameters.copies[key])


def test_a_norm_that_cannot_be_joined_is_refused():
    network = ReadsItsMean(prefix="reads_")
    network.initialize()
    network.hybridize()
    meter = Meter({"accuracy": Accuracy()}, 3)
    loss = SoftmaxCrossEntropy().build(3, training=True)
    with pytest.raises(ConfigError, match=r"parallel\.batch_norm: layer '.*' \(BatchNorm\) keeps statistics"):
        Data(devices="cpu:2", batch_norm="global").build(Objective(network, loss, meter, SHAPE, 12), 1)


@pytest.mark.slow
def test_batch_norm_over_replicas_is_global_with_one_microbatch_each():
    over = build("resnet", Data(devices="cpu:2", batch_norm="replicas"))
    whole = build("resnet", Data(devices="cpu:2", batch_norm="global"))
    over.forward_backward(batch(7)), whole.forward_backward(batch(7))
    for a, b in zip(summed_gradients(over), summed_gradients(whole)):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("kind", ["resnet", "imperative_norm"])
@pytest.mark.parametrize("name, parts", [("data2", 2), ("pipeline2", 4), ("model2", 1)])
def test_batch_norm_per_device_is_that_of_each_share_by_itself(name, parts, kind):
    one, grid = build(kind, Single(), parts), build(kind, PLACEMENTS[name])
    one.forward_backward(batch(12))
    grid.forward_backward(batch(12))
    assert_close(summed_gradients(grid), summed_gradients(one))


def test_statistics_of_replicas_become_their_mean_after_each_step():
    grid = build("resnet", Data(devices="cpu:2"))
    halves = [batch(12).inputs[0][:6], batch(12).inputs[0][6:]]
    name = "features.1.running_mean"
    single = [build("resnet", Single()) for _ in halves]
    for one, half in zip(single, halves):
        one.forward_backward(Batch((half,), batch(6).targets, 6))
    grid.forward_backward(batch(12))
    wanted = (single[0].values[name].asnumpy() + single[1].values[name].asnumpy()) / 2
    for copy in grid._parameters.copies[name]:
        np.testing.assert_allclose(copy.asnumpy(), wanted, rtol=1e-6)


@pytest.mark.slow
def test_a_guard_before_each_forward_pass_of_a_device_changes_no_bit():
    """On GPUs each forward pass writes statistics and a device has several threads, so microbatches take turns."""
    plain, grid = (build("resnet", Hybrid(stages=2, microbatches=2)) for _ in range(2))
    assert not grid._executors.train.guards  # on CPUs
    guards, called = grid._executors.dependencies(of_readers=True), []

    def guard(replica):
        return lambda device: (called.append((replica, device)), guards[replica](device))

    grid._executors.train.guards = [guard(replica) for replica in range(2)]
    for number in range(3):
        for one in (plain, grid):
            one.forward_backward(batch(12, number))
    for name, value in plain.values.items():
        np.testing.assert_array_equal(grid.values[name].asnumpy(), value.asnumpy())
    for found, wanted in zip(summed_gradients(grid), summed_gradients(plain)):
        np.testing.assert_array_equal(found, wanted)
    devices = grid.layout.devices
    wanted = [(replica, device) for replica in range(2) for device in devices[replica]] * 2 * 3
    assert sorted(called, key=str) == sorted(wanted, key=str)


def test_each_parameter_lives_on_its_stage_and_each_replica_updates_its_share():
    grid = build("mlp", Hybrid(microbatches=2))
    devices = [{str(array.context) for array in copies} for copies in grid._parameters.copies.values()]
    assert {frozenset(found) for found in devices} == {
        frozenset({"cpu(0)", "cpu(2)"}),
        frozenset({"cpu(1)", "cpu(3)"}),
    }
    assert {reduction.owner for reduction in grid.reductions} == {0, 1}


def test_publish_reaches_all_replicas_and_gather_the_first_device():
    grid = build("mlp", Hybrid(microbatches=2))
    (data,) = batch(6).inputs
    for value in grid.values.values():
        value[:] = value * 2
    grid.publish()
    scores = grid.predict((data,))[0].asnumpy()
    network = grid.gather()
    np.testing.assert_allclose(network(data).asnumpy(), scores, rtol=1e-5)


def test_placements_that_cut_the_network_refuse_loss_functions():
    grid = build("mlp", Hybrid(microbatches=2))
    with pytest.raises(ConfigError, match="parallel.stages=2 cuts the network"):
        grid.network_on(0)
    assert build("mlp", Single()).network_on(0) is not None
