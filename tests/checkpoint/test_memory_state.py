"""The last state of a run in memory: written, bounded, found by the next attempt, and removed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from running import ROOT
from waiting import wait_until

from mxtrain.checkpoint import CheckpointStore, Snapshot
from mxtrain.checkpoint import memory as memory_module
from mxtrain.checkpoint.memory import MEMORY, MemoryState, build_memory_state, is_kept_in_memory, memory_folder
from mxtrain.checkpoint.spec import CheckpointSpec
from mxtrain.training import resume


def state_of(step: int, size: int = 100) -> Snapshot:
    return Snapshot(step, 0, {"model": {"0.weight": np.full(size, step, "float32")}}, {})


def test_the_last_state_is_kept(tmp_path: Path) -> None:
    memory = MemoryState(tmp_path)
    assert memory.latest() is None
    assert [memory.keep(state_of(step)) for step in (1, 2, 3)] == [""] * 3
    memory.close()
    latest = memory.latest()
    assert latest is not None and latest.step == 3 and (latest.arrays("model")["0.weight"] == 3).all()
    assert os.listdir(tmp_path / "states") == ["step-00000003"]


def test_a_damaged_state_is_not_used(tmp_path: Path) -> None:
    memory = MemoryState(tmp_path)
    memory.keep(state_of(1))
    memory.close()
    path = tmp_path / "states/step-00000001/model.params"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert memory.latest() is None


@pytest.mark.parametrize("spare, is_kept", [(400, True), (399, False)])
def test_a_state_for_which_there_is_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spare: int, is_kept: bool
) -> None:
    free = SimpleNamespace(f_bavail=memory_module._SPARE_BYTES + spare, f_frsize=1)
    monkeypatch.setattr(os, "statvfs", lambda path: free)
    memory = MemoryState(tmp_path)
    sentence = memory.keep(state_of(7))
    memory.close()
    assert (memory.latest() is not None) is is_kept
    if not is_kept:
        assert sentence == (
            "the state of step 7 is not kept in memory: it takes 400 bytes, and /dev/shm has 1 MiB left (in "
            "containers: --shm-size). A restart begins at the last checkpoint in the run directory"
        )
        free.f_bavail *= 2
        assert memory.keep(state_of(8)) == "" and memory.latest() is None, "said twice, or begun again"


def test_a_state_that_could_not_be_written_is_reported_with_the_next_one(tmp_path: Path) -> None:
    memory = MemoryState(tmp_path / "gone")
    (tmp_path / "gone").write_text("no folder")
    sentence = memory.keep(state_of(1)) or memory.keep(state_of(2))
    assert sentence.startswith("the state of step 2 is not kept in memory: Not a directory")


def test_the_folder_ends_with_its_context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_module, "ROOT", tmp_path)
    assert not is_kept_in_memory() and build_memory_state() is None
    with memory_folder() as problem:
        folder = Path(os.environ[MEMORY])
        assert problem == "" and is_kept_in_memory() and folder.parent == tmp_path
        # A later run removes the folders of this name that nobody holds, also those of other versions.
        assert folder.name.startswith("mxtrain-state-")
        assert folder.stat().st_mode & 0o077 == 0
        memory = build_memory_state()
        assert memory is not None
        memory.keep(state_of(1))
        memory.close()
    assert not os.listdir(tmp_path) and not is_kept_in_memory()


def test_without_dev_shm_there_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_module, "ROOT", tmp_path / "none")
    with memory_folder() as problem:
        assert problem == f"{tmp_path / 'none'} cannot be written" and not is_kept_in_memory()


HOLDER = """
import os, sys, time
from pathlib import Path
from mxtrain.checkpoint import memory
memory.ROOT = Path(sys.argv[1])
with memory.memory_folder():
    (Path(os.environ[memory.MEMORY]) / "states").mkdir()
    print(os.environ[memory.MEMORY], flush=True)
    time.sleep(60)
"""


@pytest.mark.slow
def test_the_folder_is_removed_after_its_process_was_killed(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert holder.stdout is not None
    folder = Path(holder.stdout.readline().strip())
    assert (folder / "states").is_dir()
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    wait_until(lambda: not folder.exists(), 5)


@pytest.mark.parametrize("on_disk, in_memory, expected", [(3, 5, 5), (5, 3, 5), (None, 3, 3), (3, None, 3), (4, 4, 4)])
def test_a_run_continues_from_the_newest_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_disk: int, in_memory: int, expected: int
) -> None:
    monkeypatch.setattr(resume, "find_checkpoint", lambda resume, store, config: store.latest())
    monkeypatch.setenv(MEMORY, str(tmp_path / "memory"))
    (tmp_path / "memory").mkdir()
    if on_disk is not None:
        store = CheckpointStore(tmp_path / "run/checkpoints", keep_last=1, keep_top=0)
        store.save(state_of(on_disk))
        store.close()
    if in_memory is not None:
        memory = MemoryState(tmp_path / "memory")
        memory.keep(state_of(in_memory))
        memory.close()
    point = resume.find_resume_point(tmp_path / "run", CheckpointSpec(), {})
    assert point.checkpoint is not None and point.checkpoint.step == expected
    assert (point.own_checkpoint is not None) is (in_memory is None or on_disk is not None and on_disk >= in_memory)
