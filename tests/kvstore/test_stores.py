"""MXNet's stores as a sum over replicas."""

import numpy as np
import pytest
from nccl_rules import NCCLRules

from mxtrain.engine.backend import gluon, mx, nd
from mxtrain.errors import ConfigError
from mxtrain.kvstore.reduction import Reduction
from mxtrain.kvstore.spec import NCCL, Device, Local
from mxtrain.loss.losses import SoftmaxCrossEntropy
from mxtrain.metric.meter import Meter
from mxtrain.parallel.objective import Objective
from mxtrain.parallel.spec import Data, Hybrid, ModelParallel
from mxtrain.training.network import hybridize
from mxtrain.types import Batch


@pytest.fixture
def nccl_rules(monkeypatch):
    """`kvstore=nccl` on CPUs, by MXNet's rules for it."""
    create = mx.kv.create
    monkeypatch.setattr(mx.kv, "create", lambda kind: NCCLRules() if kind == "nccl" else create(kind))
    monkeypatch.setattr("mxtrain.kvstore.mxnet_store.require_nccl", lambda: None)


def reductions(replicas, seed, shapes=((3, 4), (5,), (2, 2, 2))):
    rng = np.random.RandomState(seed)
    return [
        Reduction(str(i), [nd.array(rng.randn(*shape), ctx=mx.cpu(r)) for r in range(replicas)], i % replicas)
        for i, shape in enumerate(shapes)
    ]


def refill(made, seed):
    for old, new in zip(made, reductions(len(made[0].replicas), seed)):
        for a, b in zip(old.replicas, new.replicas):
            b.copyto(a)


@pytest.mark.parametrize("replicas", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", [Local, Device, NCCL])
def test_the_owner_gets_the_sum_in_every_step(kind, replicas, nccl_rules):
    store, made = kind().build(), reductions(replicas, 0)
    for seed in range(3):
        refill(made, seed)
        wanted = [np.sum([array.asnumpy() for array in one.replicas], axis=0, dtype=np.float64) for one in made]
        store.reduce(made)
        for one, value in zip(made, wanted):
            np.testing.assert_allclose(one.replicas[one.owner].asnumpy(), value, rtol=1e-6, atol=1e-6)


def test_the_sum_of_two_is_exact(nccl_rules):
    for kind in (Local, Device, NCCL):
        made = reductions(2, 1)
        wanted = [one.replicas[0].asnumpy() + one.replicas[1].asnumpy() for one in made]
        kind().build().reduce(made)
        for one, value in zip(made, wanted):
            np.testing.assert_array_equal(one.replicas[one.owner].asnumpy(), value)


class Small(gluon.nn.HybridSequential):
    """Three layers, without anything random."""

    def __init__(self):
        super().__init__(prefix="small_")
        with self.name_scope():
            self.add(*(gluon.nn.Dense(size, in_units=before) for size, before in ((6, 4), (5, 6), (3, 5))))


@pytest.mark.parametrize(
    "placement",
    [Data(devices="cpu:2"), Data(devices="cpu:4"), ModelParallel(stages=2), Hybrid(replicas=2, stages=2)],
    ids=["2 replicas", "4 replicas", "2 stages", "2 replicas of 2 stages"],
)
def test_nccl_calls_are_supported_under_every_placement(placement, nccl_rules, own_cache):
    """Two steps; the sums are those of `local`, to the bit. Stages have devices of their own, and NCCL one set."""
    rng = np.random.RandomState(0)
    batch = Batch((nd.array(rng.randn(8, 4)),), (nd.array(rng.randint(0, 3, 8)),), 8)

    def sums(kind):
        mx.random.seed(0)
        network = Small()
        network.initialize(mx.init.Xavier())
        objective = Objective(hybridize(network), SoftmaxCrossEntropy().build(3, training=True), Meter({}, 3), (4,), 8)
        strategy, store = placement.build(objective, 1), kind().build()
        for _ in range(2):
            strategy.forward_backward(batch)
            store.reduce(strategy.reductions)
        return [one.replicas[one.owner].asnumpy() for one in strategy.reductions]

    for found, wanted in zip(sums(NCCL), sums(Local)):
        assert np.abs(wanted).max() > 0
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    "ask, said",
    [
        (lambda store, a: store.pull([0], [a[:1]]), "single set of devices"),  # what `local` is asked for
        (lambda store, a: store.push([1], [[a[1], nd.ones(2, ctx=mx.cpu(2))]]), "single set of devices"),
        (lambda store, a: (store.init([9], [nd.ones(2)]), store.push([9], [a])), "after the first sum"),
        (lambda store, a: store.set_gradient_compression({"type": "2bit"}), "compression"),
        (lambda store, a: store.pushpull([0], [[one.astype("int8") for one in a]], [a]), "Unknown type"),
        (lambda store, a: (store.push([1], [a[1:]]), store.pull([1], [a])), "lies on device 1"),
    ],
)
def test_nccl_rules_refuse_the_same_calls_as_mxnet(ask, said):
    arrays = [nd.ones(2, ctx=mx.cpu(device)) for device in range(2)]
    store = NCCLRules()
    store.init([0, 1], [nd.zeros(2), nd.zeros(2)])
    store.pushpull([0, 1], [arrays, arrays], [arrays, arrays])
    with pytest.raises(mx.MXNetError, match=said):
        ask(store, arrays)


def test_2bit_sends_thresholds_and_keeps_residuals():
    store, made = Device(compression="2bit", threshold=0.5).build(), reductions(2, 0)
    left = [[np.zeros(array.shape, np.float32) for array in one.replicas] for one in made]
    for seed in range(4):
        refill(made, seed)
        wanted = []
        for one, rest in zip(made, left):
            wish = [array.asnumpy() + over for array, over in zip(one.replicas, rest)]
            sent = [0.5 * ((value >= 0.5).astype(np.float32) - (value <= -0.5)) for value in wish]
            rest[:] = [value - part for value, part in zip(wish, sent)]
            wanted.append(sum(sent))
        store.reduce(made)
        for one, value in zip(made, wanted):
            np.testing.assert_allclose(one.replicas[one.owner].asnumpy(), value, atol=1e-6)


def test_impossible_settings_are_refused():
    with pytest.raises(ConfigError, match="built without NCCL"):
        NCCL().build()
    assert "NVIDIA GPUs only" in NCCL().unsupported_reason("cpu:2")
    assert "kvstore.threshold" in Device(compression="2bit").unsupported_reason("auto")
    assert "links between GPUs" in Device(tree=True).unsupported_reason("cpu:2")
