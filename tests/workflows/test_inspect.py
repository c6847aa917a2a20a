"""`mxtrain.inspect` and `mxtrain inspect`: files of networks that MXNet has written."""

import json
import shlex
import shutil

import pytest
import symbol_files

import mxtrain
from mxtrain.cli import dispatch
from mxtrain.engine.backend import gluon, mx
from mxtrain.errors import ConfigError


def write(folder, output):
    """Saves a graph and random weights as Module does; returns the path of the graph."""
    return symbol_files.write(folder, output, epoch=12, image_shape=(3, 8, 8)) + "-symbol.json"


def scores(data=None, **norm):
    sym = mx.sym
    x = sym.Convolution(sym.var("data") if data is None else data, num_filter=4, kernel=(3, 3), name="conv1")
    return sym.FullyConnected(sym.BatchNorm(x, name="bn1", **norm), num_hidden=5, name="fc1")


def test_graph_and_weights_are_described(tmp_path):
    path = write(tmp_path, mx.sym.SoftmaxOutput(scores(), name="softmax"))
    found = mxtrain.inspect(path)
    assert found.inputs == ["data"] and found.outputs == ["softmax (SoftmaxOutput)"]
    assert found.prediction == "'fc1' (FullyConnected), in front of SoftmaxOutput 'softmax'"
    assert found.layers == [("conv1", "Convolution", 4), ("fc1", "FullyConnected", 5)]
    assert found.choices == ["fc1", "conv1"]
    assert found.operators == {"Convolution": 1, "BatchNorm": 1, "FullyConnected": 1}
    assert found.num_parameters == 4 * 27 + 4 + 4 * 4 + 5 * 144 + 5 and found.num_bytes == 4 * found.num_parameters
    assert found.command == f"model=symbol model.prefix={path[:-12]} model.epoch=12"
    assert "It scores 5 classes; with data of another number, 'fc1' starts anew." in found.remarks
    assert not any("not in the weights" in remark for remark in found.remarks)


def test_command_of_a_graph_trains(tmp_path):
    """The command that is shown is a description that composes."""
    path = write(tmp_path, mx.sym.SoftmaxOutput(scores(), name="softmax"))
    assert mxtrain.compose(*mxtrain.inspect(path).command.split())["model"]["epoch"] == 12


def test_command_can_be_pasted_where_a_path_needs_quotes(tmp_path):
    folder = tmp_path / "my networks, old"
    folder.mkdir()
    found = mxtrain.inspect(write(folder, mx.sym.SoftmaxOutput(scores(), name="softmax")))
    assert mxtrain.compose(*shlex.split(found.command))["model"]["prefix"] == str(folder / "old")


REMARKS = [
    (lambda: mx.sym.LinearRegressionOutput(scores()), "task=regression"),
    (lambda: mx.sym.Flatten(mx.sym.BatchNorm(mx.sym.var("data"))), "model.new_layer=true adds one"),
    (lambda: mx.sym.softmax(scores(use_global_stats=True)), "use_global_stats keep their statistics"),
    (lambda: mx.sym.softmax(scores((mx.sym.var("data") - 127.5) / 128)), "minus_scalar 127.5, div_scalar 128"),
    (lambda: mx.sym.softmax(scores(mx.sym.BatchNorm(mx.sym.var("data"), name="bn_data"))), "begins with a batch norm"),
    (lambda: mx.sym.softmax(scores()), "scaled outside of the graph"),
    (lambda: mx.sym.softmax(scores(mx.sym.Cast(mx.sym.var("data"), dtype="float16"))), "saved in float16"),
    (lambda: mx.sym.Group([mx.sym.softmax(scores()), mx.sym.softmax(mx.sym.sum(scores()))]), "2 outputs of equal rank"),
]


@pytest.mark.parametrize("make, words", REMARKS)
def test_remarks_say_what_to_know_before_training(tmp_path, make, words):
    found = mxtrain.inspect(write(tmp_path, make()))
    assert any(words in remark for remark in found.remarks), found.remarks
    assert ("model.output=NAME" in found.command) == ("equal rank" in words)


def test_missing_parameters_are_named(tmp_path):
    path = write(tmp_path, mx.sym.SoftmaxOutput(scores(), name="softmax"))
    mx.nd.save(str(tmp_path / "old-0012.params"), {"arg:fc1_weight": mx.nd.ones((5, 144))})
    assert "7 parameters are not in the weights, such as 'conv1_weight'." in mxtrain.inspect(path).remarks


def test_graph_without_weights_asks_for_them(tmp_path):
    path = write(tmp_path, mx.sym.SoftmaxOutput(scores(), name="softmax"))
    (tmp_path / "old-0012.params").unlink()
    found = mxtrain.inspect(path)
    assert found.arrays == [] and found.remarks[0].startswith("No weights are beside it")
    assert found.command == f"model=symbol model.symbol={path}"


def test_most_frequent_operators_come_first(tmp_path):
    x = mx.sym.Convolution(mx.sym.Activation(mx.sym.var("data"), act_type="relu"), num_filter=2, kernel=(1, 1))
    found = mxtrain.inspect(write(tmp_path, mx.sym.softmax(scores(x))))
    assert list(found.operators.items()) == [
        ("Convolution", 2),
        ("Activation", 1),
        ("BatchNorm", 1),
        ("FullyConnected", 1),
    ]


@pytest.mark.parametrize("end, kind", [("tar.gz", "gztar"), ("tgz", "gztar"), ("tar", "tar"), ("zip", "zip")])
def test_archives_are_described(tmp_path, end, kind):
    files = tmp_path / "files"
    files.mkdir()
    write(files, mx.sym.SoftmaxOutput(scores(), name="softmax"))
    archive = tmp_path / f"model.{end}"
    shutil.move(shutil.make_archive(str(tmp_path / "packed"), kind, files), archive)
    found = mxtrain.inspect(archive)
    assert len(found.arrays) == 8 and found.command == f"model=symbol model.symbol={archive}"


@pytest.mark.parametrize(
    "name, seems", [("resnetv10_", "a residual network of Gluon"), ("vgg0_", "a VGG network"), ("x_", "")]
)
def test_families_are_known_by_names(tmp_path, name, seems):
    sym = mx.sym
    path = write(tmp_path, sym.softmax(sym.FullyConnected(sym.var("data"), num_hidden=2, name=f"{name}fc")))
    assert mxtrain.inspect(path).seems == seems


def test_weights_alone_are_described(tmp_path):
    network = gluon.nn.HybridSequential()
    network.add(gluon.nn.Dense(2, in_units=3))
    network.initialize()
    network.save_parameters(str(tmp_path / "net.params"))
    found = mxtrain.inspect(tmp_path / "net.params")
    assert found.kind == "weights by the structure of a Gluon network, 2 arrays"
    assert [(one.name, one.shape, one.dtype) for one in found.arrays] == [
        ("0.weight", (2, 3), "float32"),
        ("0.bias", (2,), "float32"),
    ]
    graph = write(tmp_path, mx.sym.SoftmaxOutput(scores(), name="softmax"))
    found = mxtrain.inspect(tmp_path / "old-0012.params")
    assert found.kind == "weights of Module, 8 arrays"
    assert found.command == f"model=symbol model.symbol={graph} model.weights={tmp_path}/old-0012.params"


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("a.txt", "", "no file that it knows by its name"),
        ("a-symbol.json", "{", "is damaged, or no graph of a symbol"),
        ("a.params", "", "is damaged or no MXNet .params file"),
        ("a.tar.gz", "", "is no archive|ends early"),
        ("b.json", None, "cannot be read"),
    ],
)
def test_other_files_are_refused(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError, match=message):
        mxtrain.inspect(tmp_path / name)


def test_command_prints_lines_and_json(tmp_path, capsys):
    path = write(tmp_path, mx.sym.SoftmaxOutput(scores(), name="softmax"))
    assert dispatch.run(["inspect", path, "lines=1"]) == 0
    printed = capsys.readouterr().out
    assert "layer: fc1 FullyConnected 5\n" in printed and "conv1 Convolution" not in printed
    assert printed.rstrip().endswith("model.epoch=12")
    assert dispatch.run(["inspect", path, "format=json"]) == 0
    assert json.loads(capsys.readouterr().out)["num_parameters"] == mxtrain.inspect(path).num_parameters
    assert dispatch.run(["inspect", path, path]) == 2
    assert "takes one file, and 2 were given" in capsys.readouterr().err
