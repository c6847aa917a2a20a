"""Custom loops: `mxtrain.session` beside `train`, with loss functions, several networks, and after a kill."""

import importlib.util
import json
import re
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from running import ROOT

import mxtrain
from mxtrain.api.run import Run
from mxtrain.errors import ConfigError

pytestmark = pytest.mark.slow
FAST = ("debug=fast", "model=lenet", "logger=jsonl")


def cross_entropy(network, batch):
    from mxnet import nd

    return -nd.pick(nd.log_softmax(network(batch.inputs[0])), batch.targets[0])


def rows_of(run):
    return [{name: value for name, value in row.items() if name != "samples_per_s"} for row in run.history_rows()]


@pytest.mark.parametrize(
    "words",
    [
        (),
        pytest.param(("parallel=data", "parallel.devices=cpu:2", "trainer.clip_global_norm=1"), marks=pytest.mark.zoo),
        pytest.param(("trainer.grad_accumulation=2",), marks=pytest.mark.zoo),
    ],
)
def test_a_loop_of_plain_steps_is_train_and_so_is_one_of_the_same_loss(words, tmp_path):
    run = mxtrain.train(*FAST, *words, dir=tmp_path / "train")
    with mxtrain.session(*FAST, *words, dir=tmp_path / "plain") as s:
        for batch in s.train_batches():
            s.step(batch)
    assert rows_of(s.load()) == rows_of(run) and s.load().metrics == run.metrics
    files = {str(path.relative_to(run.path)) for path in run.path.rglob("*") if path.is_file()}
    assert files == {str(path.relative_to(s.path)) for path in s.path.rglob("*") if path.is_file()}
    with mxtrain.session(*FAST, *words, dir=tmp_path / "own") as s:
        for batch in s.train_batches():
            loss = s.step(batch, cross_entropy)
    last = [row for row in rows_of(run) if row["split"] == "train"][-1]
    assert s.load().status["weights_sha256"] == run.status["weights_sha256"]
    assert float(loss) == pytest.approx(last["loss"], rel=1e-6) and s.load().best["value"] == run.best["value"]
    assert "accuracy" not in rows_of(s.load())[0]  # a loss function says nothing of it


def test_a_loss_block_is_called_as_a_task_calls_it(tmp_path):
    from mxnet.gluon.loss import SoftmaxCrossEntropyLoss

    for name, loss in (("function", cross_entropy), ("block", SoftmaxCrossEntropyLoss())):
        with mxtrain.session(*FAST, dir=tmp_path / name) as s:
            losses = [float(s.step(batch, loss)) for batch in s.train_batches()]
        if name == "function":
            expected, weights = losses, s.load().status["weights_sha256"]
    assert losses == expected and s.load().status["weights_sha256"] == weights


@pytest.mark.parametrize(
    "words, reason",
    [
        (
            ("model=lenet", "parallel=pipeline", "parallel.devices=cpu:2"),
            "parallel.stages=2 cuts the network, which a Python function cannot follow. Type parallel=data.",
        ),
        (
            (
                "model=resnet",
                "model.depth=8",
                "model.width=4",
                "parallel=data",
                "parallel.devices=cpu:2",
                "parallel.batch_norm=global",
            ),
            "parallel.batch_norm=global joins the batch norms of several devices, which a Python function cannot "
            "follow. Type parallel.batch_norm=per_device.",
        ),
        (
            ("task=recommendation", "trainer.sparse_grad=true"),
            "gradients of tables hold some rows only, which a Python function cannot follow. Type "
            "trainer.sparse_grad=false.",
        ),
        (
            ("task=language_modeling", "model=lstm"),
            "this network carries state from batch to batch, which a Python function cannot follow. Choose another "
            "model.",
        ),
    ],
    ids=["stages", "batch norms", "rows", "state"],
)
def test_a_loss_that_the_placement_does_not_allow_is_refused_before_the_step(words, reason, tmp_path):
    from mxnet import nd, random

    with mxtrain.session("debug=fast", *words, dir=tmp_path / "run") as s:
        for number, batch in enumerate(s.train_batches()):
            if number == 0:
                random.seed(7)
                with pytest.raises(ConfigError, match=re.escape(f"s.step(loss=...): {reason}")):
                    s.step(batch, cross_entropy)
                drawn = nd.random.uniform(shape=3).asnumpy()
            s.step(batch)
    random.seed(7)
    np.testing.assert_array_equal(drawn, nd.random.uniform(shape=3).asnumpy())


def test_console_names_given_objects(tmp_path, capsys):
    from mxnet.gluon import nn

    data = (np.zeros((20, 4), np.float32), np.arange(20) % 2)
    networks = {"critic": (nn.Dense(1), (4,)), "other": (nn.Dense(3), (2,))}
    words = ("trainer.max_steps=1", "logger=console")
    with mxtrain.session(*words, task="custom", model=networks, dataset=data, dir=tmp_path) as s:
        for batch in s.train_batches():
            s.step(batch, lambda networks, batch: networks.critic(batch.inputs[0]).sum(axis=1), network="critic")
    said = capsys.readouterr().out
    for words in ("dataset=(arrays)", "model=(critic: Dense, other: Dense)", "loss=custom", "task=custom"):
        assert words in said
    assert re.search(r"critic +Dense +\? +5\b", said) and re.search(r"other +Dense +\? +9\b", said)
    assert "given_as" not in said and "lenet" not in said and "digits" not in said


def error_rate(network, batch):
    return network(batch.inputs[0]).argmax(axis=1) != batch.targets[0].astype("float32")


@pytest.mark.slow
def test_the_test_split_chooses_no_thresholds(tmp_path):
    small = ("dataset.num_train=32", "dataset.num_val=20", "model.channels=[4]", "model.hidden=8")
    with mxtrain.session("task=multi_label", *small, "trainer.max_epochs=1", dir=tmp_path) as s:
        for batch in s.train_batches():
            s.step(batch)
        measured = s.evaluate(split="test")
    assert measured["macro_f1"] == pytest.approx(s.result.metrics["test/macro_f1"], rel=1e-6)


def test_a_validation_and_the_loops_own_make_one_row(tmp_path, monkeypatch):
    """The run validates at steps 2, 4 and 5; the loop before and after it, and at step 3."""
    from mxtrain.training.evaluate import Evaluator

    passes, measure = [], Evaluator.measure
    monkeypatch.setattr(Evaluator, "measure", lambda *args, **given: passes.append(1) or measure(*args, **given))
    words = (*FAST, "trainer.val_interval=2", "trainer.val_interval_unit=steps", "trainer.test=false")
    found = {}
    with mxtrain.session(*words, dir=tmp_path) as s:
        for batch in s.train_batches():
            if s.step_number == 2:
                assert s.evaluate()["loss"] == found[2]["loss"]
            s.step(batch)
            if s.step_number != 4:
                found[s.step_number] = {**s.evaluate(), **s.evaluate(error_rate), **s.evaluate(error_rate, name="e")}
    assert len(passes) == 6  # of each step, and that before step 3
    rows = [row for row in rows_of(s.load()) if row["split"] == "val"]
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5]
    for row in rows:
        if row["step"] == 4:
            assert not {"custom/error_rate", "custom/e"} & set(row)
        else:
            assert {**row, **found[row["step"]]} == row
            assert row["custom/error_rate"] == row["custom/e"] == pytest.approx(1 - row["accuracy"])
    rates = {name: value for name, value in found[5].items() if not name.startswith("custom/")}
    assert rates == {name: rows[-1][name] for name in rates} and "loss" in rates


def test_own_rate_evaluation_values_and_checkpoints(tmp_path):
    seen = []
    with mxtrain.session(*FAST, task="custom", callbacks=seen.append, dir=tmp_path) as s:
        for batch in s.train_batches():
            s.step(batch, cross_entropy, lr=0.01 * s.step_number)
            if s.step_number == 3:
                s.save()
                s.log(norm=np.float32(2.5))
                measured = s.evaluate(cross_entropy)
    rows = s.load().history_rows()
    assert [row["lr"] for row in rows if row["split"] == "train"] == [0.0, 0.01, 0.02, 0.03, 0.04]
    (val,) = [row for row in rows if row["split"] == "val"]
    assert val["step"] == 3 and val["loss"] == measured["loss"] and seen[0]["step"] == 1
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} >= {"step-00000003", "step-00000005"}


GAN = textwrap.dedent(
    """
    import importlib.util, os, sys
    import mxtrain
    spec = importlib.util.spec_from_file_location("gan", sys.argv[1])
    gan = importlib.util.module_from_spec(spec); spec.loader.exec_module(gan)
    words = [*gan.OVERRIDES, "trainer.max_epochs=1", "checkpoint.every_steps=4", "logger=jsonl"]
    with mxtrain.session(*words, task="custom", model=gan.build_networks(), dir=sys.argv[2]) as s:
        for batch in s.train_batches():
            s.step(batch, gan.discriminator_loss, network="discriminator")
            s.step(batch, gan.generator_loss, network="generator")
            if s.step_number == int(sys.argv[3]):
                print("here", flush=True)
                os.kill(os.getpid(), 9)
    print(s.load().status["weights_sha256"])
    """
)


@pytest.mark.zoo
def test_a_killed_loop_of_two_networks_continues_with_the_same_bits(tmp_path):
    (tmp_path / "loop.py").write_text(GAN)

    def run(name, kill_at):
        words = [str(ROOT / "examples" / "gan" / "train.py"), str(tmp_path / name), str(kill_at)]
        return subprocess.run([sys.executable, str(tmp_path / "loop.py"), *words], capture_output=True, text=True)

    whole = run("whole", 0)
    assert whole.returncode == 0, whole.stderr
    assert run("killed", 10).returncode == -signal.SIGKILL
    resumed = run("killed", 0)
    assert resumed.returncode == 0, resumed.stderr
    assert resumed.stdout.splitlines()[-1] == whole.stdout.splitlines()[-1]
    rows = [rows_of(Run(tmp_path / name)) for name in ("whole", "killed")]
    assert rows[0] == rows[1] and {"loss", "loss_generator", "loss_discriminator"} <= set(rows[0][0])


WORKERS = textwrap.dedent(
    """
    import os, sys
    import mxtrain

    def cross_entropy(network, batch):
        from mxnet import nd
        return -nd.pick(nd.log_softmax(network(batch.inputs[0])), batch.targets[0])

    folder, killed, *words = sys.argv[1:]
    words += ["debug=fast", "model=lenet", "logger=jsonl", "checkpoint.every_steps=2", "cluster.workers=2"]
    with mxtrain.session(*words, dir=folder) as s:
        for batch in s.train_batches():
            loss = s.step(batch, cross_entropy)
            if s.step_number == 4 and os.environ["MXTRAIN_WORKER"] == killed and not os.path.exists(folder + ".killed"):
                open(folder + ".killed", "w").close()
                os.kill(os.getpid(), 9)
            if s.step_number == 4:
                measured = s.evaluate(cross_entropy)
        print("loss", float(loss), "measured", measured)
    print(next(s.load().batches("test"))["input"].shape)
    print(s.load().status["weights_sha256"], s.evaluate()["loss"])
    """
)


@pytest.mark.zoo
def test_workers_of_a_loop_equal_train_and_a_killed_one_is_replaced(tmp_path):
    words = [*FAST, "checkpoint.every_steps=2", "kvstore=dist_sync", "cluster.workers=2"]
    train = [sys.executable, "-m", "mxtrain", *words, f"hydra.run.dir={tmp_path / 'train'}"]
    subprocess.run(train, check=True, capture_output=True)
    (tmp_path / "loop.py").write_text(WORKERS)
    words = [str(tmp_path / "loop"), "1", "kvstore=dist_sync"]
    done = subprocess.run([sys.executable, str(tmp_path / "loop.py"), *words], capture_output=True, text=True)
    assert done.returncode == 0 and "restart 1 of" in done.stderr, done.stderr
    made, run = Run(tmp_path / "loop"), Run(tmp_path / "train")
    assert made.status["weights_sha256"] == run.status["weights_sha256"]
    (other,) = re.findall(r"loss .* measured .*", (tmp_path / "loop" / "workers" / "worker-1.log").read_text())
    assert other in done.stdout, "both workers measure the loss of all samples, and agree on it"
    last = [row for row in rows_of(run) if row["split"] == "train"][-1]["loss"]
    assert float(other.split()[1]) == pytest.approx(last, rel=1e-6)
    assert run.status["weights_sha256"] in done.stdout.splitlines()[-1]
    assert float(done.stdout.split()[-1]) == pytest.approx(run.metrics["val/loss"], rel=1e-6)


@pytest.mark.zoo
@pytest.mark.parametrize("store", ["horovod", "p3"])
def test_workers_of_two_networks_agree_over_every_store(store, tmp_path):
    gan = ROOT / "examples" / "gan" / "train.py"
    words = ["trainer.max_epochs=2", "cluster.workers=2", "logger=jsonl"]
    found = {}
    for name in ("dist_sync", store):
        command = [sys.executable, str(gan), str(tmp_path / name), *words, f"kvstore={name}"]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        found[name] = Run(tmp_path / name).status["weights_sha256"]
    assert found[store] == found["dist_sync"]


@pytest.mark.zoo
def test_mistakes_with_several_workers_are_refused_before_anything_is_written(tmp_path):
    """No script to start in the workers; two sessions in one; and a mistake that only the workers find."""
    words = "'debug=fast', 'kvstore=dist_sync', 'cluster.workers=2'"
    session = f"with mxtrain.session({words}, **given) as s:\n    for batch in s.train_batches(): s.step(batch)\n"
    (tmp_path / "two.py").write_text(
        f"import mxtrain\ngiven = {{'dir': 'a'}}\n{session}given = {{'dir': 'b'}}\n{session}"
    )
    (tmp_path / "wrong.py").write_text(
        f"import mxtrain\ngiven = {{'dir': 'c', 'model': {{'weights': 'x.params'}}}}\n{session}"
    )
    for command, code, said in (
        (["-c", f"import mxtrain\ngiven = {{}}\n{session}"], 1, "python FILE.py"),
        (["wrong.py"], 2, "x.params"),
        (["two.py"], 2, "a script has one session"),
    ):
        done = subprocess.run([sys.executable, *command], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == code and said in done.stderr, done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "two.py", "wrong.py"]
    assert Run(tmp_path / "a").state == "finished"


def test_interrupted_or_failed_loop_ends_its_run(tmp_path):
    with mxtrain.session(*FAST, dir=tmp_path / "left") as s:
        for batch in s.train_batches():
            s.step(batch)
            if s.step_number == 2:
                break
    assert s.load().state == "interrupted" and "left before" in s.load().cause
    assert [row["step"] for row in s.load().history_rows()] == [1, 2]
    with mxtrain.session(*FAST, dir=tmp_path / "left") as s:
        steps = [s.step(batch) and s.step_number for batch in s.train_batches()]
    assert steps == [3, 4, 5] and s.load().state == "finished"
    with pytest.raises(ZeroDivisionError), mxtrain.session(*FAST, dir=tmp_path / "failed") as s:
        for batch in s.train_batches():
            s.step(batch)
            1 / 0  # noqa: B018
    assert s.load().state == "failed" and "ZeroDivisionError" in s.load().cause
    mxtrain.train(*FAST, dir=tmp_path / "failed", checkpoint={"resume": "never"})  # the directory is free again


def pooled(network, batch):
    return cross_entropy(network, batch).mean()


@pytest.mark.parametrize(
    "words, given, why",
    [
        (("parallel=pipeline", "parallel.devices=cpu:2"), {"loss": cross_entropy}, "parallel.stages=2 cuts"),
        (
            ("parallel=data", "parallel.devices=cpu:2", "parallel.batch_norm=global"),
            {"loss": cross_entropy},
            "joins the batch norms",
        ),
        ((), {"loss": pooled}, r"must return the loss of each sample, \(64,\).*leave .mean\(\) out"),
        ((), {"loss": lambda network, batch: network(batch.inputs[0])}, r"end it with .mean\(axis=1\)"),
        ((), {"loss": lambda network, batch: np.zeros(64)}, "returned ndarray. It must return an MXNet array"),
        ((), {"loss": lambda network, batch: 0.5}, "returned float. It must return an MXNet array"),
        ((), {"loss": lambda network, batch: None}, "returned NoneType. It must return an MXNet array"),
        ((), {"loss": lambda network, batch: batch.targets[0] * 2.0}, "loss does not depend on the network"),
        ((), {"loss": cross_entropy, "network": "generator"}, "has one network: leave network= out"),
        ((), {"lr": -1}, r"s.step\(lr=-1\): must be a finite number"),
        ((), {"lr": "0.1"}, r"s.step\(lr='0.1'\): must be a finite number"),
    ],
)
def test_losses_that_a_placement_cannot_compute_are_refused(words, given, why, tmp_path):
    with pytest.raises(ConfigError, match=why), mxtrain.session(*FAST, *words, dir=tmp_path) as s:
        for batch in s.train_batches():
            s.step(batch, **given)


def test_misuse_of_a_session_is_refused(tmp_path):
    with mxtrain.session(*FAST, task="custom", dir=tmp_path) as s:
        with pytest.raises(ConfigError, match="there is no batch"):
            s.step(None)
        batches = s.train_batches()
        batch = next(batches)
        with pytest.raises(ConfigError, match="needs loss=FUNCTION"):
            s.step(batch)
        with pytest.raises(ConfigError, match="s.step was not called"):
            next(batches)
    for words, given, why in (
        (("kvstore=dist_async", "cluster.workers=2"), {}, "servers of kvstore=dist_async update"),
        ((), {"model": {"a": __import__("mxnet").gluon.nn.Dense(2)}}, 'Give task="custom"'),
    ):
        other = tmp_path / "other"
        with pytest.raises(ConfigError, match=why), mxtrain.session("debug=fast", *words, dir=other, **given):
            pass


def test_an_interrupt_saves_and_raises(tmp_path):
    code = (
        "import mxtrain, sys\n"
        "with mxtrain.session('model=mlp', 'logger=jsonl', 'trainer.max_epochs=1000', dir=sys.argv[1]) as s:\n"
        "    for batch in s.train_batches():\n"
        "        s.step(batch)\n"
        "        if s.step_number == 5: print('here', flush=True)\n"
    )
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], **pipes)
    while b"here" not in (line := process.stdout.readline()) and line:
        pass
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    status = json.loads((tmp_path / "status.json").read_text())
    assert b"KeyboardInterrupt" in error and status["state"] == "interrupted"
    assert (tmp_path / "checkpoints" / f"step-{status['step']:08d}").is_dir() and status["step"] >= 5


def test_a_keyboard_interrupt_of_a_callback_interrupts(tmp_path):
    def interrupt(row):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), mxtrain.session(*FAST, callbacks=interrupt, dir=tmp_path) as s:
        for batch in s.train_batches():
            s.step(batch)
    status = json.loads((tmp_path / "status.json").read_text())
    assert (status["state"], status["exit_code"]) == ("interrupted", 130)


def example(name, file):
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / name / file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.zoo
def test_contrastive_features_beat_random_ones(tmp_path):
    pretrain = example("self_supervised", "pretrain.py")
    found, random = pretrain.main(str(tmp_path), "trainer.max_epochs=8", "logger=jsonl")
    assert found > random + 0.05 and found > 0.7


@pytest.mark.zoo
def test_the_generator_learns_the_moments_of_the_digits(tmp_path):
    gan = example("gan", "train.py")
    real = np.random.default_rng(0).normal(size=(4000, 3)) * [1, 2, 3]
    other = np.random.default_rng(1).normal(size=(4000, 3)) * [1, 2, 3] + [1, 0, 0]
    assert gan.frechet_distance(real, other) == pytest.approx(1, abs=0.2)  # known: the means differ by 1
    found, untrained = gan.main(str(tmp_path), "trainer.max_epochs=12", "logger=jsonl")
    assert found < 0.6 * untrained
