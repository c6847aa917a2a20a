"""kill -9 at every moment of a save: afterwards there is the old checkpoint or the new one, whole."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import mxtrain
from mxtrain.checkpoint import CheckpointStore, Snapshot

DRIVER = Path(__file__).parent / "kill_driver.py"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(mxtrain.__file__).parents[1])}
SYSTEM_CALLS = "mkdir,openat,write,fsync,close,rename,unlinkat,unlink,rmdir,getdents64"


@pytest.mark.parametrize("scenario", ["first", "second", "again", "damaged"])
def test_kill_at_every_call(tmp_path, scenario):
    """Ends only when a save ran through without meeting its kill, so every call was one."""
    command = [sys.executable, str(DRIVER), "calls", str(tmp_path / "run"), scenario]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    kills, found_new = map(int, done.stdout.split())
    print(f"{scenario}: {kills} kills, after {found_new} the new checkpoint was there")
    assert kills >= 60 and 0 < found_new < kills


def test_kill_at_every_system_call(tmp_path):
    """The same by the kernel: strace kills the writer on entry to its n-th system call that touches a file."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    command = [sys.executable, str(DRIVER), "stopped", str(tmp_path / "run"), "second"]
    with subprocess.Popen(command, env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdin is not None and driver.stdout is not None

        def ask(line: str) -> None:
            driver.stdin.write(line + "\n")
            driver.stdin.flush()

        def answer() -> int:
            line = driver.stdout.readline()
            assert line, "the driver died: see its traceback"
            return int(line)

        results = []
        for number in range(1, 1000):
            ask("save")
            child = answer()
            status = trace(child, number)
            if status is None:
                os.kill(child, signal.SIGKILL)
                pytest.skip("tracing is not permitted here")
            status = answer()
            ask("check")
            results.append(answer())
            if status == 0:
                break
            assert status == -signal.SIGKILL
    print(f"{len(results) - 1} kills, after {sum(results) - 1} the new checkpoint was there")
    assert len(results) >= 40 and results == sorted(results), "old before a certain call, new after it"


def trace(pid: int, number: int):
    """Let a stopped process go on, to be killed at a system call; None where that is not permitted."""
    inject = f"{SYSTEM_CALLS}:signal=SIGKILL:when={number}"
    command = ["strace", "-f", "-p", str(pid), "-e", f"trace={SYSTEM_CALLS}", "-e", f"inject={inject}"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as tracer:
        assert tracer.stderr is not None
        if "attached" not in tracer.stderr.readline():
            return None
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
