"""Weights of Gluon's `save_parameters` beside a graph: matched by shapes and order, or refused."""

import json

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


def test_the_nearest_layer_is_none_that_another_one_needs():
    shapes = {"c0_weight": (4, 4), "c1_weight": (4, 5)}
    with pytest.raises(NoMatch, match="'c1' .weight 4x5. of the graph has none .* the nearest is 'b'"):
        match_structure(GRAPH, shapes, {"a.weight": (4, 4), "b.weight": (9, 9)}, shapes)


def found_for(layers, in_file, shapes=None):
    """Returns layer -> layer of the file, for a graph of dense layers without biases.

    Args:
        layers: name -> names of those whose results it takes, as words; the input if there are none.
        in_file: names of the layers of the file.
        shapes: shapes of the weights of layers of both, if they are others than 4x4.
    """
    graph = {"nodes": [{"op": "null", "name": "data", "inputs": []}]}
    nodes, position, shapes = graph["nodes"], {}, shapes or {}
    for name, sources in layers.items():
        inputs = [[position[source], 0] for source in sources.split()] or [[0, 0]]
        nodes.append({"op": "null", "name": f"{name}_weight", "inputs": []})
        position[name] = len(nodes)
        nodes.append({"op": "FullyConnected", "name": name, "inputs": [*inputs, [len(nodes) - 1, 0]]})
    by_name = {f"{name}_weight": shapes.get(name, (4, 4)) for name in layers}
    found = match_structure(graph, by_name, {f"{one}.weight": shapes.get(one, (4, 4)) for one in in_file}, by_name)
    assert all(name.endswith("_weight") and other.endswith(".weight") for name, other in found.items())
    return {name[: -len("_weight")]: other[: -len(".weight")] for name, other in found.items()}


def test_numbers_are_no_text():
    assert found_for({"net_c10": "", "net_c9": ""}, ["a", "b"]) == {"net_c9": "a", "net_c10": "b"}


def test_order_by_numbers_does_not_need_the_order_of_the_file():
    """`z` is called first, and is the last one of the file."""
    layers = {"z": "", "c0": "z", "c1": "c0"}
    assert found_for(layers, ["a", "b", "c"], {"z": (5, 4), "c": (5, 4)}) == {"c0": "a", "c1": "b", "z": "c"}


def test_layers_may_have_the_names_of_variables():
    """Such as the operator `c1_weight`, which takes the variable `c1_weight`."""
    graph = {"nodes": [dict(node) for node in GRAPH["nodes"]]}
    nodes = graph["nodes"]
    nodes[1]["name"], nodes[2]["name"], nodes[3]["name"] = "x_weight", "y_weight", "x_weight"
    arrays = {"a.weight": (4, 4), "b.weight": (4, 4), "c.weight": (4, 4)}
    nodes[4]["name"] = "y_weight"
    nodes += [
        {"op": "null", "name": "z_weight", "inputs": []},
        {"op": "FullyConnected", "name": "z", "inputs": [[4, 0], [5, 0]]},
    ]
    names = ["x_weight", "y_weight", "z_weight"]
    assert match_structure(graph, dict.fromkeys(names, (4, 4)), arrays, names) == dict(zip(names, arrays))


def known(pairs):
    """Layers of the graph and of the file that are known by their shapes, and these shapes."""
    shapes = {}
    for number, (name, other) in enumerate(pairs.items()):
        shapes[name] = shapes[other] = (7, number + 1)
    return dict.fromkeys(pairs, ""), [*pairs.values()], shapes


def test_scopes_that_share_blocks_are_joined():
    """`A` is in `p` and `q`, and `B` in `q`; so the layers of both are those of `q`, in the order of the data."""
    layers, in_file, shapes = known({"A_k0": "p.k", "A_k1": "q.k", "B_k": "q.l", "C_k": "s.k"})
    found = found_for({**layers, "C_x": "", "A_x": "", "B_x": "A_x"}, [*in_file, "q.x", "q.y", "s.x"], shapes)
    assert [found[name] for name in ("A_x", "B_x", "C_x")] == ["q.x", "q.y", "s.x"]


def test_layers_that_scopes_tell_apart_do_not_need_the_order_of_the_file():
    layers, in_file, shapes = known({"A_k": "a.k", "B_k": "b.k", "C_k": "c.k"})
    found = found_for({**layers, "A_x": "", "B_x": "A_x", "C_x": ""}, [*in_file, "b.x", "a.x", "c.x"], shapes)
    assert [found[name] for name in ("A_x", "B_x", "C_x")] == ["a.x", "b.x", "c.x"]


@pytest.mark.parametrize("pairs", [{"A_k": "p.k", "B_k": "s.k"}, {"A_k": "p.k"}, {"B_k": "s.k"}])
def test_scopes_whose_blocks_have_other_numbers_of_layers_are_not_guessed(pairs):
    layers, in_file, shapes = known(pairs)
    with pytest.raises(NoMatch, match="which of 'p.x' and 's.x' are .* is unknown"):
        found_for({**layers, "A_x0": "", "A_x1": "", "B_x": ""}, [*in_file, "p.x", "s.x", "s.y"], shapes)


def test_only_needed_layers_must_be_there():
    arrays = {"a.weight": (4, 4), "b.weight": (7, 7)}
    shapes = {"c0_weight": (4, 4), "c1_weight": (4, 5)}
    assert match_structure(GRAPH, shapes, arrays, ["c0_weight"]) == {"c0_weight": "a.weight"}


def test_statistics_have_the_names_of_both_interfaces():
    graph = {"nodes": [{"op": "null", "name": f"bn_{role}", "inputs": []} for role in ("gamma", "moving_mean")]}
    arrays = {"1.gamma": (4,), "1.running_mean": (4,)}
    found = match_structure(graph, {"bn_gamma": (4,), "bn_moving_mean": (4,)}, arrays, ["bn_gamma"])
    assert found == {"bn_gamma": "1.gamma", "bn_moving_mean": "1.running_mean"}


def test_inputs_of_unknown_sizes_are_no_layers():
    sym = mx.sym
    scale = sym.var("scale", __init__="zeros", shape=(1, 4))
    x = sym.FullyConnected(sym.var("data"), num_hidden=4, name="fc", no_bias=True)
    joined = sym.Concat(sym.broadcast_mul(x, scale), sym.var("state"), dim=1)
    symbol = sym.Group([joined, sym.relu(sym.var("mask"))])
    arrays = {"scale": (1, 4), "layer.weight": (4, 3)}
    found = StructureMatcher(symbol.tojson(), (3,))(arrays, ["scale", "fc_weight"])
    assert found == {"scale": "scale", "fc_weight": "layer.weight"}


def test_graphs_of_older_versions_lack_statistics():
    symbol = mx.sym.BatchNorm(mx.sym.var("data"), name="bn")
    graph = json.loads(symbol.tojson())
    graph["nodes"] = [node for node in graph["nodes"] if "moving" not in node["name"]]
    norm = graph["nodes"][-1]
    norm["inputs"] = norm["inputs"][:3]
    graph.update(arg_nodes=[0, 1, 2], heads=[[3, 0]], attrs={"mxnet_version": ["int", 800]})
    graph.pop("node_row_ptr")
    arrays = {f"0.{role}": (4,) for role in ("gamma", "beta", "running_mean", "running_var")}
    found = StructureMatcher(json.dumps(graph), SHAPE)(arrays, ["bn_gamma", "bn_moving_mean"])
    assert found["bn_moving_mean"] == "0.running_mean" and len(found) == 4


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


def test_weights_by_name_are_not_matched_by_structure(tmp_path, exported):
    """The file also has an array of another program, whose name has a dot."""
    weights, arrays = str(tmp_path / "more.params"), mx.nd.load(str(tmp_path / "old-0000.params"))
    renamed = {name.partition("residual0_")[2]: array for name, array in arrays.items()}
    mx.nd.save(weights, {**renamed, "optimizer.step": mx.nd.zeros(1)})
    report = prepared_of(symbol=exported["symbol"], weights=weights).weights_report
    assert "structure" not in str(report) and not report.left and report.unused == ["optimizer.step"]


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
