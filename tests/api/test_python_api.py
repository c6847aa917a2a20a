"""The Python API: `mxtrain.compose`, `train`, `load` and `Run`, beside the command line."""

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.version import getbase
from running import ROOT
from waiting import wait_until

import mxtrain
from mxtrain.checkpoint import lock_run_directory
from mxtrain.cli import main
from mxtrain.errors import CheckpointError, ConfigError, DataError, RunDirectoryError

pytestmark = pytest.mark.slow
FAST = ("debug=fast", "model=mlp", "logger=jsonl")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return mxtrain.train(*FAST, dir=tmp_path_factory.mktemp("api") / "run")


def run_command(*arguments):
    done = subprocess.run([sys.executable, "-m", "mxtrain", *arguments], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done


def without_file(rows):
    return [{name: value for name, value in row.items() if name != "file"} for row in rows]


def digit(seed=0):
    return np.random.default_rng(seed).integers(0, 256, (8, 8), dtype=np.uint8)


def test_unknown_names_have_no_attribute():
    assert {"train", "load", "compose", "Run"} <= set(dir(mxtrain))
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        mxtrain.trian  # noqa: B018


def test_compose_returns_the_checked_configuration():
    assert mxtrain.compose("model=lenet", "optimizer.lr=0.25")["optimizer"]["lr"] == 0.25
    with pytest.raises(ConfigError, match="Did you mean 'model'"):
        mxtrain.compose("modle=lenet")
    assert mxtrain.compose(model="mlp", optimizer={"lr": 0.5}, debug="fast")["optimizer"]["lr"] == 0.5
    assert mxtrain.compose(experiment="fine_tune") == mxtrain.compose("experiment=fine_tune")


def test_config_dir_adds_options(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "narrow.yaml").write_text("defaults: [mlp]\nhidden: [7]\n")
    assert mxtrain.compose("model=narrow", config_dir=tmp_path)["model"]["hidden"] == [7]
    assert mxtrain.explain("model.hidden", model="narrow", config_dir=tmp_path).settings[0].value == [7]
    with pytest.raises(ConfigError, match="narrow"):
        mxtrain.compose("model=narrow")


def test_arguments_of_a_wrong_kind_are_refused(trained, tmp_path):
    x = np.zeros((4, 2))
    groups = "groups: task, model, .*experiment, debug"
    for call, why in (
        (lambda: mxtrain.train({"model": "mlp"}), 'train: a dict is no override.*model="mlp"'),
        (lambda: mxtrain.train(["model=mlp"]), "a list is no override"),
        (lambda: mxtrain.compose(3), "compose: a int is no override"),
        (lambda: trained.evaluate(x, x), r"evaluate: a ndarray is no override.*dataset=\(x, y\)"),
        (lambda: mxtrain.load(None), "load: path=None: must be a path"),
        (lambda: mxtrain.train(*FAST, dir=3), "train: dir=3: must be a path"),
        (lambda: mxtrain.train(net=x), f"overrides, dir, config_dir, process, callbacks and {groups}"),
        (lambda: mxtrain.load(trained.path, net=x), "config_dir and objects: model, dataset, loss, metric"),
        (
            lambda: mxtrain.lr_find(
                "model=mlp", "kvstore=dist_sync", "cluster.workers=2", dataset=(x, np.zeros(4, int))
            ),
            r"lr_find: several workers with objects \(dataset\): objects cannot be sent",
        ),
        (lambda: mxtrain.lr_find(model="mpl"), "Did you mean 'model=mlp'|mlp"),
        (lambda: mxtrain.train(experiment={"a": 1}), "experiment=.*must be the name of an option"),
    ):
        with pytest.raises(ConfigError, match=why):
            call()
    with pytest.raises(CheckpointError, match="choose another dir, or start over"):
        mxtrain.train("debug=fast", "model=lenet", "logger=jsonl", dir=trained.path)


def test_python_run_equals_the_command_line(trained, tmp_path):
    run_command(*FAST, f"hydra.run.dir={tmp_path / 'run'}")
    files = {str(path.relative_to(tmp_path / "run")) for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert files == {str(path.relative_to(trained.path)) for path in trained.path.rglob("*") if path.is_file()}
    theirs = mxtrain.load(tmp_path / "run")

    def weights(run):
        return {name: value.data().asnumpy() for name, value in run.network._collect_params_with_prefix().items()}

    ours, expected = weights(trained), weights(theirs)
    assert ours.keys() == expected.keys() and all(np.array_equal(ours[name], expected[name]) for name in ours)
    assert trained.state == theirs.state == "finished" and trained.metrics == theirs.metrics


def test_metrics_and_history_match_files(trained):
    status = json.loads((trained.path / "status.json").read_text())
    assert trained.metrics["test/loss"] == status["metrics"]["test/loss"]
    rows = [json.loads(line) for line in (trained.path / "metrics.jsonl").read_text().splitlines()]
    assert trained.history_rows() == rows and len(trained.history()) == len(rows)
    assert trained.best["metric"] == "val/accuracy" and trained.cause == ""


def test_evaluation_equals_training_and_numpy(trained):
    measured = trained.evaluate(split="test", limit_batches=2)
    probabilities, labels = [], []
    network = trained.network
    import mxnet as mx

    for number, batch in enumerate(trained.batches("test")):
        if number == 2:
            break
        score_BK = network(mx.nd.array(batch["input"])).asnumpy()
        probabilities.append(np.exp(score_BK - score_BK.max(1, keepdims=True)))
        labels.append(batch["target"])
    p_NK, label_N = np.concatenate(probabilities), np.concatenate(labels).astype(int)
    p_NK /= p_NK.sum(1, keepdims=True)
    assert measured["accuracy"] == pytest.approx((p_NK.argmax(1) == label_N).mean(), abs=1e-6)
    assert measured["loss"] == pytest.approx(-np.log(p_NK[np.arange(len(label_N)), label_N]).mean(), rel=1e-4)
    for split, why in (
        ("holdout", "no such split. Choose split=train or split=val or split=test"),
        ("tets", "Did you mean 'test'"),
    ):
        with pytest.raises(DataError, match=why):
            trained.evaluate(split=split)
    for words, why in (
        ("optimizer.lr=1", "does not train"),
        ("val", "no override"),
        ("--trust-code", "no override"),
    ):
        with pytest.raises(ConfigError, match=why):
            trained.evaluate(words)
    with pytest.raises(DataError, match="no such split"):
        next(trained.batches("class_names"))
    with pytest.raises(ConfigError, match="positive integer"):
        trained.evaluate(limit_batches=0)


def test_predictions_of_arrays_images_and_files_match_the_command(trained, tmp_path, capsys):
    from PIL import Image

    paths = [tmp_path / f"{seed}.png" for seed in range(3)]
    for seed, path in enumerate(paths):
        Image.fromarray(digit(seed)).save(path)
    assert main(["predict", str(trained.path), *map(str, paths)]) == 0
    expected = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert trained.predict(paths) == trained.predict([str(path) for path in paths]) == expected
    for row in expected:
        del row["file"]
    found = trained.predict([digit(seed) for seed in range(3)])
    batch = np.stack([digit(seed) for seed in range(3)])
    assert found == trained.predict(batch) == trained.predict(np.stack([batch] * 3, axis=-1))
    assert trained.predict(np.stack([digit(1)] * 3, axis=-1)) == found[1:2], "one image of three channels"
    assert found == expected == trained.predict([Image.open(path) for path in paths])
    assert [row["class"] for row in found] == [str(array.argmax()) for array in found.arrays]
    assert all(array.shape == (10,) and array.sum() == pytest.approx(1, abs=1e-5) for array in found.arrays)
    assert trained.predict(digit(1)) == expected[1:2] and trained.predict([]) == []
    turned = Image.fromarray(digit(1)).transpose(Image.ROTATE_90)
    turned.getexif()[0x0112] = 6  # upright once it is turned back
    assert trained.predict(turned) == expected[1:2]
    with pytest.raises(ConfigError, match="mode F"):
        trained.predict(Image.fromarray(np.zeros((8, 8), np.float32)))
    assert len(trained.predict(digit(), top_k=1)[0]["top"]) == 1


@pytest.mark.parametrize(
    "inputs, why",
    [
        (np.zeros((8, 8)), "an array of float64 with shape"),
        (np.zeros((2, 8, 8, 5), np.uint8), "input 0 is an array of uint8 with shape \\(8, 8, 5\\)"),
        (np.zeros((2, 2, 8, 8, 3), np.uint8), "shape \\(2, 2, 8, 8, 3\\)"),
        ([3], "of type int"),
        ({"a": 1}, "input 0 is of type dict. This run reads images"),
        (["a.png", digit()], "some inputs are paths"),
    ],
)
def test_inputs_that_cannot_be_read_are_refused(trained, inputs, why):
    with pytest.raises(ConfigError, match=why):
        trained.predict(inputs)
    with pytest.raises(ConfigError, match="positive integer"):
        trained.predict(digit(), top_k=0)


def test_texts_are_given_as_strings(tmp_path):
    run = mxtrain.train("debug=fast", "task=translation", "logger=jsonl", dir=tmp_path / "run")
    (tmp_path / "in.txt").write_text("twenty two\nthree\n")
    expected = without_file(run.predict(tmp_path / "in.txt"))
    assert run.predict(["twenty two", "three"]) == expected
    with pytest.raises(ConfigError, match="several lines"):
        run.predict("one\ntwo")
    with pytest.raises(ConfigError, match="input 0 is an array .* This run reads strings"):
        run.predict(digit())
    with pytest.raises(ConfigError, match="no valid Unicode"):
        run.predict("\ud800")
    assert "file" not in run.predict(str(tmp_path / "in.txt"))[0]  # a text, whatever there is of that name


def test_rows_of_tables_are_given_as_dicts(tmp_path):
    pandas = pytest.importorskip("pandas")
    run = mxtrain.train("debug=fast", "task=tabular", "logger=jsonl", dir=tmp_path / "run")
    names = run.signature.class_names if run.signature.class_names[0] not in ("0", "1") else []
    columns = [column.name for column in run.signature.columns.columns] if hasattr(run.signature, "columns") else names
    rows = [{name: float(number) for number, name in enumerate(columns)}, {name: 1.0 for name in columns}]
    text = ",".join(columns) + "\n" + "".join(",".join(str(value) for value in row.values()) + "\n" for row in rows)
    (tmp_path / "in.csv").write_text(text)
    expected = without_file(run.predict(tmp_path / "in.csv"))
    assert run.predict(rows) == expected and len(expected) == 2
    typed = [{name: np.float64(value) for name, value in reversed(list(row.items()))} for row in rows]
    assert run.predict(typed) == expected
    assert run.predict(pandas.DataFrame(rows)) == expected
    for wrong, why in (
        ([rows[0], {"a": 1}], "sample 1: there is no column"),
        ({**rows[0], columns[2]: np.zeros(3)}, "is of type ndarray"),
        ([{**rows[0], columns[2]: "x"}], f"sample 0: '{columns[2]}' is 'x'"),
    ):
        with pytest.raises(DataError, match=why):
            run.predict(wrong)
    with pytest.raises(ConfigError, match="input 1 is of type int. This run reads dicts from column to value"):
        run.predict([rows[0], 1])


def test_training_restores_process_state(tmp_path):
    root = logging.getLogger()
    handler = logging.NullHandler()
    root.addHandler(handler)
    folder = Path.cwd()
    filters, environment = list(warnings.filters), dict(os.environ)
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    hydra = (GlobalHydra.instance().hydra, HydraConfig.instance().cfg, getbase())
    loggers = (list(root.handlers), root.level, list(logging.getLogger("mxtrain").handlers))
    try:
        run = mxtrain.train(*FAST, dir=tmp_path / "run")
        run.predict(digit())
        run.evaluate(limit_batches=1)
        assert Path.cwd() == folder
        assert (list(root.handlers), root.level, list(logging.getLogger("mxtrain").handlers)) == loggers
    finally:
        root.removeHandler(handler)
    assert dict(os.environ) == environment and warnings.filters == filters
    assert (GlobalHydra.instance().hydra, HydraConfig.instance().cfg, getbase()) == hydra
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers


def test_a_run_continues_in_the_same_process_and_in_a_thread(tmp_path):
    first = mxtrain.train(*FAST, "trainer.max_steps=2", dir=tmp_path / "run")
    assert first.state == "interrupted" and "max_steps" in first.cause
    found = []
    thread = threading.Thread(target=lambda: found.append(mxtrain.train(*FAST, dir=tmp_path / "run")))
    thread.start()
    thread.join(120)
    assert found[0].state == "finished" and [row["step"] for row in found[0].history_rows()][-1] == 5


def test_wrong_descriptions_raise_without_output(tmp_path):
    for words, why in ((("optimizer.lr=-1",), "lr"), (("dataset=image_folder", "dataset.root=/nowhere"), "/nowhere")):
        with pytest.raises(ConfigError, match=why):
            mxtrain.train(*FAST, *words, dir=tmp_path / "run")
        assert not (tmp_path / "run").exists()
    with pytest.raises(CheckpointError):
        mxtrain.load(tmp_path / "run")
    with pytest.raises(ConfigError, match="'best' or 'last'"):
        mxtrain.load(tmp_path, which="newest")


def test_untrusted_code_is_not_run(tmp_path, monkeypatch):
    folder = tmp_path / "conf" / "model"
    folder.mkdir(parents=True)
    (tmp_path / "strange_model.py").write_text("from mxtrain.model.mlp import MLP\nclass Strange(MLP): pass\n")
    (folder / "strange.yaml").write_text("defaults: [mlp]\n_target_: strange_model.Strange\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    words = ("debug=fast", "model=strange", "logger=jsonl")
    run = mxtrain.train(*words, dir=tmp_path / "run", config_dir=tmp_path / "conf")
    assert run.predict(digit())
    sys.modules.pop("strange_model")
    with pytest.raises(ConfigError, match="strange_model"):
        mxtrain.load(tmp_path / "run")
    assert "strange_model" not in sys.modules
    assert mxtrain.load(tmp_path / "run", trust_code=True).predict(digit())
    assert mxtrain.load(tmp_path / "run", config_dir=tmp_path / "conf").predict(digit())


@pytest.mark.zoo
@pytest.mark.parametrize("process", ["same", "new"])
def test_workers_are_started_as_processes(tmp_path, process):
    run = mxtrain.train(*FAST, "kvstore=dist_sync", "cluster.workers=2", dir=tmp_path / "run", process=process)
    assert run.state == "finished" and run.evaluate(limit_batches=1)
    assert (Path(run.path) / "workers").is_dir()


def test_functions_match_a_run(trained):
    expected = {**trained.evaluate(split="val"), "samples_per_s": 0}
    for run in (trained, trained.path, str(trained.path)):
        assert {**mxtrain.evaluate(run, split="val"), "samples_per_s": 0} == expected
        assert mxtrain.predict(run, digit(), top_k=2) == trained.predict(digit(), top_k=2)


@pytest.mark.filterwarnings("ignore:Cannot decide type")  # MXNet's, of every exported network
def test_the_network_is_hooked_tuned_and_exported(trained, tmp_path):
    from mxnet import autograd, gluon, nd

    network, seen = trained.network, []
    assert isinstance(network, gluon.HybridBlock)
    batch = next(trained.batches("train"))
    x, y = nd.array(batch["input"]), nd.array(batch["target"])
    before = network(x).asnumpy()
    handle = network.register_forward_hook(lambda block, inputs, output: seen.append(output.shape))
    network(x)
    handle.detach()
    assert seen == [(len(y), 10)]
    network.export(str(tmp_path / "net"))
    exported = gluon.SymbolBlock.imports(str(tmp_path / "net-symbol.json"), ["data"], str(tmp_path / "net-0000.params"))
    assert np.allclose(exported(x).asnumpy(), before, atol=1e-5)
    trainer, loss = gluon.Trainer(network.collect_params(), "sgd", {"learning_rate": 0.05}), gluon.loss.SoftmaxCELoss()
    losses = []
    for _ in range(10):
        with autograd.record():
            value = loss(network(x), y)
        value.backward()
        trainer.step(len(y))
        losses.append(value.mean().asscalar())
    assert losses[-1] < 0.9 * losses[0]
    assert np.array_equal(trained.network(x).asnumpy(), before)  # it was a copy


def test_a_new_process_trains_the_same_and_shows_its_output(trained, tmp_path, capsys):
    run = mxtrain.train(*FAST, dir=tmp_path / "run", process="new")
    assert run.status["weights_sha256"] == trained.status["weights_sha256"]
    assert "best val/accuracy" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="/nowhere"):
        mxtrain.train(*FAST, "dataset=image_folder", "dataset.root=/nowhere", dir=tmp_path / "bad", process="new")
    with pytest.raises(ConfigError, match="computes something else(.|\n)*choose another dir, or start over"):
        mxtrain.train(*FAST, "optimizer.lr=0.3", dir=run.path, process="new")
    with pytest.raises(ConfigError, match="'same' or 'new'"):
        mxtrain.train(*FAST, process="other")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["interrupted", "killed"])
def test_a_new_process_ends_with_the_one_that_started_it(tmp_path, number):
    code = (
        "import mxtrain, sys\n"
        "words = 'model=mlp', 'logger=jsonl', 'trainer.max_epochs=100000'\n"
        "run = mxtrain.train(*words, dir=sys.argv[1], process='new')\n"
        "print('state', run.state, run.status['exit_code'])\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, cwd=ROOT)
    wait_until((tmp_path / "metrics.jsonl").is_file, 120)
    process.send_signal(number)
    said, _ = process.communicate(timeout=60)
    if number == signal.SIGINT:
        assert said.decode().splitlines()[-1] == "state interrupted 130"
    wait_until(lambda: not is_locked(tmp_path), 10)


def is_locked(path):
    try:
        lock_run_directory(path).release()
    except RunDirectoryError:
        return True
    return False


@pytest.mark.zoo
def test_settings_after_the_import_are_reported_once(trained, tmp_path):
    code = (
        "{}import mxtrain, sys\n"
        "for name in 'ab': mxtrain.train('debug=fast', 'model=mlp', 'logger=jsonl', dir=sys.argv[1] + name)\n"
    )
    evaluate = f"import mxtrain; mxtrain.load({str(trained.path)!r}).evaluate(limit_batches=1); "
    for number, (first, expected) in enumerate((("import mxnet; ", 1), ("", 0), (evaluate, 0))):
        words = [sys.executable, "-c", code.format(first), str(tmp_path / f"{number}")]
        done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT)
        said = [line for line in (done.stdout + done.stderr).splitlines() if "too late" in line]
        assert done.returncode == 0 and len(said) == expected, done.stderr
        assert all("OMP_WAIT_POLICY" in line and "before importing mxnet" in line for line in said)
