"""Whole runs in this process: what is trained, saved, and opened again."""

import importlib
import json

import numpy as np
import pytest

from mxtrain.cli import main
from mxtrain.engine.backend import nd
from mxtrain.errors import ConfigError
from mxtrain.model.mlp import MLP

FAST = ("debug=fast", "trainer.test=false")


def rows(run_dir, split):
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if row["split"] == split]


@pytest.mark.slow
def test_default_run_learns_and_writes_documented_files(train_run, tmp_path):
    run, result = train_run("trainer.max_epochs=4", "early_stopping=off")
    run_dir = tmp_path / "run"
    assert (result.state, result.exit_code) == ("finished", 0), result.cause
    assert result.metrics["val/accuracy"] > 0.9 and result.metrics["test/accuracy"] > 0.9
    steps = run.info.steps_per_epoch
    assert [row["step"] for row in rows(run_dir, "train")] == list(range(1, 4 * steps + 1))
    assert [(row["step"], row["epoch"]) for row in rows(run_dir, "val")] == [(steps * e, e) for e in (1, 2, 3, 4)]
    first, last = rows(run_dir, "train")[0], rows(run_dir, "train")[-1]
    assert set(first) >= {"step", "epoch", "split", "loss", "accuracy", "samples_per_s"}
    assert last["loss"] < first["loss"] / 3
    status = json.loads((run_dir / "status.json").read_text())
    assert status["state"] == "finished" and status["step"] == 4 * steps and status["epoch"] == 4
    assert status["best"]["metric"] == "val/accuracy" and status["weights_sha256"] == result.weights_sha256
    assert (run_dir / "checkpoints").is_dir() and status["checkpoint"]


@pytest.mark.slow
def test_saved_weights_open_in_plain_gluon_and_predict_the_same(train_run):
    run, result = train_run(*FAST, "model=mlp")
    network = run.info.network
    data = nd.random.uniform(shape=(4, *run.info.input_shape))
    expected = network(data).asnumpy()
    described = {name: value for name, value in run.info.config["model"].items() if name != "_target_"}
    fresh = MLP(**described).build(10, run.info.input_shape)
    fresh.load_parameters(f"{result.checkpoint}/model.params")
    np.testing.assert_array_equal(fresh(data).asnumpy(), expected)


@pytest.mark.slow
def test_gluoncv_network_on_digits_reports_fitted_images(train_run, tmp_path, caplog):
    caplog.set_level("INFO", logger="mxtrain")
    run, result = train_run(
        "model.name=mobilenet0.25",
        "dataset.image_size=[32,32]",
        *FAST,
        "trainer.limit_train_batches=2",
        "dataset.batch_size=8",
        "trainer.limit_val_batches=1",
    )
    assert result.exit_code == 0 and run.info.input_shape == (3, 32, 32)
    assert run.info.config["model"]["name"] == "mobilenet0.25"
    assert "1x8x8" in caplog.text and "3x32x32" in caplog.text


@pytest.mark.slow
def test_seed_determines_weights(train_run, tmp_path):
    shas = [
        train_run(*FAST, f"trainer.seed={seed}", "dataset.augment.mixup=0.2", run_dir=tmp_path / str(i))[
            1
        ].weights_sha256
        for i, seed in enumerate((1, 1, 2))
    ]
    assert shas[0] == shas[1] != shas[2]


def test_frozen_weights_do_not_change(train_run):
    run, _ = train_run(*FAST, "model=mlp", "model.freeze=[*.weight]", "optimizer.lr=0.1")
    checkpoints = sorted((run.info.run_dir / "checkpoints").glob("step-*"))
    before, after = (nd.load(str(path / "model.params")) for path in (checkpoints[0], checkpoints[-1]))
    moved = {name: bool((before[name] != after[name]).sum().asscalar()) for name in before}
    assert moved == {name: not name.endswith(".weight") for name in before}


@pytest.mark.slow
def test_every_loss_and_several_metrics_train(train_run, tmp_path):
    for loss in ("hinge", "kl_div", "sigmoid_bce"):
        _, result = train_run(
            *FAST, "model=mlp", f"loss={loss}", "metric=[accuracy,f1,mcc,top_k_accuracy]", run_dir=tmp_path / loss
        )
        assert result.exit_code == 0
        assert set(rows(tmp_path / loss, "val")[0]) >= {"loss", "accuracy", "f1", "mcc", "top_k_accuracy"}


@pytest.mark.slow
def test_gluon_cross_entropy_trains_like_ours(train_run, tmp_path):
    """By `_target_`: it is given class indices, in training and in evaluation."""
    short = ("model=mlp", "trainer.max_epochs=1", "trainer.limit_train_batches=5", "runtime.threads=1")
    train_run(*short, run_dir=tmp_path / "ours")
    train_run(*short, "loss._target_=mxnet.gluon.loss.SoftmaxCrossEntropyLoss", run_dir=tmp_path / "theirs")
    for split in ("train", "val"):
        found, wanted = rows(tmp_path / "theirs", split), rows(tmp_path / "ours", split)
        assert [row["loss"] for row in found] == pytest.approx([row["loss"] for row in wanted], rel=1e-6)


@pytest.mark.slow
def test_surprising_settings_are_reported_before_training(train_run, caplog):
    caplog.set_level("WARNING")
    train_run("model=mlp", "trainer.max_epochs=1", "dataset.batch_size=2000", "lr_scheduler.warmup=2", "logger=[]")
    said = [record.getMessage() for record in caplog.records if record.name == "mxtrain"]
    assert len(said) == 2 and said[0].startswith(
        "lr_scheduler.warmup=2 epochs (2 steps) is longer than the run (1 steps)"
    )
    assert said[1].startswith("dataset.batch_size=2000 is more than the ") and "training samples" in said[1]


@pytest.mark.parametrize(
    "command, words, instead",
    [
        (["eval", "RUN", "optimizer.lr=0.5"], "optimizer.lr=0.5: `eval` does not train", ""),
        (["eval", "RUN", "optimizer=sgd"], "optimizer=sgd: `eval` does not train", ""),
        (["eval", "RUN", "trainer.limit_val_batches=2"], "trainer.limit_val_batches=2", "limit_batches=N"),
        (["eval", "RUN", "dataset.batch_size=8"], "dataset.batch_size=8", "dataset.eval_batch_size=N"),
        (["eval", "RUN", "~early_stopping"], "~early_stopping", ""),
        (["predict", "RUN", "x.png", "metric=f1", "loss=l2"], "loss=l2: `predict` does not train", ""),
    ],
)
def test_settings_used_only_by_training_are_refused(command, words, instead):
    module = importlib.import_module({"eval": "mxtrain.cli.evaluate"}.get(command[0], "mxtrain.cli.predict"))
    with pytest.raises(ConfigError) as caught:
        module.run(command[1:])
    assert words in str(caught.value) and instead in str(caught.value)


def test_unmeasured_monitor_is_refused(describe_run):
    with pytest.raises(ConfigError, match="Did you mean 'val/accuracy'"):
        describe_run("trainer.monitor=val/acuracy")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The directory of a short run that was made by the command line."""
    run_dir = tmp_path_factory.mktemp("trained") / "run"
    assert main(["trainer.max_epochs=2", f"hydra.run.dir={run_dir}", "logger=jsonl"]) == 0
    return run_dir


@pytest.mark.slow
def test_eval_writes_metrics_and_a_confusion_matrix(trained, capsys):
    assert main(["eval", str(trained), "split=val"]) == 0
    folder = trained / "eval" / "val"
    metrics = json.loads((folder / "metrics.json").read_text())
    last = rows(trained, "val")[-1]
    best = max(rows(trained, "val"), key=lambda row: row["accuracy"])
    assert metrics["step"] in (last["step"], best["step"])
    assert metrics["accuracy"] == pytest.approx(best["accuracy"])
    confusion = np.loadtxt(folder / "confusion.csv", delimiter=",", skiprows=1, usecols=range(1, 11))
    assert confusion.sum() == metrics["samples"]
    assert np.trace(confusion) / confusion.sum() == pytest.approx(metrics["accuracy"])
    assert (folder / "confusion.png").read_bytes()[:4] == b"\x89PNG"
    assert "precision" in capsys.readouterr().out


@pytest.mark.slow
def test_predict_names_the_class_of_image_files(trained, tmp_path, capsys):
    from PIL import Image
    from sklearn.datasets import load_digits

    digits = load_digits()
    for i in range(20):
        pixels = (digits.images[i] * 255 / 16).astype(np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{i:02d}-{digits.target[i]}.png")
    assert main(["predict", str(trained), str(tmp_path)]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["file"] for row in found] == sorted(str(path) for path in tmp_path.glob("*.png"))
    right = [row["file"].endswith(f"-{row['class']}.png") for row in found]
    assert sum(right) >= 16 and all(0 < row["probability"] <= 1 for row in found)
    as_csv = tmp_path / "out" / "p.csv"
    assert main(["predict", str(trained), str(tmp_path), f"output={as_csv}"]) == 0
    assert (
        as_csv.read_text().splitlines()[0] == "file,class_1,probability_1,class_2,probability_2,class_3,probability_3"
    )
    assert len(as_csv.read_text().splitlines()) == 21


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments, message",
    [
        (["eval"], "eval takes a run directory"),
        (["eval", "no/such/run"], "no/such/run"),
        (["eval", "{run}", "split=tset"], "Did you mean 'test'"),
        (["eval", "{run}", "dataset.batchsize=3"], "Did you mean 'dataset.batch_size'"),
        (["predict", "{run}"], "mxtrain predict RUN FILE..."),
        (["predict", "{run}", "no-such.png"], "no-such.png"),
        (["predict", "{run}", "{run}/checkpoints"], "no images"),
    ],
)
def test_bad_input_to_eval_and_predict_is_refused(trained, arguments, message, capsys):
    assert main([word.format(run=trained) for word in arguments]) == 2
    assert message in capsys.readouterr().err
