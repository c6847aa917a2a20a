"""Restart after a process was killed: as always, and by standbys from a state in memory."""

from __future__ import annotations

import os
import signal
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Dict, List, Mapping, Sequence, Tuple

from bench_parts.fault_run import Outcome, Run, differences
from bench_parts.faults import Bench
from bench_parts.harness import Measured, Options, ProcessFailed, say
from mxtrain.cluster.member import STANDBY_FD
from mxtrain.kvstore.spec import has_horovod

WARM = ("cluster.standby=true", "cluster.memory_steps=10")
MOST_S = 3.0
"""Seconds after the detection in which the run must be as far as before."""
READY_S = 12.0
"""Least seconds after the first steps until the process is killed, in both ways."""
IDLE_S = 2.0
"""Seconds without work after which a standby has loaded everything."""
VICTIMS = {"dist_sync": ("worker 1", "worker 0", "server"), "horovod": ("worker 1", "worker 0")}
WORKERS = {"dist_sync": 2, "horovod": 3}


def measure(options: Options) -> Measured:
    """Kills each role of each store, with and without standbys in turn."""
    found = Measured(table=[["store", "killed", "way", "runs", "same bits", "noticed after, s", "as far as before, s"]])
    stores = [store for store in VICTIMS if store != "horovod" or has_horovod()]
    with ExitStack() as stack:
        bench = Bench(options.work, stack)
        for store in stores:
            shared = [f"cluster.workers={WORKERS[store]}", "checkpoint.every_steps=100"]
            shared += [f"trainer.max_epochs={60 if options.quick else 250}"]
            expected = _unbroken(bench, options, store, shared)
            for victim in VICTIMS[store][: 1 if options.quick else None]:
                seconds: Dict[str, List[Tuple[float, float]]] = {"always": [], "warm": []}
                same = {"always": 0, "warm": 0}
                for turn in range(1 if options.quick else options.turns or 5):
                    for way, more in (("always", ()), ("warm", WARM)):
                        with bench.folder() as folder:
                            run = bench.start(folder / "run", store, [*shared, *more])
                            seconds[way].append(_kill(run, victim, 0.5 if options.quick else READY_S))
                            run.end()
                            # Without standbys the ring goes on with other shares, and so with other last bits.
                            problem = differences(run.outcome(), expected, store == "dist_sync" or way == "warm")
                            problem = problem or run.left()
                            if problem:
                                raise ProcessFailed(f"{store}, {victim} killed, {way}: {problem}")
                            same[way] += run.outcome()[0] == expected[0]
                        say(f"{store}, {victim} killed, {way}, {turn}: {seconds[way][-1][1]:.2f} s")
                _note(found, store, victim, seconds, same)
    return found


def _unbroken(bench: Bench, options: Options, store: str, shared: Sequence[str]) -> Outcome:
    run = bench.start(options.work / f"unbroken-{store}", store, shared)
    run.end()
    return run.outcome()


def _kill(run: Run, victim: str, ready_s: float) -> Tuple[float, float]:
    """Kills a process; returns the seconds until the supervisor has noticed, and until the run was as far as before."""
    run.wait(lambda: run.steps() >= 20)
    ready = time.monotonic() + ready_s
    run.wait(lambda: time.monotonic() > ready)
    standbys: List[int] = []
    while True:
        pid, variables = run.wait_for(victim.replace(" ", ""), standbys)
        if STANDBY_FD not in variables:
            break
        standbys.append(pid)
    extra = run.find(victim.replace(" ", ""), [pid])  # its standby may come later in the list
    for standby in [*standbys, *([extra[0]] if extra else [])]:
        _wait_until_idle(run, standby)
    before, began = run.steps(), time.monotonic()
    os.kill(pid, signal.SIGKILL)
    noticed = run.wait(lambda: run.said("was ended by SIGKILL", began))
    run.wait_until_past(before, noticed)
    return noticed - began, time.monotonic() - began


def _wait_until_idle(run: Run, pid: int) -> None:
    """Waits until a process has used no processor time for `IDLE_S`."""
    used, since = "", time.monotonic()

    def is_idle() -> bool:
        nonlocal used, since
        now = " ".join((Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[11:13])
        # Its heartbeat takes less than a tick of the clock in a second, or one.
        if sum(map(int, now.split())) > sum(map(int, used.split())) + 3 or not used:
            used, since = now, time.monotonic()
        return time.monotonic() - since > IDLE_S

    run.wait(is_idle)


def _note(
    found: Measured,
    store: str,
    victim: str,
    seconds: Mapping[str, Sequence[Tuple[float, float]]],
    same: Mapping[str, int],
) -> None:
    back = {way: [until - noticed for noticed, until in values] for way, values in seconds.items()}
    for way, values in back.items():
        ordered = sorted(values)
        median = ordered[len(ordered) // 2]
        noticed = max(noticed for noticed, _ in seconds[way])
        title = "standbys and memory" if way == "warm" else "as always"
        row = [store, victim, title, str(len(values)), str(same[way]), f"at most {noticed:.2f}"]
        found.table.append([*row, f"{median:.2f} (longest {ordered[-1]:.2f})"])
    name = f"{store}, {victim} killed"
    found.add(f"{name}: as far as before after, as always", "s", back["always"])
    found.add(f"{name}: as far as before after, warm", "s", back["warm"])
    found.at_most(f"{name}: longest, warm", max(back["warm"]), MOST_S)
    found.compare(f"{name}: as always / warm", back["always"], back["warm"], None)
