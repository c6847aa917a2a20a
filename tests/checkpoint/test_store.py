"""Saving in the background, finding, and what is kept."""

from __future__ import annotations

import errno
import json
import math
import os
import random
import threading
import time

import numpy as np
import pytest

from mxtrain.checkpoint import CheckpointStore, Snapshot, lock_run_directory, verified
from mxtrain.errors import CheckpointError


def snapshot(
    step: int, metric=None, value=None, direction: str = "max", monitor: str = "val/accuracy", state=None
) -> Snapshot:
    arrays = {"model": {"0.weight": np.full((3, 4), step if value is None else value, "float32")}}
    return Snapshot(step, step // 10, arrays, state or {"step": step}, metric, direction, monitor)


def names(store: CheckpointStore) -> list[str]:
    return sorted(os.listdir(store.directory))


def save(store: CheckpointStore, *args, **kwargs) -> None:
    store.save(snapshot(*args, **kwargs))
    outcome = store.wait()
    assert outcome is not None and outcome.error is None and outcome.path is not None, outcome


def test_saved_checkpoint_is_found(tmp_path):
    with CheckpointStore(tmp_path / "run" / "checkpoints", keep_last=2, keep_top=1) as store:
        assert store.latest() is None and store.best() is None and not (tmp_path / "run").exists()
        save(store, 120, metric=0.5)
        found = store.latest()
        assert found is not None and found.path.name == "step-00000120"
        assert (found.step, found.epoch, found.metric, found.state) == (120, 12, 0.5, {"step": 120})
        assert found.stems == ("model",) and (found.arrays("model")["0.weight"] == 120).all()
        assert sorted(os.listdir(found.path)) == ["manifest.json", "model.params", "state.json"]


def test_last_and_best_are_kept(tmp_path):
    store = CheckpointStore(tmp_path, keep_last=2, keep_top=2)
    for step, metric in [(1, 0.3), (2, 0.9), (3, None), (4, 0.8), (5, 0.1), (6, 0.9), (7, 0.2)]:
        save(store, step, metric=metric)
    assert names(store) == [f"step-{step:08d}" for step in (2, 6, 7)]
    save(store, 8)
    save(store, 9, metric=math.nan)
    assert names(store) == [f"step-{step:08d}" for step in (2, 6, 8, 9)]
    best, latest = store.best(), store.latest()
    assert best is not None and best.step == 6 and latest is not None and latest.step == 9 and latest.metric is None


@pytest.mark.parametrize(
    "losses, expected",
    [
        ({1: 5.0, 2: 4.0, 3: 4.5}, 2),
        ({1: 4.0, 2: 4.0, 3: 4.5}, 2),
        ({1: 4.0, 2: math.nan, 3: math.inf}, 1),
        ({1: 4.0, 2: None, 3: None}, 1),
        ({1: None, 2: None, 3: None}, 3),
    ],
)
def test_ties_are_broken_by_the_validation_loss_then_by_recency(tmp_path, losses, expected):
    store = CheckpointStore(tmp_path, keep_last=1, keep_top=1)
    for step, loss in losses.items():
        values = {"val/bleu": 0.0, **({} if loss is None else {"val/loss": loss})}
        save(store, step, metric=0.0, state={"train": {"validated_step": step, "values": values}})
    save(store, 4)
    best = store.best()
    assert best is not None and best.step == expected
    assert names(store) == [f"step-{expected:08d}", "step-00000004"]


def test_the_loss_of_another_step_breaks_no_tie(tmp_path):
    store = CheckpointStore(tmp_path, keep_last=2, keep_top=1)
    for step, state in ((1, {"train": {"validated_step": 0, "values": {"val/loss": 0.1}}}), (2, {"train": [1]})):
        save(store, step, metric=0.5, state=state)
    best = store.best()
    assert best is not None and best.step == 2


@pytest.mark.parametrize("keep_last, keep_top, direction", [(1, 0, "max"), (1, 1, "min"), (3, 2, "max"), (2, 5, "min")])
def test_retention_against_a_plain_rule(tmp_path, keep_last, keep_top, direction):
    generator = random.Random(keep_last * 10 + keep_top)
    store = CheckpointStore(tmp_path, keep_last=keep_last, keep_top=keep_top)
    metrics = {}
    for step in range(1, 21):
        metrics[step] = generator.choice([None, 0.1, 0.2, 0.3, 0.4])
        save(store, step, metric=metrics[step], direction=direction)
        sign = 1 if direction == "min" else -1
        measured = sorted((sign * metric, -s) for s, metric in metrics.items() if metric is not None)
        kept = {-s for _, s in measured[:keep_top]} | set(sorted(metrics)[-keep_last:])
        assert names(store) == [f"step-{s:08d}" for s in sorted(kept)]
        best = store.best()
        if measured and keep_top:
            assert best is not None and best.step == -measured[0][1]


def test_only_the_same_metric_is_compared(tmp_path):
    store = CheckpointStore(tmp_path, keep_last=3, keep_top=1)
    save(store, 1, metric=0.9)
    save(store, 2, metric=5.0, direction="min", monitor="val/loss")
    save(store, 3, metric=4.0, direction="min", monitor="val/loss")
    best = store.best()
    assert best is not None and best.step == 3


def test_saving_a_step_again(tmp_path):
    store = CheckpointStore(tmp_path, keep_last=2, keep_top=0)
    save(store, 10)
    save(store, 20)
    before = os.stat(tmp_path / "step-00000020")
    save(store, 20)
    assert os.path.samestat(before, os.stat(tmp_path / "step-00000020")) and len(names(store)) == 2
    for value in (7, 8):
        save(store, 20, value=value)
        latest = store.latest()
        assert latest is not None and latest.step == 20 and (latest.arrays("model")["0.weight"] == value).all()
        assert len(names(store)) == 2
    save(store, 30)
    assert names(store) == ["step-00000020-3", "step-00000030"]


def test_a_damaged_step_is_replaced_when_it_is_reached_again(tmp_path):
    store = CheckpointStore(tmp_path, keep_last=2, keep_top=0)
    save(store, 10)
    save(store, 20)
    (tmp_path / "step-00000020" / "model.params").write_bytes(b"x" * 24)
    resumed = CheckpointStore(tmp_path, keep_last=2, keep_top=0)
    latest = resumed.latest()
    assert latest is not None and latest.step == 10
    save(resumed, 15)
    assert "step-00000010" in names(resumed), "the damaged one must not count among the last"
    save(resumed, 20)
    latest = resumed.latest()
    assert latest is not None and latest.step == 20 and (latest.arrays("model")["0.weight"] == 20).all()
    assert names(resumed) == ["step-00000015", "step-00000020-2"]


def test_an_unreadable_checkpoint_is_never_removed(tmp_path):
    store = CheckpointStore(tmp_path, keep_last=1, keep_top=0)
    save(store, 10)
    (tmp_path / "step-00000010" / "manifest.json").unlink()
    for step in (20, 30):
        save(store, step)
    assert names(store) == ["step-00000010", "step-00000030"]


LATER = json.dumps({"format": "mxtrain-checkpoint", "version": 2, "files": {}})


def test_unreadable_checkpoints_outlive_retention_and_their_own_step(tmp_path, monkeypatch):
    """A later version's, and one that the disk gave no answer for: neither age nor a newer copy removes them."""
    store = CheckpointStore(tmp_path, keep_last=1, keep_top=0)
    save(store, 10)
    (tmp_path / "step-00000010" / "manifest.json").write_text(LATER)
    save(store, 20)
    save(CheckpointStore(tmp_path, keep_last=1, keep_top=0), 10, value=5)
    assert names(store) == ["step-00000010", "step-00000010-2", "step-00000020"]
    again = CheckpointStore(tmp_path, keep_last=1, keep_top=0)

    def fail(*_):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as faulty:
        faulty.setattr(verified.os, "readv", fail)
        assert again.latest() is None
    with pytest.raises(CheckpointError, match="(?s)step-00000010 .*step-00000020 cannot be used.*Input/output error"):
        again.require_usable()
    for step in (10, 20, 30):
        save(again, step, value=6)
    assert {"step-00000010", "step-00000010-2", "step-00000020", "step-00000030"} == set(names(again))


def test_arrays_that_cannot_be_opened_keep_their_checkpoint(tmp_path, monkeypatch):
    """A new process has not looked at all of them, and retention reads no arrays."""
    save(CheckpointStore(tmp_path, keep_last=1, keep_top=0), 10)
    opened = os.open

    def forbid(path, *args, **kwargs):
        if str(path).endswith("step-00000010/model.params"):
            raise PermissionError(errno.EACCES, "Permission denied")
        return opened(path, *args, **kwargs)

    store = CheckpointStore(tmp_path, keep_last=1, keep_top=0)
    with monkeypatch.context() as forbidden:
        forbidden.setattr(os, "open", forbid)
        save(store, 20)
    assert names(store) == ["step-00000010", "step-00000020"]
    save(store, 30)
    assert names(store) == ["step-00000030"]


def test_leftovers_are_removed_only_under_the_lock(tmp_path):
    folder = tmp_path / "checkpoints"
    (folder / ".tmp-step-00000010-1").mkdir(parents=True)
    (folder / ".tmp-step-00000010-1" / "model.params").write_bytes(b"half")
    store = CheckpointStore(folder, keep_last=1, keep_top=0)
    assert store.latest() is None and names(store) == [".tmp-step-00000010-1"]
    with lock_run_directory(tmp_path) as lock:
        assert names(CheckpointStore(folder, keep_last=1, keep_top=0, lock=lock)) == []


def test_a_leftover_of_the_same_process_id_is_no_obstacle(tmp_path):
    (tmp_path / f".tmp-step-00000010-{os.getpid()}").mkdir()
    (tmp_path / f".tmp-step-00000010-{os.getpid()}" / "old.params").write_bytes(b"half")
    store = CheckpointStore(tmp_path, keep_last=1, keep_top=0)
    save(store, 10)
    assert names(store) == ["step-00000010"] and store.latest() is not None


def test_outcomes_are_kept_until_requested(tmp_path):
    (tmp_path / "file").write_text("")
    store = CheckpointStore(tmp_path / "file" / "checkpoints", keep_last=1, keep_top=0)
    for step in (1, 2, 3):
        store.save(snapshot(step))
    outcomes = [store.wait(), store.poll(), store.poll()]
    assert [outcome.step for outcome in outcomes if outcome] == [1, 2, 3] and store.wait() is None
    assert all("Not a directory" in outcome.error for outcome in outcomes)
    good = CheckpointStore(tmp_path / "good", keep_last=1, keep_top=0)
    for step in (1, 2, 3):
        good.save(snapshot(step))
    outcome = good.wait()
    assert outcome is not None and outcome.step == 3 and outcome.error is None and good.wait() is None


def test_failed_save_is_an_outcome(tmp_path):
    store = CheckpointStore(tmp_path, keep_last=1, keep_top=0)
    save(store, 1)
    for arrays, state, said in [
        ({"model": {"w": np.zeros(())}}, {}, "'w' has shape ()"),
        ({"model": {}}, {"x": object()}, "state['x'] is a object"),
        ({"../x": {}}, {}, "file stem"),
    ]:
        store.save(Snapshot(2, 0, arrays, state))
        outcome = store.wait()
        assert outcome is not None and outcome.path is None and said in outcome.error
        assert names(store) == ["step-00000001"]


def test_saving_keeps_random_state_and_arrays(tmp_path):
    random.seed(4)
    np.random.seed(4)
    before = random.getstate(), np.random.get_state()[1].tobytes()
    given = snapshot(5)
    copy = {name: array.copy() for name, array in given.arrays["model"].items()}
    store = CheckpointStore(tmp_path, keep_last=1, keep_top=1)
    store.save(given)
    store.wait()
    assert before == (random.getstate(), np.random.get_state()[1].tobytes())
    assert all((copy[name] == given.arrays["model"][name]).all() for name in copy)
    assert not [thread for thread in threading.enumerate() if thread.name == "mxtrain-checkpoint"]


@pytest.mark.slow
def test_save_returns_at_once(tmp_path):
    """100 MB: the call costs a thread's start; the next one waits for the first."""
    arrays = {"model": {f"{i}.weight": np.ones(25 << 16, "float32") for i in range(16)}}
    store = CheckpointStore(tmp_path, keep_last=1, keep_top=0)
    started = time.perf_counter()
    store.save(Snapshot(1, 0, arrays, {}))
    call_s = time.perf_counter() - started
    outcome = store.wait()
    assert outcome is not None and outcome.error is None and outcome.num_bytes > 100e6
    print(f"save() {call_s * 1e3:.2f} ms, written in {outcome.wall_s:.2f} s")
    assert call_s < 0.1 * outcome.wall_s
