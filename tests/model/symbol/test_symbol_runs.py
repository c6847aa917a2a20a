"""Whole runs of networks from files: placements, resuming, pruning, export, and predictions beside Module's own."""

import json
import signal

import numpy as np
import pytest
from low_precision import needs_bfloat16
from running import Process, assert_same, has_steps, train_here

import mxtrain
from mxtrain.cli.dispatch import run
from mxtrain.engine.backend import mx
from mxtrain.training.verification import verify

pytestmark = pytest.mark.slow

SIDE, CLASSES = 8, 10
"""Size of scikit-learn's digits, the default dataset."""
SHORT = ("dataset.batch_size=96", "trainer.max_epochs=1", "trainer.limit_train_batches=5", "trainer.log_interval=1")


def digits_network(**norm):
    """A network of Module with two batch norms, one of which keeps its statistics."""
    sym = mx.sym
    x = sym.var("data")
    for number, options in enumerate(({}, norm or {"use_global_stats": True, "fix_gamma": False})):
        x = sym.Convolution(x, num_filter=8, kernel=(3, 3), pad=(1, 1), name=f"conv{number}")
        x = sym.Activation(sym.BatchNorm(x, name=f"bn{number}", **options), act_type="relu", name=f"relu{number}")
    x = sym.Pooling(x, kernel=(2, 2), stride=(2, 2), pool_type="max", name="pool")
    x = sym.Activation(sym.FullyConnected(sym.Flatten(x), num_hidden=16, name="fc1"), act_type="relu")
    return sym.FullyConnected(x, num_hidden=CLASSES, name="fc2")


def save(folder, output, name="old"):
    """Saves a graph and random weights as Module does; returns the prefix."""
    mx.random.seed(3)
    module = mx.mod.Module(output, label_names=[n for n in output.list_arguments() if n.endswith("label")])
    labels = [(name, (4,)) for name in module.label_names]
    module.bind([("data", (4, 1, SIDE, SIDE))], labels or None)
    module.init_params(mx.init.Xavier())
    module.save_checkpoint(str(folder / name), 2)
    return str(folder / name)


@pytest.fixture
def prefix(tmp_path):
    return save(tmp_path, mx.sym.SoftmaxOutput(digits_network(), name="softmax"))


@pytest.mark.parametrize(
    "placement",
    [
        pytest.param(("parallel=data",), marks=pytest.mark.zoo),
        pytest.param(("parallel=pipeline", "parallel.microbatches=2"), marks=pytest.mark.zoo),
        ("parallel=hybrid", "parallel.microbatches=2", "trainer.grad_accumulation=2"),
        pytest.param(("parallel=data", "amp=bfloat16"), marks=needs_bfloat16),
    ],
)
def test_placements_equal_one_device(describe_run, prefix, placement):
    assert verify(describe_run("model=symbol", f"model.prefix={prefix}", *SHORT, *placement), 2, 1e-5).passed


def module_probabilities(symbol, weights, images):
    """Probabilities of Module with the weights of a run in the graph of the old file."""
    module = mx.mod.Module(symbol, label_names=["softmax_label"])
    module.bind([("data", images.shape)], [("softmax_label", images.shape[:1])], for_training=False)
    states = {name: array for name, array in weights.items() if name.endswith(("moving_mean", "moving_var"))}
    module.set_params({name: array for name, array in weights.items() if name not in states}, states)
    module.forward(mx.io.DataBatch([mx.nd.array(images)]), is_train=False)
    return module.get_outputs()[0].asnumpy()


def test_predictions_are_those_of_module_with_the_trained_weights(tmp_path, prefix):
    """Also after the files of the old network are deleted, in `eval` and in a proven export."""
    rng = np.random.default_rng(0)
    images, labels = rng.normal(size=(96, 1, SIDE, SIDE)).astype("float32"), rng.integers(0, CLASSES, 96)
    symbol = mx.sym.load(f"{prefix}-symbol.json")
    folder = tmp_path / "run"
    mxtrain.train(
        "model=symbol", f"model.prefix={prefix}", *SHORT, dataset=((images, labels), (images, labels)), dir=str(folder)
    )
    for path in tmp_path.glob("old-*"):
        path.unlink()
    opened = mxtrain.load(folder)
    expected = module_probabilities(symbol, mx.nd.load(f"{opened.checkpoint.path}/model.params"), images)
    rows = opened.predict(images, top_k=CLASSES)
    np.testing.assert_allclose([row["probability"] for row in rows], expected.max(axis=1), atol=1e-6)
    assert [int(row["class"]) for row in rows] == expected.argmax(axis=1).tolist()
    found = opened.evaluate(dataset=(images, labels))
    np.testing.assert_allclose(found["loss"], -np.log(expected[np.arange(96), labels]).mean(), rtol=1e-5)
    np.testing.assert_allclose(found["accuracy"], (expected.argmax(axis=1) == labels).mean(), rtol=1e-6)


def test_run_needs_no_file_of_the_old_network_any_more(tmp_path, prefix, capsys):
    folder = tmp_path / "run"
    train_here(folder, "model=symbol", f"model.prefix={prefix}", *SHORT)
    for path in tmp_path.glob("old-*"):
        path.unlink()
    assert run(["eval", str(folder), "split=val", "explain=integrated_gradients", "explain_samples=2"]) == 0
    assert run(["predict", str(folder), "sample=2"]) == 0
    capsys.readouterr()
    assert run(["export", str(folder)]) == 0
    assert "by MXNet" in capsys.readouterr().out and (folder / "export" / "model.onnx").exists()


def test_killed_run_resumes_to_the_bit(tmp_path, prefix):
    words = ("model=symbol", f"model.prefix={prefix}", "dataset.batch_size=96", "trainer.max_epochs=2")
    words = (*words, "trainer.log_interval=1", "checkpoint.every_steps=3")
    train_here(tmp_path / "whole", *words)
    whole = tmp_path / "run"
    Process(whole, *words).wait_until(has_steps(whole, 8)).kill(signal.SIGKILL).end(-signal.SIGKILL, 0)
    train_here(whole, *words)
    assert_same(whole, tmp_path / "whole")


def test_channels_are_pruned_and_removed(tmp_path, prefix, capsys):
    folder = tmp_path / "run"
    pruned = ("callback=prune_channels", "callback.prune_channels.start=0", "callback.prune_channels.end=0.5")
    train_here(
        folder, "model=symbol", f"model.prefix={prefix}", *SHORT, *pruned, "callback.prune_channels.every_steps=1"
    )
    for path in tmp_path.glob("old-*"):
        path.unlink()
    assert run(["slim", str(folder), "which=last"]) == 0
    assert "parameters: " in capsys.readouterr().out
    assert run(["eval", str(folder / "slim"), "split=val"]) == 0
    assert run(["export", str(folder / "slim")]) == 0


def test_statistics_of_global_norms_stay(tmp_path, prefix):
    """Those of the other norm move, and a fixed scale stays."""
    train_here(tmp_path / "run", "model=symbol", f"model.prefix={prefix}", *SHORT)
    *_, path = sorted((tmp_path / "run" / "checkpoints").glob("step-*/model.params"))
    trained, old = mx.nd.load(str(path)), mx.nd.load(f"{prefix}-0002.params")
    same = {
        name: np.array_equal(trained[name.partition(":")[2]].asnumpy(), array.asnumpy()) for name, array in old.items()
    }
    assert {name for name, is_same in same.items() if is_same} == {
        "aux:bn1_moving_mean",
        "aux:bn1_moving_var",
        "arg:bn0_gamma",
    }


def test_one_output_of_a_group_is_trained(tmp_path):
    """Two losses over one trunk: the other head goes, and the weights of both are in the file."""
    sym = mx.sym
    trunk = digits_network().get_internals()["relu1_output"]
    heads = [
        sym.SoftmaxOutput(sym.FullyConnected(trunk, num_hidden=count, name=f"{name}_fc"), name=name)
        for name, count in (("digit", CLASSES), ("parity", 2))
    ]
    prefix = save(tmp_path, sym.Group(heads), "two")
    said = train_here(tmp_path / "run", "model=symbol", f"model.prefix={prefix}", *SHORT, exit_code=2)
    assert "2 outputs of equal rank" in said and "model.output=digit_fc" in said
    train_here(tmp_path / "run", "model=symbol", f"model.prefix={prefix}", "model.output=digit_fc", *SHORT)
    *_, path = sorted((tmp_path / "run" / "checkpoints").glob("step-*/model.params"))
    assert not [name for name in mx.nd.load(str(path)) if name.startswith("parity")]
    assert json.loads((tmp_path / "run" / "status.json").read_text())["state"] == "finished"
