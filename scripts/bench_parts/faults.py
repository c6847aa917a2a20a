"""Faults in a run of several processes, at random moments: how soon they are noticed, how long until the run is as far
as it was or has ended with the cause, and what becomes of the weights."""

from __future__ import annotations

import os
import queue
import random
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from bench_parts import network, poisoned
from bench_parts.fault_run import Outcome, Run, differences, kill_below
from bench_parts.harness import Measured, Options, ProcessFailed, say
from bench_parts.records import append_record, read_records
from mxtrain.errors import EXIT_BAD_INPUT, EXIT_CRASHED, EXIT_NON_FINITE
from mxtrain.kvstore.spec import has_horovod

REPETITIONS = 20
AT_ONCE = 2
"""Runs side by side: each waits most of its time."""
NOTICED_S = 5.0
"""cluster.heartbeat_timeout: within this a process that was stopped, or a host that is cut off, has to be noticed."""
EPOCHS, FIRST_STEP, LAST_STEP = 10, 20, 120


class Bench:
    """Shared resources of all faults.

    Args:
        work: an empty folder.
        stack: takes networks back.
        quick: short runs.
    """

    def __init__(self, work: Path, stack: ExitStack, quick: bool = False):
        self._work, self._stack, self._lock = work, stack, threading.Lock()
        self._epochs, self._last_step = (4, 40) if quick else (EPOCHS, LAST_STEP)
        self._expected: Dict[Sequence[str], Outcome] = {}
        self._networks: queue.SimpleQueue[network.Network] = queue.SimpleQueue()
        self._count = 0

    @contextmanager
    def folder(self) -> Iterator[Path]:
        """An empty one, that is removed afterwards."""
        with self._lock:
            self._count += 1
            path = self._work / str(self._count)
        path.mkdir()
        try:
            yield path
        finally:
            kill_below(path)
            shutil.rmtree(path)

    def step(self, seed: str) -> int:
        """At which to do something, by chance."""
        return random.Random(seed).randint(FIRST_STEP, self._last_step)

    def start(
        self,
        run_dir: Path,
        store: str,
        overrides: Sequence[str] = (),
        before: Sequence[str] = (),
        environment: Optional[Mapping[str, str]] = None,
    ) -> Run:
        """A run, of as many steps as all; see `Run`."""
        return Run(run_dir, store, [f"trainer.max_epochs={self._epochs}", *overrides], before, environment)

    def expected(self, store: str, overrides: Sequence[str] = ()) -> Outcome:
        """Weights of the undisturbed run."""
        key = (store, *overrides)
        with self._lock:
            if key not in self._expected:
                run = self.start(self._work / f"undisturbed-{len(self._expected)}", store, overrides)
                run.end()
                self._expected[key] = run.outcome()
            return self._expected[key]

    @contextmanager
    def network(self) -> Iterator[network.Network]:
        """Two hosts without other load."""
        try:
            hosts = self._networks.get_nowait()
        except queue.Empty:
            with self._lock:
                self._count += 1
                folder = self._work / f"network-{self._count}"
                folder.mkdir()
                hosts = network.Network(folder, self._stack, count=2)
        yield hosts
        self._networks.put(hosts)


@dataclass(frozen=True)
class Seconds:
    """Seconds measured for one fault; None: there was nothing to notice, or no recovery to measure."""

    noticed: Optional[float] = None
    back: Optional[float] = None
    problem: str = ""


@dataclass(frozen=True)
class Fault:
    """A fault that is injected into a run.

    Attributes:
        name: for the table.
        store: of the run.
        exact: whether the final weights must be those of the undisturbed run to the bit.
    """

    name: str
    store: str
    exact: bool = True
    limit: Optional[float] = None
    """Seconds in which it must be noticed."""

    def play(self, bench: Bench, folder: Path, step: int) -> Seconds:
        """One run to its end.

        Raises:
            ProcessFailed: it did not end as it should.
        """
        raise NotImplementedError

    def compare(self, bench: Bench, run: Run, strangers: Any = list, overrides: Sequence[str] = ()) -> str:
        """Compares a finished run with the undisturbed one; returns the differences, or an empty string."""
        expected = bench.expected(self.store, overrides)
        return differences(run.outcome(), expected, self.exact) or run.left(strangers)


@dataclass(frozen=True)
class Blows(Fault):
    """Signals to processes.

    Attributes:
        blows: (role, signal), one after the other; each after the first strikes the process that replaced the one
            before, or another role, as soon as it is there.
    """

    blows: Sequence[Tuple[str, int]] = ()

    def play(self, bench: Bench, folder: Path, step: int) -> Seconds:
        run = bench.start(folder / "run", self.store)
        run.wait(lambda: run.steps() >= step)
        struck: List[int] = []
        for role, number in self.blows:
            pid, _ = run.wait_for(role, struck)
            if not struck:
                before, began = run.steps(), time.monotonic()
            os.kill(pid, number)
            struck.append(pid)
        noticed = run.wait(lambda: run.noticed(began))
        run.wait_until_past(before, noticed)
        back = time.monotonic()
        run.end()
        return Seconds(noticed - began, back - began, self.compare(bench, run))


@dataclass(frozen=True)
class Pause(Fault):
    """One process is stopped for so many seconds, fewer than its heartbeat may be missing: the others wait for it."""

    role: str = "worker1"
    seconds: float = 1.0

    def play(self, bench: Bench, folder: Path, step: int) -> Seconds:
        run = bench.start(folder / "run", self.store)
        run.wait(lambda: run.steps() >= step)
        began = time.monotonic()
        pid, _ = run.wait_for(self.role)
        os.kill(pid, STOP)
        time.sleep(self.seconds)
        os.kill(pid, signal.SIGCONT)
        run.wait_until_past(run.steps(), time.monotonic())
        back = time.monotonic()
        run.end()
        return Seconds(run.noticed_after(began), back - began, self.compare(bench, run))


@dataclass(frozen=True)
class DamagedCheckpoint(Fault):
    """All processes are killed, and a byte of the newest checkpoint changes before the run is started again."""

    def play(self, bench: Bench, folder: Path, step: int) -> Seconds:
        run = bench.start(folder / "run", self.store)
        checkpoints = folder / "run" / "checkpoints"
        run.wait(lambda: run.steps() >= step and len(list(checkpoints.glob("step-*"))) >= 2)
        before = run.steps()
        os.kill(run.pid, KILL)
        problem = run.left()
        draw = random.Random(step)
        newest = max(checkpoints.glob("step-*"))
        path = draw.choice(sorted(path for path in newest.iterdir() if path.stat().st_size))
        content = bytearray(path.read_bytes())
        content[draw.randrange(len(content))] ^= 0xFF
        path.write_bytes(content)
        again = bench.start(folder / "run", self.store)
        again.wait_until_past(before, again.began)
        back = time.monotonic()
        again.end()
        if newest.name not in again.output:
            problem = problem or f"{newest.name} was not named: {again.tail()}"
        return Seconds(None, back - again.began, problem or self.compare(bench, again))


@dataclass(frozen=True)
class OverHosts(Fault):
    """A fault of a network of two hosts."""

    def start(self, bench: Bench, hosts: network.Network, folder: Path, *overrides: str) -> Run:
        """A run that the first one supervises."""
        return bench.start(folder / "run", self.store, [*hosts.over_ssh(folder), *overrides], hosts.on(1))


@dataclass(frozen=True)
class Partition(OverHosts):
    """The link between the hosts is down for so many seconds."""

    seconds: float = 5.0

    def play(self, bench: Bench, folder: Path, step: int) -> Seconds:
        with bench.network() as hosts:
            run = self.start(bench, hosts, folder)
            try:
                run.wait(lambda: run.steps() >= step)
                before, began = run.steps(), time.monotonic()
                hosts.set_link(2, "down")
                time.sleep(self.seconds)
            finally:
                hosts.set_link(2, "up")
            run.wait_until_past(before, max(time.monotonic(), run.noticed(began) or 0.0))
            back = time.monotonic()
            run.end()
            problem = self.compare(bench, run, hosts.strangers)
            return Seconds(run.noticed_after(began), back - began, problem)


@dataclass(frozen=True)
class Loss(OverHosts):
    """So many percent of the packets to each host are lost, from a moment on to the end."""

    percent: int = 5

    def play(self, bench: Bench, folder: Path, step: int) -> Seconds:
        with bench.network() as hosts:
            run = self.start(bench, hosts, folder)
            run.wait(lambda: run.steps() >= step)
            began = time.monotonic()
            for number in (1, 2):
                hosts.drop(number, self.percent)
            try:
                ended = run.end()
            finally:
                lost = [hosts.keep(number) for number in (1, 2)]
            problem = self.compare(bench, run, hosts.strangers) or ("" if all(lost) else "no packet was lost")
            return Seconds(run.noticed_after(began), ended - began, problem)


@dataclass(frozen=True)
class MissingHost(OverHosts):
    """A host of the file does not answer; later it does."""

    def play(self, bench: Bench, folder: Path, step: int) -> Seconds:
        with bench.network() as hosts:
            hosts.set_link(2, "down")
            try:
                run = self.start(bench, hosts, folder)
                noticed = run.end(EXIT_BAD_INPUT, f"{hosts.addresses[1]} cannot be reached") - run.began
            finally:
                hosts.set_link(2, "up")
            problem = run.left(hosts.strangers) or ("it has written" if (folder / "run").exists() else "")
            again = self.start(bench, hosts, folder)
            again.end()
            return Seconds(noticed, None, problem or self.compare(bench, again, hosts.strangers))


@dataclass(frozen=True)
class LostHost(OverHosts):
    """A host goes away for good while its processes start; later it is back."""

    def play(self, bench: Bench, folder: Path, step: int) -> Seconds:
        with bench.network() as hosts:
            run = self.start(bench, hosts, folder, "cluster.start_timeout=10")
            try:
                run.wait_for("worker1")
                time.sleep(step / LAST_STEP)  # a moment of its first second
                began = time.monotonic()
                hosts.set_link(2, "down")
                ended = run.end(EXIT_CRASHED, f"{hosts.addresses[1]} cannot be reached")
            finally:
                hosts.set_link(2, "up")
            problem = run.left(hosts.strangers)
            again = self.start(bench, hosts, folder)
            again.end()
            problem = problem or self.compare(bench, again, hosts.strangers)
            return Seconds(run.noticed_after(began), ended - began, problem)


@dataclass(frozen=True)
class TakenPort(OverHosts):
    """Another program takes the scheduler's port before it listens there."""

    def play(self, bench: Bench, folder: Path, step: int) -> Seconds:
        code = "import socket, sys, time; s = socket.create_server((sys.argv[1], int(sys.argv[2]))); time.sleep(3600)"
        with bench.network() as hosts, ExitStack() as stack:
            run = self.start(bench, hosts, folder)
            _, told = run.wait_for("scheduler")
            began = time.monotonic()
            thief = subprocess.Popen(
                [*hosts.on(1), sys.executable, "-S", "-c", code, told["DMLC_PS_ROOT_URI"], told["DMLC_PS_ROOT_PORT"]]
            )
            stack.callback(thief.wait)
            stack.callback(thief.kill)
            noticed = run.wait(lambda: run.noticed(began))
            run.wait_until_past(0, noticed)
            back = time.monotonic()
            run.end()
            thief.kill()
            thief.wait()
            return Seconds(noticed - began, back - began, self.compare(bench, run, hosts.strangers))


@dataclass(frozen=True)
class NeverUp(Fault):
    """Worker 1 starts, and never gets anywhere; the next time it does."""

    def play(self, bench: Bench, folder: Path, step: int) -> Seconds:
        (folder / "sitecustomize.py").write_text(
            "import os, time\nif os.environ.get('MXTRAIN_WORKER') == '1':\n    time.sleep(3600)\n"
        )
        path = os.pathsep.join([str(folder), *sys.path])
        given = ("cluster.start_timeout=10", "cluster.restarts=0")
        run = bench.start(folder / "run", self.store, given, environment={"PYTHONPATH": path})
        cause = "had not begun to train after cluster.start_timeout=10 s"
        ended = run.end(EXIT_CRASHED, cause)
        problem = run.left() or (
            ""
            if f"worker 1 (process {_pid_in(run.output)}) {cause}" in run.output
            else f"worker 1 was not named: {run.tail()}"
        )
        again = bench.start(folder / "run", self.store)
        again.end()
        return Seconds(ended - run.began, None, problem or self.compare(bench, again))


@dataclass(frozen=True)
class FullDisk(Fault):
    """The disk of the run directory, which worker 0 writes, is full from a moment on; later it has space again.

    Attributes:
        for_good: until the run has ended; else until it has said so.
    """

    for_good: bool = False

    def play(self, bench: Bench, folder: Path, step: int) -> Seconds:
        words = "No space left on device"
        disk = folder / "disk"
        disk.mkdir()
        network.run("mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(disk))
        try:
            run = bench.start(disk / "run", self.store, ["cluster.restarts=0"])
            run.wait(lambda: run.steps() >= step)
            began = time.monotonic()
            _fill(disk / "filler")
            noticed = run.wait(lambda: run.said(words, began))
            if self.for_good:
                run.end(EXIT_CRASHED, words)
                problem = run.left()
                (disk / "filler").unlink()
                run = bench.start(disk / "run", self.store)
            else:
                (disk / "filler").unlink()
                problem = ""
            run.end()
            return Seconds(noticed - began, None, problem or self.compare(bench, run))
        finally:
            network.run("umount", "-l", str(disk))


@dataclass(frozen=True)
class NotANumber(Fault):
    """The images of one worker are NaN from a moment on; the next time they are not."""

    def play(self, bench: Bench, folder: Path, step: int) -> Seconds:
        given = ("dataset._target_=bench_parts.poisoned.Digits",)
        told = {poisoned.FILE: str(folder / "poison")}
        run = bench.start(folder / "run", self.store, given, environment=told)
        run.wait(lambda: run.steps() >= step)
        began = time.monotonic()
        (folder / "poison").touch()
        ended = run.end(EXIT_NON_FINITE, "of worker 1")
        problem = run.left()
        (folder / "poison").unlink()
        again = bench.start(folder / "run", self.store, given, environment=told)
        again.end()
        return Seconds(ended - began, None, problem or self.compare(bench, again, overrides=given))


KILL, STOP = signal.SIGKILL, signal.SIGSTOP


def blows(name: str, store: str, *struck: Tuple[str, int], exact: bool = True) -> Blows:
    """Limits follow from the signals."""
    stops = any(number == STOP for _, number in struck)
    return Blows(name, store, exact, NOTICED_S + 1 if stops else 1.0, blows=struck)


def _of_both(store: str) -> Sequence[Fault]:
    """Returns faults for runs of either store."""
    return (
        Partition("partition of 5 s", store, seconds=5.0),
        Partition("partition of 60 s", store, limit=NOTICED_S + 1, seconds=60.0),
        Loss("5 % of packets lost", store),
        MissingHost("host missing at start", store, limit=NOTICED_S + 5),
        LostHost("host lost for good while the group starts", store),
        NeverUp("worker 1 never comes up", store, limit=10.0 + 5),
        FullDisk("disk of worker 0 full for a while", store),
        FullDisk("disk of worker 0 full for good", store, for_good=True),
        NotANumber("NaN in worker 1", store),
        Pause("worker 1 stopped for 1 s", store),
        DamagedCheckpoint("newest checkpoint damaged", store),
    )


def _of_each(store: str, role: str, name: str, exact: bool = True) -> Sequence[Fault]:
    return [blows(f"{name} {word}", store, (role, number), exact=exact) for word, number in SIGNALS]


SIGNALS = (("killed", KILL), ("stopped", STOP))
# Horovod has no port to take: the kernel chooses those when they are bound.
FAULTS: Sequence[Fault] = (
    *_of_each("dist_sync", "worker0", "worker 0"),
    *_of_each("dist_sync", "worker1", "worker 1"),
    *_of_each("dist_sync", "server", "server"),
    *_of_each("dist_sync", "scheduler", "scheduler"),
    blows("worker 1 killed, and again while the group starts", "dist_sync", ("worker1", KILL), ("worker1", KILL)),
    blows("server and then worker 0 killed", "dist_sync", ("server", KILL), ("worker0", KILL)),
    TakenPort("the scheduler's port is taken", "dist_sync"),
    *_of_both("dist_sync"),
    blows("worker 0 killed", "horovod", ("worker0", KILL)),
    blows("worker 0 stopped", "horovod", ("worker0", STOP), exact=False),
    *_of_each("horovod", "worker1", "worker 1", exact=False),
    blows(
        "worker 1 killed, and its replacement while it starts",
        "horovod",
        ("worker1", KILL),
        ("worker1", KILL),
        exact=False,
    ),
    blows("worker 1 and then worker 0 killed", "horovod", ("worker1", KILL), ("worker0", KILL), exact=False),
    *_of_both("horovod"),
)
QUICK = "worker 1 killed"


def measure(options: Options) -> Measured:
    """All faults that this machine can play."""
    faults = [fault for fault in FAULTS if fault.store != "horovod" or has_horovod()]
    reason, lossless = network.unsupported_reason(), shutil.which("nft", path=network.SEARCH) is None
    left_out = (OverHosts, FullDisk) if reason else (Loss,) if lossless else ()
    faults = [fault for fault in faults if not isinstance(fault, left_out)]
    if options.quick:
        faults = [fault for fault in faults if fault.name == QUICK][:1]
    records = read_records(options.records)
    done = {(r["store"], r["fault"], r["repetition"]) for r in records}
    # Each of them once, then each of them again: wherever it ends, all have as many runs.
    runs = [
        (fault, number)
        for number in range(1 if options.quick else REPETITIONS)
        for fault in faults
        if (fault.store, fault.name, number) not in done
    ]
    deadline = time.monotonic() + 60 * options.minutes
    with ExitStack() as stack:
        bench = Bench(options.work, stack, options.quick)

        def play_in_time(run: Tuple[Fault, int]) -> Optional[Dict[str, Any]]:
            record = play(bench, *run) if time.monotonic() < deadline else None
            if record is not None:
                append_record(options.records, record)
            return record

        with ThreadPoolExecutor(AT_ONCE) as pool:
            records += [record for record in pool.map(play_in_time, runs) if record is not None]
    found = summarize(records)
    if left_out:
        found.notes.append(f"Some faults are left out: {reason or 'nft is not installed (apt-get install nftables)'}.")
    return found


def play(bench: Bench, fault: Fault, repetition: int) -> Dict[str, Any]:
    """The record of one run."""
    step = bench.step(f"{fault.store} {fault.name} {repetition}")
    with bench.folder() as folder:
        try:
            seconds = fault.play(bench, folder, step)
        except ProcessFailed as error:
            seconds = Seconds(problem=str(error).replace(str(folder), "..."))
    say(f"  {fault.store}, {fault.name}, {repetition}, step {step}: {seconds.problem or 'right'}")
    return {"store": fault.store, "fault": fault.name, "repetition": repetition, "step": step, **asdict(seconds)}


def summarize(records: Sequence[Mapping[str, Any]]) -> Measured:
    """Summarizes the records of faults."""
    found = Measured()
    found.table = [["store", "fault", "runs", "right", "noticed after, s", "as far as before, or ended, after, s"]]
    wrong = [f"{r['store']}, {r['fault']}, step {r['step']}: {r['problem']}" for r in records if r["problem"]]
    for fault in FAULTS:
        mine = [r for r in records if (r["store"], r["fault"]) == (fault.store, fault.name)]
        if not mine:
            continue
        name = f"{fault.store}, {fault.name}"
        cells = []
        for key, words in (("noticed", "noticed after"), ("back", "as far as before, or ended, after")):
            values = [r[key] for r in mine if r[key] is not None]
            cells.append(f"{statistics.median(values):.2f} (longest {max(values):.2f})" if values else "")
            if values:
                found.add(f"{name}: {words}", "s", values)
            if values and key == "noticed" and fault.limit is not None:
                found.at_most(f"{name}: noticed, longest, s", max(values), fault.limit)
        right = sum(not r["problem"] for r in mine)
        found.table.append([fault.store, fault.name, str(len(mine)), str(right), *cells])
    found.at_most("runs that are not right", len(wrong), 0)
    found.details["wrong"] = wrong
    return found


def _fill(path: Path) -> None:
    """Takes all the space there is."""
    with open(path, "wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while True:
                    file.write(b"\0" * size)
            except OSError:
                continue


def _pid_in(output: str) -> str:
    return output.partition("worker 1 (process ")[2].partition(")")[0]
