"""kill -9 at every moment of a save: afterwards there is the old checkpoint or the new one, whole."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from tiers import rest_in_zoo

import mxtrain
from mxtrain.checkpoint import CheckpointStore, Snapshot

DRIVER = Path(__file__).parent / "kill_driver.py"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(mxtrain.__file__).parents[1])}
SYSTEM_CALLS = ("mkdir", "openat", "write", "fsync", "close", "rename", "unlinkat", "rmdir", "getdents64")


@pytest.fixture
def folder(tmp_path):
    """In memory where possible: a kill loses nothing that was written, so a disk would only take time here."""
    if os.access("/dev/shm", os.W_OK):
        with tempfile.TemporaryDirectory(dir="/dev/shm") as path:
            yield Path(path)
    else:
        yield tmp_path


@pytest.mark.zoo_cases("again")
@pytest.mark.slow
@pytest.mark.parametrize("scenario", rest_in_zoo(["first", "second", "again", "damaged"], "first", "again"))
def test_kill_at_every_call(folder, scenario):
    """Ends only when a save ran through without meeting its kill, so every call was one."""
    command = [sys.executable, str(DRIVER), "calls", str(folder / "run"), scenario]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    kills, found_new = map(int, done.stdout.split())
    print(f"{scenario}: {kills} kills, after {found_new} the new checkpoint was there")
    assert kills >= 60 and 0 < found_new < kills


@pytest.mark.slow
def test_kill_at_every_system_call(folder):
    """The same by the kernel: strace kills the process on entry to the n-th of each call that touches a file."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    command = [sys.executable, str(DRIVER), "stopped", str(folder / "run"), "second"]
    with subprocess.Popen(command, env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as driver:

        def ask(line: str) -> int:
            driver.stdin.write(line + "\n")
            driver.stdin.flush()
            return answer()

        def answer() -> int:
            line = driver.stdout.readline()
            assert line, "the driver died: see its traceback"
            return int(line)

        found_new: dict[str, list[int]] = {call: [] for call in SYSTEM_CALLS}
        for call in SYSTEM_CALLS:
            status = -signal.SIGKILL
            while status != 0:
                child = ask("save")
                if not kill_at(child, call, len(found_new[call]) + 1):
                    os.kill(child, signal.SIGKILL)
                    pytest.skip("tracing is not permitted here")
                status = answer()
                assert status in (0, -signal.SIGKILL)
                found_new[call].append(ask("check"))
    kills = {call: len(found) - 1 for call, found in found_new.items()}
    print(f"{sum(kills.values())} kills: {kills}")
    # 4 files, their folder and the folder above; the new name and the removal of the old; the 4 files of the old
    assert kills["write"] >= 15 and kills["fsync"] == 6 and kills["rename"] == 2 and kills["unlinkat"] >= 4
    assert kills["mkdir"] == 1 and kills["rmdir"] == 1
    for call, found in found_new.items():
        assert found == sorted(found) and found[-1] == 1, f"old before a certain {call}, new after it"


def kill_at(pid: int, call: str, number: int) -> bool:
    """Let a stopped process go on, to be killed at its n-th such call; False where that is not permitted."""
    command = [
        "strace",
        "-f",
        "-p",
        str(pid),
        "-e",
        f"trace={call}",
        "-e",
        f"inject={call}:signal=SIGKILL:when={number}",
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as tracer:
        if "attached" not in tracer.stderr.readline():
            return False
        os.kill(pid, signal.SIGCONT)
        tracer.stderr.read()
    return True


def test_everything_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    """The order that a power cut asks for: files, their folder, the rename, the folder above, then the removals."""
    log: list[tuple[str, str]] = []
    paths: dict[int, str] = {}
    real = {name: getattr(os, name) for name in ("open", "write", "fsync", "rename", "mkdir")}

    def opened(path, *args, **kwargs):
        fd = real["open"](path, *args, **kwargs)
        paths[fd] = os.path.relpath(path, tmp_path) if kwargs.get("dir_fd") is None else "?"
        return fd

    def written(fd, data):
        log.append(("write", paths.get(fd, "?")))
        return real["write"](fd, data)

    def synced(fd):
        log.append(("fsync", paths.get(fd, "?")))
        return real["fsync"](fd)

    def renamed(source, target):
        log.append(("rename", os.path.relpath(target, tmp_path)))
        return real["rename"](source, target)

    def made(path, *args, **kwargs):
        log.append(("mkdir", os.path.relpath(path, tmp_path)))
        return real["mkdir"](path, *args, **kwargs)

    arrays = {"model": {"w": np.zeros(5, "float32")}, "ema": {"w": np.zeros(5, "float32")}}
    store = CheckpointStore(tmp_path / "c", keep_last=1, keep_top=0)
    store.save(Snapshot(1, 0, arrays, {}))
    store.wait()
    for name, wrapper in {"open": opened, "write": written, "fsync": synced, "rename": renamed, "mkdir": made}.items():
        monkeypatch.setattr(os, name, wrapper)
    store.save(Snapshot(2, 0, arrays, {}))
    outcome = store.wait()
    monkeypatch.undo()
    assert outcome is not None and outcome.error is None

    temporary = f"c/.tmp-step-00000002-{os.getpid()}"
    rename = log.index(("rename", "c/step-00000002"))
    for name in ("model.params", "ema.params", "state.json", "manifest.json"):
        last_write = max(i for i, entry in enumerate(log) if entry == ("write", f"{temporary}/{name}"))
        assert last_write < log.index(("fsync", f"{temporary}/{name}")) < log.index(("fsync", temporary)) < rename
    removal = next(i for i, (call, path) in enumerate(log) if call == "rename" and "discarded" in path)
    assert rename < log.index(("fsync", "c")) < removal
