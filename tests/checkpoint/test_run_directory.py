"""One run per directory, and JSON files that are never half written."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from waiting import wait_until

import mxtrain
from mxtrain.checkpoint import lock_run_directory
from mxtrain.errors import EXIT_BAD_INPUT, RunDirectoryError

HOLD = """
import sys, time, os
from mxtrain.checkpoint import lock_run_directory
lock = lock_run_directory(sys.argv[1])
if "fork" in sys.argv:
    running, child_runs = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(child_runs, b"x")
        time.sleep(60)
        os._exit(0)
    os.read(running, 1)  # only a child that has begun to run has let go of the lock
    print(child)
print("locked", flush=True)
time.sleep(60)
"""


def hold(path: Path, *more: str) -> subprocess.Popen:
    environment = {**os.environ, "PYTHONPATH": str(Path(mxtrain.__file__).parents[1])}
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path), *more], stdout=subprocess.PIPE, text=True, env=environment
    )
    return process


def kill(process: subprocess.Popen) -> None:
    process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def test_second_run_is_refused_with_the_process_that_holds_the_lock(tmp_path):
    process = hold(tmp_path / "deep" / "run")
    assert process.stdout is not None and process.stdout.readline() == "locked\n"
    with pytest.raises(RunDirectoryError) as caught:
        lock_run_directory(tmp_path / "deep" / "run")
    text = str(caught.value)
    assert (
        f"process {process.pid} on {os.uname().nodename}, started 2" in text
        and caught.value.exit_code == EXIT_BAD_INPUT
    )
    assert os.listdir(tmp_path / "deep" / "run") == [".lock"]
    kill(process)
    with lock_run_directory(tmp_path / "deep" / "run") as lock:
        assert lock.held


def test_a_killed_run_frees_the_directory_though_its_workers_live_on(tmp_path):
    process = hold(tmp_path, "fork")
    assert process.stdout is not None
    child = int(process.stdout.readline())
    assert process.stdout.readline() == "locked\n"
    with pytest.raises(RunDirectoryError):
        lock_run_directory(tmp_path)
    process.send_signal(signal.SIGKILL)
    process.wait()
    os.kill(child, 0)  # the worker is still there
    lock_run_directory(tmp_path).release()
    os.kill(child, signal.SIGKILL)
    process.stdout.close()


FORK = """
import os, sys
from mxtrain.checkpoint import lock_run_directory
from mxtrain.errors import RunDirectoryError
with lock_run_directory(sys.argv[1]) as lock:
    child = os.fork()
    if child == 0:
        os._exit(1 if lock.held else 0)
    print(os.waitpid(child, 0)[1])
    try:
        lock_run_directory(sys.argv[1])
    except RunDirectoryError as error:
        print(f"process {os.getpid()} " in str(error))
"""


def test_a_child_that_ends_does_not_free_its_parents_directory(tmp_path):
    done = subprocess.run([sys.executable, "-c", FORK, tmp_path], capture_output=True, text=True, check=True)
    assert done.stdout == "0\nTrue\n"


@pytest.mark.slow
def test_concurrent_claims_have_one_winner(tmp_path):
    processes = [hold(tmp_path) for _ in range(4)]
    time.sleep(0.1)
    wait_until(lambda: sum(process.poll() is None for process in processes) <= 1, 30)
    winners = [process for process in processes if process.poll() is None]
    assert len(winners) == 1
    for process in processes:
        kill(process)


def test_release_lets_the_next_in(tmp_path):
    for _ in range(2):
        lock = lock_run_directory(tmp_path)
        lock.release()
        lock.release()
        assert not lock.held
    with pytest.raises(ZeroDivisionError), lock_run_directory(tmp_path):
        raise ZeroDivisionError
    lock_run_directory(tmp_path).release()


def test_a_lock_file_that_was_removed_is_not_trusted(tmp_path):
    (tmp_path / ".lock").write_text("{nonsense")
    with lock_run_directory(tmp_path):
        (tmp_path / ".lock").write_text("{nonsense")
        with pytest.raises(RunDirectoryError, match="in use by another process"):
            lock_run_directory(tmp_path)


def test_a_path_that_cannot_be_one_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    for path, said in [(tmp_path / "file", "File exists"), (tmp_path / "file" / "run", "Not a directory")]:
        with pytest.raises(RunDirectoryError, match=f"cannot be used: {said}.*hydra.run.dir"):
            lock_run_directory(path)
