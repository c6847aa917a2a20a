"""Actions: what they decide, against references of their own, and that a resumed run has the same bits. 60 s."""

from __future__ import annotations

import json
import os
import signal
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from running import (
    ROOT,
    SMALL,
    Process,
    assert_same,
    checkpoints,
    has_steps,
    role_of,
    rows,
    running_processes,
    status,
    train_here,
)

import mxtrain
from mxtrain.callback.action import Action, Control, Decisions
from mxtrain.checkpoint import open_checkpoint
from mxtrain.errors import ConfigError
from mxtrain.kvstore.spec import has_horovod
from mxtrain.lr_scheduler.plateau import Plateau
from mxtrain.training.actions import ActionList

PLAIN = (
    "model=mlp",
    "model.hidden=[8]",
    "optimizer=sgd",
    "optimizer.lr=0.05",
    "lr_scheduler=constant",
    "early_stopping=off",
    "trainer.test=false",
)


def control(decisions, direction="min", lr=0.5, say=lambda text: None):
    length = SimpleNamespace(steps_per_epoch=10, total_steps=100, epoch_origin=0)
    names = ["dense.weight", "dense.bias", "last.weight"]
    return Control("it", decisions, None, names, length, lr, lambda _: direction, say)


def torch_plateau(values, lr, mode, factor, patience, threshold, threshold_mode, cooldown, min_lr):
    """torch.optim.lr_scheduler.ReduceLROnPlateau, written from its documentation: the rate after each value."""
    best, bad, cooling, rates = np.inf if mode == "min" else -np.inf, 0, 0, []
    for value in values:
        margin = best * threshold if threshold_mode == "rel" else threshold
        margin = 0 if np.isinf(best) else margin
        better = value < best - margin if mode == "min" else value > best + margin
        best, bad = (value, 0) if better else (best, bad + 1)
        if cooling > 0:
            cooling, bad = cooling - 1, 0
        if bad > patience:
            lr, cooling, bad = max(lr * factor, min_lr), cooldown, 0
        rates.append(lr)
    return rates


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("threshold_mode, cooldown", [("rel", 0), ("abs", 2)])
def test_plateau_equals_pytorch(mode: str, threshold_mode: str, cooldown: int) -> None:
    values = np.random.default_rng(0).uniform(0.2, 1, 80) + np.linspace(0.5, 0, 80) * (1 if mode == "min" else -1)
    values[7] = np.nan
    spec = Plateau(
        monitor="val/loss",
        gamma=0.5,
        patience=2,
        threshold=0.02,
        threshold_mode=threshold_mode,
        cooldown=cooldown,
        min_lr=0.01,
    )
    action, decisions, rates = spec.build_action(), Decisions(), []
    run = control(decisions, mode)
    for value in values:
        run.advance(values={"val/loss": value})
        restored = spec.build_action()  # the state goes through JSON each time
        restored.load_state({}, json.loads(json.dumps(action.save_state()[1])), "")
        action = restored
        action.after_validation(run)
        rates.append(0.5 * decisions.factors.get("it", 1.0))
    expected = torch_plateau(values, 0.5, mode, 0.5, 2, 0.02, threshold_mode, cooldown, 0.01)
    np.testing.assert_allclose(rates, expected, rtol=1e-12)
    assert len(set(rates)) > 3 and min(rates) >= 0.01


def test_plateau_of_an_undefined_value_is_reported_once() -> None:
    said: list[str] = []
    spec, decisions = Plateau(monitor="val/auc", patience=2), Decisions()
    action, run = spec.build_action(), control(decisions, "max", say=said.append)
    for value in [np.nan] * 9:
        run.advance(values={"val/auc": value})
        action.after_validation(run)
        assert len(said) == (action.state["waited"] > 2)
    assert said == [
        "val/auc was no finite number at each of the 3 validations so far, so it does not lower the learning rate. "
        "Monitor a value that the validation samples define, e.g. lr_scheduler.monitor=val/loss."
    ]
    assert decisions.factors == {}
    for value in (0.5, 0.5, 0.5, np.nan):  # defined later: counts as usual
        run.advance(values={"val/auc": value})
        action.after_validation(run)
    assert decisions.factors == {"it": pytest.approx(0.1)} and len(said) == 2


def test_patterns_and_rates() -> None:
    decisions = Decisions()
    run = control(decisions)
    run.freeze("dense.*")
    run.unfreeze("*.bias")
    assert decisions.frozen == ["dense.weight"]
    run.set_lr(0.1)
    run.set_lr(None)
    assert decisions.rates == {}
    with pytest.raises(Exception, match="'desne.\\*' matches no parameter.*dense.weight"):
        run.freeze("desne.*")


@pytest.mark.parametrize(
    "name, value, said",
    [
        ("lr", 0.5, r"callback.it: run.lr = 0.5 changes nothing. Use run.set_lr\(0.5\)"),
        ("stop", True, "callback.it: run.stop = True changes nothing"),
    ],
)
def test_run_attributes_are_read_only(name, value, said) -> None:
    with pytest.raises(ConfigError, match=said):
        setattr(control(Decisions()), name, value)


@pytest.mark.parametrize("value", [-1, "0.5", float("nan"), float("inf"), True, None])
def test_rates_are_finite_numbers(value) -> None:
    decisions = Decisions()
    for method in ("set_lr", "scale_lr")[value is None :]:
        with pytest.raises(ConfigError, match=rf"callback.it: run.{method}\(.*finite number of at least 0"):
            getattr(control(decisions), method)(value)
    control(decisions).set_lr(np.float32(0.5))
    assert (decisions.rates, decisions.factors) == ({"it": 0.5}, {})


def test_state_holds_json_values() -> None:
    action = Action()
    action.state["counts"] = np.zeros(3)
    with pytest.raises(ConfigError, match=r"callback.mine: state\['counts'\] is a ndarray.*holds JSON values"):
        ActionList({"mine": action}, {}).save_state()


@pytest.mark.slow
@pytest.mark.parametrize(
    "target, setting, said",
    [
        ("Plain", "limit=5", r"no 'callback.mine.limit'.*no arguments.*def __init__\(self, limit\)"),
        ("Watcher", "limit=5", r"no 'callback.mine.limit'.*no arguments.*def __init__\(self, limit\)"),
        ("Halve", "aftr=5", r"(?s)no 'callback.mine.aftr'. Did you mean 'after'\?"),
    ],
)
def test_settings_that_an_action_does_not_take_are_refused(target, setting, said, tmp_path, monkeypatch) -> None:
    (tmp_path / "own_parts.py").write_text(OWN, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_parts", raising=False)
    with pytest.raises(ConfigError, match=said):
        mxtrain.compose(f"+callback.mine._target_=own_parts.{target}", f"+callback.mine.{setting}")


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides, said",
    [
        (["lr_scheduler=plateau", "kvstore=dist_async"], "lr_scheduler changes the run.*dist_sync"),
        (["lr_scheduler=plateau", "lr_scheduler.monitor=val/nothing"], "lr_scheduler.monitor=val/nothing: this run"),
        (["callback=swa"], "callback.swa: early stopping.*early_stopping=off"),
        (["callback=swa", "early_stopping=off", "trainer.ema_decay=0.9"], "ema_decay=0.9 keeps another average"),
        (["callback=accumulation", "callback.accumulation.schedule={0: 2}", "amp=float16"], "amp=float16"),
        (["callback=accumulation", "callback.accumulation.schedule={x: 2}"], "'x' is no number of epochs"),
        (["callback=target"], "callback.target.value must be given"),
    ],
)
def test_actions_that_break_a_guarantee_are_refused(overrides, said) -> None:
    with pytest.raises(ConfigError, match=f"(?s){said}"):
        mxtrain.compose(*overrides)


OWN = """
from mxtrain.callback import Action
from mxtrain.callback.protocol import Callback


class Plain(Action):
    limit = 3


class Watcher(Callback):
    limit = 3


class Halve(Action):
    def __init__(self, after: int):
        self.after = after

    def before_step(self, run):
        if run.step == self.after:
            self.state["halved_at"] = run.step
            run.scale_lr(0.5)
        if run.step == self.after + 10:
            run.stop("enough")


class Misspelt(Action):
    def before_steps(self, run):
        pass
"""


@pytest.mark.slow
def test_users_action(tmp_path, monkeypatch) -> None:
    (tmp_path / "own_halving.py").write_text(OWN, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_halving", raising=False)
    common = (*PLAIN, "dataset.batch_size=100", "trainer.max_epochs=9")
    own = ("+callback.mine._target_=own_halving.Halve", "+callback.mine.after=20")
    train_here(tmp_path / "run", *common, *own)
    found = status(tmp_path / "run")
    assert (found["state"], found["cause"], found["step"]) == ("stopped_early", "enough", 31)
    rates = [row["lr"] for row in rows(tmp_path / "run") if row["split"] == "train"]
    assert rates == [0.05] * 20 + [0.025] * 11
    said = train_here(tmp_path / "run", *common, exit_code=2)
    assert "now with no callback.mine" in said
    said = train_here(tmp_path / "other", "+callback.mine._target_=own_halving.Misspelt", exit_code=2)
    assert "nothing calls Misspelt.before_steps" in said


ALL = (
    *SMALL,
    "optimizer=sgd",
    "optimizer.momentum=0.9",
    "lr_scheduler=plateau",
    "lr_scheduler.patience=0",
    "lr_scheduler.threshold=0.05",
    "trainer.val_interval=5",
    "trainer.val_interval_unit=steps",
    "early_stopping=off",
    "callback=[unfreeze,accumulation,swa]",
    "callback.swa.start=3",
    "callback.swa.unit=epochs",
    "callback.swa.every_steps=4",
    "callback.accumulation.schedule={0: 2, 2: 3}",
    "callback.unfreeze.unit=steps",
    "callback.unfreeze.groups=[{patterns: [features.1.*], at: 17}]",
    "checkpoint.every_steps=7",
    "trainer.max_epochs=5",
    "trainer.clip_global_norm=1",
)
"""65 steps of 13 an epoch with all actions."""


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("actions") / "run"
    train_here(run_dir, *ALL)
    return run_dir


@pytest.mark.zoo
@pytest.mark.slow
def test_resumed_run_is_bit_exact(unbroken, tmp_path) -> None:
    for stop in (10, 16, 29, 45):  # in the middle of an update, before a group trains, while weights are averaged
        train_here(tmp_path / "run", *ALL, f"trainer.max_steps={stop}", exit_code=75)
    train_here(tmp_path / "run", *ALL)
    assert_same(tmp_path / "run", unbroken)
    states = open_checkpoint(tmp_path / "run", which="last").state["states"]["actions"]["states"]
    assert states["unfreeze"] == {"begun": 1} and states["swa"]["count"] == 8
    assert len({row["lr"] for row in rows(unbroken) if row["split"] == "train"}) > 1


@pytest.mark.slow
def test_killed_run_is_bit_exact(unbroken, tmp_path) -> None:
    run = Process(tmp_path / "run", *ALL, "trainer.log_interval=1")
    run.wait_until(has_steps(tmp_path / "run", 30)).kill(signal.SIGKILL).end(-signal.SIGKILL)
    assert checkpoints(tmp_path / "run")
    Process(tmp_path / "run", *ALL).end()
    assert_same(tmp_path / "run", unbroken)


@pytest.mark.zoo_except("parallel=hybrid parallel.devices=cpu:4 parallel.microbatches=5")
@pytest.mark.slow
@pytest.mark.parametrize(
    "placement",
    [
        pytest.param(("kvstore=dist_sync", "cluster.workers=2"), marks=pytest.mark.zoo),
        ("parallel=data", "parallel.devices=cpu:2"),
        ("parallel=hybrid", "parallel.devices=cpu:4", "parallel.microbatches=5"),
    ],
    ids=" ".join,
)
def test_placements_agree(placement, unbroken, tmp_path) -> None:
    """Two workers decide the same: the weights of both are compared at each validation, and with those of one device;
    so do replicas and stages of a pipeline."""
    train_here(tmp_path / "run", *ALL, *placement)
    arrays, expected = (open_checkpoint(run, which="last").arrays("model") for run in (tmp_path / "run", unbroken))
    for name, array in arrays.items():
        np.testing.assert_allclose(array, expected[name], rtol=1e-3, atol=1e-5, err_msg=name)
    ones, others = ([row["lr"] for row in rows(run) if row["split"] == "train"] for run in (tmp_path / "run", unbroken))
    assert ones == others


SLEEPS = """
import time
from mxtrain.callback.protocol import Callback


class Sleeps(Callback):
    def on_steps(self, rows, progress):
        time.sleep(0.1)
"""


@pytest.mark.zoo
@pytest.mark.skipif(not has_horovod(), reason="Horovod is not installed")
def test_a_ring_that_loses_a_worker_continues_with_the_state_of_actions(unbroken, tmp_path) -> None:
    """The last bits differ, because shares are others in between; decisions do not."""
    (tmp_path / "slow.py").write_text(SLEEPS)
    run = Process(
        tmp_path / "run",
        *ALL,
        "trainer.log_interval=1",
        "kvstore=horovod",
        "cluster.workers=2",
        "+callback.slow._target_=slow.Sleeps",
        env={"PYTHONPATH": f"{tmp_path}:{ROOT}"},
    )
    run.wait_until(has_steps(tmp_path / "run", 20))
    os.kill(
        next(
            pid for pid, command, env in running_processes() if str(tmp_path) in command and role_of(env) == "worker1"
        ),
        signal.SIGKILL,
    )
    run.end()
    assert "lost the connection" in (tmp_path / "run" / "train.log").read_text()
    ones, others = ([row["lr"] for row in rows(run) if row["split"] == "train"] for run in (tmp_path / "run", unbroken))
    assert ones == others
    arrays, expected = (open_checkpoint(run, which="last").arrays("model") for run in (tmp_path / "run", unbroken))
    for name, array in arrays.items():
        np.testing.assert_allclose(array, expected[name], rtol=1e-2, atol=1e-4, err_msg=name)


@pytest.mark.slow
def test_accumulated_batches_are_one_batch(tmp_path) -> None:
    train_here(tmp_path / "large", *PLAIN, "dataset.batch_size=96", "trainer.max_epochs=2")
    train_here(
        tmp_path / "small",
        *PLAIN,
        "dataset.batch_size=32",
        "trainer.max_epochs=2",
        "callback=accumulation",
        "callback.accumulation.schedule={0: 3}",
    )
    large, small = (open_checkpoint(tmp_path / run, which="last").arrays("model") for run in ("large", "small"))
    for name, array in large.items():
        np.testing.assert_allclose(small[name], array, rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.slow
def test_frozen_until_their_time(tmp_path) -> None:
    """Until the group begins, the run has the bits of one that freezes it for good; then it moves. The norm by which
    gradients are clipped is that of the others alone."""
    common = (
        *PLAIN,
        "optimizer.momentum=0.9",
        "trainer.clip_global_norm=0.2",
        "dataset.batch_size=100",
        "checkpoint.every_epochs=1",
        "checkpoint.keep_last=9",
        "trainer.max_epochs=2",
    )
    train_here(tmp_path / "frozen", *common, "model.freeze=[features.1.*]")
    train_here(
        tmp_path / "thawed",
        *common,
        "callback=unfreeze",
        "callback.unfreeze.groups=[{patterns: [features.1.*], at: 1}]",
    )
    frozen, thawed = (
        [open_checkpoint(tmp_path / run / "checkpoints" / f"step-{step:08d}").arrays("model") for step in (13, 26)]
        for run in ("frozen", "thawed")
    )
    for name, array in frozen[0].items():
        assert array.tobytes() == thawed[0][name].tobytes(), name
    moved = {name for name, array in frozen[1].items() if array.tobytes() != thawed[1][name].tobytes()}
    assert "features.1.weight" in moved


@pytest.mark.zoo_except("placement1")
@pytest.mark.slow
@pytest.mark.parametrize("placement", [(), ("parallel=pipeline", "parallel.stages=2")])
def test_norms_frozen_in_either_way_have_the_same_statistics(tmp_path, placement) -> None:
    common = (
        *PLAIN,
        *placement,
        "model=lenet",
        "model.channels=[4,8]",
        "model.hidden=16",
        "model.dropout=0",
        "dataset.batch_size=400",
        "checkpoint.every_epochs=1",
        "checkpoint.keep_last=9",
        "trainer.max_epochs=2",
        "trainer.val_interval=2",
    )
    patterns = "features.*.weight,features.*.bias,features.*.gamma,features.*.beta"
    train_here(tmp_path / "frozen", *common, f"model.freeze=[{patterns}]")
    train_here(
        tmp_path / "thawed",
        *common,
        "callback=unfreeze",
        f"callback.unfreeze.groups=[{{patterns: [{patterns}], at: 1}}]",
    )
    _, first, *_ = checkpoints(tmp_path / "frozen")
    frozen, thawed = (
        open_checkpoint(tmp_path / run / "checkpoints" / first).arrays("model") for run in ("frozen", "thawed")
    )
    for name, array in frozen.items():
        assert array.tobytes() == thawed[name].tobytes(), name
    assert frozen["features.1.running_mean"].any()


@pytest.mark.slow
def test_swa_is_the_mean_of_checkpoints(tmp_path) -> None:
    """Against the mean of the kept checkpoints of a run without it, and statistics by plain Gluon."""
    import mxnet as mx

    from mxtrain.model.graph.trace import blocks_by_path

    common = (
        *PLAIN,
        "model=lenet",
        "model.channels=[4,8]",
        "model.hidden=16",
        "model.dropout=0",
        "dataset.batch_size=100",
        "checkpoint.every_epochs=1",
        "checkpoint.keep_last=9",
        "trainer.max_epochs=4",
    )
    train_here(tmp_path / "plain", *common)
    train_here(tmp_path / "swa", *common, "callback=swa", "callback.swa.start=0.5")
    kept = [
        open_checkpoint(tmp_path / "plain" / "checkpoints" / f"step-{step:08d}").arrays("model")
        for step in (26, 39, 52)
    ]
    found = open_checkpoint(tmp_path / "swa", which="last").arrays("model")
    for name, array in found.items():
        if "running" not in name:
            np.testing.assert_allclose(array, np.mean([one[name] for one in kept], axis=0), atol=2e-6, err_msg=name)
    run = mxtrain.load(tmp_path / "swa", which="last")
    images = np.concatenate([batch["input"] for batch in run.batches("train")])
    network = run.network
    first = next(block for _, block in blocks_by_path(network) if isinstance(block, mx.gluon.nn.BatchNorm))
    first._kwargs["momentum"] = 0.0  # keeps the statistics of the last batch: here of all samples at once
    network.hybridize(False)
    with mx.autograd.train_mode():
        network(mx.nd.array(images))
    mean = first.running_mean.data().asnumpy()
    mine = next(found[name] for name in found if name.endswith("running_mean"))
    np.testing.assert_allclose(mine, mean, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_target_ends_the_run_and_reports_the_step(tmp_path) -> None:
    train_here(
        tmp_path / "run",
        *PLAIN,
        "dataset.batch_size=32",
        "trainer.max_epochs=30",
        "callback=target",
        "callback.target.value=0.5",
        "callback.target.monitor=train/accuracy",
    )
    found = status(tmp_path / "run")
    assert found["state"] == "stopped_early" and 0 < found["step"] < 30 * 41
    assert found["cause"].startswith("train/accuracy has reached 0.5") and " s of training, in step" in found["cause"]
