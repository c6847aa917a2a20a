"""Damaged checkpoints are refused by name, and the one before is used."""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from running import ROOT

from mxtrain.checkpoint import CheckpointStore, Snapshot, open_checkpoint
from mxtrain.checkpoint.contents import decode_json, encode_json, read_checkpoint, write_contents
from mxtrain.errors import (
    EXIT_BAD_INPUT,
    CheckpointError,
    DamagedCheckpoint,
    LaterCheckpoint,
    UnreadableCheckpoint,
)


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


def test_previous_checkpoint_replaces_a_damaged_one(two):
    """The kinds of damage are in tests/damaged."""
    flip(two / "step-00000020" / "model.params", 80)
    told = []
    store = CheckpointStore(two, keep_last=2, keep_top=0, report=told.append)
    found = store.latest()
    assert found is not None and found.step == 10 and found.state["n"] == 10
    assert len(told) == 1 and "step-00000020" in told[0] and "one before it is used" in told[0]
    for path, which in ((two / "step-00000020", "best"), (two, "last")):
        with pytest.raises(DamagedCheckpoint) as caught:
            open_checkpoint(path, which)
        text = str(caught.value)
        assert f"Available in {two}: step-00000010." in text and caught.value.exit_code == EXIT_BAD_INPUT
    told.clear()
    assert open_checkpoint(two, "best", told.append).step == 10
    assert "step-00000020 cannot be used" in told[0] and told[0].endswith("That is the one of step 10.")


def test_best_checkpoint_with_unreadable_metric_is_reported(two):
    """It may have been the best: it must not be left out in silence."""
    flip(two / "step-00000020" / "state.json", 30)
    told = []
    assert open_checkpoint(two, "best", told.append).step == 10
    assert len(told) == 1 and "state.json has SHA-256" in told[0] and "Whether it was the best is not known" in told[0]


KINDS = {
    "damaged": (lambda d: flip(d / "model.params", 70), DamagedCheckpoint),
    "missing": (lambda d: os.unlink(d / "state.json"), DamagedCheckpoint),
    "later": (lambda d: rewrite(d / "manifest.json", lambda m: m.update(version=2)), LaterCheckpoint),
    "a loop of links": (
        lambda d: (os.unlink(d / "model.params"), (d / "model.params").symlink_to("model.params")),
        UnreadableCheckpoint,
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_unknown_format_is_distinguished_from_damage(two, kind):
    spoil, error = KINDS[kind]
    spoil(two / "step-00000020")
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(two, "last")
    assert type(caught.value) is error


AS_NOBODY = """
import os, sys
from pathlib import Path
from mxtrain.checkpoint import open_checkpoint
from mxtrain.errors import CheckpointError
os.setuid(65534)
try:
    open_checkpoint(Path(sys.argv[1]), "last")
except CheckpointError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user to be forbidden something")
def test_missing_permission_of_another_user_is_reported(two):
    """Root is forbidden nothing, so a child becomes somebody else."""
    os.chmod(two / "step-00000020" / "model.params", 0)
    for folder in (two, *two.parents):
        if folder.stat().st_uid == 0 and folder != Path("/"):
            os.chmod(folder, folder.stat().st_mode | 0o055)
    told = subprocess.run(
        [sys.executable, "-c", AS_NOBODY, two], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout
    assert told.startswith("UnreadableCheckpoint") and "model.params cannot be opened: Permission denied" in told


@pytest.mark.slow
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
        open_checkpoint(two)


@pytest.mark.parametrize("name", ["manifest.json", "model.params"])
def test_damaged_checkpoints_are_each_named_once(two, name):
    """Also where the metric cannot be read, so that `best` and `latest` both come upon it."""
    for step in (10, 20):
        os.unlink(two / f"step-{step:08d}" / name)
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(two)
    lines = str(caught.value).splitlines()
    assert len(lines) == 3 and "step-00000010" in lines[1] and "step-00000020" in lines[2]
    assert "Whether it was the best" not in str(caught.value) and "No other one" not in str(caught.value)


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
        with pytest.raises(CheckpointError, match="manifest.json is nested deeper than 100 levels"):
            read_checkpoint(directory)


def test_state_is_restored_exactly():
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
    with pytest.raises(CheckpointError, match=rf"no run directory at .*othr\. Did you mean '{tmp_path}/other'\?"):
        open_checkpoint(tmp_path / "othr")
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
