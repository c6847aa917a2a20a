"""A process that forks saves and has them die at chosen moments; run by test_kill.py, without MXNet.

python kill_driver.py calls FOLDER SCENARIO   kill at every call of `os`, before it and halfway through writes;
                                              prints the number of kills and of those that found the new checkpoint
python kill_driver.py stopped FOLDER SCENARIO stop before the save, for a tracer to kill it at a system call
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path

import numpy as np

from mxtrain.checkpoint import CheckpointStore, Snapshot, lock_run_directory

CALLS = (
    "open",
    "write",
    "fsync",
    "close",
    "mkdir",
    "rename",
    "replace",
    "unlink",
    "rmdir",
    "listdir",
    "scandir",
    "stat",
    "lstat",
    "fstat",
    "readv",
    "ftruncate",
    "pwrite",
)
OLD, NEW = 100, 120


def snapshot(step: int, value: int) -> Snapshot:
    model = {f"{i}.weight": np.full((50, 7), value, "float32") for i in range(3)}
    return Snapshot(step, 1, {"model": model, "optimizer": {"mean": model["0.weight"] + 1}}, {"value": value})


def save(run: Path, step: int, value: int, stop_first: bool = False) -> None:
    with lock_run_directory(run) as lock:
        store = CheckpointStore(run / "checkpoints", keep_last=1, keep_top=0, lock=lock)
        if stop_first:  # a tracer counts from here, so that its first call of each kind is the writer's
            os.kill(os.getpid(), signal.SIGSTOP)
        store.save(snapshot(step, value))
        outcome = store.wait()
        assert outcome is not None and outcome.error is None, outcome


def prepare(run: Path, scenario: str) -> None:
    shutil.rmtree(run, ignore_errors=True)
    if scenario != "first":
        save(run, OLD, 1)
    if scenario == "again":  # the step to be saved is there with other content
        save(run, NEW, 1)
    if scenario == "damaged":  # it is there, and damaged
        shutil.copytree(run / "checkpoints" / f"step-{OLD:08d}", run / "kept")
        save(run, NEW, 1)
        (run / "checkpoints" / f"step-{NEW:08d}" / "model.params").write_bytes(b"x")
        os.rename(run / "kept", run / "checkpoints" / f"step-{OLD:08d}")


def check(run: Path, scenario: str) -> bool:
    """Old or new, complete; and the same save succeeds afterwards. Returns whether it was the new one."""
    told: list[str] = []
    found = CheckpointStore(run / "checkpoints", keep_last=1, keep_top=0, report=told.append).latest()
    assert scenario == "damaged" or not told, told
    if found is None:
        assert scenario == "first"
    else:
        value = found.state["value"]
        assert (found.step, value) in {(OLD, 1), (NEW, 2)} | ({(NEW, 1)} if scenario == "again" else set())
        assert all((array == value).all() for array in found.arrays("model").values())
        assert (found.arrays("optimizer")["mean"] == value + 1).all()
    is_new = found is not None and found.state["value"] == 2
    save(run, NEW, 2)
    (entry,) = os.listdir(run / "checkpoints")
    assert entry.startswith(f"step-{NEW:08d}"), entry
    return is_new


def die_at(number: int) -> None:
    """From now on, the call `number` of those in CALLS is the last: an odd one is killed halfway where it writes."""
    count = [0]

    def wrap(name: str):
        real = getattr(os, name)

        def call(*args, **kwargs):
            count[0] += 1
            if count[0] == number // 2:
                if name in ("write", "pwrite") and number % 2:
                    real(args[0], memoryview(args[1])[: len(args[1]) // 2], *args[2:])
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **kwargs)

        setattr(os, name, call)

    for name in CALLS:
        wrap(name)


def kill_at_every_call(run: Path, scenario: str) -> None:
    number, found_new = 1, 0
    while True:
        number += 1
        prepare(run, scenario)
        child = os.fork()
        if child == 0:
            die_at(number)
            save(run, NEW, 2)
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        found_new += check(run, scenario)
        if status == 0:
            break
        assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, status
    print(number - 2, found_new)


def main() -> None:
    mode, run, scenario = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    if mode == "calls":
        kill_at_every_call(run, scenario)
        return
    for line in sys.stdin:  # one line, one save that stops before it starts; the next line checks what it left
        if line == "check\n":
            print(int(check(run, scenario)), flush=True)
            continue
        prepare(run, scenario)
        child = os.fork()
        if child == 0:
            save(run, NEW, 2, stop_first=True)
            os._exit(0)
        os.waitpid(child, os.WUNTRACED)
        print(child, flush=True)
        status = os.waitpid(child, 0)[1]
        print(-os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status), flush=True)


if __name__ == "__main__":
    main()
