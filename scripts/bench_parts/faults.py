"""Faults in a run of several processes, at random moments: how soon they are noticed, how long until the run is as far
as it was, and what becomes of the weights."""

from __future__ import annotations

import json
import os
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from bench_parts.measured import Measured, Options, Series, Target, say
from bench_parts.processes import ProcessFailed, untouched_environment

REPETITIONS = 20
TIMEOUT_S = 180
NOTICED_S = 5.0
"""cluster.heartbeat_timeout: within this a process that was stopped has to be noticed."""
RUN = (
    "model=mlp", "model.hidden=[256]", "dataset.batch_size=64", "trainer.max_epochs=25", "trainer.log_interval=1",
    "checkpoint.every_steps=20", "early_stopping=off", "cluster.workers=2", "cluster.backoff=0.1",
    "logger.console.show_config=false", "logger.console.show_model=false", "logger=[jsonl,console]",
)  # fmt: skip
FIRST_STEP, LAST_STEP = 20, 300


@dataclass(frozen=True)
class Fault:
    """What is done to a run.

    Attributes:
        name: for the table.
        store: of the run.
        blows: (role, signal), one after the other; each after the first strikes the process that replaced the one
            before, or another role, as soon as it is there.
        exact: whether the final weights must be those of the undisturbed run to the bit.
    """

    name: str
    store: str
    blows: Sequence[Tuple[str, int]]
    exact: bool = True


KILL, STOP = signal.SIGKILL, signal.SIGSTOP
FAULTS = (
    Fault("worker 0 killed", "dist_sync", [("worker0", KILL)]),
    Fault("worker 1 killed", "dist_sync", [("worker1", KILL)]),
    Fault("server killed", "dist_sync", [("server", KILL)]),
    Fault("scheduler killed", "dist_sync", [("scheduler", KILL)]),
    Fault("worker 1 stopped", "dist_sync", [("worker1", STOP)]),
    Fault("server stopped", "dist_sync", [("server", STOP)]),
    Fault("worker 1 killed, and again while the group starts", "dist_sync", [("worker1", KILL), ("worker1", KILL)]),
    Fault("server and then worker 0 killed", "dist_sync", [("server", KILL), ("worker0", KILL)]),
    Fault("worker 0 killed", "horovod", [("worker0", KILL)]),
    Fault("worker 1 killed", "horovod", [("worker1", KILL)], exact=False),
    Fault("worker 1 stopped", "horovod", [("worker1", STOP)], exact=False),
    Fault("worker 1 killed, and its replacement while it starts", "horovod", [("worker1", KILL)] * 2, exact=False),
)


def measure(options: Options) -> Measured:
    found = Measured(notes=[
        "Two workers (dist_sync: a server and a scheduler as well) on this machine, an MLP on the default data, 400 "
        "steps of a few ms, a checkpoint every 20 steps; the fault at a random step from 20 to 300. Noticed: from the "
        "fault to the supervisor's word. As far as before: from the fault to the end of the step after the last "
        "one before it.",
        "With horovod the other worker goes on alone when worker 1 is lost, and the last bits change with the number "
        "of workers: there, losses are compared (1e-2) instead of bits. All rows of metrics.jsonl must be there, once.",
    ])  # fmt: skip
    faults = (FAULTS[1], FAULTS[9]) if options.quick else FAULTS
    expected = {store: Run(options.work / store, store).end() for store in {fault.store for fault in faults}}
    wrong: List[str] = []
    for number, fault in enumerate(faults):
        chance = random.Random(number)
        noticed, back = [], []
        for repetition in range(1 if options.quick else REPETITIONS):
            run = Run(options.work / f"{number}-{repetition}", fault.store)
            try:
                seconds = run.strike(fault.blows, chance.randint(FIRST_STEP, LAST_STEP))
                problem = differences(run.end(), expected[fault.store], fault.exact)
            except ProcessFailed as error:
                seconds, problem = None, str(error)
            if seconds is not None:
                noticed.append(seconds[0])
                back.append(seconds[1])
            if problem:
                wrong.append(f"{fault.store}, {fault.name}: {problem}")
                say(f"  {wrong[-1]}")
        name = f"{fault.store}, {fault.name}"
        found.series += [Series(f"{name}: noticed after", "s", noticed), Series(f"{name}: as far as before", "s", back)]
        say(f"  {name}: noticed {statistics.median(noticed):.2f} s, as far as before {statistics.median(back):.2f} s")
        limit = NOTICED_S + 1 if STOP in dict((n, r) for r, n in fault.blows) else 1.0
        found.targets.append(Target(f"{name}: noticed, longest, s", max(noticed), limit, at_least=False))
    found.targets.append(Target("runs with other weights, or with rows missing or twice", len(wrong), 0, False))
    found.details["wrong"] = wrong
    return found


Outcome = Tuple[str, List[Dict[str, Any]]]


class Run:
    """One run of several processes, and what its supervisor says when."""

    def __init__(self, folder: Path, store: str):
        folder.mkdir()
        self._run_dir = folder / "run"
        environment = {**untouched_environment(), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "mxtrain", f"hydra.run.dir={self._run_dir}", f"kvstore={store}", *RUN],
            env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        self._lines: List[Tuple[float, str]] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.append((time.monotonic(), line))

    def strike(self, blows: Sequence[Tuple[str, int]], step: int) -> Tuple[float, float]:
        """(seconds until it was noticed, seconds until the run was as far as before), of the first blow."""
        self._wait(lambda: self._steps() >= step)
        struck: List[int] = []
        began = time.monotonic()
        for role, number in blows:
            self._wait(lambda role=role: self._find(role, struck) is not None)
            pid = self._find(role, struck)
            assert pid is not None
            if not struck:
                before, began = self._steps(), time.monotonic()
            os.kill(pid, number)
            struck.append(pid)
        self._wait(lambda: self._said_after(began) is not None)
        noticed = self._said_after(began)
        assert noticed is not None
        # The rows after the checkpoint are taken back at a restart, and come again.
        self._wait(lambda: self._seen_again(before, began))
        return noticed - began, time.monotonic() - began

    def end(self) -> Outcome:
        """Waits for the end, which must be good."""
        try:
            code = self._process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise ProcessFailed(f"did not end in {TIMEOUT_S} s: {self._tail()}") from None
        if code:
            raise ProcessFailed(f"exit code {code}: {self._tail()}")
        rows = [json.loads(line) for line in (self._run_dir / "metrics.jsonl").read_text().splitlines()]
        for row in rows:
            row.pop("samples_per_s")
        return json.loads((self._run_dir / "status.json").read_text())["weights_sha256"], rows

    def _said_after(self, began: float) -> Optional[float]:
        words = ("all processes are ended", "go on without it")
        return next((at for at, line in self._lines if at > began and any(word in line for word in words)), None)

    def _seen_again(self, before: int, began: float) -> bool:
        file = self._run_dir / "metrics.jsonl"
        noticed = self._said_after(began)
        changed = noticed is not None and file.stat().st_mtime > time.time() - (time.monotonic() - noticed)
        return changed and self._steps() > before

    def _steps(self) -> int:
        try:
            lines = (self._run_dir / "metrics.jsonl").read_text().splitlines()
            return max((json.loads(line)["step"] for line in lines[-2:]), default=0)
        except (OSError, ValueError):
            return 0

    def _find(self, role: str, struck: Sequence[int]) -> Optional[int]:
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if str(self._run_dir) not in (path / "cmdline").read_text() or int(path.name) in struck:
                    continue
                pairs = (part.partition("=") for part in (path / "environ").read_text().split("\0"))
                variables: Mapping[str, str] = {name: value for name, _, value in pairs}
                if variables.get("DMLC_ROLE", "") + variables.get("MXTRAIN_WORKER", "") == role:
                    return int(path.name)
            except (OSError, UnicodeDecodeError):
                continue
        return None

    def _wait(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not condition():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self._process.kill()
                raise ProcessFailed(f"ended or hung before its time: {self._tail()}")
            time.sleep(0.01)

    def _tail(self) -> str:
        return " | ".join(line.strip() for _, line in self._lines[-4:])


def differences(found: Outcome, expected: Outcome, exact: bool) -> str:
    """What is wrong, or an empty string."""
    if [(row["split"], row["step"]) for row in found[1]] != [(row["split"], row["step"]) for row in expected[1]]:
        return "rows missing or twice"
    if exact:
        return "" if found == expected else "other weights or other rows"
    off = max(abs(a["loss"] - b["loss"]) / max(b["loss"], 1e-3) for a, b in zip(found[1], expected[1]))
    return "" if off < 1e-2 else f"a loss is off by {off:.1%}"
