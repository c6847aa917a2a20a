"""Networks from files that MXNet's Module API, Gluon's `export` and SageMaker write. The files are made by MXNet."""

import json
import tarfile

import numpy as np
import pytest
from symbol_files import described, features, outputs, prepared, write

import mxtrain
from mxtrain.engine.backend import mx
from mxtrain.errors import ConfigError, WeightsError
from mxtrain.model.prepare import prepare_network


def module_scores(prefix, epoch=3, layer="fc1_output", seed=1):
    """The output of a layer by MXNet's own Module."""
    symbol, arguments, states = mx.model.load_checkpoint(prefix, epoch)
    module = mx.mod.Module(symbol.get_internals()[layer], label_names=None)
    module.bind([("data", (2, 1, 6, 6))], for_training=False)
    module.set_params(arguments, states, allow_extra=True)
    image = mx.nd.array(np.random.RandomState(seed).randn(2, 1, 6, 6))
    module.forward(mx.io.DataBatch([image]), is_train=False)
    return module.get_outputs()[0].asnumpy()


@pytest.mark.parametrize(
    "loss", ["SoftmaxOutput", "LinearRegressionOutput", "LogisticRegressionOutput", "softmax", "sigmoid"]
)
def test_losses_and_probabilities_are_cut_off(tmp_path, loss):
    prefix = write(tmp_path, getattr(mx.sym, loss)(features(), name="head"))
    network = prepared(prefix=prefix).network
    np.testing.assert_allclose(outputs(network), module_scores(prefix), rtol=1e-5)
    assert network._cached_graph[1].list_outputs() == ["fc1_output"]


def test_loss_values_are_cut_off_at_the_last_layer(tmp_path):
    sym = mx.sym
    scores = sym.log_softmax(features())
    prefix = write(tmp_path, sym.MakeLoss(-sym.pick(scores, sym.var("softmax_label")), name="loss"))
    np.testing.assert_allclose(outputs(prepared(prefix=prefix).network), module_scores(prefix), rtol=1e-5)


def test_margin_of_the_label_is_cut_off(tmp_path):
    """The head of insightface's networks: normalised class centres, and a margin at the class of the label."""
    sym = mx.sym
    embedding = sym.L2Normalization(features(), name="nembedding") * 64
    centres = sym.L2Normalization(sym.var("fc7_weight", shape=(5, 3)), name="centres")
    cosine = sym.FullyConnected(embedding, weight=centres, no_bias=True, num_hidden=5, name="fc7")
    label = sym.var("softmax_label")
    margin = cosine - sym.one_hot(label, depth=5, on_value=32.0, off_value=0.0)
    prefix = write(tmp_path, sym.SoftmaxOutput(margin, label=label, name="softmax"))
    np.testing.assert_allclose(
        outputs(prepared(5, prefix=prefix).network), module_scores(prefix, layer="fc7_output"), rtol=1e-4
    )
    chosen = prepared(3, prefix=prefix, output="fc1")
    np.testing.assert_allclose(outputs(chosen.network), module_scores(prefix), rtol=1e-5)
    assert chosen.weights_report.unused == ["arg:fc7_weight"]


def test_output_is_chosen_by_name_or_refused(tmp_path):
    sym = mx.sym
    first, second = (
        sym.SoftmaxOutput(sym.FullyConnected(features(), num_hidden=3, name=name), name=f"{name}_prob")
        for name in ("a", "b")
    )
    group = sym.Group([first, second])
    prefix = str(tmp_path / "two")
    group.save(f"{prefix}-symbol.json")
    with pytest.raises(ConfigError, match=r"2 outputs of equal rank: 'a' .*'b' .*model.output=a"):
        described(symbol=f"{prefix}-symbol.json")
    assert described(symbol=f"{prefix}-symbol.json", output="b").build(3, (1, 6, 6))._cached_graph[
        1
    ].list_outputs() == ["b_output"]
    for name in ("b_output", "b_output0"):
        assert described(symbol=f"{prefix}-symbol.json", output=name)
    with pytest.raises(ConfigError, match="no output 'flat'. Did you mean 'flat1'"):
        described(symbol=f"{prefix}-symbol.json", output="flat")


def test_heads_beside_the_prediction_go(tmp_path):
    sym = mx.sym
    scores = features()
    prefix = write(
        tmp_path,
        sym.Group([sym.BlockGrad(scores), sym.SoftmaxOutput(scores, name="softmax"), sym.MakeLoss(sym.sum(scores))]),
    )
    np.testing.assert_allclose(outputs(prepared(prefix=prefix).network), module_scores(prefix), rtol=1e-5)


def test_other_number_of_classes_renews_the_last_layer(tmp_path):
    prefix = write(tmp_path, mx.sym.SoftmaxOutput(features(), name="softmax"))
    report = prepared(7, prefix=prefix).weights_report
    assert report.adapted == ["fc1_weight", "fc1_bias"] and "conv1_weight" in report.matched and not report.left
    network = prepared(7, prefix=prefix, output="flat1", new_layer=True)
    assert outputs(network.network).shape == (2, 7)
    assert network.weights_report.left == ["new_output_weight", "new_output_bias"]
    with pytest.raises(ConfigError, match="output is that of 'flat1' .Flatten.*model.new_layer=true"):
        prepared(7, prefix=prefix, output="flat1")


def test_classes_of_equal_names_keep_their_scores(tmp_path):
    prefix = write(tmp_path, mx.sym.SoftmaxOutput(features(), name="softmax"))
    model = described(prefix=prefix, weights_classes=["cat", "dog", "cow"])
    network = prepare_network(model, num_classes=2, input_shape=(1, 6, 6), seed=0, output_names=["cow", "bird"]).network
    np.testing.assert_allclose(outputs(network)[:, 0], module_scores(prefix)[:, 2], rtol=1e-5)


def test_scale_of_fixed_norms_is_one(tmp_path):
    """The file holds other values, which Module ignores, too."""
    prefix = write(tmp_path, mx.sym.SoftmaxOutput(features(), name="softmax"))
    network = prepared(prefix=prefix).network
    assert network.collect_params()["bn1_gamma"].grad_req == "null"
    assert network.collect_params()["bn1_beta"].grad_req == "write"


def test_fixed_scales_of_networks_with_a_prefix_are_one(tmp_path):
    """All names of a graph of Gluon begin alike, and structural names lack that part."""
    sym = mx.sym
    x = sym.BatchNorm(sym.Convolution(sym.var("data"), num_filter=4, kernel=(3, 3), name="net0_conv"), name="net0_bn")
    prefix = write(tmp_path, sym.SoftmaxOutput(sym.FullyConnected(x, num_hidden=3, name="net0_fc"), name="softmax"))
    gamma = next(p for n, p in prepared(prefix=prefix).network.collect_params().items() if n.endswith("bn_gamma"))
    assert gamma.data().asnumpy().tolist() == [1] * 4


def test_float16_becomes_float32(tmp_path):
    """A network that was saved in half precision: casts in the graph, and arrays in the file."""
    sym = mx.sym
    half = features(sym.Cast(sym.var("data"), dtype="float16", name="half"))
    prefix = write(
        tmp_path,
        sym.SoftmaxOutput(sym.Cast(half, dtype="float32", name="single"), name="softmax"),
        change=lambda arrays: {name: array.astype("float16") for name, array in arrays.items()},
    )
    network = prepared(prefix=prefix).network
    assert {parameter.dtype for parameter in network.collect_params().values()} == {np.float32} or {
        np.dtype(parameter.dtype) for parameter in network.collect_params().values()
    } == {np.dtype("float32")}
    arrays = mx.nd.load(f"{prefix}-0003.params")
    single = write(
        tmp_path,
        mx.sym.SoftmaxOutput(features(), name="softmax"),
        name="single",
        change=lambda _: {name: array.asnumpy().astype("float32") for name, array in arrays.items()},
    )
    np.testing.assert_array_equal(outputs(network), outputs(prepared(prefix=single).network))


@pytest.mark.parametrize("key", ["attr", "param"])
def test_files_of_older_versions_are_read(tmp_path, key):
    prefix = write(tmp_path, mx.sym.SoftmaxOutput(features(), name="softmax"))
    expected = outputs(prepared(prefix=prefix).network)
    path = tmp_path / "old-symbol.json"
    graph = json.loads(path.read_text())
    for node in graph["nodes"]:
        if "attrs" in node:
            node[key] = node.pop("attrs")
    graph["attrs"] = {"mxnet_version": ["int", 800]}
    path.write_text(json.dumps(graph))
    np.testing.assert_array_equal(outputs(prepared(prefix=prefix).network), expected)


def test_archives_of_sagemaker_are_read(tmp_path):
    prefix = write(tmp_path, mx.sym.SoftmaxOutput(features(), name="softmax"), name="model_algo_1")
    write(
        tmp_path,
        mx.sym.SoftmaxOutput(features(), name="softmax"),
        name="model_algo_1",
        epoch=1,
        change=lambda arrays: {n: a * 0 for n, a in arrays.items()},
    )
    archive = tmp_path / "model.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for path in sorted(tmp_path.glob("model_algo_1-*")):
            tar.add(path, path.name)
    np.testing.assert_array_equal(
        outputs(prepared(symbol=str(archive)).network), outputs(prepared(prefix=prefix, epoch=3).network)
    )


def test_last_epoch_of_a_prefix_is_the_default(tmp_path):
    symbol = mx.sym.SoftmaxOutput(features(), name="softmax")
    for epoch in (2, 11):
        prefix = write(tmp_path, symbol, epoch=epoch)
    assert described(prefix=prefix).weights == f"{prefix}-0011.params"
    assert described(prefix=prefix, epoch=2).weights == f"{prefix}-0002.params"
    assert described(prefix=prefix, weights="x.params").weights == "x.params"


def test_epochs_that_are_missing_are_answered_with_those_that_exist(tmp_path):
    prefix = str(tmp_path / "old")
    (tmp_path / "old-symbol.json").write_text(features().tojson())
    said = r"epoch=7: there is no file .*old-0007.params, but the epoch"
    for made, listed, nearest in (
        ([1], " 1", 1),
        ([3, 10000], "s 1, 3 and 10000", 3),
        ([5, 9], "s 1, 3, 5, 9 and 10000", 5),  # as far as 9
        ([*range(11, 16)], "s 1, 3, 5, 9, 11, 12, 13, 14, 15 and 10000", 5),  # ten are listed
        ([8, *range(20, 30)], r"s 1, 3, 5, 8, 9, \.\.\., 26, 27, 28, 29 and 10000", 8),
    ):
        for epoch in made:
            (tmp_path / f"old-{epoch:04d}.params").touch()
        with pytest.raises(ConfigError, match=f"{said}{listed}. The nearest one is model.epoch={nearest}"):
            described(prefix=prefix, epoch=7)
    assert described(prefix=prefix, epoch=8).weights == f"{prefix}-0008.params"


def test_graph_is_kept_without_its_file(tmp_path):
    prefix = write(tmp_path, mx.sym.SoftmaxOutput(features(), name="softmax"))
    model = described(prefix=prefix)
    (tmp_path / "old-symbol.json").unlink()
    kept = described(prefix=prefix, **model.recorded)
    assert kept.parsed == model.parsed
    with pytest.raises(ConfigError, match="cannot be read"):
        described(symbol=str(tmp_path / "another-symbol.json"), **model.recorded)


def test_multipliers_of_variables_are_kept(tmp_path):
    sym = mx.sym
    weight = sym.var("fixed_weight", lr_mult=0.5, wd_mult=2.0)
    x = sym.FullyConnected(sym.Flatten(sym.var("data")), weight=weight, num_hidden=3, name="fc")
    prefix = write(tmp_path, sym.SoftmaxOutput(x, name="softmax"))
    parameter = prepared(prefix=prefix).network.collect_params()["fixed_weight"]
    assert (parameter.lr_mult, parameter.wd_mult) == (0.5, 2.0)


def test_pixels_are_not_scaled_twice(tmp_path):
    from mxtrain.types.kinds import ClassIndex
    from mxtrain.vision.classification.synthetic import Synthetic

    sym = mx.sym
    scaled = (sym.var("data") - 127.5) * 0.0078125
    prefix = write(tmp_path, sym.SoftmaxOutput(features(scaled), name="softmax"))
    model = described(prefix=prefix)
    dataset = Synthetic().for_run(ClassIndex, model)
    assert dataset.mean == [0.0] * 3 and dataset.std == [1 / 255] * 3
    assert Synthetic(mean=[0.5]).for_run(ClassIndex, model).mean == [0.5]
    assert (
        Synthetic().for_run(ClassIndex, described(prefix=write(tmp_path, sym.SoftmaxOutput(features() * 2)))).mean
        == "auto"
    )


WRONG = [
    ({"symbol": "a-symbol.json"}, "", "is empty"),
    ({"symbol": "a-symbol.json"}, "{", "no JSON, or is truncated"),
    ({"symbol": "a-symbol.json"}, "[]", "no list 'nodes'"),
    ({"symbol": "a-symbol.json"}, '{"nodes": [{"op": "null"}], "heads": [[0, 0]]}', "node 0 has no operator"),
    ({"symbol": "a-symbol.json"}, '{"nodes": [{"op": "null", "name": "x"}], "heads": []}', "names no outputs"),
    (
        {"symbol": "a-symbol.json"},
        '{"nodes": [{"op": "null", "name": "x", "inputs": []}], "heads": [[1, 0]]}',
        "refers to",
    ),
    (
        {"symbol": "a-symbol.json"},
        '{"nodes": [{"op": "f", "name": "x", "inputs": [[0, 0]]}], "heads": [[0, 0]]}',
        "refers to",
    ),
    ({"symbol": "a-symbol.json"}, "[" * 100_000, "its lists are nested too deeply"),
    *(
        (
            {"symbol": "a-symbol.json"},
            f'{{"nodes": [{{"op": "f", "name": "x", "attrs": {value}}}]}}',
            "'x' are not texts",
        )
        for value in ("5", '{"num_filter": 8}')
    ),
    ({"symbol": "a-symbol.json", "prefix": "a"}, "{}", "name two graphs"),
    ({"symbol": "a-symbol.json", "epoch": 3}, "{}", "belongs to prefix"),
    ({"prefix": "a"}, "{}", "there is no file a-0000.params"),
]


@pytest.mark.parametrize("settings, content, message", WRONG)
def test_damaged_graphs_and_settings_are_refused(tmp_path, monkeypatch, settings, content, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a-symbol.json").write_text(content)
    with pytest.raises(ConfigError, match=message):
        described(**settings)


def test_file_must_be_named_before_work_starts():
    with pytest.raises(ConfigError, match="model=symbol needs the name of a file. Type model.symbol=old"):
        mxtrain.compose("model=symbol")


def test_unknown_operators_are_named_with_their_layer(tmp_path):
    prefix = write(tmp_path, mx.sym.SoftmaxOutput(features(), name="softmax"))
    path = tmp_path / "old-symbol.json"
    path.write_text(path.read_text().replace('"Convolution"', '"Convolutionn"'))
    with pytest.raises(ConfigError, match="layer 'conv1' has the operator 'Convolutionn'.*Did you mean 'Convolution'"):
        described(prefix=prefix).build(3, (1, 6, 6))


def test_missing_and_misshapen_parameters_are_refused(tmp_path):
    symbol = mx.sym.SoftmaxOutput(features(), name="softmax")
    prefix = write(
        tmp_path, symbol, change=lambda arrays: {**arrays, "arg:conv1_weight": np.zeros((4, 1, 5, 5), "float32")}
    )
    with pytest.raises(WeightsError, match="'conv1_weight' has the shape .4, 1, 3, 3."):
        prepared(prefix=prefix)
    write(tmp_path, symbol, change=lambda arrays: {"arg:fc1_bias": arrays["arg:fc1_bias"]})
    with pytest.raises(WeightsError, match="Only 1 of the network's 8 arrays"):
        prepared(prefix=prefix)


@pytest.mark.parametrize("name, is_needed", [("fc1_bias", False), ("bn1_gamma", False), ("bn1_moving_mean", True)])
def test_only_the_last_layer_may_lack_weights(tmp_path, name, is_needed):
    """A scale that the graph fixes is 1. Statistics would silently be those of a new network."""
    prefix = write(
        tmp_path,
        mx.sym.SoftmaxOutput(features(), name="softmax"),
        change=lambda arrays: {key: array for key, array in arrays.items() if not key.endswith(name)},
    )
    if is_needed:
        with pytest.raises(WeightsError, match=f"lacks 1 arrays that the graph needs: {name}. .*model.output="):
            prepared(prefix=prefix)
    else:
        assert prepared(prefix=prefix).weights_report.left == [name]


@pytest.mark.parametrize("fix_gamma", [True, False])
def test_scales_that_a_graph_fixes_are_1_whatever_the_file_holds(tmp_path, fix_gamma):
    x = mx.sym.Convolution(mx.sym.var("data"), num_filter=4, kernel=(3, 3), name="conv1")
    x = mx.sym.BatchNorm(x, fix_gamma=fix_gamma, name="bn1")
    prefix = write(tmp_path, mx.sym.FullyConnected(x, num_hidden=3, name="fc1"))
    network = prepared(prefix=prefix).network
    gamma = network.collect_params()["bn1_gamma"].data().asnumpy()
    in_file = mx.nd.load(f"{prefix}-0003.params")["arg:bn1_gamma"].asnumpy()
    np.testing.assert_array_equal(gamma, np.ones(4) if fix_gamma else in_file)
    assert not np.array_equal(in_file, np.ones(4))


def test_a_scale_that_another_layer_trains_stays_as_in_the_file(tmp_path):
    gamma = mx.sym.var("gamma")
    x = mx.sym.Convolution(mx.sym.var("data"), num_filter=4, kernel=(3, 3), name="conv1")
    for number, fix_gamma in enumerate((True, False)):
        x = mx.sym.BatchNorm(x, gamma, fix_gamma=fix_gamma, name=f"bn{number}")
    prefix = write(tmp_path, mx.sym.FullyConnected(x, num_hidden=3, name="fc1"))
    in_file = mx.nd.load(f"{prefix}-0003.params")["arg:gamma"].asnumpy()
    np.testing.assert_array_equal(prepared(prefix=prefix).network.collect_params()["gamma"].data().asnumpy(), in_file)


def test_gluon_export_takes_other_numbers_of_classes(tmp_path):
    """In files of Gluon's `export` all names begin alike, and layers are called otherwise than their weights."""
    network = mx.gluon.nn.HybridSequential(prefix="net0_")
    with network.name_scope():
        network.add(mx.gluon.nn.Conv2D(4, 3), mx.gluon.nn.Dense(3))
    network.initialize()
    network.hybridize()
    network(mx.nd.zeros((1, 1, 6, 6)))
    network.export(str(tmp_path / "net"))
    report = prepared(7, prefix=str(tmp_path / "net")).weights_report
    assert report.adapted == ["dense0_weight", "dense0_bias"] and len(report.matched) == 2
