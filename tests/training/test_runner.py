"""Ends of runs and the files that they leave, in this process. 15 s."""

from __future__ import annotations

import io
import json
import math
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console
from running import checkpoints, rows, status, steps

from mxtrain.callback.protocol import Callback, CommandLine
from mxtrain.checkpoint import lock_run_directory, open_checkpoint
from mxtrain.cli import evaluate
from mxtrain.cluster.launch.job import begin_run
from mxtrain.data.signature import signature_of
from mxtrain.engine.backend import nd
from mxtrain.errors import ConfigError
from mxtrain.metric.metrics import Accuracy
from mxtrain.terminal.report import render_result
from mxtrain.training import build
from mxtrain.training.build import build_run
from mxtrain.training.loaders import build_loader
from mxtrain.training.trained import load_trained

SMALL = ("model=mlp", "model.hidden=[16]", "dataset.batch_size=100", "trainer.log_interval=5")  # 13 steps an epoch


@pytest.fixture
def make_run(describe_run, tmp_path):
    """Overrides -> a Run that has not begun."""
    return lambda *overrides: build_run(describe_run("logger=jsonl", *SMALL, *overrides), tmp_path / "run")


class Raising(Callback):
    def __init__(self, event, step=0):
        setattr(self, event, self.fail)
        self.step = step

    def fail(self, *values):
        if not self.step or (isinstance(values[0], list) and values[0][-1]["step"] >= self.step):
            raise KeyError("no such thing")


def test_a_non_finite_loss_ends_with_3_and_names_the_step_and_the_layer(make_run, tmp_path):
    run = make_run("optimizer=sgd", "optimizer.lr=1e20", "optimizer.clip_gradient=null", "trainer.max_epochs=3")
    result = run.runner.train(run.info)
    written = (tmp_path / "run" / "metrics.jsonl").read_text()
    first_bad = next(row["step"] for row in rows(tmp_path / "run") if row["loss"] is None)
    assert (result.exit_code, result.state) == (3, "failed")
    assert (
        f"non-finite at step {first_bad}:" in result.cause
        and "the first layer with a non-finite output" in result.cause
    )
    assert "NaN" not in written and "Infinity" not in written
    assert status(tmp_path / "run")["exit_code"] == 3 and status(tmp_path / "run")["cause"] == result.cause
    for name in checkpoints(tmp_path / "run"):
        arrays = open_checkpoint(tmp_path / "run" / "checkpoints" / name).arrays("model")
        assert all(np.isfinite(array).all() for array in arrays.values())


@pytest.fixture
def break_weights(make_run, monkeypatch):
    """(step, value, overrides) -> the Result of a run whose last parameter gets that value in the update of a step,
    after its loss, and the parameter's name."""

    def train(step, value, *overrides):
        run = make_run(*overrides)
        updater = run.runner.context.step.updater
        update = updater.update

        def broken(gradients, lr):
            update(gradients, lr)
            if updater._optimizer.num_update == step:
                updater._weights[-1][:] = value

        monkeypatch.setattr(updater, "update", broken)
        return run.runner.train(run.info), updater.names[-1]

    return train


@pytest.mark.slow
@pytest.mark.parametrize(
    "step, value, said",
    [(18, math.inf, "at step 19"), (20, math.nan, "became non-finite in step 20")],
    ids=["found by the next loss", "found by the save"],
)
def test_non_finite_weights_are_never_saved_and_the_step_is_found(break_weights, tmp_path, step, value, said):
    result, name = break_weights(step, value, "trainer.max_epochs=3", "checkpoint.every_steps=4")
    assert result.exit_code == 3 and said in result.cause, result.cause
    assert name in result.cause or step == 18  # a loss names the layer
    assert checkpoints(tmp_path / "run")[-1] == "step-00000016"
    assert result.checkpoint.endswith("step-00000016")


@pytest.mark.slow
def test_weights_that_break_without_a_checkpoint_before_are_not_saved_either(break_weights, tmp_path):
    result, name = break_weights(13, math.nan, "trainer.max_epochs=1", "checkpoint=end_only")
    assert result.exit_code == 3 and checkpoints(tmp_path / "run") == []
    assert "became non-finite in step 13 or before" in result.cause and f"'{name}'" in result.cause


@pytest.mark.slow
def test_a_finished_run_is_not_trained_again(train_run, tmp_path):
    _, first = train_run(*SMALL, "trainer.max_epochs=2")
    before = rows(tmp_path / "run")
    run, again = train_run(*SMALL, "trainer.max_epochs=2")
    assert (again.state, again.exit_code, again.step, again.epoch) == ("finished", 0, 26, 2)
    assert again.metrics == first.metrics and again.best == first.best and again.checkpoint == first.checkpoint
    assert again.weights_sha256 == first.weights_sha256 and again.samples_per_s == first.samples_per_s
    assert rows(tmp_path / "run") == before and run.info.resumed_step == 26


@pytest.mark.slow
def test_a_finished_run_is_known_before_mxnet_is_loaded(train_run, describe_run, tmp_path, monkeypatch, caplog):
    once = (*SMALL, "trainer.max_epochs=1", "logger=jsonl")
    _, first = train_run(*once)

    def again(*overrides):
        return begin_run(describe_run(*once, *overrides), tmp_path / "run", CommandLine())

    class Loaded(Exception):
        """Work is left."""

    def load(*_):
        raise Loaded

    monkeypatch.setattr(build, "build_run", load)
    with caplog.at_level("INFO", "mxtrain"):
        ended = again("logger=csv")
    assert replace(ended, wall_s=0.0) == replace(first, wall_s=0.0)
    assert f"nothing is left to do in {tmp_path / 'run'}: all 13 steps are trained" in caplog.text
    with pytest.raises(Loaded):
        again("trainer.max_epochs=2")
    said = status(tmp_path / "run")
    for wrong in ({"weights_sha256": "0"}, {"step": 12}, {"state": "stopped_early", "exit_code": 75}):
        (tmp_path / "run" / "status.json").write_text(json.dumps({**said, **wrong}))
        with pytest.raises(Loaded):
            again()


@pytest.mark.slow
def test_different_replica_weights_end_the_run_at_the_next_validation(make_run, tmp_path):
    run = make_run("parallel=data", "parallel.devices=cpu:2", "trainer.max_epochs=2", "checkpoint=off")
    strategy = run.runner.context.step.strategy
    publish, calls = strategy.publish, []

    def broken(names=None):
        publish(names)
        calls.append(names)
        if len(calls) == 13:  # the last step of the epoch: each step brings them all anew
            *_, (_, copy) = strategy.other_copies()
            copy[:1] += 1e-7

    strategy.publish = broken
    result = run.runner.train(run.info)
    assert result.exit_code == 1, result.cause
    assert "step 13" in result.cause and "copies of" in result.cause and "cpu(" in result.cause, result.cause


class Removing(Callback):
    """Removes the run directory while the run writes there, or puts another one in its place."""

    def __init__(self, run_dir, step, replaced=False):
        self.run_dir, self.step, self.replaced = run_dir, step, replaced

    def on_steps(self, rows, progress):
        if rows[-1]["step"] >= self.step and self.run_dir.exists() and not (self.run_dir / "other").exists():
            while self.run_dir.exists():
                shutil.rmtree(self.run_dir, ignore_errors=True)  # a save may remove files of its own meanwhile
            if self.replaced:
                (self.run_dir / "other").mkdir(parents=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "step, replaced, checkpoint", [(3, False, "default"), (26, True, "default"), (26, False, "off")]
)
def test_removed_run_directory_ends_the_run_with_1(make_run, tmp_path, step, replaced, checkpoint):
    with lock_run_directory(tmp_path / "run"):
        run = make_run("trainer.max_epochs=2", f"checkpoint={checkpoint}")
        run.runner.context.callbacks.callbacks.append(Removing(tmp_path / "run", step, replaced))
        result = run.runner.train(run.info)
    assert (result.state, result.exit_code) == ("failed", 1) and result.step < 27
    assert "was removed or replaced" in result.cause and str(tmp_path / "run") in result.cause
    assert [path.name for path in tmp_path.rglob("*")] == (["run", "other"] if replaced else [])


@pytest.mark.slow
def test_nan_validation_loss_does_not_stop_a_run(make_run, tmp_path, monkeypatch):
    run = make_run(
        "trainer.max_epochs=4", "trainer.monitor=val/loss", "early_stopping.patience=2", "trainer.test=false"
    )
    monkeypatch.setattr(
        run.runner.context.evaluator,
        "measure",
        lambda loader, **_: {"loss": math.nan, "accuracy": 0.5, "samples_per_s": 1.0},
    )
    result = run.runner.train(run.info)
    assert (result.state, result.exit_code, result.best) == ("stopped_early", 0, None)
    assert steps(tmp_path / "run", "val") == [13, 26]
    assert status(tmp_path / "run")["metrics"]["val/loss"] is None


@pytest.mark.slow
@pytest.mark.parametrize("event, step", [("on_start", 0), ("on_steps", 12), ("on_validation", 0), ("on_checkpoint", 0)])
def test_a_callback_that_raises_ends_the_run_with_its_error(make_run, tmp_path, event, step):
    run = make_run("trainer.max_epochs=2")
    run.runner.context.callbacks.callbacks.insert(0, Raising(event, step))
    with pytest.raises(KeyError, match="no such thing"):
        run.runner.train(run.info)
    ended = status(tmp_path / "run")
    assert (ended["state"], ended["exit_code"], ended["cause"]) == ("failed", 1, "KeyError: 'no such thing'")


@pytest.mark.slow
def test_error_of_a_callback_at_the_end_is_raised_last(make_run, tmp_path):
    run = make_run("trainer.max_epochs=1")
    run.runner.context.callbacks.callbacks.insert(0, Raising("on_end"))
    with pytest.raises(KeyError):
        run.runner.train(run.info)
    assert status(tmp_path / "run")["state"] == "failed" and status(tmp_path / "run")["step"] == 13
    assert checkpoints(tmp_path / "run")[-1] == "step-00000013"


@pytest.mark.slow
def test_a_network_that_raises_ends_the_run_with_its_error(make_run, tmp_path, monkeypatch):
    run = make_run("trainer.max_epochs=2")
    strategy = run.runner.context.step.strategy
    forward_backward = strategy.forward_backward

    def failing(*arguments):
        if run.runner.state.step == 20:
            nd.dot(nd.ones((2, 3)), nd.ones((2, 3))).wait_to_read()  # MXNet's own error
        return forward_backward(*arguments)

    monkeypatch.setattr(strategy, "forward_backward", failing)
    with pytest.raises(Exception, match="dot"):
        run.runner.train(run.info)
    ended = status(tmp_path / "run")
    assert ended["exit_code"] == 1 and ended["cause"].startswith("MXNetError") and ended["step"] == 20
    assert ended["checkpoint"].endswith("step-00000013")


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides, state, exit_code, last_step",
    [
        (("trainer.max_epochs=null", "trainer.max_steps=17"), "finished", 0, 17),
        (("trainer.max_epochs=1", "trainer.max_steps=17"), "finished", 0, 13),
        (("trainer.max_epochs=2", "trainer.max_steps=17"), "interrupted", 75, 17),
        (("trainer.max_epochs=3", "trainer.limit_train_batches=4"), "finished", 0, 12),
        (("trainer.max_epochs=null", "trainer.max_time=1e-6", "lr_scheduler=constant"), "interrupted", 75, 1),
    ],
)
def test_limits(train_run, tmp_path, overrides, state, exit_code, last_step):
    _, result = train_run(*SMALL, *overrides)
    assert (result.state, result.exit_code, result.step) == (state, exit_code, last_step), result.cause
    assert steps(tmp_path / "run") == list(range(1, last_step + 1))
    # What is complete was validated at its last step, whatever the interval says.
    assert (steps(tmp_path / "run", "val")[-1:] == [last_step]) == (state == "finished")


# Gets worse soon after a good validation that no epoch ends with.
UNSTEADY = (
    "optimizer=sgd",
    "optimizer.lr=0.9",
    "lr_scheduler=constant",
    "trainer.max_epochs=3",
    "early_stopping=off",
    "trainer.val_interval=7",
    "trainer.val_interval_unit=steps",
    "dataset.eval_batch_size=100",
)


def measure(run_dir, description, split):
    """Loss and metrics as `eval` finds them with the best checkpoint of a run, and its step."""
    checkpoint = open_checkpoint(run_dir)
    signature = signature_of(checkpoint, description.dataset.signature_class)
    trained = load_trained(checkpoint, description, signature)
    source = getattr(description.dataset.open(), split)
    values = trained.evaluator.measure(build_loader(description, source, signature, trained.device))
    return {f"{split}/{name}": value for name, value in values.items() if name != "samples_per_s"}, checkpoint.step


@pytest.mark.slow
@pytest.mark.parametrize("saved", [(), ("checkpoint.every_epochs=5",), ("checkpoint.save_on_end=false",)])
def test_the_best_weights_are_kept_when_they_are_found_and_measured_at_the_end(
    train_run, describe_run, tmp_path, saved
):
    _, result = train_run(*SMALL, *UNSTEADY, *saved)
    best = result.best
    assert best["step"] % 7 == 0 and best["step"] % 13 and best["step"] < result.step
    assert result.best_checkpoint.endswith(f"step-{best['step']:08d}")
    assert result.measured["test"]["step"] == best["step"] and result.measured["val"]["step"] == result.step
    description = describe_run(*SMALL, *UNSTEADY)
    values, step = measure(tmp_path / "run", description, "val")
    assert (step, values["val/accuracy"]) == (best["step"], best["value"])
    values, _ = measure(tmp_path / "run", description, "test")
    assert values == {tag: value for tag, value in result.metrics.items() if tag.startswith("test/")}
    assert status(tmp_path / "run")["measured"] == result.measured
    assert "not kept" not in text_of(result)


def text_of(result):
    return "\n".join(str(line) for line in render_result(result, plain=True).renderables)


def table_of(result):
    console = Console(width=200, file=io.StringIO(), record=True)
    console.print(render_result(result))
    return " ".join(console.export_text().split())


@pytest.mark.slow
def test_unkept_best_weights_are_reported(train_run):
    _, result = train_run(*SMALL, *UNSTEADY, "checkpoint=end_only")
    assert result.best["step"] < result.step and result.best_checkpoint is None
    assert result.measured["test"] == {"step": result.step, "part": ""}
    assert f"at step {result.best['step']} (its weights were not kept)" in text_of(result)
    assert f"test/loss={result.metrics['test/loss']:.4f} (step {result.step})" in text_of(result)
    assert f"step {result.best['step']}, whose weights were not kept" in table_of(result)
    loss, accuracy = (f"{result.metrics[f'test/{name}']:.4f}" for name in ("loss", "accuracy"))
    assert f"test {loss} {accuracy} step {result.step}, the last" in table_of(result)


@pytest.mark.slow
def test_a_best_that_is_found_at_the_start_of_a_continued_run_is_kept(train_run, tmp_path):
    """The checkpoint that it goes on from was saved without a validation."""
    options = (*SMALL, "optimizer.lr=0.01", "trainer.val_interval=3", "trainer.val_interval_unit=steps")
    _, before = train_run(*options, "trainer.max_steps=13", "trainer.max_epochs=2", "lr_scheduler=constant")
    assert before.exit_code == 75 and before.best["step"] == 12
    _, result = train_run(*options, "trainer.max_steps=13", "trainer.max_epochs=null", "lr_scheduler=constant")
    assert (result.exit_code, result.best["step"], result.measured["test"]["step"]) == (0, 13, 13), result
    assert result.best_checkpoint == result.checkpoint and "step-00000013" in result.checkpoint


class Messages(Callback):
    def __init__(self):
        self.said = []

    def on_message(self, text):
        self.said.append(text)


@pytest.fixture
def messages(monkeypatch):
    """Collects the log lines of runs."""
    found, real = Messages(), build.build_callbacks
    monkeypatch.setattr(build, "build_callbacks", lambda *values: [*real(*values), found])
    return found.said


@pytest.mark.slow
@pytest.mark.parametrize("lr, stops", [(0.001, False), (0.5, True)])
def test_best_and_early_stopping_of_a_value_that_never_moves(train_run, tmp_path, messages, monkeypatch, lr, stops):
    """With a small rate the loss falls in every epoch, with a large one it soon rises."""
    monkeypatch.setattr(Accuracy, "value", lambda self, sums, count: 0.0)
    overrides = (
        *SMALL,
        f"optimizer.lr={lr}",
        "trainer.max_epochs=6",
        "early_stopping.patience=1",
        "checkpoint.keep_last=1",
        "lr_scheduler=constant",
        "optimizer.clip_gradient=null",
    )
    _, whole = train_run(*overrides, run_dir=tmp_path / "whole")
    said = [text.partition(" so far")[0] for text in messages]
    losses = {row["step"]: row["loss"] for row in rows(tmp_path / "whole") if row["split"] == "val"}
    lowest = min(losses, key=losses.get)
    assert (whole.state, len(losses) < 6, lowest < whole.step) == (
        ("stopped_early", True, True) if stops else ("finished", False, False)
    ), losses
    assert whole.best == {"metric": "val/accuracy", "value": 0.0, "step": lowest, "loss": losses[lowest]}
    assert status(tmp_path / "whole")["best"] == whole.best and whole.measured["test"]["step"] == lowest
    assert open_checkpoint(tmp_path / "whole").step == lowest
    if not stops:
        assert said == [f"val/accuracy was 0 at each of the {count} validations" for count in (3, 6)]
        messages.clear()
        train_run(*overrides, "trainer.max_steps=20", run_dir=tmp_path / "parts")
        train_run(*overrides, "trainer.max_steps=45", run_dir=tmp_path / "parts")
        _, last = train_run(*overrides, run_dir=tmp_path / "parts")
        assert (last.best, last.weights_sha256) == (whole.best, whole.weights_sha256)
        found = [re.search(r"val/accuracy was 0 at .*?(only|[0-9]+) validation", text) for text in messages]
        assert [match[1] for match in found if match] == ["only", "3", "6"]


@pytest.mark.slow
def test_validation_limit_is_reported_and_applies_to_validation_only(train_run, describe_run, tmp_path, capsys):
    few = (*SMALL, "dataset.eval_batch_size=100", "trainer.max_epochs=1", "trainer.limit_val_batches=2")
    _, result = train_run(*few)
    (row,) = (row for row in rows(tmp_path / "run") if row["split"] == "val")
    assert row["part"] == result.measured["val"]["part"] == "2 of 3 batches" and result.measured["test"]["part"] == ""
    assert "(step 13, 2 of 3 batches)" in text_of(result)
    assert "step 13, the best, 2 of 3 batches" in table_of(result)
    values, _ = measure(tmp_path / "run", describe_run(*SMALL), "test")
    assert values == {tag: pytest.approx(v) for tag, v in result.metrics.items() if tag.startswith("test/")}
    values, _ = measure(tmp_path / "run", describe_run(*few), "val")
    assert values["val/loss"] != pytest.approx(result.metrics["val/loss"], rel=1e-6)
    assert evaluate.run([str(tmp_path / "run"), "split=test", "limit_batches=1"]) == 0
    assert "test: " in capsys.readouterr().out
    report = json.loads((tmp_path / "run" / "eval" / "test" / "metrics.json").read_text())
    assert (report["part"], report["samples"]) == ("1 of 3 batches", 100)
    with pytest.raises(ConfigError, match="limit_batches=N"):
        evaluate.run([str(tmp_path / "run"), "trainer.limit_val_batches=1"])
    _, limited = train_run(*few, "trainer.limit_test_batches=1", run_dir=tmp_path / "limited")
    assert limited.measured["test"]["part"] == "1 of 3 batches"


@pytest.mark.slow
def test_validation_by_steps_and_a_training_monitor(train_run, tmp_path):
    _, result = train_run(
        *SMALL,
        "trainer.max_epochs=2",
        "trainer.val_interval=5",
        "trainer.val_interval_unit=steps",
        "trainer.monitor=train/loss",
    )
    assert steps(tmp_path / "run", "val") == [5, 10, 15, 20, 25, 26]
    losses = [row["loss"] for row in rows(tmp_path / "run") if row["split"] == "train" and row["step"] > 13]
    sizes = [100] * 12 + [1257 - 1200]
    assert result.metrics["train/loss"] == pytest.approx(np.average(losses, weights=sizes))
    assert result.best["metric"] == "train/loss" and result.best["value"] <= result.metrics["train/loss"]


class Points(Callback):
    """Keeps train/... as a curve gets it."""

    def __init__(self):
        self.found = []

    def on_scalars(self, scalars, step):
        if any(tag.startswith("train/") and tag != "train/grad_norm" for tag in scalars):
            self.found.append((step, dict(scalars)))


@pytest.mark.slow
def test_points_of_a_curve_span_equal_steps_also_after_an_interruption(describe_run, tmp_path):
    def points(folder, *limits, log_interval=5):
        found = Points()
        for limit in limits:
            options = (
                *SMALL,
                "trainer.max_epochs=3",
                f"trainer.max_steps={limit}",
                "checkpoint.every_steps=4",
                f"trainer.log_interval={log_interval}",
            )
            run = build_run(describe_run("logger=jsonl", *options), tmp_path / folder)
            run.runner.context.callbacks.callbacks.append(found)
            run.runner.train(run.info)
        return found.found

    whole = points("whole", "null")
    assert points("broken", 7, 17, 26, 33, "null") == whole
    by_step = {row["step"]: row for row in rows(tmp_path / "whole") if row["split"] == "train"}
    sizes = {step: 100 if step % 13 else 57 for step in by_step}
    # 15 is of two epochs: beside the mean of a whole one, a curve would jump up at each end of an epoch.
    first_of = {5: 1, 10: 6, 15: 11, 20: 16, 25: 21, 30: 26, 35: 31, 39: 36}
    epochs = {13: 1, 26: 14, 39: 27}
    of_epoch = [(step, found) for step, found in whole if "train/loss_epoch" in found]
    assert [step for step, found in whole if "train/loss" in found] == list(first_of)
    assert [step for step, _ in of_epoch] == list(epochs)
    checked = [(step, found, first_of[step], "") for step, found in whole if step in first_of]
    checked += [(step, found, epochs[step], "_epoch") for step, found in of_epoch]
    for step, values, first, ending in checked:
        for name in ("loss", "accuracy"):
            taken = range(first, step + 1)
            mean = np.average([by_step[s][name] for s in taken], weights=[sizes[s] for s in taken])
            assert values[f"train/{name}{ending}"] == pytest.approx(mean, rel=1e-6), (step, name)
        assert values.get("train/lr", by_step[step]["lr"]) == by_step[step]["lr"]
    rare = points("rare", "null", log_interval=50)  # of whole epochs: nothing is there twice
    assert [(step, sorted(found)) for step, found in rare] == [
        (step, ["train/accuracy", "train/loss", "train/lr"]) for step in epochs
    ]


@pytest.mark.slow
def test_log_interval_changes_no_row(train_run, tmp_path):
    found = []
    for interval in (1, 1000):
        train_run(*SMALL, "trainer.max_epochs=2", f"trainer.log_interval={interval}", run_dir=tmp_path / str(interval))
        found.append(rows(tmp_path / str(interval)))
    assert found[0] == found[1]


@pytest.mark.slow
def test_debug_presets(train_run, tmp_path):
    _, fast = train_run("debug=fast", run_dir=tmp_path / "fast")
    assert (fast.exit_code, fast.step) == (0, 5) and "test/accuracy" in fast.metrics
    _, overfit = train_run("debug=overfit", "model=mlp", "trainer.max_epochs=100", run_dir=tmp_path / "overfit")
    assert overfit.exit_code == 0 and overfit.metrics["train/loss"] < 0.05, overfit.metrics


@pytest.mark.slow
@pytest.mark.parametrize("checkpoint, kept", [("off", []), ("end_only", ["step-00000026"]), ("default", None)])
def test_only_requested_checkpoints_are_saved(train_run, tmp_path, checkpoint, kept):
    _, result = train_run(*SMALL, "trainer.max_epochs=2", f"checkpoint={checkpoint}")
    assert checkpoints(tmp_path / "run") == (["step-00000013", "step-00000026"] if kept is None else kept)
    assert (result.checkpoint is None) == (kept == []) and result.exit_code == 0
    assert "test/accuracy" in result.metrics


@pytest.mark.slow
def test_speeds_are_possible(train_run, tmp_path):
    """A clock that is started after a step's work was handed over measured half a million samples a second."""
    _, result = train_run(*SMALL, "trainer.max_epochs=3", "checkpoint.every_steps=1")
    speeds = [
        json.loads(line)["samples_per_s"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    ]
    assert max(speeds) < 50 * result.samples_per_s


class Glances(Callback):
    """Keeps what is seen of a run while it goes on."""

    def __init__(self):
        self.seen, self.rows = [], []

    def on_glance(self, row, progress):
        assert row["step"] == progress.step
        self.seen.append((len(self.rows), row))

    def on_steps(self, rows, progress):
        self.rows += rows


@pytest.mark.slow
@pytest.mark.parametrize("interval_s, seen", [(0.0, range(1, 10)), (3600.0, ())])
def test_slow_rows_still_show_the_finished_step(make_run, monkeypatch, tmp_path, interval_s, seen):
    from mxtrain.training import recorder

    monkeypatch.setattr(recorder, "GLANCE_INTERVAL_S", interval_s)
    run, glances = make_run("trainer.max_epochs=1", "trainer.log_interval=50"), Glances()
    run.runner.context.callbacks.callbacks.append(glances)
    run.runner.train(run.info)
    assert [row["step"] for _, row in glances.seen] == list(seen) and {rows for rows, _ in glances.seen} <= {0}
    assert [row["step"] for row in glances.rows] == list(range(1, 14)) == steps(tmp_path / "run")
    for _, row in glances.seen:  # as its turn comes, but for the speed
        later = glances.rows[row["step"] - 1]
        assert {**row, "samples_per_s": 0} == {**later, "samples_per_s": 0} and row["samples_per_s"] > 0
