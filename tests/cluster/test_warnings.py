"""Signals of schedulers: warnings (SIGUSR1, SIGUSR2) before the end of a job, and SIGHUP."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable, ClassVar, Iterator, List, Mapping, Optional, Tuple

import numpy as np
import pytest
from running import ROOT, SMALL, Process, assert_same, checkpoints, has_steps, status, train_here
from waiting import wait_until

from mxtrain.callback.protocol import Callback
from mxtrain.cli import main
from mxtrain.cluster.process import LaunchSpec, LocalProcess
from mxtrain.cluster.process import Process as ClusterProcess
from mxtrain.cluster.spec import Cluster
from mxtrain.cluster.stopping import (
    EXIT_CODES,
    SignalReader,
    SignalStop,
    Stop,
    Terminated,
    ending_signals,
    forwarded_warnings,
    startup_signals,
    was_told_to_end,
)
from mxtrain.cluster.supervisor import Supervisor, signal_before_training
from mxtrain.kvstore.membership import Membership
from mxtrain.kvstore.world import World
from mxtrain.training.agreement import Agreement

WARNINGS = (signal.SIGUSR1, signal.SIGUSR2)
RUN = (*SMALL, "trainer.max_epochs=4", "early_stopping=off", "checkpoint.every_epochs=1000", "checkpoint.keep_top=0")
STEPS = 4 * 13


@pytest.fixture(autouse=True)
def own_handlers() -> Iterator[None]:
    numbers = (*EXIT_CODES, *WARNINGS)
    given = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored if the tests run under nohup
    before = [signal.getsignal(number) for number in numbers]
    yield
    after = [signal.getsignal(number) for number in numbers]
    for number, handler in zip(numbers, before):
        signal.signal(number, handler)
    signal.signal(signal.SIGHUP, given)
    assert after == before and SignalStop.warning is None
    Signalling.number = None


class Signalling(Callback):
    """Sends a signal to this process after step 20, and waits until it was received."""

    number: ClassVar[Optional[int]] = None

    def on_steps(self, rows: Any, progress: Any) -> None:
        number = Signalling.number
        if number is not None and progress.step >= 20:
            Signalling.number = None
            os.kill(os.getpid(), number)
            time.sleep(0.1)


def signalled(run_dir: Path, number: int, *overrides: str, exit_code: int) -> str:
    Signalling.number = number
    return train_here(run_dir, *RUN, "+callback.own._target_=test_warnings.Signalling", *overrides, exit_code=exit_code)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("unbroken") / "run"
    train_here(run_dir, *RUN, "+callback.own._target_=test_warnings.Signalling")
    return run_dir


@pytest.mark.slow
def test_a_warning_ends_the_run_as_a_budget_does_and_the_same_command_continues(tmp_path: Path, unbroken: Path) -> None:
    signalled(tmp_path / "run", signal.SIGUSR1, exit_code=75)
    ended = status(tmp_path / "run")
    assert (ended["state"], ended["exit_code"], ended["cause"]) == ("interrupted", 75, "SIGUSR1 received")
    assert 20 <= ended["step"] < STEPS and checkpoints(tmp_path / "run")[-1] == f"step-{ended['step']:08d}"
    signalled(tmp_path / "run", 0, exit_code=0)
    assert_same(tmp_path / "run", unbroken)


@pytest.mark.slow
def test_a_warning_may_only_save(tmp_path: Path, unbroken: Path) -> None:
    signalled(tmp_path / "run", signal.SIGUSR1, "checkpoint.on_signal=save", "checkpoint.keep_last=9", exit_code=0)
    saved = [int(name[5:]) for name in checkpoints(tmp_path / "run")]
    assert len(saved) == 3 and 20 <= saved[1] <= 30 and saved[0] == 0 and saved[2] == STEPS
    assert_same(tmp_path / "run", unbroken)


@pytest.mark.slow
def test_a_hangup_is_treated_as_termination_unless_it_is_ignored(tmp_path: Path, unbroken: Path) -> None:
    signalled(tmp_path / "run", signal.SIGHUP, exit_code=143)
    ended = status(tmp_path / "run")
    assert (ended["state"], ended["cause"]) == ("interrupted", "SIGHUP received")
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        signalled(tmp_path / "ignored", signal.SIGHUP, exit_code=0)
        assert_same(tmp_path / "ignored", unbroken)
    finally:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.mark.slow
@pytest.mark.parametrize("more", [["trainer.seed=1,2"], ["trainer.folds=2"]], ids=["sweep", "folds"])
def test_a_warning_begins_no_further_job_or_fold(tmp_path: Path, more: List[str]) -> None:
    Signalling.number = signal.SIGUSR1
    place = [f"hydra.sweep.dir={tmp_path}/s"] if "folds" not in more[0] else [f"hydra.run.dir={tmp_path}/s"]
    flags = ["-m"] if "folds" not in more[0] else []
    assert main([*flags, *RUN, "+callback.own._target_=test_warnings.Signalling", *place, *more]) == 75
    runs = [path.parent for path in tmp_path.rglob("metrics.jsonl")]
    assert len(runs) == 1 and status(runs[0])["exit_code"] == 75


def test_a_warning_during_start_up_counts_when_training_begins() -> None:
    with startup_signals():
        signal.raise_signal(signal.SIGUSR2)
        with SignalStop() as signals:
            assert signals.stop == Stop("interrupted", 75, "SIGUSR2 received")
            SignalStop.warning = None  # taken
        assert SignalStop.warning is None  # the run does not give it back to the command
        signal.raise_signal(signal.SIGUSR2)
        with SignalStop(stops_when_warned=False) as signals:
            assert signals.stop is None
            assert signals.take_save_request() and not signals.take_save_request()


def test_warning_does_not_start_the_grace_time(monkeypatch: pytest.MonkeyPatch) -> None:
    killed: List[int] = []
    monkeypatch.setattr(os, "_exit", killed.append)
    monkeypatch.setattr("mxtrain.cluster.stopping.DUPLICATE_S", 0.0)
    with startup_signals(), SignalStop(grace_s=0.05) as signals:
        signal.raise_signal(signal.SIGUSR1)
        wait_until(lambda: signals.stop)
        signal.raise_signal(signal.SIGUSR2)  # and a second one
        time.sleep(0.2)
        assert killed == [] and signals.stop is not None and signals.stop.exit_code == 75
    with startup_signals(), SignalStop(grace_s=60) as signals:
        for number in (signal.SIGUSR1, signal.SIGTERM):  # the second has the time to save, too
            signal.raise_signal(number)
            time.sleep(0.1)
        assert killed == [] and signals.stop is not None and signals.stop.exit_code == 75
        signal.raise_signal(signal.SIGHUP)
        wait_until(lambda: killed)
    assert killed == [143]


def test_a_hangup_during_start_up_unwinds_the_process() -> None:
    with pytest.raises(Terminated), startup_signals():
        signal.raise_signal(signal.SIGHUP)
        time.sleep(1)


def test_the_grace_time_begins_with_the_first_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    killed: List[int] = []
    monkeypatch.setattr(os, "_exit", killed.append)
    with SignalStop(grace_s=60), SignalReader(lambda number: None, 0.2):  # which handles them without an exception
        signal.raise_signal(signal.SIGTERM)
        time.sleep(0.15)
        signal.raise_signal(signal.SIGINT)
        wait_until(lambda: killed)
    assert killed[0] == 143


def test_warning_after_a_signal_is_ignored() -> None:
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL  # which ends a process
    for numbers, exit_code in (((signal.SIGTERM, signal.SIGUSR1), 143), ((signal.SIGUSR1,), 75)):
        with SignalStop() as signals:
            for number in numbers:
                signal.raise_signal(number)
                time.sleep(0.05)
            assert signals.stop is not None and signals.stop.exit_code == exit_code


def test_other_signals_do_not_stop_a_run() -> None:
    before = signal.signal(signal.SIGWINCH, lambda number, frame: None)
    try:
        with SignalStop() as signals:
            signal.raise_signal(signal.SIGWINCH)
            time.sleep(0.05)
            assert signals.stop is None
    finally:
        signal.signal(signal.SIGWINCH, before)


def test_signal_reading_thread_receives_no_signals() -> None:
    with SignalReader(lambda number: None, None) as reader:
        fields = Path(f"/proc/self/task/{reader._thread.native_id}/status").read_text().split()
        blocked = int(fields[fields.index("SigBlk:") + 1], 16)
    assert all(blocked >> number - 1 & 1 for number in (*EXIT_CODES, *WARNINGS))


def test_a_handler_of_the_program_gets_the_warning_after_the_run_has_saved() -> None:
    received: List[int] = []
    signal.signal(signal.SIGUSR2, lambda number, frame: received.append(number))  # as submitit's
    try:
        with SignalStop() as signals:
            signal.raise_signal(signal.SIGUSR2)
            wait_until(lambda: signals.stop)
            assert received == []
        assert received == [signal.SIGUSR2]
        with SignalStop(stops_when_warned=False) as signals:
            signal.raise_signal(signal.SIGUSR2)
            time.sleep(0.05)
        assert len(received) == 1
    finally:
        signal.signal(signal.SIGUSR2, signal.SIG_DFL)


def test_ignored_hangups_are_no_ending_signals() -> None:
    assert set(ending_signals()) == {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert set(ending_signals()) == {signal.SIGINT, signal.SIGTERM}
    finally:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def test_budgets_are_distinguished_from_warnings() -> None:
    assert was_told_to_end(75, "SIGUSR1 received") and was_told_to_end(130, "") and was_told_to_end(143, "")
    assert not was_told_to_end(75, "trainer.max_steps=3 reached") and not was_told_to_end(0, "SIGUSR1 received")


class Votes:
    """A store of two workers; the vote of the other worker is given."""

    world = World(0, 2)

    def __init__(self, other: List[float]) -> None:
        self._other, self.given = np.array(other), [0.0]

    membership = Membership()

    def total(self, votes: List[float]) -> np.ndarray:
        self.given = votes
        return np.array(votes) + self._other


@pytest.mark.parametrize(
    "kind, exit_code, cause",
    [
        (0, 143, "SIGTERM or SIGHUP received by another worker"),
        (1, 130, "SIGINT received by another worker"),
        (2, 75, "SIGUSR1, SIGUSR2 or a notice of preemption received by another worker"),
        (3, 75, "trainer.max_time reached"),
    ],
)
def test_workers_agree_on_the_stop_of_one_of_them(kind: int, exit_code: int, cause: str) -> None:
    other = [float(number == kind) for number in range(5)]
    assert Agreement(Votes(other), 0).now(None) == Stop("interrupted", exit_code, cause)  # type: ignore[arg-type]
    own = {0: "SIGTERM received", 1: "SIGINT received", 2: "SIGUSR1 received", 3: "trainer.max_time=1 seconds reached"}
    mine = Stop("interrupted", exit_code, own[kind])
    store = Votes([0.0] * 5)
    assert Agreement(store, 0).now(mine) is mine  # type: ignore[arg-type]
    assert store.given == other  # of this kind only: the others learn it
    warned = Stop("interrupted", 75, own[2])
    both = Agreement(Votes([0.0, 0.0, 0.0, 1.0, 0.0]), 0).now(warned)  # type: ignore[arg-type]
    assert both is warned


PATHS = {**os.environ, "PYTHONPATH": str(ROOT)}
PRINT = "import signal, sys; sys.exit([signal.getsignal(n) for n in (10, 12)] != [signal.SIG_IGN] * 2)"


def test_processes_of_a_run_survive_warnings_until_they_handle_them() -> None:
    process = LocalProcess(LaunchSpec("worker 0", [sys.executable, "-c", PRINT], os.environ))
    wait_until(lambda: process.exit_code is not None)
    assert process.exit_code == 0
    process.close()


def test_the_process_of_a_tracker_ignores_warnings() -> None:
    command = [sys.executable, "-m", "mxtrain.logger.tracker_process"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=PATHS) as process:
        wanted = sum(1 << number - 1 for number in WARNINGS)

        def ignored() -> int:
            fields = Path(f"/proc/{process.pid}/status").read_text().split()
            return int(fields[fields.index("SigIgn:") + 1], 16)

        wait_until(lambda: ignored() & wanted == wanted)
        process.kill()


def test_warnings_are_forwarded_to_the_process_of_a_trial() -> None:
    code = "import signal, sys, time; signal.signal(12, lambda *_: sys.exit(75)); print(flush=True); time.sleep(20)"
    with startup_signals(), subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline()
        before = signal.getsignal(signal.SIGUSR2)
        with forwarded_warnings(process.send_signal):
            signal.raise_signal(signal.SIGUSR2)
        assert signal.getsignal(signal.SIGUSR2) is before
        assert process.wait(10) == 75 and SignalStop.warning == signal.SIGUSR2


class ScriptedWorker(ClusterProcess):
    """A worker whose end and heartbeats are given, by the number of times that the supervisor has listened."""

    pid, host, state, started_at = 1, "here", "S", None

    def __init__(self, end: Tuple[int, int], events: Mapping[int, Callable[[], object]]) -> None:
        super().__init__(LaunchSpec("worker 0", [], {}))
        self.signals: List[int] = []
        self._end, self._events, self._listened = end, events, 0

    @property
    def exit_code(self) -> Optional[int]:
        return self._end[1] if self._listened >= self._end[0] else None

    def listen(self) -> None:
        self._listened += 1
        if self._listened >= 2:
            self.receive({"step": 0, "batches": 1, "waits": False, "generation": 0})
        self._events.get(self._listened, int)()

    def signal(self, number: int) -> None:
        assert self.has_reported  # before, it cannot receive it
        self.signals.append(number)

    def kill(self) -> None:
        pass

    close = kill


def test_a_supervisor_forwards_each_warning_once_and_again_after_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SignalStop, "warning", signal.SIGUSR1)  # during start-up
    monkeypatch.setattr("mxtrain.cluster.supervisor.TICK_S", 0.001)
    workers = [
        ScriptedWorker((6, 1), {}),
        ScriptedWorker((9, 75), {6: lambda: signal.raise_signal(signal.SIGUSR2)}),
    ]
    supervisor = Supervisor(Cluster(workers=1, backoff=0.0), lambda number, stack: [workers[number]], list, str)
    assert supervisor.run() == 75
    assert [worker.signals for worker in workers] == [[signal.SIGUSR1], [signal.SIGUSR1, signal.SIGUSR2]]


@pytest.mark.parametrize("exit_code, number", [(143, signal.SIGTERM), (-1, signal.SIGHUP), (130, signal.SIGINT)])
def test_signal_to_one_worker_before_training_reaches_all(exit_code: int, number: int) -> None:
    worker = ScriptedWorker((0, exit_code), {})
    assert signal_before_training([worker]) == number
    worker.receive({"step": 1, "batches": 1, "waits": False, "generation": 0})
    assert signal_before_training([worker]) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    "number, exit_code", [(signal.SIGUSR1, 75), pytest.param(signal.SIGHUP, 143, marks=pytest.mark.zoo)]
)
def test_a_supervisor_passes_signals_of_schedulers_on(tmp_path: Path, number: signal.Signals, exit_code: int) -> None:
    long = (*SMALL, "model.hidden=[512,512]", "trainer.max_epochs=100000", "early_stopping=off")
    run_dir = tmp_path / "run"
    run = Process(run_dir, *long, "kvstore=dist_sync", "cluster.workers=2", "checkpoint.every_epochs=1000000")
    run.wait_until(has_steps(run_dir, 30)).kill(number).end(exit_code)
    ended = status(run_dir)
    assert (ended["state"], ended["exit_code"], ended["cause"]) == ("interrupted", exit_code, f"{number.name} received")
    assert checkpoints(run_dir)[-1] == f"step-{ended['step']:08d}" and "restart" not in run.output
