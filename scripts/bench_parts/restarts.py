"""Restart after a process was killed: as always, and by standbys from a state in memory."""

from __future__ import annotations

import os
import re
import signal
import time
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, Dict, List, Mapping, Sequence, Tuple

from bench_parts.fault_run import Outcome, Run, differences
from bench_parts.faults import Bench
from bench_parts.harness import Measured, Options, ProcessFailed, say
from bench_parts.records import append_record, read_records
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
EPOCHS = {"dist_sync": 200, "horovod": 90}
"""Epochs of 20 steps: a run takes about twice the time until the process is killed."""


WAYS = {"always": (), "warm": WARM}


def measure(options: Options) -> Measured:
    """Kills each role of each store, with and without standbys in turn."""
    records = read_records(options.records)
    done = {(record["store"], record["killed"], record["turn"]) for record in records}
    deadline = time.monotonic() + 60 * options.minutes
    turns = range(1 if options.quick else options.turns or 5)
    with ExitStack() as stack:
        bench = Bench(options.work, stack)
        for store in _stores(options):
            expected = None
            for turn, victim in product(turns, VICTIMS[store][: 1 if options.quick else None]):
                if (store, victim, turn) in done or time.monotonic() > deadline:
                    continue
                shared = [f"cluster.workers={WORKERS[store]}", "checkpoint.every_steps=100"]
                shared += [f"trainer.max_epochs={60 if options.quick else EPOCHS[store]}"]
                expected = expected or _unbroken(bench, options, store, shared)
                ready_s = 0.5 if options.quick else READY_S
                record: Dict[str, Any] = {"store": store, "killed": victim, "turn": turn}
                for way, more in WAYS.items():
                    record[way] = _restart(bench, store, victim, way, [*shared, *more], ready_s, expected)
                    say(f"{store}, {victim} killed, {way}, {turn}: {record[way]}")
                records.append(record)
                append_record(options.records, record)
    return summarize(records)


def _stores(options: Options) -> List[str]:
    return [store for store in VICTIMS if options.only in store and (store != "horovod" or has_horovod())]


def _restart(
    bench: Bench, store: str, victim: str, way: str, overrides: Sequence[str], ready_s: float, expected: Outcome
) -> Dict[str, Any]:
    with bench.folder() as folder:
        run = bench.start(folder / "run", store, overrides)
        noticed, until = _kill(run, victim, ready_s, has_survivors=store == "horovod" and victim != "worker 0")
        run.end()
        # Without standbys the ring goes on with other shares, and so with other last bits.
        problem = differences(run.outcome(), expected, store == "dist_sync" or way == "warm") or run.left()
        if problem:
            raise ProcessFailed(f"{store}, {victim} killed, {way}: {problem}")
        return {"noticed_s": noticed, "until_s": until, "same_bits": run.outcome()[0] == expected[0]}


def summarize(records: Sequence[Mapping[str, Any]]) -> Measured:
    """Summarizes restarts, each in both ways."""
    found = Measured(table=[["store", "killed", "way", "runs", "same bits", "noticed after, s", "as far as before, s"]])
    for store, victims in VICTIMS.items():
        for victim in victims:
            own = [record for record in records if (record["store"], record["killed"]) == (store, victim)]
            if own:
                _note(found, store, victim, own)
    return found


def _unbroken(bench: Bench, options: Options, store: str, shared: Sequence[str]) -> Outcome:
    run = bench.start(options.work / f"unbroken-{store}", store, shared)
    run.end()
    return run.outcome()


def _kill(run: Run, victim: str, ready_s: float, has_survivors: bool) -> Tuple[float, float]:
    """Kills a process; returns the seconds until the supervisor has noticed, and until the run was as far as before."""
    # Worker 0 of a ring writes the rows of its last steps after the loss.
    goes_on = re.compile(r"go\s+on\s+after\s+step\s+(\d+)")
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
    if has_survivors:
        before = max(before, int(run.wait(lambda: goes_on.search(run.output))[1]))
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


def _note(found: Measured, store: str, victim: str, records: Sequence[Mapping[str, Any]]) -> None:
    back: Dict[str, List[float]] = {}
    for way in WAYS:
        runs = [record[way] for record in records]
        back[way] = [run["until_s"] - run["noticed_s"] for run in runs]
        noticed = max(run["noticed_s"] for run in runs)
        title = "standbys and memory" if way == "warm" else "as always"
        row = [
            store,
            victim,
            title,
            str(len(runs)),
            str(sum(run["same_bits"] for run in runs)),
            f"at most {noticed:.2f}",
        ]
        found.table.append([*row, f"{median(back[way]):.2f} (longest {max(back[way]):.2f})"])
    name = f"{store}, {victim} killed"
    found.add(f"{name}: as far as before after, as always", "s", back["always"])
    found.add(f"{name}: as far as before after, warm", "s", back["warm"])
    found.at_most(f"{name}: longest, warm", max(back["warm"]), MOST_S)
    found.compare(f"{name}: as always / warm", back["always"], back["warm"], None)
