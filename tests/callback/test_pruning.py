"""Pruning: which weights go against references of their own, resumed runs, placements, and the smaller network."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from typing import Any, Set

import numpy as np
import pytest
from running import SMALL, assert_same, rows, status, train_here

import mxtrain
from mxtrain.callback.pruning import keep_largest, keep_largest_of_groups
from mxtrain.checkpoint import open_checkpoint
from mxtrain.errors import ConfigError
from mxtrain.model.graph.channels import find_channels
from mxtrain.model.graph.shapes import infer_shapes
from mxtrain.model.parameters import distinct_parameters
from mxtrain.model.widths import set_widths


def zeros_of(run_dir, which="last"):
    arrays = open_checkpoint(run_dir, which=which).arrays("model")
    return {name: np.mean(array == 0) for name, array in arrays.items() if array.ndim > 1}


@pytest.mark.parametrize("share", [0, 0.3, 0.5, 0.9])
def test_smallest_weights_are_pruned(share) -> None:
    rng = np.random.default_rng(0)
    sizes = {"a": rng.uniform(size=(6, 5)), "b": rng.uniform(size=(7, 2, 3))}
    sizes["a"][0] = -1  # pruned before
    sizes["b"][:, 0] = 0.5  # ties
    keep = keep_largest(sizes, share)
    flat = np.concatenate([one.ravel() for one in sizes.values()])
    expected = np.ones(flat.size, bool)
    expected[np.argsort(flat, kind="stable")[: round(share * flat.size)]] = False
    np.testing.assert_array_equal(np.concatenate([one.ravel() for one in keep.values()]), expected)


def test_pattern_along_inputs() -> None:
    size = np.random.default_rng(0).uniform(size=(3, 8, 2, 2))
    keep = keep_largest_of_groups(size, 4, 2)
    for out, y, x in np.ndindex(3, 2, 2):
        for start in (0, 4):
            part, kept = size[out, start : start + 4, y, x], keep[out, start : start + 4, y, x]
            assert sorted(part[kept]) == sorted(part)[2:]


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides, said",
    [
        (["callback=prune", "callback.prune.sparsity=1"], "sparsity"),
        (["callback=prune", "callback.prune.pattern=4:2"], "must be N:M with 0 < N < M"),
        (["callback=prune", "callback.prune.pattern=2:4", "callback.prune.sparsity=0.5"], "Leave sparsity out"),
        (["callback=prune", "callback.prune.start=0.8"], "start=0.8 is after end=0.7"),
        (["callback=prune_channels", "callback.prune_channels.end=2"], "end=2 is a fraction.*unit=epochs"),
        (["callback=prune", "kvstore=dist_async"], "dist_sync"),
    ],
)
def test_wrong_settings_are_refused(overrides, said) -> None:
    with pytest.raises(ConfigError, match=f"(?s){said}"):
        mxtrain.compose(*overrides)


def network_for_channels():
    """A residual sum, a grouped and a depthwise convolution, a concatenation, flatten and dense."""
    from mxtrain.engine.backend import gluon

    nn = gluon.nn

    class Net(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            with self.name_scope():
                self.first = nn.Conv2D(8, 3, padding=1)
                self.norm = nn.BatchNorm()
                self.branch = nn.Conv2D(8, 3, padding=1, groups=2)
                self.depth = nn.Conv2D(16, 3, padding=1, groups=8)
                self.other = nn.Conv2D(6, 1)
                self.mixed = nn.Conv2D(4, 1)
                self.dense = nn.Dense(5)
                self.out = nn.Dense(3)

        def hybrid_forward(self, F, x):
            x = F.sigmoid(self.norm(self.first(x)))
            x = x + self.branch(x)
            x = F.concat(self.depth(x), self.other(x), dim=1)
            return self.out(F.tanh(self.dense(F.softmax(self.mixed(x), axis=1))))

    return Net()


def test_channels_that_depend_on_each_other() -> None:
    """For any set of removed channels the smaller network computes the same as the large one whose readers of these
    channels are 0."""
    import mxnet as mx

    network = network_for_channels()
    infer_shapes(network, (1, 4, 4))
    network.initialize(mx.init.Normal(0.5))
    channels = find_channels(network, (1, 4, 4))
    groups = {frozenset(names) for names in channels.groups}
    # The softmax mixes the channels of `mixed`, and grouped convolutions join channels of their groups.
    assert groups == {frozenset(["first", "branch", "depth"]), frozenset(["other"]), frozenset(["dense"])}
    sizes = [sum(one.group == number for one in channels.sets) for number in range(3)]
    assert dict(zip(map(tuple, channels.groups), sizes)) == {
        ("branch", "depth", "first"): 4,
        ("other",): 6,
        ("dense",): 5,
    }
    assert [[*one.scales] for one in channels.sets] == [["norm.gamma"]] * 4 + [[]] * 11
    arrays = {name: one.data().asnumpy() for name, one in distinct_parameters(network).items()}
    gone = [0, 2, len(channels.sets) - 1, 6]
    for number in gone:
        for name, axis, index in channels.sets[number].read:
            kept = [slice(None)] * arrays[name].ndim
            kept[axis] = index
            arrays[name][tuple(kept)] = 0
        # Convolutions that read channels one by one are made of the same sets, so nothing else reads them.
    assert channels.removable(arrays) == sorted(gone)
    x = mx.nd.random.uniform(shape=(3, 1, 4, 4))
    for name, parameter in distinct_parameters(network).items():
        parameter.set_data(mx.nd.array(arrays[name]))
    expected = network(x).asnumpy()
    kept, widths = channels.without(arrays, gone)
    small = network_for_channels()
    infer_shapes(small, (1, 4, 4))
    set_widths(small, widths)
    infer_shapes(small, (1, 4, 4))
    small.initialize()
    for name, parameter in distinct_parameters(small).items():
        parameter.set_data(mx.nd.array(kept[name]))
    assert sum(p.data().size for p in small.collect_params().values()) < sum(a.size for a in arrays.values())
    np.testing.assert_allclose(small(x).asnumpy(), expected, rtol=1e-5, atol=1e-6)


def removable_layers(names: str, forward: Any) -> Set[str]:
    """Names of the layers with removable channels of a network of these layers."""
    from mxtrain.engine.backend import gluon

    class Net(gluon.HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            made = {
                "conv": lambda: gluon.nn.Conv2D(6, 3, padding=1),
                "mixed": lambda: gluon.nn.Conv2D(3, 1),
                "dense": lambda: gluon.nn.Dense(5),
                "last": lambda: gluon.nn.Dense(4, flatten=False),
            }
            with self.name_scope():
                for name in names.split():
                    setattr(self, name, made[name]())
            if "weight" in forward.__code__.co_varnames:
                self.weight = self.last.weight

        def hybrid_forward(self, F: Any, x: Any, **parameters: Any) -> Any:
            return forward(self, F, x, **parameters)

    network = Net()
    infer_shapes(network, (2, 4, 4))
    network.initialize()
    return set(find_channels(network, (2, 4, 4)).widths)


FORWARDS = {
    "reshape": ("conv last", lambda net, F, x: net.last(F.reshape(net.conv(x), shape=(0, -1))), {"conv"}),
    "means and a new axis": (
        "conv last",
        lambda net, F, x: net.last(F.expand_dims(F.mean(net.conv(x), axis=(2, 3)), axis=1)),
        {"conv"},
    ),
    "channels last": ("conv last", lambda net, F, x: net.last(F.transpose(net.conv(x), axes=(0, 2, 3, 1))), {"conv"}),
    "means of lines": ("conv dense", lambda net, F, x: net.dense(F.mean(net.conv(x), axis=2)), {"conv"}),
    "joined with the data": ("conv mixed", lambda net, F, x: net.mixed(F.concat(x, net.conv(x), dim=1)), {"conv"}),
    "weight that another operator reads": (
        "dense last",
        lambda net, F, x, weight: F.dot(net.last(F.relu(net.dense(x))), weight),
        set(),
    ),
    "weight of one operator": ("dense last", lambda net, F, x: net.last(F.relu(net.dense(x))), {"dense"}),
}


@pytest.mark.parametrize("name", FORWARDS)
def test_layers_with_removable_channels(name: str) -> None:
    names, forward, layers = FORWARDS[name]
    assert removable_layers(names, forward) == layers


def test_widths_of_no_layer_are_refused() -> None:
    network = network_for_channels()
    infer_shapes(network, (1, 4, 4))
    with pytest.raises(ConfigError, match="no convolution or dense layer 'denes'.*Did you mean 'dense'"):
        set_widths(network, {"denes": 2})


PRUNED = (
    *SMALL,
    "early_stopping=off",
    "optimizer=sgd",
    "optimizer.momentum=0.9",
    "trainer.max_epochs=4",
    "callback=prune",
    "callback.prune.sparsity=0.75",
    "callback.prune.start=0.1",
    "callback.prune.end=0.6",
    "callback.prune.every_steps=5",
    "trainer.ema_decay=0.9",
)
"""52 steps of 13 an epoch."""
CUT = (
    *SMALL,
    "model=lenet",
    "model.channels=[4,8]",
    "model.hidden=16",
    "early_stopping=off",
    "trainer.max_epochs=4",
    "callback=prune_channels",
    "callback.prune_channels.end=0.6",
    "callback.prune_channels.every_steps=6",
)


@pytest.fixture(scope="module")
def pruned(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("pruned") / "run"
    train_here(run_dir, *PRUNED)
    return run_dir


@pytest.fixture(scope="module")
def cut(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("cut") / "run"
    train_here(run_dir, *CUT)
    return run_dir


@pytest.mark.slow
def test_weights_are_zero_in_every_copy(pruned) -> None:
    checkpoint = open_checkpoint(pruned, which="last")
    for stem in ("model", "ema"):
        weights = np.concatenate([a.ravel() for a in checkpoint.arrays(stem).values() if a.ndim > 1])
        assert np.mean(weights == 0) == pytest.approx(0.75, abs=1e-3)
    assert status(pruned)["best"]["step"] >= 0.6 * 52  # before that the network was another one
    found = mxtrain.load(pruned, which="last").evaluate(split="val")
    assert 0 < found["accuracy"] <= 1


@pytest.mark.zoo
@pytest.mark.slow
@pytest.mark.parametrize(
    "name, settings",
    [
        pytest.param("pruned", PRUNED, marks=pytest.mark.zoo),
        ("cut", CUT),
    ],
)
def test_resumed_run_is_bit_exact(name, settings, request, tmp_path) -> None:
    for stop in (9, 24, 40):
        train_here(tmp_path / "run", *settings, f"trainer.max_steps={stop}", exit_code=75)
    train_here(tmp_path / "run", *settings)
    assert_same(tmp_path / "run", request.getfixturevalue(name))


@pytest.mark.slow
@pytest.mark.parametrize(
    "placement",
    [
        ("parallel=data", "parallel.devices=cpu:2"),
        pytest.param(("parallel=pipeline", "parallel.devices=cpu:2", "parallel.microbatches=2"), marks=pytest.mark.zoo),
        pytest.param(("kvstore=dist_sync", "cluster.workers=2"), marks=pytest.mark.zoo),
    ],
)
def test_placements_prune_the_same_weights(pruned, tmp_path, placement) -> None:
    train_here(tmp_path / "run", *PRUNED, *placement)
    # A replica that computed with weights from before they were pruned would have another loss.
    losses, wanted = (
        {row["step"]: row["loss"] for row in rows(run) if row["split"] == "train"} for run in (tmp_path / "run", pruned)
    )
    assert losses == pytest.approx(wanted, rel=1e-4) and len(losses) == 52
    arrays, expected = (open_checkpoint(run, which="last").arrays("model") for run in (tmp_path / "run", pruned))
    same = np.mean(np.concatenate([((a == 0) == (expected[n] == 0)).ravel() for n, a in arrays.items() if a.ndim > 1]))
    assert same > 0.99  # sums of gradients differ in their last bits, and with them two weights of nearly the same size
    assert np.mean(np.concatenate([(a == 0).ravel() for a in arrays.values() if a.ndim > 1])) == pytest.approx(
        0.75, abs=1e-3
    )


@pytest.mark.slow
def test_pattern_holds_in_the_checkpoint(tmp_path) -> None:
    train_here(tmp_path / "run", *PLAIN_PATTERN)
    weight = open_checkpoint(tmp_path / "run", which="last").arrays("model")["features.1.weight"]
    groups = weight.reshape(-1, 4)
    assert ((groups == 0).sum(axis=1) == 2).all()


PLAIN_PATTERN = (
    *SMALL,
    "early_stopping=off",
    "trainer.max_epochs=2",
    "callback=prune",
    "callback.prune.pattern=2:4",
    "callback.prune.leave=[output.*]",
)


@pytest.mark.slow
def test_slim_network_is_an_independent_run(cut, tmp_path, capsys) -> None:
    from mxtrain.cli import main

    shutil.copytree(cut, tmp_path / "run")
    assert main(["slim", str(tmp_path / "run")]) == 0
    said = capsys.readouterr().out
    assert re.search(r"parameters: [\d,]+ -> [\d,]+ ", said) and "forward pass of 32 here" in said
    assert main(["slim", str(tmp_path / "run")]) == 0  # in the place of the earlier one
    large, small = mxtrain.load(tmp_path / "run"), mxtrain.load(tmp_path / "run" / "slim")
    assert large.evaluate(split="val")["loss"] == pytest.approx(small.evaluate(split="val")["loss"], rel=1e-5)
    shapes = {n: p.shape for n, p in small.network._collect_params_with_prefix().items()}
    assert shapes["features.0.weight"][0] < 4 and shapes["features.3.weight"][1] == shapes["features.0.weight"][0]
    shutil.move(tmp_path / "run" / "slim", tmp_path / "alone")
    shutil.rmtree(tmp_path / "run")
    assert mxtrain.load(tmp_path / "alone").evaluate(split="val")["accuracy"] <= 1
    # The printed command trains a network of the same shapes.
    line = [line for line in said.splitlines() if "model.widths=" in line][-1]
    words = [word for word in shlex.split(line) if "=" in word and not word.startswith("trainer.max_epochs")]
    run = mxtrain.train(*words, "trainer.max_epochs=1", dir=tmp_path / "scratch")
    assert {n: p.shape for n, p in run.network._collect_params_with_prefix().items()} == shapes
    run.network.save_parameters(str(tmp_path / "scratch.params"))
    said = train_here(tmp_path / "alone", *words, exit_code=2)
    assert "written by `mxtrain slim`, and no run goes on from it" in said or "computes something else" in said


@pytest.mark.slow
@pytest.mark.parametrize("error, is_written", [(0.9e-4, True), (1e-4, True), (1.1e-4, False), (float("nan"), False)])
def test_slim_network_with_other_outputs_is_removed(cut, tmp_path, capsys, monkeypatch, error, is_written) -> None:
    from mxtrain.cli import main
    from mxtrain.training import slimming

    monkeypatch.setattr(slimming, "relative_error", lambda expected, found: error)
    monkeypatch.setattr(slimming, "_times", lambda both, inputs: [{1: 1.0, 32: 1.0}] * 2)
    shutil.copytree(cut, tmp_path / "run")
    assert main(["slim", str(tmp_path / "run")]) == (0 if is_written else 2)
    assert is_written or "the smaller network gives other numbers" in capsys.readouterr().err
    assert bool([*(tmp_path / "run" / "slim").glob("checkpoints/step-*")]) == is_written


def test_relative_error_of_outputs() -> None:
    from mxtrain.engine.backend import nd
    from mxtrain.training.slimming import relative_error

    assert relative_error(nd.array([1, -4]), nd.array([1.5, -4])) == pytest.approx(0.125)
    assert relative_error(nd.array([1, -4]), nd.array([[1, -4]])) == float("inf")


@pytest.mark.slow
def test_slim_refuses_a_run_without_pruned_channels(pruned, capsys) -> None:
    from mxtrain.cli import main

    here_dir = pruned.parent / "dense"
    train_here(here_dir, *SMALL, "trainer.max_epochs=1")
    assert main(["slim", str(here_dir)]) == 2
    assert "callback=prune_channels" in capsys.readouterr().err
    assert json.loads((here_dir / "status.json").read_text())["state"] == "finished"


def test_command_for_training_from_scratch_has_no_pruning() -> None:
    from mxtrain.cli.slim import scratch_command

    typed = ["model=lenet", "callback=[prune,sam]", "callback.prune.sparsity=0.9", "callback.sam.rho=0.1"]
    words = shlex.split(scratch_command({"features.0": 3}, typed))
    assert words[-4:] == ["model=lenet", "callback=[sam]", "callback.sam.rho=0.1", "model.widths={features.0: 3}"]
    assert not any("prune" in word for word in shlex.split(scratch_command({"features.0": 3}, ["callback=prune"])))
