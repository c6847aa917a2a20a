"""Operators that compute in bfloat16; everything else is unaware of it."""

from __future__ import annotations

import json

import numpy as np
import pytest
from low_precision import HAS_BFLOAT16, needs_bfloat16

from mxtrain.amp.operators import has_kernels, overruns
from mxtrain.amp.spec import FULL, BFloat16, Float16
from mxtrain.engine.backend import autograd, gluon, mx, native_operators, nd
from mxtrain.loss.losses import SoftmaxCrossEntropy
from mxtrain.metric.meter import Meter
from mxtrain.metric.metrics import Accuracy
from mxtrain.model.graph.trace import symbol_of
from mxtrain.model.networks.classifier import build_resnet
from mxtrain.model.prepare import initialize
from mxtrain.parallel.cut import Graph, output_shapes
from mxtrain.parallel.norm import JointNorm
from mxtrain.parallel.objective import Objective
from mxtrain.parallel.spec import Data, ModelParallel, Pipeline, Single
from mxtrain.reinforcement.host_graph import trace_host_graph
from mxtrain.text.networks import gpt
from mxtrain.training.network import hybridize
from mxtrain.types import Batch

SHAPE = (3, 8, 8)


pytestmark = pytest.mark.usefixtures("own_cache")


def network():
    made = build_resnet(3, [1, 1], [32, 64], False, 1, False)
    made.initialize()
    made(nd.zeros((1, *SHAPE)))
    initialize(made, "xavier", 0, mx.cpu(0))
    return hybridize(made)


def strategy(precision, placement=None):
    loss, meter = SoftmaxCrossEntropy().build(3, training=True), Meter({"accuracy": Accuracy()}, 3)
    objective = Objective(network(), loss, meter, SHAPE, 12, precision)
    return (placement or Single()).build(objective, 1)


def batch(size=12):
    rng = np.random.RandomState(0)
    return Batch((nd.array(rng.randn(size, *SHAPE)),), (nd.array(rng.randint(0, 3, size)),), size)


def gradients(made, size=12):
    made.forward_backward(batch(size))
    return np.concatenate(
        [np.sum([array.asnumpy() for array in one.replicas], axis=0).ravel() for one in made.reductions]
    )


def precisions(precision, block):
    """Structural name of each layer -> the precision that it computes in; casts are left out."""
    symbol = symbol_of(block, training=True)[0]
    graph = json.loads(symbol.tojson())
    shapes = {parameter.name: parameter.shape for parameter in block.collect_params().values()}
    marked = precision.marked(graph, {**shapes, **output_shapes(symbol, {"data": SHAPE})})
    found = {}
    for node in marked["nodes"]:
        attributes = node.get("attrs", {})
        if node["op"] != "null":
            dtype = attributes.get("__amp_all__") or attributes.get("__amp_first__") or "float32"
            found.setdefault((attributes["__layer__"], node["op"]), dtype)
    return found, mx.sym.load_json(json.dumps(precision.lowered(marked)))


@pytest.mark.parametrize("activation, dtype", [(gluon.nn.GELU, "bfloat16"), (gluon.nn.SELU, "float32")])
def test_operators_between_dense_layers_take_their_type(activation, dtype):
    made = gluon.nn.HybridSequential()
    made.add(gluon.nn.Dense(64, in_units=192), activation(), gluon.nn.Dense(32, in_units=64))
    made.initialize()
    found, symbol = precisions(BFloat16(), made)
    assert found == {
        ("0", "FullyConnected"): "bfloat16",
        ("1", "LeakyReLU"): dtype,
        ("2", "FullyConnected"): "bfloat16",
    }
    if HAS_BFLOAT16:
        weights = {name: parameter.data() for name, parameter in made.collect_params().items()}
        (score,) = symbol.bind(mx.cpu(), {"data": nd.ones((2, *SHAPE)), **weights}).forward()
        np.testing.assert_allclose(score.asnumpy(), made(nd.ones((2, *SHAPE))).asnumpy(), atol=0.03)


def test_precision_follows_operator_lists_and_measured_gain():
    found, symbol = precisions(BFloat16(), network())
    first = ("features.0", "Convolution")  # 3 channels: no AMX
    assert found[first] == "float32" and found[("features.1", "BatchNorm")] == "float32"
    inner = "features.3.0.body"
    kinds = ["Convolution", "BatchNorm", "Activation", "Convolution", "BatchNorm"]
    assert [found[(f"{inner}.{i}", kind)] for i, kind in enumerate(kinds)] == ["bfloat16"] * 5
    assert found[("features.3.0", "elemwise_add")] == "bfloat16"  # though the shortcut is the float32 stem
    assert found[("features.4.0", "elemwise_add")] == "bfloat16"
    assert found[("output", "FullyConnected")] == "float32"  # 3 classes
    assert "amp_cast" in symbol.tojson(remove_amp_cast=False)
    assert [np.dtype(kind) for kind in symbol.infer_type(data="float32")[1]] == [np.float32]


@pytest.mark.skipif(native_operators().path is None, reason=native_operators().why)
def test_decoder_has_no_casts_between_dense_layers_and_attention():
    """No cast between a dense layer and our own operators; the loss is float32."""
    made = gpt.GptNetwork(64, 8, gpt.GptSizes(1, 32, 2, 8, 0.1), 1)
    made.initialize()
    made.hybridize()
    made(nd.zeros((1, 8)), nd.zeros((1, 8)))
    graph = json.loads(symbol_of(made, num_inputs=2, training=True)[0].tojson())
    shapes = {parameter.name: parameter.shape for parameter in made.collect_params().values()}
    lowered = BFloat16().lowered(BFloat16().marked(graph, shapes))
    nodes = lowered["nodes"]
    entering = {node["op"]: nodes[node["inputs"][0][0]]["op"] for node in nodes if node["op"].startswith("_mxtrain_")}
    for name in ("attention", "cross_entropy"):
        assert entering[f"_mxtrain_{name}"] == "FullyConnected"
    behind = {
        node["op"] for node in nodes for source, *_ in node["inputs"] if nodes[source]["op"] == "_mxtrain_cross_entropy"
    }
    assert "amp_cast" not in behind


def test_convolutions_that_overrun_their_memory_stay_in_float32():
    """oneDNN's AMX kernel for 1 x 1 and 36 pixels ends the process; the numbers were found by running it."""
    assert [n for n in range(1, 200) if overruns((8, 64, 1, n))] == [21, 27, 33, 36, 39, 42, 45, 48]
    node = {"op": "Convolution", "attrs": {"num_group": "1"}}
    sizes = [((64, 64, 1, 1), (8, 64, 6, 6)), ((64, 64, 3, 3), (8, 64, 6, 6)), ((64, 64, 1, 1), (8, 64, 7, 7))]
    assert [has_kernels(node, *size, amx=True) for size in sizes] == [False, True, True]
    assert not has_kernels(node, (64, 64, 1, 1), None, amx=True)


def test_convolutions_to_one_position_stay_in_float32():
    """oneDNN leaves the gradient of a 3 x 3 kernel unwritten if most of it reads only padding."""
    node = {"op": "Convolution", "attrs": {"num_group": "1"}}
    sizes = [((64, 64, 3, 3), (8, 64, 1, 1)), ((64, 64, 1, 1), (8, 64, 1, 1)), ((64, 64, 3, 3), (8, 64, 1, 2))]
    assert [has_kernels(node, *size, amx=False) for size in sizes] == [False, True, True]


def test_channel_blocks_are_half_as_large_without_amx():
    node = {"op": "Convolution", "attrs": {"num_group": "1"}}
    weights = [(16, 16, 3, 3), (48, 32, 3, 3), (16, 3, 3, 3), (24, 16, 3, 3), (64, 64, 1, 1)]
    output = (8, 64, 6, 6)
    assert [has_kernels(node, weight, output, amx=False) for weight in weights] == [True, True, False, False, True]
    assert [has_kernels(node, weight, output, amx=True) for weight in weights] == [False] * 5


def test_layer_sizes_decide_precision(monkeypatch):
    """A shortcut of 1 x 1 whose output has 6 x 6 pixels, or 4 x 4."""
    monkeypatch.setattr("mxtrain.amp.operators.uses_amx", lambda: True)

    def precision(pixels):
        graph = Graph(network(), BFloat16(), (3, pixels, pixels))
        (found,) = [node for node in graph._nodes if node["op"] == "Convolution" and "shortcut" in node["name"]]
        return found["attrs"].get("__amp_all__")

    assert [precision(12), precision(8)] == [None, "bfloat16"]


def test_a_layer_can_be_kept_in_float32():
    found, _ = precisions(BFloat16(float32_layers=["features.3.*"]), network())
    assert {dtype for (layer, _), dtype in found.items() if layer.startswith("features.3.")} == {"float32"}
    assert found[("features.4.0.body.3", "Convolution")] == "bfloat16"


def test_parameters_stay_float32_in_a_float16_graph():
    found, symbol = precisions(Float16(), network())
    assert found[("features.0", "Convolution")] == "float16" and found[("features.5", "mean")] == "float32"
    arguments, outputs, statistics = symbol.infer_type(data="float32")
    assert {np.dtype(kind) for kind in [*arguments, *outputs, *statistics]} == {np.dtype(np.float32)}


@needs_bfloat16
def test_two_precisions_live_in_one_process():
    before = gradients(strategy(FULL))
    low = gradients(strategy(BFloat16()))
    after = gradients(strategy(FULL))
    assert (before == after).all()
    away = np.linalg.norm(low - before) / np.linalg.norm(before)
    assert 1e-4 < away < 0.2
    assert low.dtype == np.float32


@needs_bfloat16
@pytest.mark.parametrize(
    "placement",
    [
        ModelParallel(stages=2),
        Pipeline(stages=2, microbatches=1),
        ModelParallel(stages=3, cut_before=["features.1", "features.4.0.body.1"]),  # before a norm
    ],
)
def test_cutting_a_network_keeps_its_precisions(placement):
    """The last cut is before layers that compute in what they are given: across it, too."""
    whole, cut = strategy(BFloat16()), strategy(BFloat16(), placement)
    wanted, found = gradients(whole), gradients(cut)
    assert np.linalg.norm(found - wanted) < 5e-3 * np.linalg.norm(wanted)
    np.testing.assert_allclose(
        cut.predict(batch().inputs)[0].asnumpy(), whole.predict(batch().inputs)[0].asnumpy(), rtol=1e-4
    )


@needs_bfloat16
def test_replicas_add_float32_gradients():
    both = strategy(BFloat16(), Data(devices="cpu:2"))
    found = gradients(both)
    assert both.reductions[0].replicas[0].dtype == np.float32 and np.isfinite(found).all()
    parts = []
    for begin in (0, 6):
        single = strategy(BFloat16())
        single.forward_backward(
            Batch((batch().inputs[0][begin : begin + 6],), (batch().targets[0][begin : begin + 6],), 6)
        )
        parts.append(np.concatenate([one.replicas[0].asnumpy().ravel() for one in single.reductions]))
    np.testing.assert_allclose(found, (parts[0] + parts[1]) / 2, rtol=1e-4, atol=1e-6 * np.abs(found).max())


@needs_bfloat16
@pytest.mark.parametrize("batch_norm", ["per_device", "global"])
def test_joint_batch_norms_take_float32_between_layers_of_fewer_bits(batch_norm, monkeypatch):
    """Over two equal halves: what one device computes of the whole batch."""
    entered = []
    apply = JointNorm._apply
    monkeypatch.setattr(JointNorm, "_apply", lambda *given: entered.append(given[1].dtype) or apply(*given))
    wanted = gradients(strategy(BFloat16()))
    joint = strategy(BFloat16(), Data(devices="cpu:2", batch_norm=batch_norm))
    found = gradients(joint)
    away = np.linalg.norm(found - wanted) / np.linalg.norm(wanted)
    if batch_norm == "per_device":
        assert away > 0.2 and not entered  # another mean: a difference that is seen
        return
    assert away < 0.1 and set(entered) == {np.float32}
    exact = gradients(strategy(FULL, Data(devices="cpu:2", batch_norm=batch_norm)))
    assert 1e-4 < np.linalg.norm(found - exact) / np.linalg.norm(exact) < 0.2  # the convolutions still have casts


@needs_bfloat16
def test_a_batch_norm_by_itself_keeps_its_casts():
    graph = Graph(network(), BFloat16(), SHAPE)
    position = next(p for p in graph.norms() if graph.layers[p] == "features.3.0.body.1")
    _, piece, _ = graph.cut([position, position + 1])
    nodes = [node["op"] for node in json.loads(piece.symbol.tojson(remove_amp_cast=False))["nodes"]]
    assert piece.norm["op"] == "BatchNorm" and nodes.count("amp_cast") == 2
    kinds = [name.rpartition("_")[2] for name in piece.parameters]
    assert kinds == ["gamma", "beta", "mean", "var"]  # the order in which a joint norm takes them


class Rounded(gluon.HybridBlock):
    def hybrid_forward(self, F, x):
        return F.amp_cast(F.amp_cast(x, dtype="float16"), dtype="float32")


def test_casts_of_the_network_itself_stay_in_pieces_and_on_the_host():
    network = gluon.nn.HybridSequential()
    network.add(gluon.nn.Dense(4), Rounded(), gluon.nn.Dense(2))
    network.initialize()
    network(nd.ones((1, 3)))
    graph = Graph(network, FULL, (3,))
    first, second = graph.cut([next(p for p in range(len(graph)) if graph.layers[p] == "2")])
    texts = [piece.symbol.tojson(remove_amp_cast=False) for piece in (first, second)]
    assert [text.count('"op": "amp_cast"') for text in texts] == [2, 0]
    assert trace_host_graph(network, {}) is None  # NumPy's functions have no casts


def test_a_network_that_cannot_be_traced_is_refused():
    class Looks(gluon.Block):
        def forward(self, x):
            return x.reshape((x.shape[0], -1))

    made = gluon.nn.Sequential()
    made.add(Looks(), gluon.nn.Dense(3, in_units=192))
    made.initialize()
    objective = Objective(made, None, None, SHAPE, 12, BFloat16())
    with pytest.raises(Exception, match="amp=bfloat16 needs the network as a graph") as refused:
        Single().build(objective, 1)
    assert type(refused.value).__name__ == "ConfigError" and "amp=off" in str(refused.value)


@needs_bfloat16
@pytest.mark.parametrize("convention", ["valid", "full"])
@pytest.mark.parametrize("kernel, pad", [(2, 0), (3, 1), (3, 0)])
@pytest.mark.parametrize("sizes", [(8,), (7, 8), (5, 4, 6)], ids=str)
def test_max_pooling_between_casts_equals_float32(convention, kernel, pad, sizes) -> None:
    """On numbers that bfloat16 represents exactly; the table of operators calls it with arrays in bfloat16."""
    rng, places = np.random.default_rng(0), int(np.prod(sizes))
    data = np.array([rng.permutation(places) - places // 2 for _ in range(6)]).reshape(2, 3, *sizes)
    options = {"kernel": (kernel,) * len(sizes), "pad": (pad,) * len(sizes), "stride": (2,) * len(sizes)}
    found = []
    for dtype in ("float32", "bfloat16"):
        x = nd.array(data, dtype="float32")
        x.attach_grad()
        with autograd.record():
            low = nd.Pooling(nd.amp_cast(x, dtype=dtype), pool_type="max", pooling_convention=convention, **options)
            y = nd.amp_cast(low, dtype="float32")
            weight = np.arange(y.size).reshape(y.shape) % 16 + 1
            loss = (y * nd.array(weight)).sum()
        loss.backward()
        found.append((y.asnumpy(), x.grad.asnumpy()))
    np.testing.assert_array_equal(*(output for output, _ in found))
    np.testing.assert_array_equal(*(gradient for _, gradient in found))
