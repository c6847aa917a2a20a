"""Processes of a supervisor die with it and otherwise behave as if started by a shell."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from waiting import read_pids, wait_for_ends

from mxtrain.cluster.process import run_child, start_child, state_of


def test_a_child_leads_a_group_and_heeds_signals_that_python_ignores() -> None:
    script = "grep SigIgn /proc/$$/status; cut -d ' ' -f 5 /proc/$$/stat; exit 3"
    with start_child(["sh", "-c", script], stdout=subprocess.PIPE) as child:
        said, _ = child.communicate(timeout=20)
    ignored, group = said.decode().splitlines()
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        assert not int(ignored.split()[1], 16) >> (number - 1) & 1
    assert int(group) == child.pid and child.returncode == 3


def test_a_child_is_killed_when_its_parent_is() -> None:
    program = (
        "import sys, time; from mxtrain.cluster.process import start_child\n"
        "print(start_child(['sleep', '60']).pid, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2], text=True
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    try:
        deadline = time.monotonic() + 20
        while b"sleep" not in Path(f"/proc/{child}/cmdline").read_bytes():
            assert time.monotonic() < deadline
        parent.kill()
        parent.wait()
        while state_of(child) not in "ZX":
            assert time.monotonic() < deadline
    finally:
        parent.kill()
        parent.stdout.close()
        if state_of(child) not in "ZX":
            os.kill(child, signal.SIGKILL)


def test_failed_start_gives_a_reason() -> None:
    with start_child(["./no-such-command"], stderr=subprocess.PIPE) as child:
        _, said = child.communicate(timeout=20)
    assert child.returncode == 1 and b"./no-such-command cannot be started: No such file" in said


def test_an_interrupted_wait_kills_the_command_and_its_processes(tmp_path: Path) -> None:
    assert run_child(["sh", "-c", "exit 3"]) == 3
    pids = tmp_path / "pids"

    def interrupt() -> None:
        read_pids(pids)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        run_child(["sh", "-c", f"sleep 60 & echo $$ $! > {pids}; wait"])
    thread.join()
    wait_for_ends(read_pids(pids))
