"""Activation recomputation computes the bits of a network that keeps its activations."""

import json
import os
import signal

import numpy as np
import pydantic
import pytest
import running

from mxtrain.engine.backend import autograd, gluon, mx, nd
from mxtrain.errors import ConfigError
from mxtrain.loss.losses import SoftmaxCrossEntropy
from mxtrain.metric.meter import Meter
from mxtrain.metric.metrics import Accuracy
from mxtrain.model.prepare import initialize
from mxtrain.parallel.objective import Objective
from mxtrain.parallel.recompute import RecomputedSegment, scale_of, with_masks_as_inputs, with_masks_as_outputs
from mxtrain.parallel.spec import Data, Hybrid, ModelParallel, Pipeline, Single
from mxtrain.training.network import hybridize
from mxtrain.types import Batch

nn = gluon.nn
SHAPE = (6,)


class Layer(gluon.HybridBlock):
    """Dense layer with batch norm, two kinds of dropout and a residual connection."""

    begins_stage = True

    def __init__(self, rate, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.dense, self.norm = nn.Dense(6, in_units=6), nn.BatchNorm(in_channels=6)
            self.drop, self.drop_rows = nn.Dropout(rate), nn.Dropout(rate, axes=(1,))

    def hybrid_forward(self, F, x):
        return self.drop_rows(self.drop(F.tanh(self.norm(self.dense(x))))) + x


class Tied(gluon.HybridBlock):
    """Four layers between two matrix products with one weight, which crosses all cuts."""

    def __init__(self, rate, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.weight = self.params.get("weight", shape=(6, 6))
            self.layers = nn.HybridSequential(prefix="")
            for number in range(4):
                self.layers.add(Layer(rate, prefix=f"layer{number}_"))
            self.out = nn.Dense(3, in_units=6, prefix="out_")

    def hybrid_forward(self, F, x, weight):
        table = F.identity(weight)
        return self.out(F.dot(self.layers(F.dot(x, table)), table))


def build(placement, rate=0.4, parts=1, network=None, batch_size=12):
    network = network or Tied(rate, prefix="tied_")
    network.initialize()
    network(nd.zeros((1, *SHAPE)))
    initialize(network, "xavier", 0, mx.cpu(0))
    hybridize(network)
    loss = SoftmaxCrossEntropy().build(3, training=True)
    return placement.build(Objective(network, loss, Meter({"accuracy": Accuracy()}, 3), SHAPE, batch_size), parts)


def batch(size=12, seed=0):
    rng = np.random.RandomState(seed)
    return Batch((nd.array(rng.randn(size, *SHAPE)),), (nd.array(rng.randint(0, 3, size)),), size)


def run(strategy, size=12):
    """Returns the sums, gradients and statistics of two steps."""
    arrays = []
    for step in range(2):
        mx.random.seed(step)
        arrays.append(strategy.forward_backward(batch(size, step)).asnumpy())
        arrays += [reduction.replicas[0].asnumpy() for reduction in strategy.reductions]
        arrays += [array.asnumpy() for name, array in strategy.values.items() if "running" in name]
    return arrays


def require_same(found, wanted):
    assert len(found) == len(wanted) > 20
    for one, other in zip(found, wanted):
        np.testing.assert_array_equal(one, other)


@pytest.fixture(scope="module")
def kept():
    """Results of one device that keeps its activations."""
    return run(build(Single()))


@pytest.mark.parametrize("recompute", [2, 5, "auto"])
def test_segments_compute_the_bits_of_kept_activations(recompute, kept):
    """Gradients follow from the random masks, and statistics would move twice if both passes wrote them."""
    require_same(run(build(Single(recompute=recompute))), kept)


def test_masks_are_drawn(kept):
    """The other tests would also pass if nothing was dropped."""
    assert not np.array_equal(run(build(Single(), rate=0.0))[0], kept[0])


@pytest.mark.parametrize(
    "kind, given",
    [(Data, {"devices": "cpu:2"}), (ModelParallel, {"stages": 2}), (Pipeline, {"stages": 2, "microbatches": 3})],
)
@pytest.mark.parametrize("recompute", [1, 2])
def test_each_placement_recomputes_the_bits_that_it_keeps(kind, given, recompute):
    if kind is Data and recompute == 1:
        recompute = 5  # on one stage a single segment would recompute nothing
    require_same(run(build(kind(recompute=recompute, **given))), run(build(kind(**given))))


def test_hybrid_placements_recompute_in_parts():
    given = {"microbatches": 2, "devices": "cpu:4"}
    require_same(run(build(Hybrid(recompute=2, **given), parts=2)), run(build(Hybrid(**given), parts=2)))


def test_accumulation_adds_the_gradients_of_all_parts():
    require_same(run(build(Single(recompute=3), parts=3)), run(build(Single(), parts=3)))


def segments_of(strategy):
    return [type(segment) for segment in strategy._executors.train.segments]


def test_the_last_segment_keeps_its_activations():
    kinds = segments_of(build(Single(recompute=3)))
    assert len(kinds) == 3 and [kind is RecomputedSegment for kind in kinds] == [True, True, False]


def operators_of(strategy):
    """Returns the operators of the recorded pass of each recomputed segment."""
    segments = strategy._executors.train.segments
    return [segment._second.operator for segment in segments if isinstance(segment, RecomputedSegment)]


def test_segments_that_are_alike_share_their_operators_and_so_their_memory():
    first, *others = operators_of(build(Single(recompute=5)))
    assert len(others) == 3 and set(others) == {others[0]} and first is not others[0]


def test_segments_of_another_dropout_share_nothing():
    unequal = Tied(0.4, prefix="tied_")
    unequal.layers[1].drop._rate = 0.3
    assert len(set(operators_of(build(Single(recompute=5), network=unequal)))) == 4


def test_layout_names_the_segments():
    segments = build(Single(recompute=5)).layout.segments
    assert segments.begins[0] == 0
    assert segments.layers[1:] == ["layers", "layers.1", "layers.2", "layers.3"]  # outermost layers that begin there


def test_stages_without_the_loss_recompute_all_of_their_segments():
    kinds = segments_of(build(ModelParallel(stages=2, recompute=1)))
    assert [kind is RecomputedSegment for kind in kinds] == [True, False]


DYING = """
import os, signal
from mxtrain.callback.protocol import Callback

class Dying(Callback):
    def on_checkpoint(self, step):
        if step == 8:
            os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_a_killed_run_continues_with_another_number_of_segments(train_run, tmp_path):
    """Kept activations, three segments until a kill, and the best number of them have the same bits."""
    words = (
        "model=lenet",
        "model.dropout=0.3",
        "model.batch_norm=true",
        "dataset.batch_size=100",
        "trainer.grad_accumulation=2",
        "trainer.max_epochs=2",
        "trainer.limit_train_batches=8",
        "checkpoint.every_steps=4",
    )
    _, kept = train_run(*words, run_dir=tmp_path / "kept")
    (tmp_path / "dying.py").write_text(DYING)
    env = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{running.ROOT}"}
    dying = ("parallel.recompute=3", "+callback.dying._target_=dying.Dying")
    running.Process(tmp_path / "run", *words, *dying, env=env).end(-signal.SIGKILL)
    made, resumed = train_run(*words, "checkpoint.resume=auto", "parallel.recompute=auto")
    assert made.info.resumed_step in (4, 8)
    assert resumed.step == kept.step == 16
    assert resumed.weights_sha256 == kept.weights_sha256 and resumed.metrics == kept.metrics


# Graphs.


def test_masks_repeat_a_dropout_to_the_bit():
    x = mx.sym.var("x")
    whole = mx.sym.Dropout(mx.sym.Dropout(x * 3, p=0.3, name="a"), p=0.7, axes=(0,), name="b") + 1
    graph = json.loads(whole.tojson(remove_amp_cast=False))
    first = mx.nd.CachedOp(mx.sym.load_json(json.dumps(with_masks_as_outputs(graph))))
    changed, count = with_masks_as_inputs(graph)
    second_symbol = mx.sym.load_json(json.dumps(changed))
    assert count == 2
    array = nd.random.uniform(-1, 1, (50, 40))
    with autograd.train_mode():
        output, *masks = first(array)
    assert [str(np.dtype(mask.dtype)) for mask in masks] == ["uint8", "uint8"] and masks[1].shape == (1, 40)
    arguments = {"x": array, **{f"recompute_mask{number}": mask for number, mask in enumerate(masks)}}
    array.attach_grad()
    with autograd.record():
        again = mx.nd.CachedOp(second_symbol)(*[arguments[name] for name in second_symbol.list_inputs()])
    again.backward()
    np.testing.assert_array_equal(again.asnumpy(), output.asnumpy())
    kept = (masks[0].asnumpy() * masks[1].asnumpy()).astype(bool)
    np.testing.assert_array_equal(array.grad.asnumpy() != 0, kept)
    assert 0.1 < kept.mean() < 0.35


@pytest.mark.parametrize("rate", [0.1, 0.25, 0.5, 0.77])
def test_scale_is_that_of_mxnet(rate):
    with autograd.train_mode():
        values = nd.Dropout(nd.ones((200,)), p=rate).asnumpy()
    assert set(values.tolist()) == {0.0, scale_of(rate)}


# Errors.


class Noise(gluon.HybridBlock):
    begins_stage = True

    def hybrid_forward(self, F, x):
        return x + F.random.normal_like(x)


def noisy():
    network = nn.HybridSequential(prefix="noisy_")
    with network.name_scope():
        network.add(
            nn.Dense(6, in_units=6), Noise(prefix="noise_"), Layer(0.0, prefix="layer_"), nn.Dense(3, in_units=6)
        )
    return network


class Flattens(gluon.Block):
    """Cannot be traced: it looks at real arrays."""

    def forward(self, x):
        return x.reshape((x.shape[0], -1))


def untraceable():
    network = nn.Sequential()
    network.add(nn.Dense(6, in_units=6), Flattens(), nn.Dense(3, in_units=6))
    return network


@pytest.mark.parametrize(
    "recompute, network, words",
    [
        (1, None, ["parallel.recompute=1", "the last segment is not recomputed", "at least 2"]),
        (9, None, ["parallel.recompute=9", "into 5 segments at most", "parallel.recompute=auto"]),
        (3, noisy, ["layer '1'", "_random_normal_like", "parallel.recompute=off"]),
        (2, untraceable, ["parallel.recompute=2 needs the network as a graph"]),
    ],
)
def test_networks_that_cannot_be_recomputed_are_refused(recompute, network, words):
    with pytest.raises(ConfigError) as error:
        build(Single(recompute=recompute), network=network() if network else None)
    assert all(word in str(error.value) for word in words), error.value


def test_synchronised_batch_norms_are_refused():
    with pytest.raises(pydantic.ValidationError, match="recompute=2 with batch_norm=global"):
        Data(devices="cpu:2", recompute=2, batch_norm="global")
