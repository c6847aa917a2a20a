"""Checkpoints take and restore all state of a run, and differing weights are found."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, List

import numpy as np
import pytest
from in_threads import Rendezvous, ThreadStore
from test_step import build_step, values, whole_batch

from mxtrain.amp.scaling import DynamicScaling
from mxtrain.checkpoint import contents, pieces
from mxtrain.checkpoint.average import weights_to_use
from mxtrain.checkpoint.contents import Snapshot, read_checkpoint, write_contents
from mxtrain.checkpoint.pieces import ArrayInPieces
from mxtrain.engine.backend import gluon, host_view, mx, nd
from mxtrain.errors import CheckpointError, DivergenceError
from mxtrain.kvstore.store import Store
from mxtrain.kvstore.world import World
from mxtrain.optimizer.ema import build_average
from mxtrain.runtime.memory import peak_memory, resident_memory
from mxtrain.training import snapshot
from mxtrain.training.plan import Plan
from mxtrain.training.state import TrainState
from mxtrain.training.step import TrainingStep


def one_step_of(number: int) -> TrainingStep:
    """A step that was taken, with a moving average and a loss scale of its own."""
    step = build_step(Store(), mx.optimizer.Adam())
    step.store.reduce = lambda reductions: None  # type: ignore[method-assign]
    step.average = build_average(0.5, step.strategy.values, step.strategy.publish)
    step.scaling = DynamicScaling(2.0**number, 100)
    step(whole_batch(8), 0.1, 1)
    return step


def plan_of_five() -> Plan:
    return Plan(
        lr=lambda step: 0.1,
        steps_per_epoch=5,
        total_steps=5,
        max_steps=None,
        max_time=None,
        log=None,
        validate=None,
        save=None,
        monitor="val/loss",
        direction="min",
        identity={"description": {"a": 1}},
    )


def test_large_arrays_are_saved_without_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Covers the arrays of all states; small ones are copied, so that the run need not wait."""
    step, state = one_step_of(1), TrainState(step=1, epoch=0, epoch_step=1)
    whole = sum(4 * array.size for array in step.strategy.values.values())
    monkeypatch.setattr(snapshot, "IN_PLACE_FROM_BYTES", 4 * whole)  # weights, their average and two moments
    taken = snapshot.take(step, state, plan_of_five(), None)
    assert taken.is_live
    own = {"model": step.strategy.values, "ema": step.average.arrays, "optimizer": step.updater.arrays()}
    assert set(taken.arrays) == set(own)
    for stem, named in own.items():
        for name, array in named.items():
            held = taken.arrays[stem][name]
            assert isinstance(held, ArrayInPieces)
            assert all(np.shares_memory(piece, host_view(array)) for piece in held.pieces())
            np.testing.assert_array_equal(held.whole(), array.asnumpy())
    monkeypatch.setattr(snapshot, "IN_PLACE_FROM_BYTES", 4 * whole + 1)
    assert not snapshot.take(step, state, plan_of_five(), None).is_live


@pytest.mark.parametrize("in_place_from", [0, snapshot.IN_PLACE_FROM_BYTES])
def test_training_state_is_restored_from_a_checkpoint(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, in_place_from: int
) -> None:
    monkeypatch.setattr(snapshot, "IN_PLACE_FROM_BYTES", in_place_from)
    plan = plan_of_five()
    state = TrainState(step=7, epoch=1, epoch_step=2)
    before = one_step_of(10)
    write_contents(snapshot.take(before, state, plan, 0.25), tmp_path / "c")
    checkpoint = read_checkpoint(tmp_path / "c")
    assert (checkpoint.step, checkpoint.state["run"]["workers"], checkpoint.state["run"]["description"]) == (
        7,
        1,
        {"a": 1},
    )
    assert checkpoint.state["run"]["threads"] == os.environ["OMP_NUM_THREADS"]
    after = build_step(Store(), mx.optimizer.Adam())
    after.average = build_average(0.5, after.strategy.values, after.strategy.publish)
    after.scaling = DynamicScaling(1.0, 100)
    found = snapshot.restore(checkpoint, after)
    assert found.to_json() == state.to_json()
    for name, array in values(before).items():
        np.testing.assert_array_equal(values(after)[name], array)
        np.testing.assert_array_equal(after.average.arrays[name].asnumpy(), before.average.arrays[name].asnumpy())
    for name, state_array in before.updater.arrays().items():
        np.testing.assert_array_equal(after.updater.arrays()[name].asnumpy(), state_array.asnumpy())
    assert after.updater.numbers() == before.updater.numbers()
    assert after.scaling.to_json() == before.scaling.to_json() and after.scaling.scale == 2.0**10
    weights = weights_to_use(checkpoint)
    assert all((weights[name] == array.asnumpy()).all() for name, array in before.average.arrays.items())
    assert any((weights[name] != array).any() for name, array in values(before).items())


@pytest.mark.slow
def test_files_do_not_stay_in_memory_once_they_have_been_read(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "MAPPED_FROM_BYTES", 1)
    values_ = {"table": nd.zeros((1 << 20, 4)), "bias": nd.ones((3,))}
    given = {name: array.asnumpy() + 5 for name, array in values_.items()}
    write_contents(Snapshot(1, 0, {"model": given}, {}), tmp_path / "c")
    arrays = read_checkpoint(tmp_path / "c").arrays("model")
    strategy: Any = SimpleNamespace(values=values_, served=None, rows=(), publish=lambda: None)
    snapshot.set_parameters(strategy, arrays, "it")
    maps = Path("/proc/self/smaps").read_text().partition("/model.params\n")[2]
    assert int(re.findall(r"^Rss: +(\d+) kB", maps, re.M)[0]) < 1024  # of 16 MiB
    for name, array in values_.items():
        np.testing.assert_array_equal(array.asnumpy(), given[name])


def test_large_arrays_are_restored_without_a_second_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """24 MiB, of a file that is mapped: a second array and the pages of the file would be 48 MiB more at the peak."""
    monkeypatch.setattr(contents, "MAPPED_FROM_BYTES", 1)
    for module in (pieces, snapshot):
        monkeypatch.setattr(module, "PIECE_BYTES", 4 << 20)
    given = np.arange(6 << 20, dtype=np.float32).reshape(-1, 4)
    write_contents(Snapshot(1, 0, {"model": {"table": given}}, {}), tmp_path / "c")
    table = nd.zeros(given.shape)
    table.wait_to_read()
    strategy: Any = SimpleNamespace(values={"table": table}, rows=(), publish=lambda: None)
    arrays = read_checkpoint(tmp_path / "c").arrays("model")
    before = resident_memory()
    Path("/proc/self/clear_refs").write_text("5")  # the kernel counts the peak anew
    snapshot.set_parameters(strategy, arrays, "it")
    assert peak_memory() - before < 32 << 20  # some pieces of 4 MiB may be on their way at the same time
    np.testing.assert_array_equal(table.asnumpy(), given)


def test_large_weights_are_restored_after_inference(monkeypatch: pytest.MonkeyPatch) -> None:
    """oneDNN holds the weights of a convolution in a layout of its own then, which must not be written to in pieces."""
    monkeypatch.setattr(snapshot, "PIECE_BYTES", 64)
    network = gluon.nn.Conv2D(64, 3, in_channels=32)
    network.initialize()
    network.hybridize(static_alloc=True, static_shape=True)
    image_NCHW = nd.random.normal(shape=(2, 32, 8, 8))
    expected = network(image_NCHW).asnumpy()
    values_ = {name: one.data() for name, one in network.collect_params().items()}
    saved = {name: np.random.RandomState(0).randn(*array.shape).astype("float32") for name, array in values_.items()}
    strategy: Any = SimpleNamespace(values=values_, rows=(), publish=lambda: None)
    before = {name: array.asnumpy() for name, array in values_.items()}
    for arrays in (saved, before):
        network(image_NCHW).wait_to_read()
        snapshot.set_parameters(strategy, arrays, "it")
        for name, array in values_.items():
            np.testing.assert_array_equal(array.asnumpy(), arrays[name])
    np.testing.assert_array_equal(network(image_NCHW).asnumpy(), expected)


def test_a_checkpoint_of_another_network_is_refused() -> None:
    step = build_step(Store(), mx.optimizer.SGD())
    whole = values(step)
    with pytest.raises(CheckpointError, match="0.bias"):
        snapshot.set_parameters(step.strategy, {name: whole[name] for name in whole if name != "0.bias"}, "it")
    with pytest.raises(CheckpointError, match=r"'0.bias' has shape \(9,\).*\(8,\)"):
        snapshot.set_parameters(step.strategy, {**whole, "0.bias": np.zeros(9)}, "it")


def test_the_first_nonfinite_parameter_or_average_is_named() -> None:
    step = one_step_of(0)
    assert snapshot.first_nonfinite_parameter(step) == ""
    step.average.arrays["2.bias"][:] = np.nan
    assert snapshot.first_nonfinite_parameter(step) == "2.bias (moving average)"
    step.strategy.values["2.bias"][:] = np.inf
    assert snapshot.first_nonfinite_parameter(step) == "2.bias"


def compare_workers(count: int, change: Any) -> List[str]:
    """Returns the verdict of each of several workers on its weights, after `change`."""
    rendezvous = Rendezvous(count)

    def work(world: World) -> str:
        step = build_step(ThreadStore(world, rendezvous), mx.optimizer.SGD())
        change(world.rank, step.strategy.values)
        try:
            snapshot.require_same_weights(step, 7)
        except DivergenceError as error:
            return str(error)
        return ""

    return rendezvous.run(work)


def permute(rank: int, values_: Any) -> None:
    """The sum of all weights, and that of their squares, stays."""
    if rank == 1:
        values_["0.weight"][:] = nd.array(values_["0.weight"].asnumpy()[::-1])


def move_apart(rank: int, values_: Any) -> None:
    """The middle one is the mean of the three."""
    values_["2.bias"][:] = rank


@pytest.mark.parametrize("count", [2, 3])
def test_weights_that_differ_on_one_worker_are_found_by_all(count: int) -> None:
    assert compare_workers(count, lambda rank, values_: None) == [""] * count
    for change in (permute, move_apart):
        expected = [f"after step 7 the workers' weights differ, seen by worker {rank}" for rank in range(count)]
        assert compare_workers(count, change) == expected


def test_different_hashes_with_equal_mean_are_detected(monkeypatch: Any) -> None:
    """Each byte of the middle one is the mean of the three: the squares tell."""
    monkeypatch.setattr(snapshot, "canonical_sha256", lambda arrays: f"{int(arrays['2.bias'].whole()[0]) + 9:02x}" * 32)
    assert all(compare_workers(3, move_apart))


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("having", [0, 1, 2, 3])
def test_workers_with_and_without_operators_end(count: int, having: int, monkeypatch: Any) -> None:
    rendezvous, own = Rendezvous(count), threading.local()

    def native_operators() -> Any:
        return SimpleNamespace(
            path="a library" if own.rank < having else None, why="" if own.rank < having else "no g++"
        )

    monkeypatch.setattr(snapshot, "has_asked_for_operators", lambda: True)
    monkeypatch.setattr(snapshot, "native_operators", native_operators)

    def work(world: World) -> str:
        own.rank = world.rank
        try:
            snapshot.require_same_operators(SimpleNamespace(store=ThreadStore(world, rendezvous)))  # type: ignore[arg-type]
        except DivergenceError as error:
            return str(error)
        return ""

    found = rendezvous.run(work)
    if having in (0, *range(count, 4)):
        assert found == [""] * count
    else:
        assert all(f"{having} of {count} workers compute with mxtrain's native operators" in said for said in found)
        assert "(worker 1: no g++)" in found[1] if having == 1 else "(worker" not in found[0]
