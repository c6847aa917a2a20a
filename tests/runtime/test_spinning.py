from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mxtrain.runtime import Runtime, apply
from mxtrain.runtime.spinning import (
    MAX_PATIENCE_S,
    MIN_CALM_S,
    PERIOD_S,
    VARIABLE,
    ContentionMonitor,
    can_watch,
)

CORES = len(os.sched_getaffinity(0))
ALONE, SHARED, IDLE = (0.98, 0.07), (0.5, 0.47), (0.01, 0.0)
"""Seconds in which a run's threads ran and waited, in half a second: alone, beside an equal run, between two steps."""
several_cores = pytest.mark.skipif(CORES == 1, reason="one core")


def _verdicts(*periods: tuple[float, float]) -> list[bool]:
    monitor = ContentionMonitor()
    return [monitor.may_spin(ran, waited, PERIOD_S) for ran, waited in periods]


def test_threads_spin_after_calm_until_contention() -> None:
    patience = int(MIN_CALM_S / PERIOD_S)
    assert _verdicts(*[ALONE] * 4) == [False] * (patience - 1) + [True] * (5 - patience)
    assert _verdicts(*[SHARED] * 9) == [False] * 9
    assert _verdicts(ALONE, SHARED, ALONE, ALONE, ALONE)[-2:] == [True, True]
    assert _verdicts(*[ALONE] * 5, SHARED, ALONE)[-2:] == [False, False]


def test_idle_process_keeps_its_verdict() -> None:
    assert _verdicts(*[ALONE] * 5, *[IDLE] * 9)[-9:] == [True] * 9
    assert _verdicts(*[IDLE] * 9) == [False] * 9


def test_continuous_contention_is_measured() -> None:
    monitor, seconds = ContentionMonitor(), []
    for period in (*[SHARED] * 4, IDLE, SHARED, ALONE, SHARED):
        monitor.may_spin(*period, PERIOD_S)
        seconds.append(monitor.contended_s / PERIOD_S)
    assert seconds == [1, 2, 3, 4, 4, 5, 0, 1]


def test_repeated_contention_waits_longer_each_time() -> None:
    monitor, waits = ContentionMonitor(), []
    for _ in range(9):
        waits.append(1)
        while not monitor.may_spin(*ALONE, PERIOD_S):
            waits[-1] += 1
        monitor.may_spin(*SHARED, PERIOD_S)
    seconds = [wait * PERIOD_S for wait in waits]
    assert seconds[:3] == [MIN_CALM_S, 2 * MIN_CALM_S, 4 * MIN_CALM_S]
    assert seconds[-2:] == [MAX_PATIENCE_S] * 2


def test_kernel_without_counters_is_detected(tmp_path: Path) -> None:
    assert can_watch() and not can_watch(tmp_path / "none")
    (tmp_path / "17").mkdir()
    assert not can_watch(tmp_path)


SLEEPS = """
import ctypes, os, time
from mxtrain.runtime.spinning import SpinLimiter
gomp = ctypes.CDLL("libgomp.so.1")
limiter = SpinLimiter(gomp)
def sleeps():
    found = 0
    for task in os.listdir("/proc/self/task"):
        try:
            lines = open(f"/proc/self/task/{task}/status").readlines()
        except OSError:  # the thread ended meanwhile
            continue
        found += sum(int(line.split()[1]) for line in lines if line.startswith("voluntary"))
    return found
def count():
    before = sleeps()
    for _ in range(300):
        gomp.GOMP_parallel(limiter._no_op, None, 2, 0)
        end = time.perf_counter() + 1e-4
        while time.perf_counter() < end:
            pass
    return sleeps() - before
count()
free = count()
limiter.engage()
threads = len(os.listdir("/proc/self/task"))
limited = count()
limiter.release()
end = time.monotonic() + 20
while len(os.listdir("/proc/self/task")) >= threads and time.monotonic() < end:
    time.sleep(0.01)
print(free, limited, count(), threads - len(os.listdir("/proc/self/task")))
"""


@pytest.mark.slow
@several_cores
def test_threads_sleep_at_every_barrier_while_the_limiter_is_engaged() -> None:
    environ = {**os.environ, "OMP_WAIT_POLICY": "passive", VARIABLE: "3000000"}
    done = subprocess.run([sys.executable, "-c", SLEEPS], env=environ, capture_output=True, text=True, check=True)
    free, limited, again, ended = map(int, done.stdout.split())
    assert limited > 200 and free < limited / 2 and again < limited / 2, done.stdout
    assert ended == CORES + 1, done.stdout  # the limiter's own thread, and all but one of its team


def _applied(runtime: Runtime, **environ: str) -> dict[str, str]:
    apply(runtime, environ=environ)
    return environ


@several_cores
def test_thread_spin_settings_are_recognised(monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("mxtrain.runtime.apply")  # the package has a function of that name
    monkeypatch.delitem(sys.modules, "mxnet", raising=False)
    assert int(_applied(Runtime())[VARIABLE]) > 0
    more = Runtime(threads=CORES + 1)  # of which libgomp lets none spin
    for runtime in (Runtime(mode="manual"), Runtime(threads=1), more, Runtime(env={"OMP_WAIT_POLICY": "passive"})):
        assert VARIABLE not in _applied(runtime), runtime
    for environ in ({"OMP_WAIT_POLICY": "passive"}, {"OMP_NUM_THREADS": "1"}, {"OMP_NUM_THREADS": str(CORES + 1)}):
        assert VARIABLE not in _applied(Runtime(), **environ), environ
    assert _applied(Runtime(), **{VARIABLE: "7"})[VARIABLE] == "7"
    assert _applied(Runtime(env={VARIABLE: 8}))[VARIABLE] == "8"
    assert module.lets_threads_spin(_applied(Runtime()))
    assert not module.lets_threads_spin(_applied(Runtime(env={VARIABLE: 8})))
    assert not module.lets_threads_spin(_applied(Runtime(), **{VARIABLE: "7"}))
    monkeypatch.setattr(module, "cgroup_quota", lambda: CORES - 0.5)
    assert VARIABLE not in _applied(Runtime())
    monkeypatch.setattr(module, "cgroup_quota", lambda: 2.0 * CORES)
    assert VARIABLE in _applied(Runtime())


@pytest.mark.slow
@several_cores
@pytest.mark.parametrize("environ, watched", [({}, True), ({"OMP_WAIT_POLICY": "passive"}, False)])
def test_spinning_process_is_watched(environ: dict[str, str], watched: bool) -> None:
    code = """
from mxtrain.runtime import Runtime, apply
apply(Runtime())
import threading, mxtrain.engine.backend
print({thread.name for thread in threading.enumerate()} >= {"mxtrain-spinning", "mxtrain-limiter"})
"""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_", "MXTRAIN_"))}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env={**clean, **environ},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == str(watched)
