"""Weights of Gluon's `save_parameters` beside a graph: matched by shapes and order, or refused."""

import numpy as np
import pytest
from symbol_files import described

from mxtrain.engine.backend import gluon, mx
from mxtrain.errors import WeightsError
from mxtrain.model.prepare import prepare_network
from mxtrain.model.symbol.network import StructureMatcher
from mxtrain.model.symbol.structure import NoMatch, match_structure

nn = gluon.nn
SHAPE = (4, 6, 6)


def conv(channels=4, kernel=3, **options):
    return nn.Conv2D(channels, kernel, padding=kernel // 2, **options)


class Residual(gluon.HybridBlock):
    """As in Gluon's ResNet-50 v1: the graph has `downsample` before `body`, with the same shapes."""

    def __init__(self, **options):
        super().__init__(**options)
        with self.name_scope():
            self.body = nn.HybridSequential(prefix="")
            self.body.add(conv(), nn.BatchNorm(), conv(), nn.BatchNorm())
            self.downsample = nn.HybridSequential(prefix="")
            self.downsample.add(conv(), nn.BatchNorm())

    def hybrid_forward(self, F, x):
        return F.relu(self.downsample(x) + self.body(x))


class Calls(gluon.HybridBlock):
    """Calls its children in an order of its own."""

    def __init__(self, order, parallel=False, **children):
        super().__init__(prefix="net_")
        self._order, self._parallel = order, parallel
        for name, child in children.items():
            setattr(self, name, child)

    def hybrid_forward(self, F, x):
        children = [self._children[name] for name in self._order]
        if self._parallel:
            return F.concat(*(child(x) for child in children), dim=1)
        for child in children:
            x = child(x)
        return x


def residuals():
    network = nn.HybridSequential(prefix="residual0_")
    with network.name_scope():
        network.add(Residual(prefix="stage1_"), Residual(prefix="stage2_"), nn.Flatten(), nn.Dense(3))
    return network


def with_scopes():
    """As in GluonCV's ResNet-50 v1b: the downsampling of a block is in a scope of its own."""
    network = nn.HybridSequential(prefix="net0_")
    with network.name_scope():
        for stage, (channels, bottleneck) in enumerate(((4, 4), (8, 5))):
            down = nn.HybridSequential(prefix=f"down{stage}_")
            with down.name_scope():
                down.add(conv(channels, 1), nn.BatchNorm())
            layers = nn.HybridSequential(prefix=f"layers{stage}_")
            with layers.name_scope():
                layers.add(conv(bottleneck), nn.BatchNorm(), conv(channels, 1), nn.BatchNorm())
            network.add(Calls(["layers", "down"], parallel=True, layers=layers, down=down))
    return network


def lstm():
    network = nn.HybridSequential(prefix="net0_")
    with network.name_scope():
        network.add(gluon.rnn.LSTM(6, 2, input_size=6), nn.Dense(3))
    return network


def embedded():
    """A network that holds the graph of another one, whose parameters keep their names."""
    inner = nn.HybridSequential(prefix="inner0_")
    with inner.name_scope():
        inner.add(conv(), nn.BatchNorm())
    data = mx.sym.var("data", dtype="float32")
    network = nn.HybridSequential(prefix="net0_")
    network.add(gluon.SymbolBlock(inner(data), data), conv(), conv())
    return network


def matched(network, shape=SHAPE, reordered=lambda names: names):
    """Returns the names that were found, and the true ones, of each parameter."""
    symbol = network(mx.sym.var("data"))
    symbol = symbol[0] if isinstance(symbol, (list, tuple)) else symbol
    shapes, _, states = symbol.infer_shape(data=(2, *shape))
    known = dict(zip((*symbol.list_arguments(), *symbol.list_auxiliary_states()), (*shapes, *states)))
    parameters = network._collect_params_with_prefix()
    arrays = {name: known[parameters[name].name] for name in reordered(list(parameters))}
    true = {parameter.name: name for name, parameter in parameters.items()}
    return StructureMatcher(symbol.tojson(), shape)(arrays, true), true


@pytest.mark.parametrize("make, shape", [(residuals, SHAPE), (with_scopes, SHAPE), (lstm, (3, 6)), (embedded, SHAPE)])
def test_layers_of_equal_shapes_are_told_apart(make, shape):
    found, true = matched(make(), shape)
    assert found == true


def test_order_of_calls_tells_layers_of_different_scopes_apart():
    found, true = matched(Calls(["a", "b"], a=conv(prefix="first_"), b=conv(prefix="second_")))
    assert found == true


def test_layers_beside_each_other_are_not_guessed():
    network = Calls(["b", "a"], parallel=True, a=conv(prefix="first_"), b=conv(prefix="second_"))
    with pytest.raises(NoMatch, match="which of 'a' and 'b' are 'second' and 'first' of the graph is unknown"):
        matched(network)


def test_order_of_calls_that_contradicts_the_numbers_is_not_guessed():
    network = Calls(["b", "a"], a=conv(prefix="net_conv0_"), b=conv(prefix="net_conv1_"))
    with pytest.raises(NoMatch, match="which of 'a' and 'b' are 'net_conv1' and 'net_conv0' of the graph is unknown"):
        matched(network)


def test_order_of_calls_that_contradicts_the_file_is_not_relied_on():
    """Of `a`, `b` and `c`, the last one is known by its shape, and is called first."""
    children = {"a": conv(prefix="x_"), "b": conv(prefix="y_"), "c": conv(4, 1, prefix="z_")}
    with pytest.raises(NoMatch, match="'a' comes before 'c' in the file, and in the graph 'x' .* takes what 'z'"):
        matched(Calls(["c", "a", "b"], **children))


def test_files_without_the_order_of_a_network_are_refused():
    """Python 3.5 and before did not keep it."""
    with pytest.raises(NoMatch, match="'0.body.1.beta' comes after '0.body.3', so the order of its layers is lost"):
        matched(residuals(), reordered=lambda names: sorted(names, key=lambda name: (name[0], name[::-1])))


GRAPH = {"nodes": [{"op": "null", "name": name, "inputs": []} for name in ("data", "c0_weight", "c1_weight")]}
for number in (1, 2):
    GRAPH["nodes"].append(
        {"op": "FullyConnected", "name": f"c{number}", "inputs": [[0 if number == 1 else 3, 0], [number, 0]]}
    )
SHAPES = {"c0_weight": (4, 4), "c1_weight": (4, 4)}


@pytest.mark.parametrize(
    "arrays, message",
    [
        (
            {"a.weight": (4, 4), "b.weight": (4, 5)},
            "2 layers of the shapes of 'c0' .*, and the file 1, .* 'a'",
        ),
        (
            {"a.weight": (9, 9), "b.weight": (4, 5), "b.bias": (4,), "c.weight": (4, 6), "d.weight": (1, 1)},
            "the layer 'c0' .weight 4x4. of the graph has none of its shapes there; the nearest is 'c' .weight 4x6.$",
        ),
        ({"a.gamma": (4,)}, "has none of its shapes there$"),
    ],
)
def test_layers_without_their_arrays_are_named(arrays, message):
    with pytest.raises(NoMatch, match=message):
        match_structure(GRAPH, SHAPES, arrays, SHAPES)


def test_only_needed_layers_must_be_there():
    arrays = {"a.weight": (4, 4), "b.weight": (7, 7)}
    shapes = {"c0_weight": (4, 4), "c1_weight": (4, 5)}
    assert match_structure(GRAPH, shapes, arrays, ["c0_weight"]) == {"c0_weight": "a.weight"}


def test_statistics_have_the_names_of_both_interfaces():
    graph = {"nodes": [{"op": "null", "name": f"bn_{role}", "inputs": []} for role in ("gamma", "moving_mean")]}
    arrays = {"1.gamma": (4,), "1.running_mean": (4,)}
    found = match_structure(graph, {"bn_gamma": (4,), "bn_moving_mean": (4,)}, arrays, ["bn_gamma"])
    assert found == {"bn_gamma": "1.gamma", "bn_moving_mean": "1.running_mean"}


@pytest.fixture
def exported(tmp_path):
    """A network that was written by `export` and by `save_parameters`."""
    network = residuals()
    network.initialize(mx.init.Normal(0.3))
    network.hybridize()
    network(mx.nd.array(np.random.RandomState(3).randn(2, *SHAPE)))
    network.export(str(tmp_path / "old"))
    network.save_parameters(str(tmp_path / "by_structure.params"))
    return {"symbol": str(tmp_path / "old-symbol.json"), "weights": str(tmp_path / "by_structure.params")}


def prepared_of(num_classes=3, **settings):
    return prepare_network(described(**settings), num_classes=num_classes, input_shape=SHAPE, seed=0)


def test_weights_by_structure_are_those_by_name(tmp_path, exported):
    found, by_name = prepared_of(**exported), prepared_of(prefix=str(tmp_path / "old"))
    image = mx.nd.array(np.random.RandomState(1).randn(2, *SHAPE))
    np.testing.assert_array_equal(found.network(image).asnumpy(), by_name.network(image).asnumpy())
    report = found.weights_report
    assert "names follow the structure of a Gluon network" in str(report) and not report.left and not report.unused


def test_weights_by_structure_fit_other_outputs(exported):
    report = prepared_of(7, **exported).weights_report
    assert report.adapted == ["dense0_weight", "dense0_bias"] and not report.left
    report = prepared_of(7, output="residual0_flatten0_flatten0", new_layer=True, **exported).weights_report
    assert report.left == ["new_output_weight", "new_output_bias"]
    assert report.unused == ["3.weight", "3.bias"]


def test_weights_of_another_network_are_refused(tmp_path, exported):
    other = nn.HybridSequential()
    other.add(conv(5, in_channels=4), nn.Dense(3, in_units=180))
    other.initialize()
    other.save_parameters(exported["weights"])
    with pytest.raises(
        WeightsError, match="by the structure of a Gluon network .0.weight.*the nearest is '0' .*by network.export"
    ):
        prepared_of(**exported)
