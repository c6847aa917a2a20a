"""Killed, interrupted or refused: a run that is given the same command again ends as if nothing had happened. 90 s."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import textwrap
import time

import pytest
from running import (
    FULL,
    SMALL,
    Process,
    assert_same,
    checkpoints,
    has_steps,
    image,
    rows,
    status,
    steps,
    train_here,
)

from mxtrain.checkpoint import open_checkpoint
from mxtrain.composing.restored import restore
from mxtrain.engine.native import library
from mxtrain.errors import CheckpointError
from mxtrain.training.resume import differences


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """A run with everything on that nobody disturbed."""
    run_dir = tmp_path_factory.mktemp("unbroken") / "run"
    train_here(run_dir, *FULL)
    assert steps(run_dir) == list(range(1, 40)) and steps(run_dir, "val") == [13, 26, 39]
    return run_dir


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A finished run of two epochs of 13 steps."""
    run_dir = tmp_path_factory.mktemp("small") / "run"
    train_here(run_dir, *SMALL, "trainer.max_epochs=2")
    return run_dir


@pytest.fixture
def copy(small, tmp_path):
    return shutil.copytree(small, tmp_path / "run")


# A process that kills itself at a moment that cannot be hit from outside.
DYING = """
import os, signal, sys, threading, time
from mxtrain.callback.protocol import Callback

class Dying(Callback):
    def __init__(self, moment):
        self.moment = moment
    def die(self):
        os.kill(os.getpid(), signal.SIGKILL)
    def on_start(self, run):
        if self.moment == "start": self.die()
    def on_steps(self, rows, progress):
        if self.moment == "step" and rows[-1]["step"] >= 24: self.die()
    def on_validation(self, validation, progress):
        if self.moment == "validation" and validation.row["step"] >= 26: self.die()
    def on_checkpoint(self, step):
        if self.moment == "save" and step >= 21: threading.Timer(0.002, self.die).start()
    def on_end(self, result):
        if self.moment == "end": self.die()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "moments", [("save", "end"), pytest.param(("start", "save", "step", "validation", "end"), marks=pytest.mark.zoo)]
)
def test_killed_run_resumes_bit_exact_at_every_moment(unbroken, tmp_path, moments):
    (tmp_path / "dying.py").write_text(DYING)
    env = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{sys.path[0]}{os.pathsep}{unbroken_root()}"}
    run_dir = tmp_path / "run"
    for moment in moments:
        own = ("+callback.dying._target_=dying.Dying", f"+callback.dying.moment={moment}")
        process = Process(run_dir, *FULL, *own, env=env).end(-signal.SIGKILL)
        assert "Traceback" not in process.output
    Process(run_dir, *FULL).end()
    assert_same(run_dir, unbroken)
    assert not [name for name in checkpoints(run_dir) if name.startswith(".tmp")]


def unbroken_root():
    from running import ROOT

    return ROOT


@pytest.mark.zoo
def test_no_tensorboard_point_is_duplicated_after_kills(unbroken, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run_dir = tmp_path / "run"
    Process(run_dir, *FULL).wait_until(has_steps(run_dir, 9)).kill(signal.SIGKILL).end(-signal.SIGKILL)
    train_here(run_dir, *FULL)
    train_here(run_dir, *FULL)
    seen = EventAccumulator(str(run_dir), size_guidance={"scalars": 0}).Reload()
    for tag in seen.Tags()["scalars"]:
        found = [event.step for event in seen.Scalars(tag)]
        assert found == sorted(set(found)), tag
    assert [event.step for event in seen.Scalars("val/loss")] == [13, 26, 39]
    assert_same(run_dir, unbroken)


@pytest.mark.slow
@pytest.mark.parametrize(
    "number, exit_code", [pytest.param(signal.SIGINT, 130, marks=pytest.mark.zoo), (signal.SIGTERM, 143)]
)
def test_interrupted_runs_save_and_continue_exactly(unbroken, tmp_path, number, exit_code):
    run_dir = tmp_path / "run"
    process = Process(run_dir, *FULL).wait_until(has_steps(run_dir, 3)).kill(number).end(exit_code)
    ended = status(run_dir)
    assert (ended["state"], ended["exit_code"]) == ("interrupted", exit_code)
    assert number.name in ended["cause"] and number.name in process.output
    assert ended["checkpoint"].endswith(f"step-{ended['step']:08d}")
    assert [row["step"] for row in rows(run_dir) if row["split"] == "train"] == list(range(1, ended["step"] + 1))
    train_here(run_dir, *FULL)
    assert_same(run_dir, unbroken)


@pytest.mark.zoo
def test_budgets_end_with_75_and_continue_exactly(unbroken, tmp_path):
    run_dir = tmp_path / "run"
    train_here(run_dir, *FULL, "trainer.max_steps=16", exit_code=75)
    assert (status(run_dir)["step"], status(run_dir)["state"]) == (16, "interrupted")
    before = image(run_dir)
    again = train_here(run_dir, *FULL, "trainer.max_steps=16", exit_code=75)
    assert "nothing is left to do" in again
    changed = {name for name, value in image(run_dir).items() if before.get(name) != value}
    assert changed <= {
        "train.log",
        "meta.json",
        ".hydra/config.yaml",
        ".hydra/hydra.yaml",
        ".hydra/overrides.yaml",
        ".lock",
    }
    train_here(run_dir, *FULL, "trainer.max_time=0.000001", exit_code=75)
    assert status(run_dir)["step"] == 17 and "max_time" in status(run_dir)["cause"]
    train_here(run_dir, *FULL)
    assert_same(run_dir, unbroken)


SIGNALLED = textwrap.dedent("""
        import os, signal, time
        from mxtrain.training.evaluate import Evaluator
        predict = Evaluator.predict
        passes = [0]
        def signalled(self, loader):
            passes[0] += type(loader).__name__ == "BreakableLoader"
            for number, item in enumerate(predict(self, loader)):
                if passes[0] == int(os.environ["IN_PASS"]) and number == 0:
                    os.kill(os.getpid(), signal.SIGTERM)
                    while loader._signals.stop is None:  # a thread reads it; a second signal would quit at once
                        time.sleep(0.001)
                yield item
        Evaluator.predict = signalled
        from mxtrain.callback.protocol import Callback
        class Nothing(Callback):
            pass
    """)


@pytest.mark.slow
def test_a_signal_in_the_test_split_ends_the_run_and_the_same_command_measures_it(unbroken, tmp_path):
    (tmp_path / "slow.py").write_text(SIGNALLED)
    in_test = str(len(steps(unbroken, "val")) + 1)
    env = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{unbroken_root()}", "IN_PASS": in_test}
    run_dir = tmp_path / "run"
    Process(run_dir, *FULL, "+callback.slow._target_=slow.Nothing", "dataset.eval_batch_size=100", env=env).end(143)
    found = status(run_dir)
    assert found["state"] == "interrupted" and not any(name.startswith("test/") for name in found["metrics"])
    assert found["weights_sha256"] == status(unbroken)["weights_sha256"], "the best weights stayed in place of the last"
    train_here(run_dir, *FULL)
    assert status(run_dir)["weights_sha256"] == status(unbroken)["weights_sha256"]
    assert [(row["split"], row["step"]) for row in rows(run_dir)] == [
        (row["split"], row["step"]) for row in rows(unbroken)
    ]
    assert status(run_dir)["metrics"]["test/accuracy"] == status(unbroken)["metrics"]["test/accuracy"]


@pytest.mark.zoo
def test_a_signal_in_a_validation_breaks_it_off_and_it_is_made_after_the_resume(unbroken, tmp_path):
    (tmp_path / "slow.py").write_text(SIGNALLED)
    env = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{unbroken_root()}", "IN_PASS": "1"}
    run_dir = tmp_path / "run"
    Process(run_dir, *FULL, "+callback.slow._target_=slow.Nothing", "dataset.eval_batch_size=100", env=env).end(143)
    assert status(run_dir)["step"] == 13 and steps(run_dir, "val") == []
    train_here(run_dir, *FULL, "dataset.eval_batch_size=100")
    assert [(row["split"], row["step"]) for row in rows(run_dir)] == [
        (row["split"], row["step"]) for row in rows(unbroken)
    ]
    assert status(run_dir)["weights_sha256"] == status(unbroken)["weights_sha256"]


@pytest.mark.slow
def test_second_run_in_a_directory_is_refused_without_changes(tmp_path):
    run_dir = tmp_path / "run"
    first = Process(run_dir, *SMALL, "trainer.max_epochs=100000", "early_stopping=off", "checkpoint=end_only")
    try:
        first.wait_until(has_steps(run_dir, 1)).kill(signal.SIGSTOP)
        time.sleep(0.1)
        before = image(run_dir)
        second = Process(run_dir, *SMALL, "trainer.max_epochs=7").end(2)
        assert image(run_dir) == before
        assert f"in use by process {first.popen.pid}" in second.output and "Traceback" not in second.output
    finally:
        first.kill(signal.SIGCONT).kill(signal.SIGKILL).end(-signal.SIGKILL)


@pytest.mark.slow
def test_another_description_is_refused_without_changes(copy):
    before = image(copy)
    refused = train_here(
        copy, *SMALL, "trainer.max_epochs=2", "optimizer.lr=0.5", "dataset.augment.flip=true", exit_code=2
    )
    assert image(copy) == before
    assert "optimizer.lr: was 0.001, now 0.5" in refused
    assert "dataset.augment.flip: was false, now true" in refused
    assert "checkpoint.resume=never" in refused and "Traceback" not in refused


@pytest.mark.slow
def test_starting_over_keeps_the_earlier_files(copy, small):
    train_here(copy, *SMALL, "trainer.max_epochs=1", "optimizer.lr=0.5", "checkpoint.resume=never")
    assert steps(copy) == list(range(1, 14))
    kept = image(copy / "previous" / "1")
    assert {name: value for name, value in image(small).items() if name != ".lock"} == kept
    assert "lr: 0.5" in (copy / ".hydra" / "config.yaml").read_text()
    assert (small / "train.log").read_text() not in (copy / "train.log").read_text()


@pytest.mark.slow
def test_a_run_is_continued_from_another_directory(small, tmp_path):
    run_dir = tmp_path / "new"
    before = image(small)
    options = (*SMALL, "trainer.max_epochs=4", f"checkpoint.resume={small}")
    train_here(run_dir, *options, "trainer.max_steps=30", exit_code=75)
    assert steps(run_dir) == [27, 28, 29, 30]
    train_here(run_dir, *options)  # what the directory holds wins over the path
    assert steps(run_dir) == list(range(27, 53)) and image(small) == before
    refused = train_here(tmp_path / "none", *SMALL, f"checkpoint.resume={tmp_path / 'nowhere'}", exit_code=2)
    assert "nowhere" in refused and not (tmp_path / "none").exists()


@pytest.mark.slow
def test_finished_run_is_reported_and_keeps_its_status(copy):
    before = status(copy)
    again = train_here(copy, *SMALL, "trainer.max_epochs=2")
    assert "nothing is left to do" in again and "26 steps" in again
    assert status(copy) == before and before["metrics"]["test/accuracy"] > 0


@pytest.mark.slow
@pytest.mark.skipif(library().path is None, reason=library().why)
def test_changed_operators_are_reported(tmp_path):
    options = (*SMALL, "optimizer=adamw", "trainer.max_epochs=2")
    train_here(tmp_path / "run", *options, "trainer.max_steps=14", exit_code=75)
    assert json.loads((tmp_path / "run/meta.json").read_text())["own_operators"] == library().path.name
    process = Process(tmp_path / "run", *options, env={"MXTRAIN_OPERATORS": "off"}).end()
    assert "operators, now with MXNet's" in process.output


@pytest.mark.slow
def test_finished_run_resumes_with_more_epochs_and_removes_leftovers(copy):
    (copy / "checkpoints" / ".tmp-step-00000026-1").mkdir()
    process = Process(copy, *SMALL, "trainer.max_epochs=3", env={"OMP_NUM_THREADS": "2"}).end()
    assert steps(copy) == list(range(1, 40)) and status(copy)["state"] == "finished"
    assert "OMP_NUM_THREADS=1, now it is 2" in process.output
    assert checkpoints(copy)[-2:] == ["step-00000026", "step-00000039"] and checkpoints(copy)[0].startswith("step-")


@pytest.mark.slow
def test_a_damaged_checkpoint_is_passed_over(copy, small):
    newest = copy / "checkpoints" / checkpoints(copy)[-1] / "model.params"
    newest.write_bytes(newest.read_bytes()[:-1] + b"\x00\x01")
    (copy / "status.json").unlink()
    train_here(copy, *SMALL, "trainer.max_epochs=2")
    assert_same(copy, small)


def test_unusable_checkpoints_are_named_without_output(copy, capfd):
    """Beginning at step 0 would take their place."""
    for name in checkpoints(copy):
        change_last_byte(copy / "checkpoints" / name / "state.json")
    before = image(copy)
    refused = train_here(copy, *SMALL, "trainer.max_epochs=3", exit_code=2)
    assert image(copy) == before and "Traceback" not in refused
    assert all(name in refused for name in checkpoints(copy)) and "checkpoint.resume=never" in refused
    for which in ("last", "best"):
        with pytest.raises(CheckpointError, match="cannot be used: state.json has SHA-256"):
            restore(copy, which=which)


def test_eval_of_the_last_one_never_measures_another(copy, small, capfd):
    newest = copy / "checkpoints" / checkpoints(copy)[-1]
    change_last_byte(newest / "model.params")
    with pytest.raises(CheckpointError, match=f"{newest.name} cannot be used: model.params.*Available in"):
        restore(copy, which="last")
    checkpoint = restore(copy).checkpoint
    told = capfd.readouterr().err
    assert checkpoint.step == 13 and f"{newest.name} cannot be used" in told and "the one of step 13" in told


def change_last_byte(path):
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


@pytest.mark.slow
def test_early_stopping_continues_to_count_and_patience_may_grow(tmp_path, train_run):
    run_dir = tmp_path / "run"
    # A rate of nothing: nothing ever gets better after the first validation.
    still = (
        *SMALL,
        "optimizer=sgd",
        "optimizer.lr=1e-12",
        "trainer.max_epochs=9",
        "trainer.monitor=val/loss",
        "early_stopping.min_delta=1",
    )
    train_run(*still, "early_stopping.patience=3", "trainer.max_steps=30")
    assert (status(run_dir)["state"], status(run_dir)["step"]) == ("interrupted", 30)
    train_run(*still, "early_stopping.patience=3")
    assert (status(run_dir)["state"], status(run_dir)["step"]) == ("stopped_early", 4 * 13)
    assert "nothing is left" in train_here(run_dir, *still, "early_stopping.patience=3")
    train_run(*still, "early_stopping.patience=5")
    assert (status(run_dir)["state"], status(run_dir)["step"]) == ("stopped_early", 6 * 13)
    assert steps(run_dir, "val") == [13 * epoch for epoch in range(1, 7)]
    state = json.loads((run_dir / "checkpoints" / checkpoints(run_dir)[-1] / "state.json").read_text())
    assert state["state"]["train"]["early_stopping"]["waited"] == 5


# Everything that is exact under any placement: no dropout, whose masks depend on the device.
PLACED = (
    "model=lenet",
    "model.channels=[4,8]",
    "model.hidden=16",
    "model.dropout=0",
    "dataset.batch_size=96",
    "dataset.augment.cutout=2",
    "trainer.ema_decay=0.9",
    "trainer.grad_accumulation=2",
    "trainer.max_epochs=2",
    "trainer.clip_global_norm=1",
    "checkpoint.every_steps=5",
    "trainer.log_interval=5",
)
PLACEMENTS = {
    "data": ("parallel=data", "kvstore=device"),
    "model": ("parallel=model",),
    "pipeline": ("parallel=pipeline", "parallel.microbatches=4", "parallel.stages=3"),
    "hybrid": ("parallel=hybrid", "parallel.microbatches=2"),
    "global": ("parallel=hybrid", "parallel.microbatches=2", "parallel.batch_norm=global"),
}


@pytest.mark.zoo_cases("data", "model", "pipeline")
@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PLACEMENTS if name != "global"])
def test_a_run_that_is_continued_ends_the_same_under_every_placement(name, tmp_path, monkeypatch, train_run):
    unbroken, run_dir = tmp_path / "unbroken", tmp_path / "run"
    placed = (*PLACED, *PLACEMENTS[name], "model.dropout=0.3")
    train_run(*placed, run_dir=unbroken)

    cut = open_checkpoint(str(unbroken), which="last").state["run"]["cut_before"]
    by_hand = (f"parallel.cut_before={json.dumps(cut)}",) if cut else ()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # the cut must come from the checkpoint
    _, stopped = train_run(*placed, *by_hand, "trainer.max_steps=17", run_dir=run_dir)
    assert stopped.exit_code == 75
    shutil.rmtree(run_dir / "checkpoints" / "step-00000017")  # as after a kill: rows are written again
    run, _ = train_run(*placed, run_dir=run_dir)
    assert run.info.resumed_step == 15
    assert_same(run_dir, unbroken)


@pytest.mark.zoo
def test_killed_run_with_all_placements_ends_the_same(tmp_path):
    unbroken, run_dir = tmp_path / "unbroken", tmp_path / "run"
    train_here(unbroken, *PLACED, *PLACEMENTS["global"], "model.dropout=0.3")
    # A cache of its own: the cut must come from the checkpoint.
    env = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    (tmp_path / "dying.py").write_text(DYING)
    path = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{unbroken_root()}"}

    cut = open_checkpoint(str(unbroken), which="last").state["run"]["cut_before"]
    by_hand = (f"parallel.cut_before={json.dumps(cut)}",) if cut else ()
    own = ("+callback.dying._target_=dying.Dying", "+callback.dying.moment=save")
    placed = (*PLACED, *PLACEMENTS["global"], "model.dropout=0.3")
    Process(run_dir, *placed, *by_hand, *own, env={**path, **env}).end(-signal.SIGKILL)
    Process(run_dir, *placed, env=env).end()
    assert_same(run_dir, unbroken)


@pytest.mark.slow
def test_a_checkpoint_continues_under_any_other_placement(tmp_path, train_run):
    """The same samples, optimizer state and schedule: losses agree to rounding."""
    one, run_dir = tmp_path / "one", tmp_path / "run"
    exact = ("model.batch_norm=false", "optimizer=sgd", "optimizer.lr=0.01")
    train_run(*PLACED, *exact, run_dir=one)
    limits = [4, 9, 14, 20]
    for limit, name in zip(limits, ("pipeline", "data", "hybrid", "model")):
        _, stopped = train_run(*PLACED, *exact, *PLACEMENTS[name], f"trainer.max_steps={limit}", run_dir=run_dir)
        assert stopped.exit_code == 75
    train_run(*PLACED, *exact, run_dir=run_dir)
    ours, theirs = rows(run_dir), rows(one)
    assert [(row["step"], row["split"]) for row in ours] == [(row["step"], row["split"]) for row in theirs]
    for a, b in zip(ours, theirs):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-3)
    with pytest.raises(CheckpointError, match="parallel.batch_norm: was.*global"):
        train_run(*PLACED, *exact, "parallel=data", "parallel.batch_norm=global", run_dir=run_dir)


# What a run of before there were tasks said of itself.
@pytest.mark.slow
def test_sampler_settings_change_the_result(describe_run):
    now, other = (
        describe_run("dataset.batch_size=64", f"dataset.sampler={name}").config for name in ("shuffle", "balanced")
    )
    assert differences(now, now) == []
    assert differences(now, other) == ["  dataset.sampler: was shuffle, now balanced"]
    weighted = [
        describe_run("dataset.batch_size=64", "dataset.sampler=weighted", f"dataset.class_weights.3={weight}").config
        for weight in (2.0, 4.0)
    ]
    assert differences(*weighted) == ["  dataset.class_weights.3: was 2.0, now 4.0"]
    assert len(differences(now, weighted[0])) == 2


@pytest.mark.slow
def test_reference_batch_size_without_effect_is_the_same_run(describe_run):
    plain, idle, scaled = (
        describe_run("dataset.batch_size=64", f"trainer.reference_batch_size={reference}").config
        for reference in ("null", 64, 128)
    )
    assert differences(plain, idle) == []
    assert differences(plain, scaled) == ["  trainer.reference_batch_size: was null, now 128"]


def test_null_replaces_missing_values(describe_run):
    now = describe_run().config
    before = {**now, "trainer": {name: value for name, value in now["trainer"].items() if name != "ema_decay"}}
    assert differences(before, now) == differences(now, before) == []
