"""Whatever happens to a checkpoint on the disk is refused by name, and the one before it is used."""

from __future__ import annotations

import json
import math
import os
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

from mxtrain.checkpoint import CheckpointStore, Snapshot, open_checkpoint
from mxtrain.checkpoint.contents import decode_json, encode_json, read_checkpoint, write_contents
from mxtrain.errors import EXIT_BAD_INPUT, CheckpointError


def snapshot(step: int, metric=None, **more) -> Snapshot:
    arrays = {
        "model": {"0.weight": np.full((3, 4), step, "float32")},
        "optimizer": {"0.weight/mom": np.ones(12, "float32")},
    }
    return Snapshot(step=step, epoch=step // 10, arrays=arrays, state={"note": "x", "n": step}, metric=metric, **more)


@pytest.fixture
def two(tmp_path) -> Path:
    """A folder with the checkpoints of steps 10 and 20."""
    for step in (10, 20):
        write_contents(snapshot(step, metric=step / 100), tmp_path / f"step-{step:08d}")
    return tmp_path


def flip(path: Path, byte: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[byte] ^= 1 << bit
    path.write_bytes(bytes(data))


def rewrite(path: Path, change) -> None:
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


DAMAGE = {
    "bit of an array": (lambda d: flip(d / "model.params", 80), "model.params has SHA-256"),
    "bit of the state": (lambda d: flip(d / "state.json", 30), "state.json has SHA-256"),
    "array file cut": (lambda d: os.truncate(d / "optimizer.params", 50), "optimizer.params has 50 bytes"),
    "array file longer": (lambda d: os.truncate(d / "model.params", 9999), "model.params has 9999 bytes"),
    "array file empty": (lambda d: os.truncate(d / "model.params", 0), "model.params has 0 bytes"),
    "array file missing": (lambda d: os.unlink(d / "model.params"), "model.params is missing"),
    "state missing": (lambda d: os.unlink(d / "state.json"), "state.json is missing"),
    "manifest missing": (lambda d: os.unlink(d / "manifest.json"), "manifest.json is missing"),
    "manifest empty": (lambda d: os.truncate(d / "manifest.json", 0), "manifest.json is not JSON"),
    "manifest huge": (lambda d: os.truncate(d / "manifest.json", 1 << 40), "larger than"),
    "a file too many": (lambda d: (d / "notes.txt").write_text("x"), "notes.txt does not belong"),
    "empty": (lambda d: [os.unlink(d / name) for name in os.listdir(d)], "manifest.json is missing"),
    "a pipe": (lambda d: (os.unlink(d / "state.json"), os.mkfifo(d / "state.json")), "state.json has 0 bytes"),
    "a folder": (lambda d: (os.unlink(d / "model.params"), os.mkdir(d / "model.params")), "model.params has"),
    "not a directory": (lambda d: (shutil.rmtree(d), d.write_text("x")), "Not a directory"),
    "state not listed": (lambda d: rewrite(d / "manifest.json", lambda m: m["files"].pop("state.json")), "is missing"),
    "later format": (lambda d: rewrite(d / "manifest.json", lambda m: m.update(version=2)), "later mxtrain"),
    "path in the manifest": (
        lambda d: rewrite(
            d / "manifest.json", lambda m: m["files"].update({"../x.params": {"size": 1, "sha256": "0"}})
        ),
        "which no checkpoint has",
    ),
    "another step's": (
        lambda d: (shutil.rmtree(d), shutil.copytree(d.parent / "step-00000010", d)),
        "it holds step 10",
    ),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_named_and_the_one_before_is_used(two, kind):
    damage, said = DAMAGE[kind]
    damage(two / "step-00000020")
    told = []
    store = CheckpointStore(two, keep_last=2, keep_top=0, report=told.append)
    found = store.latest()
    assert found is not None and found.step == 10 and found.state["n"] == 10
    assert len(told) == 1 and "step-00000020" in told[0] and said in told[0] and "one before it is used" in told[0]


@pytest.mark.parametrize("kind", sorted(set(DAMAGE) - {"not a directory", "another step's"}))
def test_asking_for_a_damaged_one_names_the_others(two, kind):
    damage, said = DAMAGE[kind]
    damage(two / "step-00000020")
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(two / "step-00000020")
    text = str(caught.value)
    assert said in text and f"Available in {two}: step-00000010." in text and caught.value.exit_code == EXIT_BAD_INPUT


def test_a_flipped_bit_in_any_byte_of_manifest_or_state_is_refused(tmp_path):
    directory = tmp_path / "step-00000020"
    write_contents(snapshot(20), directory)
    for name in ("manifest.json", "state.json"):
        size = (directory / name).stat().st_size
        for byte in range(size - 1):  # the newline at the end says nothing
            flip(directory / name, byte, bit=byte % 8)
            with pytest.raises(CheckpointError):
                read_checkpoint(directory)
            flip(directory / name, byte, bit=byte % 8)
    read_checkpoint(directory)


def test_arrays_are_checked_again_when_they_are_loaded(two):
    checkpoint = read_checkpoint(two / "step-00000020")
    assert (checkpoint.arrays("model")["0.weight"] == 20).all()
    flip(two / "step-00000020" / "model.params", 90)
    with pytest.raises(CheckpointError, match="step-00000020 cannot be used: model.params"):
        checkpoint.arrays("model")
    with pytest.raises(CheckpointError, match="holds no 'ema'; it holds model, optimizer"):
        checkpoint.arrays("ema")


def test_all_damaged(two):
    for step in (10, 20):
        flip(two / f"step-{step:08d}" / "model.params", 70)
    told = []
    assert CheckpointStore(two, keep_last=1, keep_top=1, report=told.append).latest() is None
    assert len(told) == 2 and all("No other one" in sentence for sentence in told)
    with pytest.raises(CheckpointError, match="(?s)No checkpoint in .* can be used.*step-00000010.*step-00000020"):
        open_checkpoint(two, "last")


def test_a_damaged_best_gives_way_to_the_next_best(two):
    flip(two / "step-00000020" / "model.params", 70)
    told = []
    best = CheckpointStore(two, keep_last=1, keep_top=1, report=told.append).best()
    assert best is not None and best.step == 10 and "The next best is used" in told[0]


def test_deeply_nested_json_is_refused(tmp_path):
    directory = tmp_path / "x"
    write_contents(snapshot(1), directory)
    for depth in (400, 100_000):
        (directory / "manifest.json").write_text("[" * depth + "]" * depth)
        with pytest.raises(CheckpointError, match="manifest.json is not"):
            read_checkpoint(directory)


def test_state_comes_back_exactly():
    state = {
        "inf": math.inf,
        "-inf": -math.inf,
        "tiny": 5e-324,
        "third": 1 / 3,
        "big": 2**70,
        "none": None,
        "list": [1, [True]],
    }
    text = json.dumps(encode_json(state), allow_nan=False)
    assert decode_json(json.loads(text)) == state
    assert math.isnan(decode_json(json.loads(json.dumps(encode_json({"x": math.nan}), allow_nan=False)))["x"])
    numpy_values = {"f": np.float32(0.1), "i": np.int64(3), "b": np.bool_(True)}
    assert json.loads(json.dumps(encode_json(numpy_values))) == {"f": float(np.float32(0.1)), "i": 3, "b": True}


@pytest.mark.parametrize(
    "state, said",
    [
        ({"a": [1, {2: 3}]}, r"state\['a'\]\[1\] has the key 2"),
        ({"a": {1, 2}}, r"state\['a'\] is a set"),
        ({"a": b""}, "bytes"),
    ],
)
def test_state_that_json_does_not_hold_is_named(tmp_path, state, said):
    with pytest.raises(CheckpointError, match=said):
        write_contents(Snapshot(step=1, epoch=0, arrays={}, state=state), tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_opening(two, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(two, run / "checkpoints", ignore=shutil.ignore_patterns("run"))
    assert open_checkpoint(run).step == 20
    assert open_checkpoint(str(run / "checkpoints"), "last").step == 20
    assert open_checkpoint(run / "checkpoints" / "step-00000010").step == 10
    shutil.copytree(two / "step-00000010", tmp_path / "mine")
    assert open_checkpoint(tmp_path / "mine").step == 10
    with pytest.raises(CheckpointError, match=f"Give its folder, {tmp_path}/mine, instead"):
        open_checkpoint(tmp_path / "mine" / "model.params")
    with pytest.raises(CheckpointError, match="Available in .*: step-00000010, step-00000020"):
        open_checkpoint(run / "checkpoints" / "step-00000099")
    (tmp_path / "other" / "checkpoints").mkdir(parents=True)
    with pytest.raises(CheckpointError, match="other holds no checkpoint"):
        open_checkpoint(tmp_path / "other")


def test_random_damage_never_loads_wrong_numbers(two):
    """200 random changes to any file: the checkpoint is refused, or everything in it is what was saved."""
    directory, generator = two / "step-00000020", random.Random(5)
    kept = {path: path.read_bytes() for path in sorted(directory.iterdir())}
    refused = 0
    for _ in range(200):
        path = generator.choice(sorted(kept))
        data = bytearray(kept[path])
        start = generator.randrange(len(data))
        data[start : start + generator.randrange(1, 9)] = generator.randbytes(generator.randrange(9))
        path.write_bytes(bytes(data))
        try:
            found = read_checkpoint(directory)
            assert found.state == {"note": "x", "n": 20} and (found.arrays("model")["0.weight"] == 20).all()
        except CheckpointError:
            refused += 1
        path.write_bytes(kept[path])
    assert refused > 150
