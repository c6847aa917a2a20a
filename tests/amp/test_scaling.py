"""The loss scale: steps whose gradients overflow change nothing, all others change what they would without a scale."""

from __future__ import annotations

import json
import threading

import numpy as np
import pytest

from mxtrain.amp.scaling import DynamicScaling, NoScaling
from mxtrain.engine.backend import gluon, mx, nd
from mxtrain.kvstore.mxnet_store import MXNetStore
from mxtrain.loss.losses import SoftmaxCrossEntropy
from mxtrain.metric.meter import Meter
from mxtrain.metric.metrics import Accuracy
from mxtrain.model.prepare import initialize
from mxtrain.optimizer.ema import build_average
from mxtrain.optimizer.updater import Updater
from mxtrain.parallel.objective import Objective
from mxtrain.parallel.spec import Data, Hybrid, Single
from mxtrain.training.network import hybridize
from mxtrain.training.step import TrainingStep
from mxtrain.types import Batch

nn = gluon.nn
HUGE = 2.0**140  # no float32 gradient is finite times that


pytestmark = pytest.mark.usefixtures("own_cache")


def step(scaling, placement=None, clip=None):
    network = nn.HybridSequential()
    network.add(nn.Dense(8), nn.BatchNorm(), nn.Activation("tanh"), nn.Dense(3))
    network.initialize()
    network(nd.zeros((1, 4)))
    initialize(network, "xavier", 0, mx.cpu(0))
    loss = SoftmaxCrossEntropy().build(3, training=True)
    strategy = (placement or Single()).build(
        Objective(hybridize(network), loss, Meter({"accuracy": Accuracy()}, 3), (4,), 8), 1
    )
    weights = {name: strategy.values[name] for name in strategy.trainable}
    updater = Updater(mx.optimizer.Adam(), weights, dict.fromkeys(weights, (1.0, 1.0)))
    average = build_average(0.0, strategy.values, strategy.publish)
    return TrainingStep(strategy, MXNetStore("local"), updater, average, clip, None, scaling)


def batch(number):
    rng = np.random.RandomState(number)
    return Batch((nd.array(rng.randn(8, 4)),), (nd.array(rng.randint(0, 3, 8)),), 8)


def values(made):
    return {name: array.asnumpy() for name, array in made.strategy.values.items()}


@pytest.mark.parametrize("clip", [None, 0.1])
@pytest.mark.parametrize(
    "placement",
    [Single(), Data(devices="cpu:2"), Hybrid(microbatches=2), Hybrid(microbatches=2, batch_norm="global")],
)
def test_loss_scale_keeps_weights_bit_exact(placement, clip):
    """A power of two; clipping sees gradients without it."""
    plain, scaled = step(NoScaling(), placement, clip), step(DynamicScaling(1024.0, 2), placement, clip)
    for number in range(1, 5):
        for made in (plain, scaled):
            made(batch(number), 0.1, number)
    assert scaled.scaling.scale == 4096.0
    wanted, found = values(plain), values(scaled)
    assert all((wanted[name] == found[name]).all() for name in wanted)


def test_overflow_skips_the_step_and_halves_the_scale():
    made = step(DynamicScaling(HUGE, 100, largest=HUGE), Data(devices="cpu:2"))
    before, states = values(made), {name: array.asnumpy() for name, array in made.updater.arrays().items()}
    sums = made(batch(1), 0.1, 1)
    assert 0 < sums[0].asscalar() < 8 * 10 and 0 <= sums[1].asscalar() <= 8  # its row is written all the same
    assert made.scaling.scale == HUGE / 2 and made.scaling.scalars()["train/skipped_steps"] == 1
    after = values(made)
    assert all((before[name] == after[name]).all() for name in before)  # moving statistics, too
    assert all((array.asnumpy() == states[name]).all() for name, array in made.updater.arrays().items())
    assert set(made.updater.numbers()["update_counts"].values()) == {0}
    copies = list(made.strategy.other_copies())
    assert copies and all((copy.asnumpy() == before[name]).all() for name, copy in copies)


class Gate(mx.operator.CustomOp):
    """Reads its input once it is opened."""

    opened = threading.Event()

    def forward(self, is_train, req, in_data, out_data, aux):
        assert self.opened.wait(30)
        self.assign(out_data[0], req[0], in_data[0])


@mx.operator.register("mxtrain_test_late_reader")
class GateProperties(mx.operator.CustomOpProp):
    def create_operator(self, ctx, in_shapes, in_dtypes):
        return Gate()


@pytest.mark.slow
@pytest.mark.parametrize("placement", [Single(), Data(devices="cpu:2")])
def test_skipped_step_keeps_statistics_that_are_still_being_copied(placement, monkeypatch):
    """Simulates GPUs, where copies run in threads of their own and cuDNN's forward pass writes arrays that MXNet's
    engine takes for read. Without the guards the late copies hold the new values."""
    made = step(DynamicScaling(HUGE, 100, largest=HUGE), placement)
    assert not made.strategy._executors.train.guards  # on CPUs
    made.strategy._executors.train.guards = made.strategy._executors.dependencies(of_readers=True)
    before, plain = values(made), nd.NDArray.copy
    monkeypatch.setattr(nd.NDArray, "copy", lambda array: nd.Custom(array, op_type="mxtrain_test_late_reader"))
    Gate.opened.clear()
    opens, reduce = threading.Timer(0.5, Gate.opened.set), made.store.reduce
    # Once both passes are in the engine: half a second for what does not wait.
    monkeypatch.setattr(made.store, "reduce", lambda reductions: (opens.start(), reduce(reductions)))
    made(batch(1), 0.1, 1)
    opens.join()
    monkeypatch.setattr(nd.NDArray, "copy", plain)
    after = values(made)
    assert made.scaling.to_json()["num_skipped"] == 1 and len(made._saved_statistics) == 2
    assert all((before[name] == after[name]).all() for name in before)


def test_an_overflow_on_one_replica_counts_for_all():
    made = step(DynamicScaling(1.0, 100), Data(devices="cpu:2"))
    before = values(made)
    data = batch(1)
    data.inputs[0][7] = np.inf  # of the second replica
    made(data, 0.1, 1)
    assert made.scaling.to_json()["num_skipped"] == 1
    after = values(made)
    assert all((before[name] == after[name]).all() for name in before)
    replicas = [one.replicas for one in made.strategy.reductions]
    made(batch(2), 0.1, 2)
    assert all(np.isfinite(array.asnumpy()).all() for arrays in replicas for array in arrays)
    assert any((values(made)[name] != before[name]).any() for name in before)


def test_the_scale_continues_from_json():
    one = DynamicScaling(1024.0, 3)
    fine, bad = [nd.ones((2,))], [nd.array([np.inf, 1.0])]
    assert one.unscale([fine[0].copy()]) and not one.unscale(bad) and one.unscale([fine[0].copy()])
    two = DynamicScaling(8.0, 3)
    two.restore(json.loads(json.dumps(one.to_json())))
    for scaling in (one, two):
        gradient = fine[0].copy()
        assert scaling.unscale([gradient]) and (gradient.asnumpy() == 1 / 512).all()
        scaling.unscale([fine[0].copy()])
        assert scaling.scale == 1024.0


def test_the_scale_stays_within_its_bounds():
    made = DynamicScaling(8.0, 1, smallest=4.0, largest=16.0)
    scales = []
    for value in (1.0, 1.0, 1.0, np.inf, np.nan, np.inf, 1.0):
        made.unscale([nd.array([value])])
        scales.append(made.scale)
    assert scales == [16.0, 16.0, 16.0, 8.0, 4.0, 4.0, 8.0]
    assert made.to_json() == {"scale": 8.0, "good_steps": 0, "num_skipped": 3}
