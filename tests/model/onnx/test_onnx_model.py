"""Networks from ONNX files: export and import give the same bits, and what was imported trains as the original does."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Tuple

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import mxtrain
from mxtrain.cli import dispatch
from mxtrain.config.groups import build_group
from mxtrain.engine.backend import autograd, gluon, mx
from mxtrain.errors import ConfigError, WeightsError
from mxtrain.exporting.converters import CONVERTERS
from mxtrain.exporting.graph import Input, OnnxGraph
from mxtrain.exporting.standalone import relative_error
from mxtrain.model.onnx.convert import input_shape_of
from mxtrain.model.onnx.model import OnnxFile
from mxtrain.model.params_file import read_params
from mxtrain.model.prepare import Prepared, prepare_network
from mxtrain.types.kinds import ClassIndex
from mxtrain.vision.classification.synthetic import Synthetic

SHAPE = (3, 32, 32)


def small(momentum: float = 0.9) -> gluon.HybridBlock:
    """A network with a layer of each usual kind."""
    network = gluon.nn.HybridSequential(prefix="net_")
    with network.name_scope():
        network.add(
            gluon.nn.Conv2D(4, 3, strides=2, padding=1, use_bias=False),
            gluon.nn.BatchNorm(epsilon=1e-3, momentum=momentum),
            gluon.nn.Activation("relu"),
            gluon.nn.MaxPool2D(),
            gluon.nn.Dense(5),
        )
    return network


def ready(network: gluon.HybridBlock, shape: Tuple[int, ...] = SHAPE) -> gluon.HybridBlock:
    """Initialises a network with values of which none is a default."""
    mx.random.seed(4)
    network.initialize(mx.init.Xavier(), force_reinit=True)
    network(mx.nd.zeros((1, *shape)))
    draw = np.random.RandomState(2)
    for parameter in network.collect_params().values():
        if len(parameter.shape) == 1:
            parameter.set_data(mx.nd.array(draw.uniform(0.5, 1.5, parameter.shape)))
    return network


def write(path: Path, network: gluon.HybridBlock, shape: Tuple[int, ...] = SHAPE, change: Any = lambda symbol: symbol):
    """Writes a network as `mxtrain export` does; returns the file."""
    symbol = change(network(mx.sym.var("data")))
    parameters = {name: parameter.data().asnumpy() for name, parameter in network.collect_params().items()}
    graph = OnnxGraph(symbol, parameters, {"data": Input(("batch", *shape))}, [{"batch": 5}, {"batch": 3}], CONVERTERS)
    onnx.save(graph.model([f"y{number}" for number in range(len(symbol.list_outputs()))], {}), str(path))
    return str(path)


def described(**settings: Any) -> OnnxFile:
    return build_group("model", {"_target_": "mxtrain.model.onnx.model.OnnxFile", **settings}, lambda path: "test")


def prepared(file: str, classes: int = 5, shape: Tuple[int, ...] = SHAPE, names: Any = (), **settings: Any) -> Prepared:
    return prepare_network(
        described(file=file, **settings), num_classes=classes, input_shape=shape, seed=0, output_names=names
    )


def image(shape: Tuple[int, ...] = SHAPE, batch: int = 2) -> Any:
    return mx.nd.array(np.random.RandomState(batch).uniform(-1, 1, (batch, *shape)))


def arrays_of(network: gluon.HybridBlock) -> Any:
    return {name: parameter.data().asnumpy() for name, parameter in network.collect_params().items()}


def zoo(name: str, **settings: Any) -> gluon.HybridBlock:
    return gluon.model_zoo.vision.get_model(name, classes=5, **settings)


def lenet() -> gluon.HybridBlock:
    return build_group("model", {"_target_": "mxtrain.vision.classification.lenet.LeNet"}, lambda path: "test").build(
        5, SHAPE
    )


slow, zoo_too = pytest.mark.slow, (pytest.mark.slow, pytest.mark.zoo)
NETWORKS = [
    pytest.param(small, 32, id="small"),
    pytest.param(lenet, 32, id="lenet"),
    pytest.param(lambda: zoo("resnet18_v1"), 32, id="resnet18_v1", marks=zoo_too),
    pytest.param(lambda: zoo("resnet18_v2"), 32, id="resnet18_v2", marks=slow),
    pytest.param(lambda: zoo("mobilenet0.25"), 32, id="mobilenet", marks=zoo_too),
    pytest.param(lambda: zoo("mobilenetv2_0.25"), 32, id="mobilenet_v2", marks=slow),
    pytest.param(lambda: zoo("densenet121"), 224, id="densenet", marks=zoo_too),
    pytest.param(lambda: zoo("vgg11_bn"), 32, id="vgg", marks=zoo_too),
    pytest.param(lambda: zoo("squeezenet1.1"), 224, id="squeezenet", marks=slow),
]


@pytest.mark.parametrize("make, side", NETWORKS)
def test_exported_network_comes_back(tmp_path: Path, make: Any, side: int) -> None:
    """The same bits of all weights under the same names, and the same outputs, in prediction and in training."""
    shape = (3, side, side)
    network = ready(make(), shape)
    imported = prepared(write(tmp_path / "x.onnx", network, shape), shape=shape).network
    before, after = arrays_of(network), arrays_of(imported)
    assert set(before) == set(after)
    for name, parameter in network.collect_params().items():
        if name.endswith("gamma") and parameter.grad_req == "null":  # of a norm without scale
            before[name] = np.ones_like(before[name])
            assert imported.collect_params()[name].lr_mult == 0
    for name, array in before.items():
        np.testing.assert_array_equal(array, after[name], err_msg=name)
    x = image(shape)
    assert relative_error(imported(x).asnumpy(), network(x).asnumpy()) < 1e-6


@pytest.mark.parametrize("make, side", [NETWORKS[0], NETWORKS[2], NETWORKS[5]])
def test_imported_network_trains_as_the_original(tmp_path: Path, make: Any, side: int) -> None:
    """Gradients of all weights and the statistics of batch norms after a step are those of the original."""
    network = ready(make())
    imported = prepared(write(tmp_path / "x.onnx", network)).network
    results = []
    for one in (network, imported):
        with autograd.record():
            loss = gluon.loss.SoftmaxCrossEntropyLoss()(one(image(batch=4)), mx.nd.array([0, 1, 2, 3]))
        loss.backward()
        parameters = one.collect_params().values()
        results.append({each.name: each.grad().asnumpy() for each in parameters if each.grad_req != "null"})
        results[-1].update({each.name: each.data().asnumpy() for each in parameters if "running" in each.name})
    assert results[0].keys() == results[1].keys()
    for name, array in results[0].items():
        assert relative_error(results[1][name], array) < 1e-6, name


def test_momentum_of_batch_norms_is_that_of_the_file(tmp_path: Path) -> None:
    network = ready(small(momentum=0.75))
    path = write(tmp_path / "x.onnx", network)
    imported = prepared(path).network
    for one in (network, imported):
        with autograd.record():
            one(image())
    for name in ("net_batchnorm0_running_mean", "net_batchnorm0_running_var"):
        np.testing.assert_allclose(arrays_of(imported)[name], arrays_of(network)[name], rtol=1e-6)


def test_probabilities_are_cut_off_and_classes_change(tmp_path: Path) -> None:
    network = ready(small())
    path = write(tmp_path / "x.onnx", network, change=lambda symbol: mx.sym.Group([symbol, mx.sym.softmax(symbol)]))
    x = image()
    same = prepared(path).network
    np.testing.assert_array_equal(same(x).asnumpy(), network(x).asnumpy())
    report = prepared(path, classes=7).weights_report
    assert report.adapted == ["dense0_weight", "dense0_bias"] and "conv0_weight" in report.matched
    kept = prepared(path, 2, names=["c", "a"], weights_classes=["a", "b", "c", "d", "e"]).network
    np.testing.assert_allclose(kept(x).asnumpy(), network(x).asnumpy()[:, [2, 0]], rtol=1e-5)


def test_new_layer_behind_any_output(tmp_path: Path) -> None:
    path = write(tmp_path / "x.onnx", ready(small()))
    found = prepared(path, 3, output="net_batchnorm0", new_layer=True)
    assert len(found.weights_report.left) == 2 and len(found.weights_report.matched) == 5
    assert found.network(image()).shape == (2, 3)
    with pytest.raises(ConfigError, match="no output 'net_conv'. Did you mean 'net_conv0'"):
        described(file=path, output="net_conv")


def graph_model(nodes: Any, arrays: Any, dims: Any = ("n", 3, 32, 32), dtype: int = TensorProto.FLOAT, **model: Any):
    """A model of nodes; x is its input and y its output."""
    return helper.make_model(
        helper.make_graph(
            nodes,
            "graph",
            [helper.make_tensor_value_info("x", dtype, dims)],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            [numpy_helper.from_array(array, name) for name, array in arrays.items()],
        ),
        **{"opset_imports": [helper.make_opsetid("", 17)], "ir_version": 8, **model},
    )


def layers(first: Any = (), last: str = "c") -> Any:
    """Nodes of a small network behind others whose output is `x` or `t`."""
    source = "t" if first else "x"
    return [
        *first,
        helper.make_node("Conv", [source, "c.weight"], ["c"], name="/c/Conv"),
        helper.make_node("GlobalAveragePool", ["c"], ["p"], name="pool"),
        helper.make_node("Flatten", ["p"], ["f"], name="flat"),
        helper.make_node("Gemm", ["f", "fc.weight"], ["y"], name="/fc/Gemm", transB=1),
    ]


def arrays(**more: Any) -> Any:
    draw = np.random.RandomState(1)
    return {
        "c.weight": draw.randn(4, 3, 3, 3).astype(np.float32),
        "fc.weight": draw.randn(5, 4).astype(np.float32),
        **more,
    }


def saved(tmp_path: Path, model: Any) -> str:
    onnx.save(model, str(tmp_path / "x.onnx"))
    return str(tmp_path / "x.onnx")


MEAN = np.array([123, 116, 103], np.float32).reshape(1, 3, 1, 1)


@pytest.mark.parametrize(
    "op, value, dtype, takes_pixels",
    [
        ("Sub", MEAN, TensorProto.FLOAT, True),
        ("Div", MEAN, TensorProto.FLOAT, True),
        ("Mul", 1 / MEAN, TensorProto.FLOAT, True),
        ("Sub", MEAN / 255, TensorProto.FLOAT, False),
        ("Mul", MEAN / 255, TensorProto.UINT8, True),
    ],
)
def test_scaling_inside_of_the_file_is_found_and_does_not_train(tmp_path, op, value, dtype, takes_pixels) -> None:
    first = [helper.make_node(op, ["s", "scale"], ["t"], name="scaling")]
    first.insert(0, helper.make_node("Cast", ["x"], ["s"], to=1))
    path = saved(tmp_path, graph_model(layers(first), arrays(scale=value), dtype=dtype))
    model = described(file=path)
    assert model.takes_pixels == takes_pixels
    if takes_pixels:
        dataset = Synthetic().for_run(ClassIndex, model)
        assert dataset.mean == [0.0] * 3 and dataset.std == [1 / 255] * 3
    parameters = prepared(path).network.collect_params()
    fixed = [name for name, parameter in parameters.items() if parameter.lr_mult == 0 and parameter.wd_mult == 0]
    assert fixed == [f"scaling_{'beta' if op == 'Sub' else 'gamma'}"]


def test_constants_of_nodes_do_not_train_and_arrays_do(tmp_path: Path) -> None:
    value = numpy_helper.from_array(np.full((1, 4, 1, 1), 2, np.float32))
    nodes = [
        helper.make_node("Conv", ["x", "c.weight"], ["t0"], name="/c/Conv"),
        helper.make_node("Constant", [], ["two"], value=value),
        helper.make_node("Mul", ["t0", "two"], ["t1"], name="fixed"),
        helper.make_node("Mul", ["t1", "layer.scale"], ["y"], name="/layer/Mul"),
    ]
    scale = np.ones((4, 1, 1), np.float32)
    path = saved(tmp_path, graph_model(nodes, {**arrays(), "layer.scale": scale}))
    network = described(file=path).build(5, SHAPE)
    multipliers = {name: parameter.lr_mult for name, parameter in network.collect_params().items()}
    assert multipliers == {"c_weight": 1.0, "fixed_gamma": 0.0, "layer_gamma": 1.0}


def test_array_that_two_layers_share_is_one_parameter(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "c.weight"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["a", "c.weight"], ["y"], pads=[1, 1, 1, 1]),
    ]
    weight = np.random.RandomState(0).randn(3, 3, 3, 3).astype(np.float32)
    network = described(file=saved(tmp_path, graph_model(nodes, {"c.weight": weight}))).build(5, SHAPE)
    assert list(network.collect_params()) == ["c_weight"]


def test_layers_with_equal_names_are_told_apart(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], name="same", pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["a", "v"], ["y"], name="same", pads=[1, 1, 1, 1]),
    ]
    weights = np.random.RandomState(0).randn(2, 3, 3, 3, 3).astype(np.float32)
    path = saved(tmp_path, graph_model(nodes, {"w": weights[0], "v": weights[1]}))
    assert list(read_params(path)) == ["same_weight", "same_2_weight"]


def test_numbers_of_other_precision_become_float32(tmp_path: Path) -> None:
    halves = {name: array.astype(np.float16) for name, array in arrays().items()}
    path = saved(tmp_path, graph_model(layers(), halves, dtype=TensorProto.FLOAT16))
    found = read_params(path)
    for name, array in halves.items():
        ours = found[name.replace(".", "_")]
        assert ours.dtype == np.float32
        np.testing.assert_array_equal(ours, array)


def test_graph_is_kept_without_its_file(tmp_path: Path) -> None:
    path = write(tmp_path / "x.onnx", ready(small()))
    model = described(file=path)
    recorded = dict(model.recorded)
    Path(path).unlink()
    again = described(file=path, **recorded)
    assert again.weights is None and again.parsed == model.parsed
    assert again.usual_side == 32


def test_size_of_images_is_checked_where_it_matters(tmp_path: Path) -> None:
    nodes = layers()
    del nodes[0].attribute[:]
    nodes[0].attribute.extend(
        [helper.make_attribute("auto_pad", "SAME_UPPER"), helper.make_attribute("strides", [2, 2])]
    )
    path = saved(tmp_path, graph_model(nodes, arrays()))
    assert prepared(path).network(image()).shape == (2, 5)
    with pytest.raises(ConfigError, match="of 32x32 pixels.*for 31x32. Type dataset.image_size=32"):
        prepared(path, shape=(3, 31, 32))


@pytest.mark.parametrize("sizes", [(3, 32, 2, 16), (3, 1024)])
def test_reshaping_of_other_sizes_than_the_file_has_is_refused(tmp_path: Path, sizes: Tuple[int, ...]) -> None:
    first = [
        helper.make_node("Reshape", ["x", "s"], ["r"], name="split"),
        helper.make_node("Reshape", ["r", "join"], ["t"], name="join"),
    ]
    constants = arrays(s=np.array([1, *sizes]), join=np.array([1, 3, 32, 32]))
    path = saved(tmp_path, graph_model(layers(first), constants, (1, 3, 32, 32)))
    assert prepared(path).network(image()).shape == (2, 5)
    said = f"'split' of .* 2x{'x'.join(map(str, sizes))} of 2x3x32x40: .* another batch size or image"
    with pytest.raises(ConfigError, match=said):
        prepared(path, shape=(3, 32, 40))


def test_input_of_six_open_axes_is_read(tmp_path: Path) -> None:
    """The last axes of an input with many are tried with the same sizes."""
    first = [helper.make_node("ReduceMean", ["x"], ["t"], name="mean", axes=[4, 5], keepdims=0)]
    dims = ("n", 3, 32, 32, "t", "u")
    graph = described(file=saved(tmp_path, graph_model(layers(first), arrays(), dims))).parsed
    assert input_shape_of(graph) == dims


def beside(tmp_path: Path, model: Any, **entries: str) -> str:
    """Writes a model with its arrays in x.data, as PyTorch does; `entries` change those of the first one."""
    path = str(tmp_path / "x.onnx")
    onnx.save(model, path, save_as_external_data=True, location="x.data", size_threshold=0, convert_attribute=True)
    changed = onnx.load(path, load_external_data=False)
    for entry in changed.graph.initializer[0].external_data:
        entry.value = entries.get(entry.key, entry.value)
    Path(path).write_bytes(changed.SerializeToString())
    return path


def test_arrays_in_a_file_beside_the_model(tmp_path: Path) -> None:
    value = numpy_helper.from_array(np.arange(12, dtype=np.float32).reshape(1, 3, 2, 2), "value")
    first = [helper.make_node("Constant", [], ["two"], value=value), helper.make_node("Conv", ["x", "two"], ["t"])]
    expected = arrays(**{"c.weight": np.random.RandomState(1).randn(4, 1, 3, 3).astype(np.float32)})
    path = beside(tmp_path, graph_model(layers(first), expected))
    assert (tmp_path / "x.data").stat().st_size >= 4 * (36 + 20 + 12)
    found = read_params(path)
    for name, array in {**expected, "conv1.weight": np.arange(12).reshape(1, 3, 2, 2)}.items():
        np.testing.assert_array_equal(found[name.replace(".", "_")], array)


@pytest.mark.parametrize(
    "entries, message",
    [
        (
            {"location": "/etc/passwd"},
            "cannot be trained: .*'c.weight' is in the file '/etc/passwd', and only files in",
        ),
        ({"location": "../x.data"}, "and only files in its own folder .* onnx.save"),
        ({"location": "link"}, "and only files in its own folder"),
        ({"location": "x\0.data"}, "and only files in its own folder"),
        ({"location": ""}, "the file '', and only files in its own folder"),
        ({"location": "y.data"}, "'y.data', which cannot be read .No such file.* Put it beside the model"),
        ({"offset": "500"}, "is damaged: the array 'c.weight' is bytes 500 to 932 of 'x.data', which has 512 bytes"),
        ({"offset": "-8"}, "'c.weight' is bytes -8 to 424"),
        ({"length": "-8"}, "'c.weight' is bytes 0 to -8"),
        ({"length": "9999"}, "'c.weight' is bytes 0 to 9999 of 'x.data'"),
        ({"length": "many"}, "'c.weight' has no numbers for its bytes"),
        ({"length": "12"}, "'c.weight' of 4x3x3x3 is damaged"),
    ],
)
def test_files_beside_the_model_are_checked(tmp_path: Path, entries: Any, message: str) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "x.data").write_bytes(bytes(2000))
    (tmp_path / "model/link").symlink_to(tmp_path / "x.data")
    path = beside(tmp_path / "model", graph_model(layers(), arrays()), **entries)
    with pytest.raises(ConfigError, match=message):
        described(file=path)


def test_bytes_that_several_arrays_share_do_not_fill_the_memory(tmp_path: Path) -> None:
    path = beside(tmp_path, graph_model(layers(), {**arrays(), "more": arrays()["fc.weight"]}))
    model = onnx.load(path, load_external_data=False)
    for entry in model.graph.initializer[2].external_data:
        entry.value = {"offset": "0", "length": "432"}.get(entry.key, entry.value)
    Path(path).write_bytes(model.SerializeToString())
    with pytest.raises(ConfigError, match="'more' is bytes 0 to 432 of 'x.data'"):
        described(file=path)


def changed(change: Any) -> Any:
    model = graph_model(layers(), arrays())
    change(model)
    return model


def second_output(model: Any) -> None:
    model.graph.output.append(helper.make_tensor_value_info("c", TensorProto.FLOAT, None))


def other_domain(model: Any) -> None:
    model.graph.node[0].domain = "my"
    model.opset_import.append(helper.make_opsetid("my", 1))


WRONG = [
    (b"", "is damaged: it is no ONNX file, or has no operators"),
    (b"# a text", "is damaged: it is no ONNX file, or is truncated"),
    (graph_model(layers(), arrays()).SerializeToString()[:-40], "is damaged: it is no ONNX file, or is truncated"),
    (graph_model([], {}), "has no operators"),
    (
        changed(lambda model: model.graph.initializer[0].dims.__setitem__(0, 9)),
        "array 'c.weight' of 9x3x3x3 is damaged",
    ),
    (changed(lambda model: model.graph.initializer[0].dims.__setitem__(0, -4)), "has a negative size"),
    (changed(lambda model: model.graph.ClearField("output")), "it has no outputs"),
    (changed(second_output), "2 outputs of equal rank: 'fc' .*, 'c' .*model.output=fc"),
    (changed(lambda model: model.graph.input.append(helper.make_tensor_value_info("z", 1, [1]))), "2 inputs .'x', 'z'"),
    (changed(lambda model: model.graph.ClearField("input")), "0 inputs .none"),
    (graph_model(layers(), arrays(), dtype=TensorProto.INT64), "no tensor of known rank of pixels"),
    (graph_model(layers(), arrays(), opset_imports=[helper.make_opsetid("", 6)]), "version .opset. 6, and versions 7"),
    (graph_model(layers(), arrays(), opset_imports=[helper.make_opsetid("", 99)]), "version .opset. 99"),
    (
        changed(lambda model: setattr(model.graph.node[0], "op_type", "Convv")),
        "'/c/Conv' has the operator Convv.*Conv'",
    ),
    (changed(other_domain), "operator Conv of the domain 'my'"),
    (changed(lambda model: model.graph.node[0].input.__setitem__(0, "q")), "reads 'q', which nothing computes"),
    (
        changed(lambda model: model.graph.node[1].output.__setitem__(0, "c")),
        "'pool' .* computes a tensor for the second",
    ),
    (changed(lambda model: model.graph.node[0].ClearField("input")), "do not fit together .*/c/Conv"),
    (
        changed(lambda model: model.graph.node[0].attribute.append(helper.make_attribute("more", 1))),
        "'/c/Conv' .Conv. is invalid",
    ),
    (
        graph_model([helper.make_node("Shape", ["x"], ["s"], name="size", start="a"), *layers()], arrays()),
        "'size' .Shape. is invalid",
    ),
    (
        changed(lambda model: model.functions.add(name="f", domain="d")),
        "functions, such as 'f'.*inline_local_functions",
    ),
    (
        changed(lambda model: model.graph.sparse_initializer.add().values.__setattr__("name", "z")),
        "array 'z' is sparse",
    ),
    (
        graph_model([helper.make_node("Constant", [], ["y"], value_float=1.0)], {}),
        "its outputs do not depend on its input",
    ),
]


@pytest.mark.parametrize("model, message", WRONG)
def test_wrong_files_are_refused_in_one_sentence(tmp_path: Path, model: Any, message: str) -> None:
    path = tmp_path / "x.onnx"
    path.write_bytes(model if isinstance(model, bytes) else model.SerializeToString())
    with pytest.raises(ConfigError, match=message) as raised:
        described(file=str(path))
    assert "\n" not in str(raised.value).strip()


def test_missing_files_and_packages_are_named(tmp_path: Path, monkeypatch: Any) -> None:
    with pytest.raises(ConfigError, match="no.onnx cannot be read: No such file.*Type e.g. model.file="):
        described(file=str(tmp_path / "no.onnx"))
    with pytest.raises(ConfigError, match="model=onnx needs the name of a file. Type model.file="):
        mxtrain.compose("model=onnx")
    path = write(tmp_path / "x.onnx", ready(small()))
    monkeypatch.setitem(__import__("sys").modules, "onnx", None)
    with pytest.raises(ConfigError, match="read by the package onnx. Type: pip install 'mxtrain.export.'"):
        described(file=path)


def test_weights_of_a_file_for_the_network_that_it_was_exported_from(tmp_path: Path) -> None:
    """`model.weights=x.onnx` without `model=onnx`."""
    network = ready(lenet())
    path = write(tmp_path / "x.onnx", network)
    model = build_group(
        "model", {"_target_": "mxtrain.vision.classification.lenet.LeNet", "weights": path}, lambda path: "test"
    )
    again = prepare_network(model, num_classes=5, input_shape=SHAPE, seed=9).network
    np.testing.assert_array_equal(again(image()).asnumpy(), network(image()).asnumpy())
    (tmp_path / "y.onnx").write_bytes(b"# a text")
    with pytest.raises(WeightsError, match="y.onnx is damaged"):
        read_params(tmp_path / "y.onnx")


def test_what_cannot_be_converted_is_left_out_behind_a_named_output(tmp_path: Path) -> None:
    second = helper.make_node("Conv", ["c", "d.weight"], ["d"], name="/d/Conv")
    pool = helper.make_node("GlobalAveragePool", ["d"], ["p"], name="pool")
    nodes = [
        layers()[0],
        second,
        pool,
        helper.make_node("NonZero", ["p"], ["z"], name="odd"),
        helper.make_node("Cast", ["z"], ["y"], to=1),
    ]
    weight = np.ones((3, 4, 3, 3), np.float32)
    path = saved(tmp_path, graph_model(nodes, {**arrays(), "d.weight": weight}))
    with pytest.raises(ConfigError, match="'odd' has the operator NonZero, which is not read.*model.output="):
        described(file=path)
    assert prepared(path, output="pool", new_layer=True).network(image()).shape == (2, 5)
    with pytest.raises(ConfigError, match="no output 'odd'"):
        described(file=path, output="odd")


def test_inspect_describes_a_file(tmp_path: Path, capsys: Any) -> None:
    path = saved(tmp_path, graph_model(layers(), arrays()))
    found = mxtrain.inspect(path)
    assert found.kind == "ONNX file, opset 17" and found.inputs == ["x (nx3x32x32)"]
    assert found.layers == [("c", "Convolution", 4), ("fc", "FullyConnected", 5)]
    assert found.command == f"model=onnx model.file={path}" and found.num_parameters == 4 * 27 + 20
    assert any("scaled outside of the network" in remark for remark in found.remarks)
    assert dispatch.run(["inspect", path]) == 0 and "model=onnx" in capsys.readouterr().out
    Path(path).write_bytes(b"# a text")
    assert dispatch.run(["inspect", path]) == 2
    assert "error: inspect: file=" in capsys.readouterr().err


@pytest.mark.slow
def test_run_goes_on_from_a_file_and_needs_it_no_more(tmp_path: Path, monkeypatch: Any) -> None:
    """`export`, then `model=onnx`: the first evaluation gives the exported network's loss, and the file can go."""
    monkeypatch.chdir(tmp_path)
    common = ["dataset=digits", "trainer.max_steps=3"]
    first = mxtrain.train(*common, "model=lenet")
    mxtrain.export(first, out=tmp_path / "exported")
    file = next((tmp_path / "exported").rglob("*.onnx"))
    second = mxtrain.train(
        *common, "model=onnx", f"model.file={file}", "optimizer.lr=1e-12", "model.freeze=['*batchnorm*']"
    )
    assert mxtrain.evaluate(second)["loss"] == pytest.approx(mxtrain.evaluate(first)["loss"], rel=1e-4)
    file.unlink()
    assert mxtrain.evaluate(second)
