"""Layers, parameters, FLOPs, random layers and the graph."""

import numpy as np
import pytest
import rich.console

from mxtrain.engine.backend import autograd, gluon, nd
from mxtrain.model.graph.summary import LayerRow, graph_nodes, has_random_layers, summarize
from mxtrain.model.mlp import MLP
from mxtrain.model.parameters import distinct_parameters
from mxtrain.vision.classification.gluoncv import GluonCV
from mxtrain.vision.classification.lenet import LeNet
from mxtrain.vision.classification.resnet import ResNet

LARGE = (3, 224, 224)


def text(summary):
    console = rich.console.Console(width=100, file=open("/dev/null", "w"), record=True)
    with console.file:
        console.print(summary.table())
    return console.export_text()


# 4.09 and 3.86 G multiply-adds: the stride is in the 3x3 or in the first 1x1 convolution.
@pytest.mark.parametrize(
    "model,gmacs",
    [
        (ResNet(depth=50), 4.09),
        (GluonCV(name="resnet50_v1b"), 4.09),
        pytest.param(GluonCV(name="resnet50_v1"), 3.86, marks=pytest.mark.slow),
        (GluonCV(name="mobilenet1.0"), 0.569),
    ],
)
def test_flops_equal_published_numbers(model, gmacs, prepare):
    summary = summarize(prepare(model, 1000, LARGE), LARGE)
    assert summary.flops / 2e9 == pytest.approx(gmacs, rel=0.005)
    assert sum(row.flops for row in summary.rows) == summary.flops
    assert sum(row.parameters for row in summary.rows) == summary.parameters


def test_rows_of_a_small_network(prepare):
    network = prepare(MLP(hidden=[5]), 3, (2, 2, 2))
    rows = summarize(network, (2, 2, 2)).rows
    assert {row.name: (row.type, row.output_shape, row.parameters, row.flops) for row in rows} == {
        "features.0": ("Flatten", (1, 8), 0, 0),
        "features.1": ("Dense", (1, 5), 45, 80),
        "features.2": ("Activation", (1, 5), 0, 0),
        "output": ("Dense", (1, 3), 18, 30),
    }


def test_sample_shape_omits_the_batch_axis_at_any_position():
    """Encoders of text have it second."""
    shapes = [(1, 32, 8, 8), (64, 1, 128), (1, 512, 1, 1), (64, 8), (1,), None]
    shown = [LayerRow("", "", shape, 0, 0).sample_shape for shape in shapes]
    assert shown == [(32, 8, 8), (64, 128), (512, 1, 1), (64, 8), (), None]


class Two(gluon.HybridBlock):
    def __init__(self):
        super().__init__()
        self.weight = self.params.get("weight", shape=(1,))

    def hybrid_forward(self, F, token_BT, length_B, *states, weight=None):
        return F.broadcast_mul(token_BT, weight)


class Unnamed(gluon.HybridBlock):
    def hybrid_forward(self, F, *inputs):
        return inputs[0]


@pytest.mark.parametrize(
    "build, shapes, said",
    [
        (Two, ((8,), ()), "token 8 and length 1"),
        (Two, ((8,), (), (2, 4), (2, 4)), "token 8, length 1, states 2x4 and states 2x4"),
        (Unnamed, ((8,), (4,)), "inputs 8 and inputs 4"),
        (Unnamed, (8, 4), "8x4"),
    ],
)
def test_inputs_are_named_with_their_shapes(build, shapes, said):
    network = build()
    network.initialize()
    assert summarize(network, shapes).totals().endswith(f"for one sample of {said}")


def test_grouped_convolutions_transposed_ones_and_matrix_products():
    class Mixed(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            self.grouped = gluon.nn.Conv2D(8, 3, padding=1, groups=4, in_channels=8)
            self.transposed = gluon.nn.Conv2DTranspose(6, 2, strides=2, in_channels=8)

        def hybrid_forward(self, F, x):
            y = F.reshape(self.transposed(self.grouped(x)), shape=(0, 0, -1))
            return F.batch_dot(y, y, transpose_b=True)

    network = Mixed()
    network.initialize()
    flops = {row.name: row.flops for row in summarize(network, (8, 4, 4)).rows}
    assert flops == {"": 2 * 36 * 64, "grouped": 2 * 8 * 16 * 2 * 9, "transposed": 2 * 8 * 16 * 6 * 4}


def test_trainable_and_statistics(prepare):
    summary = summarize(prepare(LeNet(freeze=["features.*"]), 10, (1, 8, 8)), (1, 8, 8))
    assert summary.trainable == 128 * 10 + 10 and summary.parameters > summary.trainable
    assert summary.statistics == 2 * (32 + 32 + 64 + 64)


@pytest.mark.slow
def test_summary_leaves_the_network_unchanged(prepare):
    network = prepare(LeNet())
    network.hybridize(static_alloc=True)
    data = nd.random.normal(shape=(2, 3, 32, 32))
    with autograd.record():
        network(data)
    before = {name: p.data().asnumpy().copy() for name, p in network._collect_params_with_prefix().items()}
    output = network(data).asnumpy()
    cached = network._cached_op
    with autograd.record():
        summarize(network, (3, 32, 32)), has_random_layers(network, (3, 32, 32)), graph_nodes(network, (3, 32, 32))
    assert network._cached_op is cached and network._active
    assert all(np.array_equal(before[n], p.data().asnumpy()) for n, p in network._collect_params_with_prefix().items())
    assert np.array_equal(network(data).asnumpy(), output)


@pytest.mark.parametrize(
    "model",
    [
        LeNet(),
        ResNet(),
        pytest.param(ResNet(depth=152), marks=pytest.mark.slow),
        GluonCV(name="mobilenet1.0"),
        pytest.param(GluonCV(name="densenet121"), marks=pytest.mark.slow),
    ],
)
def test_the_table_is_compact(model, prepare):
    network = prepare(model, 10, LARGE)
    summary = summarize(network, LARGE)
    rows = summary.grouped(30)
    assert 8 <= len(rows) <= 36
    assert sum(row.parameters for row in rows) == summary.parameters and sum(row.flops for row in rows) == summary.flops
    assert f"{summary.parameters:,} parameters" in text(summary)


def test_a_network_that_cannot_be_traced_has_rows_but_no_flops():
    class Eager(gluon.Block):
        def __init__(self):
            super().__init__()
            self.first, self.second = gluon.nn.Dense(4, in_units=3), gluon.nn.BatchNorm(in_channels=4)

        def forward(self, x):
            return self.second(self.first(x))

    network = Eager()
    network.initialize()
    summary = summarize(network, (3,))
    assert [(row.name, row.output_shape, row.parameters) for row in summary.rows] == [
        ("first", (1, 4), 16),
        ("second", (1, 4), 8),
    ]
    assert summary.flops is None and "FLOPs unknown" in text(summary)
    assert has_random_layers(network, (3,)) and graph_nodes(network, (3,)) == []


class Calls(gluon.HybridBlock):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def hybrid_forward(self, F, x):
        return self.function(F, x)


@pytest.mark.parametrize(
    "function,random",
    [
        (lambda F, x: F.relu(x), False),
        (lambda F, x: F.Dropout(x, p=0.1), True),
        (lambda F, x: F.Dropout(x, p=0.0), False),
        (lambda F, x: x + F.random.normal_like(x), True),
        (lambda F, x: x + F.random.uniform(shape=(1, 3)), True),
        (lambda F, x: F.shuffle(x), True),
        (lambda F, x: F.LeakyReLU(x, act_type="rrelu"), True),
        (lambda F, x: F.LeakyReLU(x, act_type="leaky"), False),
        (lambda F, x: F.sample_multinomial(F.softmax(x)), True),
        (lambda F, x: x * x.shape[0], True),
        (lambda F, x: F.random.normal_like(x) if autograd.is_training() else x, True),
    ],
)
def test_random_layers(function, random):
    assert has_random_layers(Calls(function), (3,)) is random


def test_random_layers_of_our_networks_are_found(prepare):
    assert has_random_layers(prepare(LeNet()), (3, 32, 32))
    assert not has_random_layers(prepare(LeNet(dropout=0.0)), (3, 32, 32))
    assert not has_random_layers(prepare(ResNet(depth=8)), (3, 32, 32))


def test_graph_is_complete_and_named_structurally(prepare):
    network = prepare(ResNet(depth=8))
    nodes = graph_nodes(network, (3, 32, 32))
    names = [name for name, *_ in nodes]
    assert len(set(names)) == len(names) and names[0] == "data"
    seen = set()
    for name, _, inputs, _, shape in nodes:
        assert set(inputs) <= seen and shape is not None
        seen.add(name)
    assert {name for name, op, *_ in nodes if op == "null"} == {"data", *distinct_parameters(network)}
    by_name = {name: (op, inputs, shape) for name, op, inputs, _, shape in nodes}
    assert by_name["features.0.fwd"] == ("Convolution", ("data", "features.0.weight"), (1, 16, 32, 32))
    assert by_name["output.fwd"][2] == (1, 10)


def test_symbol_block_has_its_own_row():
    """Backbones of GluonCV's detectors are such blocks, which made their operators before anything was traced."""
    import warnings

    from mxtrain.engine.backend import mx

    x = mx.sym.Convolution(mx.sym.var("data"), num_filter=4, kernel=(1, 1), stride=(2, 2), name="conv0")
    network = gluon.nn.HybridSequential()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        network.add(gluon.SymbolBlock(mx.sym.Activation(x, act_type="relu", name="relu0"), mx.sym.var("data")))
    network.add(gluon.nn.Dense(3))
    network.initialize()
    network(nd.zeros((1, 2, 8, 8)))
    rows = summarize(network, (2, 8, 8)).rows
    assert [(row.name, row.output_shape, row.parameters, row.flops) for row in rows] == [
        ("0", (1, 4, 4, 4), 12, 2 * 2 * 4 * 16),
        ("1", (1, 3), 3 * 64 + 3, 2 * 3 * 64),
    ]
    named = [name for name, op, *_ in graph_nodes(network, (2, 8, 8)) if op != "null"]
    assert named == ["0.Convolution", "0.Activation", "1.fwd"]
