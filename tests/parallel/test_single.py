"""One device: what accumulation, clipping and the seeding of a step promise."""

import numpy as np
import pytest

from mxtrain.engine.backend import autograd, gluon, mx, nd
from mxtrain.errors import ConfigError
from mxtrain.kvstore.store import Store
from mxtrain.loss.losses import SoftmaxCrossEntropy
from mxtrain.metric.meter import Meter
from mxtrain.metric.metrics import Accuracy
from mxtrain.model.parameters import distinct_parameters
from mxtrain.optimizer.clipping import multiply, norm_and_limit
from mxtrain.parallel.layout import split
from mxtrain.parallel.objective import Objective
from mxtrain.parallel.spec import Data, Pipeline, Single
from mxtrain.training.network import hybridize
from mxtrain.training.step import TrainingStep
from mxtrain.types import Batch


def batch(size, seed=0):
    rng = np.random.RandomState(seed)
    return Batch((nd.array(rng.randn(size, 6)),), (nd.array(rng.randint(0, 3, size)),), size)


def strategy(parts, dropout=0.0):
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(8, activation="tanh", in_units=6), gluon.nn.Dropout(dropout), gluon.nn.Dense(3, in_units=8))
    mx.random.seed(3)
    net.initialize(mx.init.Xavier())
    net.hybridize(static_alloc=True, static_shape=True)
    loss = SoftmaxCrossEntropy().build(3, training=True)
    return Single().build(Objective(net, loss, Meter({"accuracy": Accuracy()}, 3), (6,), 16), parts)


def gradients(made):
    return [reduction.replicas[0].asnumpy() for reduction in made.reductions]


@pytest.mark.parametrize("size, parts, sizes", [(8, 3, [3, 3, 2]), (2, 5, [1, 1]), (7, 1, [7]), (6, 3, [2, 2, 2])])
def test_split_keeps_all_samples(size, parts, sizes):
    one = batch(size)
    got = list(split(one, parts))
    assert [part.size for part in got] == sizes
    np.testing.assert_array_equal(np.concatenate([part.inputs[0].asnumpy() for part in got]), one.inputs[0].asnumpy())


@pytest.mark.parametrize("size", [16, 13, 2])
def test_accumulation_equals_the_large_batch(size):
    whole, parted = strategy(1), strategy(3)
    for step in range(3):  # a second step must not see the first one's gradients
        sums = whole.forward_backward(batch(size, step)).asnumpy()
        np.testing.assert_allclose(parted.forward_backward(batch(size, step)).asnumpy(), sums, rtol=1e-5)
        for a, b in zip(gradients(whole), gradients(parted)):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-7)


def test_gradients_are_of_the_mean_loss():
    made, one = strategy(1), batch(10)
    made.forward_backward(one)
    with autograd.record():
        loss = gluon.loss.SoftmaxCELoss()(made.objective.network(*one.inputs), *one.targets).mean()
    ours = gradients(made)
    loss.backward()
    for mine, parameter in zip(ours, [dict(distinct_parameters(made.objective.network))[n] for n in made.trainable]):
        np.testing.assert_allclose(mine, parameter.grad().asnumpy(), rtol=1e-5, atol=1e-8)


def test_frozen_parameters_get_no_gradient():
    net = gluon.nn.Dense(3, in_units=6)
    net.initialize()
    net.weight.grad_req = "null"
    made = Single().build(Objective(net, SoftmaxCrossEntropy().build(3, True), Meter({}, 3), (6,), 8), 1)
    assert made.trainable == ["bias"] and set(made.values) == {"weight", "bias"}


def test_bias_of_a_frozen_dense_layer_still_learns():
    """MXNet leaves its gradient at 0 when the weight has none."""
    from mxtrain.model.parameters import freeze

    free, frozen = strategy(1), strategy(1)
    freeze(frozen.objective.network, ["*.weight"])
    frozen = Single().build(frozen.objective, 1)
    assert frozen.trainable == ["0.bias", "2.bias"]
    free.forward_backward(batch(8))
    frozen.forward_backward(batch(8))
    by_name = dict(zip(free.trainable, gradients(free)))
    for name, gradient in zip(frozen.trainable, gradients(frozen)):
        assert gradient.any()
        np.testing.assert_allclose(gradient, by_name[name], rtol=1e-5, atol=1e-8)


def test_clipping_by_global_norm_equals_gluon():
    arrays = [
        np.random.RandomState(i).randn(*shape).astype("float32") for i, shape in enumerate([(3, 4), (5,), (2, 2, 2)])
    ]
    for max_norm in (0.5, 1e3):
        mine, theirs = [nd.array(a) for a in arrays], [nd.array(a) for a in arrays]
        norm, factor = norm_and_limit(mine, max_norm)
        multiply(mine, factor)
        expected = gluon.utils.clip_global_norm(theirs, max_norm)
        assert float(norm.asscalar()) == pytest.approx(expected, rel=1e-5)
        for a, b in zip(mine, theirs):
            np.testing.assert_allclose(a.asnumpy(), b.asnumpy(), rtol=1e-4)


def test_dropout_is_a_function_of_seed_and_step():
    made = strategy(1, dropout=0.5)
    step = TrainingStep(made, Store(), None, None, None, random_seed=7)

    def gradient_of(number):
        step.seed_random(number)
        made.forward_backward(batch(8))
        return gradients(made)[0]

    first, second = gradient_of(1), gradient_of(2)
    mx.random.uniform(shape=(100,))
    np.testing.assert_array_equal(gradient_of(1), first)
    assert (first != second).any()


@pytest.mark.parametrize("devices", ["cpu:2", "gpu:1"])
def test_devices_that_do_not_fit_are_refused(devices):
    if devices.startswith("gpu") and mx.context.num_gpus():
        pytest.skip("there is a GPU")
    with pytest.raises(ConfigError, match="Type parallel.devices=cpu:1"):
        Single(devices=devices).resolve_devices()


@pytest.mark.parametrize(
    "placement",
    [Single(), Data(devices="cpu:2"), Pipeline(devices="cpu:2", microbatches=4)],
    ids=["single", "data", "pipeline"],
)
def test_moving_statistics_are_written_before_the_next_read(placement, tmp_path, monkeypatch):
    """With MXNet's static_shape alone they are not: its engine doesn't know that a backward pass writes them."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    net = gluon.nn.HybridSequential()
    for _ in range(6):
        net.add(gluon.nn.Conv2D(16, 3, padding=1), gluon.nn.BatchNorm())
    net.add(gluon.nn.Dense(3))
    net.initialize()
    data = nd.random.normal(shape=(32, 3, 16, 16))
    net(data)
    loss = SoftmaxCrossEntropy().build(3, training=True)
    made = placement.build(Objective(hybridize(net), loss, Meter({"accuracy": Accuracy()}, 3), (3, 16, 16), 32), 1)
    statistic = made.values["1.running_mean"]
    for _ in range(5):
        statistic[:] = 0
        nd.waitall()
        made.forward_backward(Batch((data,), (nd.zeros(32),), 32))
        read_at_once = statistic.copy().asnumpy()  # a copy is an operator: it waits for what the engine knows of
        nd.waitall()
        np.testing.assert_array_equal(read_at_once, statistic.asnumpy())
        assert read_at_once.any()
