"""Signals, sweeps, full disks and directories that vanish, in real processes. 50 s."""

from __future__ import annotations

import math
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Optional, Type

import pytest
from running import ROOT, SMALL, Process, checkpoints, has_steps, status, steps, train_here
from waiting import wait_until

from mxtrain.checkpoint import open_checkpoint
from mxtrain.cluster.stopping import SignalStop, Terminated, startup_signals

LONG = (*SMALL, "trainer.max_epochs=100000", "early_stopping=off")


def with_module(tmp_path, text):
    """An environment in which `own.Own` is the callback in `text`."""
    (tmp_path / "own.py").write_text("from mxtrain.types import Callback\n" + textwrap.dedent(text))
    return {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}


@pytest.mark.slow
def test_a_signal_during_start_up_ends_cleanly(tmp_path):
    kinds = [(signal.SIGINT, 130), (signal.SIGTERM, 143)]
    started = [(Process(tmp_path / number.name, *LONG), number, exit_code) for number, exit_code in kinds]
    for process, number, _ in started:  # the lock is taken before MXNet is imported
        process.wait_until((process.run_dir / ".lock").exists).kill(number)
    for process, _, exit_code in started:
        process.end(exit_code)
        assert "Traceback" not in process.output and "interrupted before training began" in process.output
        assert (process.run_dir / ".lock").read_bytes() == b""


@pytest.mark.slow
def test_a_second_signal_quits_at_once_while_the_engine_is_busy(tmp_path):
    # Seconds of computing in one step: nothing in Python runs meanwhile.
    busy = ("model=resnet", "dataset=synthetic", "dataset.num_samples=3000", "dataset.batch_size=1000")
    process = Process(tmp_path / "run", *busy, "checkpoint=end_only")
    process.wait_until((tmp_path / "run" / "status.json").exists)
    time.sleep(1.0)
    process.kill(signal.SIGINT)
    time.sleep(0.05)
    process.kill(signal.SIGINT)  # the same wish: timeout(1) signals a process and then its group
    time.sleep(1.0)
    assert process.popen.poll() is None
    began = time.monotonic()
    process.kill(signal.SIGINT).end(130)
    assert time.monotonic() - began < 5
    assert "once more quits at once" in process.output and status(tmp_path / "run")["state"] == "running"


@pytest.mark.slow
def test_sigint_ends_all_jobs_of_a_sweep(tmp_path):
    command = [sys.executable, "-m", "mxtrain", "-m", f"hydra.sweep.dir={tmp_path}", "optimizer.lr=0.1,0.01,0.001"]
    process = Process(tmp_path / "unused", *LONG, command=command)
    process.wait_until(has_steps(tmp_path / "0_optimizer.lr-0.1", 5)).kill(signal.SIGINT).end(130)
    assert status(tmp_path / "0_optimizer.lr-0.1")["state"] == "interrupted"
    assert not list(tmp_path.glob("1_*/metrics.jsonl")) and "Traceback" not in process.output


FILL = """
    import os
    class Own(Callback):
        def on_start(self, run):
            self.filler = run.run_dir / "filler"
        def on_checkpoint(self, step):
            if step == 13:
                self.fill()
            if step == 39:
                os.unlink(self.filler)
        def fill(self):
            with open(self.filler, "wb", buffering=0) as file:
                try:
                    while file.write(bytes(1024)):
                        pass
                except OSError:
                    pass
"""


@pytest.mark.slow
def test_a_full_disk_fails_saves_and_training_continues(tmp_path, small_disk):
    disk = small_disk("600k")
    env = with_module(tmp_path, FILL)
    own = ("+callback.own._target_=own.Own", "checkpoint.every_epochs=1", "model.hidden=[32]")
    process = Process(disk / "run", *SMALL, *own, "trainer.max_epochs=3", env=env).end()
    assert "the checkpoint of step 26 could not be written: No space left on device" in process.output
    assert "Training goes on" in process.output
    assert status(disk / "run")["state"] == "finished" and steps(disk / "run") == list(range(1, 40))
    assert "step-00000039" in checkpoints(disk / "run") and "step-00000026" not in checkpoints(disk / "run")
    assert not [name for name in checkpoints(disk / "run") if name.startswith(".tmp")]


@pytest.mark.zoo_except("24k")
@pytest.mark.slow
@pytest.mark.parametrize("size", ["4k", "16k", "24k"])
def test_a_disk_that_is_full_from_the_start(small_disk, size):
    """At the run directory, at its description, at meta.json."""
    run = Process(small_disk(size) / "run", *SMALL).end(1, 2)
    assert "No space left on device" in run.output and "Traceback" not in run.output


LIMITED = """
import resource, runpy, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))
runpy.run_module("mxtrain", run_name="__main__", alter_sys=True)
"""


@pytest.mark.slow
def test_unsaved_last_checkpoint_fails_the_run(tmp_path):
    run_dir = tmp_path / "run"
    options = (*SMALL, "model.hidden=[128]", "trainer.max_epochs=2")
    process = Process(run_dir, *options, command=[sys.executable, "-c", LIMITED]).end(1)
    ended = status(run_dir)
    assert steps(run_dir) == list(range(1, 27)) and checkpoints(run_dir) == []
    assert (ended["state"], ended["exit_code"], ended["checkpoint"]) == ("failed", 1, None)
    assert (
        "training is complete, but the checkpoint of its last step 26 could not be written: File too large"
        in (ended["cause"])
    )
    assert process.output.count("could not be written") >= 3
    Process(run_dir, *options).end()  # with room again: the same command mends it
    assert open_checkpoint(run_dir).step == 26 and status(run_dir)["exit_code"] == 0


@pytest.mark.slow
def test_vanished_run_directory_does_not_hang(tmp_path):
    text = """
        import shutil
        class Own(Callback):
            def on_start(self, run):
                self.run_dir = run.run_dir
            def on_validation(self, validation, progress):
                if validation.row["step"] == 13:
                    shutil.rmtree(self.run_dir)
    """
    own = "+callback.own._target_=own.Own"
    process = Process(tmp_path / "run", *SMALL, "trainer.max_epochs=3", own, env=with_module(tmp_path, text)).end(0, 1)
    assert "deleted while the run writes to it" in process.output, process.output
    shutil.rmtree(tmp_path / "run", ignore_errors=True)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:All children of this Sequential")
def test_error_of_a_user_network_is_reported_last(tmp_path, monkeypatch):
    (tmp_path / "thirty_net.py").write_text(
        textwrap.dedent("""
        from mxnet import gluon
        class Net(gluon.nn.Sequential):
            def __init__(self, num_classes):
                super().__init__()
                self.add(gluon.nn.Dense(num_classes))
                self.calls = 0
            def forward(self, x):
                self.calls += 1
                if self.calls == 30:
                    raise ValueError("thirty is enough")
                return super().forward(x)
    """)
    )
    (tmp_path / "conf" / "model").mkdir(parents=True)
    (tmp_path / "conf" / "model" / "own.yaml").write_text("_target_: thirty_net.Net\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    run_dir = tmp_path / "run"
    words = (f"--config-dir={tmp_path / 'conf'}", "model=own", "dataset.batch_size=100")
    output = train_here(run_dir, *words, exit_code=1)
    assert output.strip().splitlines()[-1] == "error: ValueError: thirty is enough"
    ended = status(run_dir)
    assert (ended["state"], ended["cause"]) == ("failed", "ValueError: thirty is enough")


REPLACING = """
    import os, signal, time
    class Own(Callback):
        def __init__(self):
            try:
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(5)
            except BaseException:
                raise ImportError("replaced") from None
"""


@pytest.mark.slow
def test_sigterm_during_start_up_ends_with_143_though_a_library_replaces_its_exception(tmp_path):
    own = ("+callback.own._target_=own.Own",)
    process = Process(tmp_path / "run", *LONG, *own, env=with_module(tmp_path, REPLACING)).end(143)
    assert "Traceback" not in process.output and "interrupted before training began" in process.output


def test_only_a_commands_own_process_may_be_ended():
    assert not SignalStop.may_end_process  # a notebook's is not
    with startup_signals():
        with startup_signals():
            assert SignalStop.may_end_process
        assert SignalStop.may_end_process
    assert not SignalStop.may_end_process


STUCK = """
    import ctypes
    class Own(Callback):
        def on_steps(self, rows, progress):
            mutex = ctypes.create_string_buffer(64)
            for _ in range(2):
                ctypes.CDLL(None).pthread_mutex_lock(mutex)
"""


def test_a_signal_limits_the_time_for_uploads_and_a_warning_does_not():
    with SignalStop(grace_s=10) as signals:
        os.kill(os.getpid(), signal.SIGUSR1)
        wait_until(lambda: signals.stop)
        assert signals.seconds_left() == math.inf
        os.kill(os.getpid(), signal.SIGTERM)
        wait_until(lambda: signals.seconds_left() < math.inf)
        assert 7 < signals.seconds_left() <= 8


@pytest.mark.slow
def test_run_with_hanging_threads_ends_after_the_grace_period(tmp_path):
    own = ("+callback.own._target_=own.Own", "cluster.grace=1.5")
    process = Process(tmp_path / "run", *LONG, *own, env=with_module(tmp_path, STUCK))
    process.wait_until((tmp_path / "run" / "status.json").exists)
    time.sleep(1.0)
    began = time.monotonic()
    process.kill(signal.SIGTERM).end(143)
    assert 1.0 < time.monotonic() - began < 10
    assert "SIGTERM: not ended after 1.5 s (cluster.grace), so ended at once" in process.output


@pytest.mark.slow
@pytest.mark.parametrize("number, exit_code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_hanging_start_ends_after_the_grace_period(number, exit_code):
    code = textwrap.dedent(f"""
        import ctypes, os, threading
        from mxtrain.cluster.stopping import startup_signals
        with startup_signals(grace_s=0.3):
            mutex = ctypes.create_string_buffer(64)
            threading.Timer(1.0, os.kill, [os.getpid(), {int(number)}]).start()
            for _ in range(2):
                ctypes.CDLL(None).pthread_mutex_lock(mutex)
    """)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == exit_code and "not ended after 0.3 s" in done.stderr


def test_signals_are_delivered_to_waiting_threads():
    """Servers block them and wait for them: the thread that reads them must not take them instead."""
    with startup_signals():
        (reader,) = [thread for thread in threading.enumerate() if thread.name == "mxtrain-signals"]
        state = Path(f"/proc/self/task/{reader.native_id}/status").read_text()
    blocked = int(re.search(r"SigBlk:\s*(\w+)", state)[1], 16)
    assert all(blocked >> (number - 1) & 1 for number in (signal.SIGINT, signal.SIGTERM))
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, []) & {signal.SIGINT, signal.SIGTERM}


class Panic(BaseException):
    """An exception like pyo3's PanicException, which an import in Rust raises in place of an exception of Python
    code."""


@pytest.mark.parametrize("instead", [ImportError, Panic, SystemExit, None])
def test_termination_replaces_only_errors_after_sigterm(instead: Optional[Type[BaseException]]):
    with pytest.raises(ImportError, match="before"), startup_signals():
        raise ImportError("before")
    with pytest.raises(Terminated), startup_signals():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)
        except Terminated:
            if instead is not None:
                raise instead("after") from None
    with pytest.raises(ImportError, match="next"), startup_signals():
        raise ImportError("next")


@pytest.mark.slow
def test_signal_to_a_forked_child_does_not_stop_its_parent():
    """A pool of processes is ended by SIGTERM: that must neither stop the run nor begin its grace time."""
    code = textwrap.dedent("""
        import os, signal, time
        from mxtrain.cluster.stopping import SignalStop, Terminated, startup_signals
        with startup_signals(grace_s=0.2), SignalStop(grace_s=0.2) as signals:
            ready, begun = os.pipe()
            child = os.fork()
            if child == 0:
                os.write(begun, b"1")
                time.sleep(10)
                os._exit(0)
            os.read(ready, 1)
            os.kill(child, signal.SIGTERM)
            time.sleep(0.6)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            print(signals.stop)
    """)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "None\n", "")


def test_a_notebook_is_not_ended(monkeypatch):
    monkeypatch.setattr(os, "_exit", lambda code: pytest.fail("ended"))
    with SignalStop(grace_s=0.01) as signals:
        signal.raise_signal(signal.SIGTERM)
        time.sleep(0.3)
    assert signals.stop.exit_code == 143
