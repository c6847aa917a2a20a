"""Python objects in place of options: networks, datasets, losses, metrics, optimizers and callbacks."""

import json

import numpy as np
import pytest

import mxtrain
from mxtrain.archive.registry import read_run
from mxtrain.callback import Action
from mxtrain.errors import CheckpointError, ConfigError, DataError

pytestmark = pytest.mark.slow
QUICK = ("trainer.max_epochs=3", "logger=jsonl", "lr_scheduler=constant")


@pytest.fixture(scope="module")
def data():
    """(x (N, 6), y (N,)) of two classes that a line tells apart."""
    x = np.random.default_rng(0).normal(size=(320, 6)).astype(np.float32)
    return x, (x[:, 0] + x[:, 1] > 0).astype(np.int64)


def network(mx, hidden=16, activation="relu"):
    made = mx.gluon.nn.HybridSequential()
    made.add(mx.gluon.nn.Dense(hidden, activation=activation), mx.gluon.nn.Dense(2))
    return made


def weights(run):
    return {name: value.data().asnumpy() for name, value in run.network._collect_params_with_prefix().items()}


@pytest.fixture(scope="module")
def trained(mx, data, tmp_path_factory):
    rows, given = [], {"model": network(mx), "dataset": data, "loss": mx.gluon.loss.SoftmaxCELoss()}
    run = mxtrain.train(
        *QUICK,
        **given,
        metric={"own": mx.metric.Accuracy()},
        optimizer=mx.optimizer.SGD(learning_rate=0.1, momentum=0.9),
        callbacks=[rows.append],
        dir=tmp_path_factory.mktemp("objects") / "run",
    )
    return run, rows, given


def test_objects_are_trained_measured_and_reported(trained, data):
    run, rows, _ = trained
    assert run.state == "finished", run.cause
    choices = read_run(str(run.path)).choices
    assert (choices["task"], choices["model"], choices["dataset"]) == ("classification", "HybridSequential", "arrays")
    # EvalMetric on the host and our own on the device measure the same.
    assert run.metrics["val/own"] == pytest.approx(run.metrics["val/accuracy"]) and run.metrics["val/own"] > 0.8
    assert [{**row} for row in rows] == run.history_rows()
    found = run.predict(data[0][:5])
    scores = run.network(__import__("mxnet").nd.array(data[0][:5])).asnumpy()
    expected = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    assert np.allclose(found.arrays, expected, atol=1e-6) and found[0]["class"] == str(expected[0].argmax())
    accuracy = (np.stack(run.predict(data[0]).arrays).argmax(1) == data[1]).mean()
    assert run.evaluate(dataset=data)["accuracy"] == pytest.approx(accuracy)


def test_a_step_is_that_of_plain_gluon(mx, data, tmp_path):
    """The values of an initialized network are kept, and the block itself is not trained."""
    from mxnet import autograd, gluon, nd

    x, y = data
    block = network(mx)
    block.initialize(mx.init.Xavier())
    block(nd.array(x[:1]))
    before = {name: p.data().asnumpy() for name, p in block._collect_params_with_prefix().items()}
    run = mxtrain.train(
        "trainer.max_steps=1",
        "dataset.batch_size=256",
        "logger=jsonl",
        "lr_scheduler=constant",
        model=block,
        dataset=((x[:256], y[:256]), (x[256:], y[256:])),
        optimizer=mx.optimizer.SGD(learning_rate=0.5),
        dir=tmp_path / "run",
    )
    assert all((p.data().asnumpy() == before[name]).all() for name, p in block._collect_params_with_prefix().items())
    loss = gluon.loss.SoftmaxCELoss()
    trainer = gluon.Trainer(block.collect_params(), "sgd", {"learning_rate": 0.5})
    with autograd.record():
        value = loss(block(nd.array(x[:256])), nd.array(y[:256]))
    value.backward()
    trainer.step(256)
    expected = {name: p.data().asnumpy() for name, p in block._collect_params_with_prefix().items()}
    found = weights(mxtrain.load(tmp_path / "run", which="last", model=block))
    assert all(np.allclose(found[name], expected[name], atol=1e-5) for name in expected) and run.state == "interrupted"


def test_a_run_with_objects_continues_if_they_are_given_again(trained, mx, data, tmp_path):
    run, _, given = trained
    again = {**given, "metric": {"own": mx.metric.Accuracy()}, "model": network(mx), "dir": tmp_path / "run"}

    def sgd():
        return mx.optimizer.SGD(learning_rate=0.1, momentum=0.9)

    assert mxtrain.train(*QUICK, "trainer.max_steps=7", optimizer=sgd(), **again).state == "interrupted"
    for wrong, why in (
        ({"model": mx.gluon.nn.Dense(2)}, "model.object"),
        ({"dataset": (data[0][:99], data[1][:99])}, "num_samples"),
        ({"optimizer": mx.optimizer.SGD(learning_rate=0.1, momentum=0.5)}, "optimizer.settings.momentum: was 0.9"),
        ({"loss": mx.gluon.loss.SoftmaxCELoss(weight=2)}, "loss"),
        ({"model": network(mx, hidden=8)}, r"model.structure.0: was Dense \w+, now Dense \w+"),
    ):
        with pytest.raises(CheckpointError, match=why):
            mxtrain.train(*QUICK, **{"optimizer": sgd(), **again, **wrong})
    found = mxtrain.train(*QUICK, optimizer=sgd(), **again)
    assert found.state == "finished" and found.status["weights_sha256"] == run.status["weights_sha256"]

    # Also where nothing is left to do.
    for changed in ({"hidden": 8}, {"activation": "tanh"}):
        with pytest.raises(CheckpointError, match="model.structure.0: was"):
            mxtrain.train(*QUICK, optimizer=sgd(), **{**again, "model": network(mx, **changed)})
        with pytest.raises(ConfigError, match="trained with another network: '0' differs"):
            mxtrain.load(run.path, model=network(mx, **changed))
    called = network(mx)  # of which the first call infers shapes
    called.initialize()
    called(mx.nd.array(data[0]))
    called.hybridize()
    called(mx.nd.array(data[0]))
    assert mxtrain.train(*QUICK, optimizer=sgd(), **{**again, "model": called}).state == "finished"


def test_load_names_objects_to_pass_again(trained, mx, data, capfd):
    run, _, given = trained
    with pytest.raises(ConfigError, match=r"model: .*HybridSequential.*mxtrain.load\(PATH, model=...\)"):
        mxtrain.load(run.path)
    loaded = mxtrain.load(run.path, model=network(mx))
    assert loaded.predict(data[0][:3]) == run.predict(data[0][:3])
    with pytest.raises(ConfigError, match=r"loss: .*load\(PATH, loss=...\)"):
        loaded.evaluate()
    whole = mxtrain.load(run.path, **given, metric={"own": mx.metric.Accuracy()})
    measured = [one.evaluate(split="val") for one in (whole, run)]
    assert measured[0]["own"] == measured[1]["own"] == pytest.approx(run.metrics["val/own"], abs=0.1)
    with pytest.raises(ConfigError, match="was trained with a mxnet.*HybridSequential, and a .*Dense was given"):
        mxtrain.load(run.path, model=mx.gluon.nn.Dense(2))
    from mxtrain.cli import main

    assert main(["predict", str(run.path), "x.png"]) == 2 and "mxtrain.load(PATH" in capfd.readouterr().err
    node = json.loads(json.dumps(run.config["model"]))  # the description is plain JSON
    assert node["object"].endswith("HybridSequential")


class Pairs:
    """A dataset as PyTorch has them."""

    def __init__(self, x, y):
        self._x, self._y = x, y

    def __len__(self):
        return len(self._x)

    def __getitem__(self, index):
        return self._x[index], self._y[index]


def test_datasets_of_all_kinds_give_the_same_run(mx, data, tmp_path):
    x, y = data
    kinds = {
        "numpy": (x, y),
        "ndarray": (mx.nd.array(x), mx.nd.array(y, dtype="int32")),
        "pairs": Pairs(x, y),
        "gluon": mx.gluon.data.ArrayDataset(x, y),
    }
    found = {
        kind: mxtrain.train(*QUICK, model="mlp", dataset=given, dir=tmp_path / kind).status["weights_sha256"]
        for kind, given in kinds.items()
    }
    assert len(set(found.values())) == 1
    values = (2 * x[:, 0] + 3).astype(np.float32)
    run = mxtrain.train(*QUICK, model="mlp", dataset=(x, values), optimizer={"lr": 0.01}, dir=tmp_path / "regression")
    assert run.config["task"]["_target_"].endswith("Regression") and run.config["optimizer"]["lr"] == 0.01
    found = np.array([row["value"] for row in run.predict(x[:50])])
    assert np.sqrt(((found - values[:50]) ** 2).mean()) < 0.5 * values.std()


def test_uint8_arrays_are_standardised_by_the_checkpoint(mx, tmp_path):
    image = np.random.default_rng(0).integers(0, 256, (64, 1, 8, 8), dtype=np.uint8)
    label = np.arange(64) % 3
    splits = ((image, label), (image, label))
    run = mxtrain.train("debug=fast", "logger=jsonl", model="lenet", dataset=splits, dir=tmp_path)
    (batch,) = run.batches("val")
    expected = (image.astype(np.float64) - image.mean()) / image.std()
    assert np.allclose(batch["input"], expected, atol=1e-5) and (batch["target"] == label).all()
    loaded = mxtrain.load(tmp_path)
    assert loaded.predict(image[:2]) == run.predict(image[:2].astype(int))
    for wrong in (image[:, 0], image.astype(str)):
        with pytest.raises(ConfigError, match=r"give numbers of shape \(N, 1, 8, 8\)"):
            loaded.predict(wrong)
    for wrong, why in (
        ("a.png", "reads no files"),
        ([tmp_path], "reads no files"),
        (image / 255, "trained on uint8"),
        (image.astype(int) + 1, "trained on uint8"),
    ):
        with pytest.raises(ConfigError, match=why):
            loaded.predict(wrong)


def test_arrays_of_any_shape_train_a_perceptron(tmp_path):
    """(N, 8, 8): neither images, which have channels, nor rows of numbers."""
    x, y = np.random.default_rng(0).normal(size=(64, 8, 8)).astype(np.float32), np.arange(64) % 3
    run = mxtrain.train("debug=fast", "logger=jsonl", model="mlp", dataset=(x, y), dir=tmp_path)
    assert len(run.predict(x)) == 64 and run.predict(x[:0]) == []
    for value in (np.nan, np.inf):
        x[2, 0, 0] = value
        with pytest.raises(DataError, match="input 2 has a number that is not finite"):
            run.predict(x)
    with pytest.raises(ConfigError, match="model takes images, and dataset gives arrays. Type model=mlp, or in Python"):
        mxtrain.train("debug=fast", model="lenet", dataset=(x, y), dir=tmp_path / "images")


@pytest.mark.parametrize(
    "given, why",
    [
        ({"model": 3.5}, "model"),
        ({"model": object()}, "model=.*must be a gluon.Block"),
        ({"loss": object()}, "loss=.*gluon.loss.Loss"),
        ({"metric": [object()]}, "metric=.*EvalMetric"),
        ({"optimizer": object()}, "optimizer=.*mxnet.optimizer.Optimizer or a dict"),
        ({"callbacks": [3]}, "callbacks: 3 is neither"),
        ({"dataset": np.zeros((4, 2))}, r"array without targets. Give \(x, y\)"),
        ({"dataset": (np.zeros((4, 2)), np.zeros(4, int)) * 2}, r"4 arrays. Give pairs: \(\(x, y\), \(x_val, y_val"),
        ({"dataset": (np.zeros((4, 2)), np.zeros(3, int))}, r"targets are int\d+ of shape \(3,\), for 4 inputs"),
        ({"dataset": (np.zeros((4, 2)), np.full(4, np.nan))}, "target of sample 0 is not finite"),
        ({"dataset": ((np.zeros((4, 2)), np.zeros(4, int)), (np.zeros((4, 3)), np.zeros(4, int)))}, "val inputs have"),
        ({"dataset": [1, 2, 3]}, "is no dataset"),
        ({"dataset": Pairs([], [1])}, "no samples"),
        ({"dataset": Pairs([1.0], [])}, "item 0 cannot be read: IndexError"),
        ({"modle": "mlp"}, "no argument 'modle'. Did you mean 'model'"),
        ({"trainer": object()}, "trainer=.*name of an option"),
    ],
)
def test_wrong_objects_are_refused_by_their_argument(given, why, tmp_path):
    with pytest.raises(ConfigError, match=why):
        mxtrain.train("debug=fast", dir=tmp_path / "run", **given)
    assert not (tmp_path / "run").exists()


def test_objects_beside_settings_and_workers(mx, data, tmp_path):
    given = {"model": network(mx), "dataset": data, "dir": tmp_path / "run"}
    for words, options, why in (
        (("model=lenet",), {}, "passed as an object, too"),
        (("model.hidden=3",), {}, "no setting 'hidden'"),
        (("kvstore=dist_sync", "cluster.workers=2"), {}, "cannot be sent to other processes"),
        ((), {"process": "new"}, "cannot be sent to another process"),
        ((), {"optimizer": mx.optimizer.SGD(lr_scheduler=mx.lr_scheduler.FactorScheduler(1))}, "lr_scheduler"),
        ((), {"optimizer": mx.optimizer.SGD(rescale_grad=0.5)}, "rescale_grad"),
        ((), {"dataset": mx.gluon.data.DataLoader(mx.gluon.data.ArrayDataset(*data), 4)}, "It is a loader"),
    ):
        with pytest.raises(ConfigError, match=why):
            mxtrain.train(*QUICK, *words, **{**given, **options})
    run = mxtrain.train("debug=fast", "model.freeze=[0.weight]", "dataset.class_names=[no,yes]", **given)
    assert run.config["model"]["freeze"] == ["0.weight"] and run.predict(data[0][0])[0]["class"] in ("no", "yes")


class StopAfter(Action):
    """Ends a run after so many validations, which its state counts."""

    def __init__(self, validations):
        self.validations = validations

    def after_validation(self, run):
        self.state["seen"] = self.state.get("seen", 0) + 1
        if self.state["seen"] == self.validations:
            run.stop("seen enough")


def test_actions_change_a_run_and_their_state_continues(mx, data, tmp_path):
    given, action = {"model": network(mx), "dataset": data, "dir": tmp_path / "run"}, StopAfter(2)
    one_epoch = mxtrain.train("trainer.max_steps=18", "logger=jsonl", callbacks=[action], **given)
    assert one_epoch.state == "interrupted" and action.state == {}
    for wrong in ([StopAfter(3)], None):
        with pytest.raises(ConfigError, match="trained with callback.stopafter=.*validations: 2"):
            mxtrain.train("trainer.max_epochs=9", "logger=jsonl", callbacks=wrong, **given)
    run = mxtrain.train("trainer.max_epochs=9", "logger=jsonl", callbacks=[StopAfter(2)], **given)
    assert run.status["epoch"] == 2 and "seen enough" in run.cause
    target = {"target": {"value": 0.0, "monitor": "val/accuracy"}}
    run = mxtrain.train("trainer.max_epochs=9", "logger=jsonl", callback=target, **{**given, "dir": tmp_path / "other"})
    assert run.status["epoch"] == 1 and "val/accuracy has reached" in run.cause
    with pytest.raises(ConfigError, match="callback={'target': 0.9}: give a dict of settings"):
        mxtrain.train(callback={"target": 0.9})


def test_verify_returns_the_differences_of_layers(mx, data):
    found = mxtrain.verify("parallel=data", "parallel.devices=cpu:2", model=network(mx), dataset=data, steps=2)
    assert found.passed and {layer.layer for layer in found.layers} == {"0", "1"}
    assert all(layer.gradient_rel < 1e-6 for layer in found.layers)
    with pytest.raises(ConfigError, match="steps"):
        mxtrain.verify(steps=0)
