"""Kills at random moments in runs on a Ray cluster of three nodes, whose data lie in an object store that answers 503
for a part of the time.

Each run reads records from a bucket, uploads its checkpoints, and is killed several times: a process of the run, the
raylet of a node, the driver of Ray, the supervisor (then the same command is repeated, every other time in an empty run
directory, as on another machine). It must end with the weights and rows of an unbroken run on the local disk.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence

from bench_parts.fault_run import Outcome, Run, differences, kill_below
from bench_parts.harness import ROOT, Measured, Options, ProcessFailed, say
from bench_parts.object_stores import store_process, write_records
from bench_parts.records import append_record, read_records
from mxtrain.checkpoint.folder import TEMPORARY
from mxtrain.kvstore.spec import has_horovod

KILLS, KILLS_PER_RUN = 100, 8
NODES = (2, 1, 1)
"""CPUs of the nodes: one more than two workers and a server need."""
LONGEST_PAUSE_S = 8.0
"""From a kill to the next one: less than a restart takes, or more."""
TRAINS_S = 2.0
"""Longest time from the first step after a restart to the next kill."""
WAIT_S = 30.0
STOPS_S, OF_S = 2.0, 10.0
"""The store answers 503 for two of ten seconds."""
STORES = {"dist_sync": (), "horovod": ("kvstore.elastic=false",)}
TARGETS = ("worker0", "worker1", "server", "scheduler", "raylet", "driver", "supervisor")
MOMENTS = ("any", "save", "upload")
OVERRIDES = (
    "dataset=image_record",
    "dataset.image_size=[32,32]",
    "dataset.batch_size=25",
    "dataset.augment.flip=true",
    "model.dropout=0.3",
    "trainer.max_epochs=25",
    "checkpoint.every_steps=50",
    "cluster.restarts=100",
)
SERVER = """
import sys, time
from pathlib import Path
from object_store import running_store

folder, stops_s, of_s = Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])

def refuse(handler):
    if handler.command == "PUT":
        (folder / "written").touch()
    return time.time() % of_s < stops_s and handler.refuse(503, "SlowDown")

with running_store() as store:
    store.upload(folder / "records", "records")
    store.proxy.fault = refuse
    print(store.proxy.url, flush=True)
    sys.stdin.read()
"""


def why_not(options: Options) -> str:
    """Returns why this cannot be measured here; empty if it can."""
    from importlib.util import find_spec

    missing = [name for name in ("ray", "moto", "s3fs") if find_spec(name) is None]
    return f"{', '.join(missing)} not installed" if missing else ""


@dataclass(frozen=True)
class Kill:
    """A kill that happened.

    Attributes:
        target: one of `TARGETS`.
        moment: the moment that was waited for, one of `MOMENTS`; "start" if no step was taken since the last kill.
    """

    target: str
    moment: str


class RayBench:
    """A cluster, a store, and the unbroken runs.

    Args:
        work: an empty folder.
        stack: ends cluster and store.
    """

    def __init__(self, work: Path, stack: ExitStack):
        sys.path.append(str(ROOT / "tests" / "support"))
        from object_store import BUCKET
        from raylets import Raylets

        self.work, self._bucket = work, BUCKET
        write_records(work, 800)
        self._environment = stack.enter_context(store_process(SERVER, str(work), str(STOPS_S), str(OF_S)))
        self._environment["XDG_CACHE_HOME"] = str(work / "cache")
        # A short name, because it is that of sockets.
        self.temporary = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rf-")))
        self._environment["TMPDIR"] = str(self.temporary)
        os.environ.update(self._environment)  # for the raylets
        self._expected: Dict[str, Outcome] = {}
        self.raylets, self._cpus = Raylets(stack, *NODES), [*NODES]

    def start(self, run_dir: Path, store: str, address: str) -> Run:
        """Starts or continues a run on the cluster that uploads to an address."""
        overrides = [
            *OVERRIDES,
            *STORES[store],
            f"dataset.root=s3://{self._bucket}/records",
            f"checkpoint.upload=s3://{self._bucket}/{address}",
            "cluster.launcher=ray",
            f"cluster.launcher_options=[address={self.raylets.address},wait=30]",
        ]
        return Run(run_dir, store, overrides, environment=self._environment)

    def expected(self, store: str) -> Outcome:
        """Returns the weights and rows of the unbroken run on this machine, which reads from the disk."""
        if store not in self._expected:
            overrides = [*OVERRIDES, *STORES[store], f"dataset.root={self.work / 'records'}"]
            run = Run(self.work / f"unbroken-{store}", store, overrides)
            run.end()
            self._expected[store] = run.outcome()
        return self._expected[store]

    def kill_raylet(self, number: int) -> None:
        """Kills the raylet of a node, and adds another node with as many CPUs."""
        self.raylets.kill(number)
        self._cpus.append(self._cpus[number])
        self.raylets.add(self._cpus[-1])

    def actors(self) -> List[str]:
        """Returns the actors of mxtrain in the cluster: their log files are in its folder."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if b"RelayActor" in (path / "cmdline").read_bytes():
                    opened = [os.path.realpath(link) for link in (path / "fd").glob("*")]
                    if any(name.startswith(str(self.raylets.folder)) for name in opened):
                        found.append(f"actor {path.name}")
        return found


class KilledRun:
    """A run that is killed several times, and continued to its end.

    Args:
        bench: cluster, store and unbroken runs.
        store: option of kvstore.
        number: number of the run, which seeds its random choices.
    """

    def __init__(self, bench: RayBench, store: str, number: int):
        self._bench, self._store, self._number = bench, store, number
        self._random = random.Random(f"{store} {number}")
        self.folder = bench.work / f"{store}-{number}"
        self._run_dirs = [self.folder / "run-0"]
        self._address = f"runs/{store}-{number}"
        self.kills: List[Kill] = []

    def play(self, count: int) -> str:
        """Kills up to so many times; returns how the end differs from that of the unbroken run, or an empty string."""
        expected = self._bench.expected(self._store)
        self.folder.mkdir()
        run = self._start()
        try:
            for _ in range(count):
                following = self._kill(run)
                if following is None:
                    break
                run = following
            run.end()
            found = run.outcome()
            if len(self._run_dirs) > 1:  # rows before the checkpoint stay in the first run directory
                steps = {(row["split"], row["step"]) for row in found[1]}
                expected = expected[0], [row for row in expected[1] if (row["split"], row["step"]) in steps]
            left = run.left(self._bench.actors) or ", ".join(map(str, self._bench.temporary.glob("*mxtrain*")))
            return differences(found, expected, exact=True) or left
        except ProcessFailed as error:
            return str(error).replace(str(self.folder), "...")
        finally:
            kill_below(self.folder)

    def _start(self) -> Run:
        return self._bench.start(self._run_dirs[-1], self._store, self._address)

    def _kill(self, run: Run) -> Optional[Run]:
        """Kills something at a random moment; returns the run that goes on, or None if it has ended before."""
        target = self._random.choice(TARGETS)
        moment = self._random.choice(MOMENTS)
        last = time.time()
        if self._random.random() < 0.5:  # during the restart, most often
            time.sleep(self._random.uniform(0.0, LONGEST_PAUSE_S))
        else:
            self._wait(run, lambda: self._has_trained(last))
            time.sleep(self._random.uniform(0.0, TRAINS_S))
        began = time.time()
        if moment != "any":
            self._wait(run, lambda: self._is_at(moment, began))
        has_begun = self._has_trained(last)
        if not run.is_running() or not self._hit(run, target):
            return None if not run.is_running() else run
        self.kills.append(Kill(target, moment if has_begun else "start"))
        if target != "supervisor":
            return run
        run.end(-signal.SIGKILL)
        problem = run.left(self._bench.actors)
        if problem:
            raise ProcessFailed(f"after the loss of the supervisor: {problem}")
        if self._random.random() < 0.5:
            self._run_dirs.append(self.folder / f"run-{len(self._run_dirs)}")
        return self._start()

    def _wait(self, run: Run, condition: Callable[[], bool]) -> None:
        """Waits until a condition is true, the run has ended, or it takes too long."""
        deadline = time.monotonic() + WAIT_S
        while run.is_running() and not condition() and time.monotonic() < deadline:
            time.sleep(0.002)

    def _has_trained(self, since: float) -> bool:
        """Returns True if a step was taken after a time."""
        rows = self._run_dirs[-1] / "metrics.jsonl"
        return rows.exists() and rows.stat().st_mtime > since

    def _is_at(self, moment: str, began: float) -> bool:
        if moment == "save":
            return any((self._run_dirs[-1] / "checkpoints").glob(f"{TEMPORARY}*"))
        written = self._bench.work / "written"
        return written.exists() and written.stat().st_mtime > began

    def _hit(self, run: Run, target: str) -> bool:
        """Kills a target; returns False if it is not there at this moment."""
        if target == "supervisor":
            os.kill(run.pid, signal.SIGKILL)
            return True
        if target == "driver":
            pid = run.find_child("mxtrain.cluster.ray_driver")
        elif target == "raylet":
            living = [n for n, pid in enumerate(self._bench.raylets.raylets) if Path(f"/proc/{pid}").exists()]
            self._bench.kill_raylet(self._random.choice(living))
            return True
        else:
            found = run.find(target)
            pid = None if found is None else found[0]
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                return True
        return False


def measure(options: Options) -> Measured:
    """Plays runs until there are enough kills, or the time is over."""
    stores = [store for store in STORES if store != "horovod" or has_horovod()]
    records: List[Dict[str, Any]] = read_records(options.records)
    wanted = 2 * len(stores) if options.quick else KILLS
    deadline = time.monotonic() + 60 * options.minutes

    def is_done() -> bool:
        return sum(len(record["kills"]) for record in records) >= wanted or time.monotonic() >= deadline

    with ExitStack() as stack:
        bench = None
        while not is_done():
            bench = bench or RayBench(options.work, stack)
            number = len(records)
            run = KilledRun(bench, stores[number % len(stores)], number // len(stores))
            began = time.monotonic()
            problem = run.play(2 if options.quick else KILLS_PER_RUN)
            record = {
                "store": stores[number % len(stores)],
                "number": number,
                "kills": [[kill.target, kill.moment] for kill in run.kills],
                "problem": problem,
                "seconds": round(time.monotonic() - began, 1),
            }
            say(f"  {record}")
            records.append(record)
            append_record(options.records, record)
            if not problem:
                shutil.rmtree(run.folder)
    return summarize(records)


def summarize(records: Sequence[Dict[str, Any]]) -> Measured:
    """Summarizes the records of runs."""
    found = Measured()
    found.table = [["killed", *STORES, "moments"]]
    for target in TARGETS:
        kills = [(record["store"], moment) for record in records for name, moment in record["kills"] if name == target]
        counts = [str(sum(store == one for one, _ in kills)) for store in STORES]
        moments = Counter(moment for _, moment in kills)
        found.table.append([target, *counts, ", ".join(f"{name} {count}" for name, count in sorted(moments.items()))])
    wrong = [f"{r['store']} {r['number']}: {r['problem']}" for r in records if r["problem"]]
    total = sum(len(record["kills"]) for record in records)
    found.add("runs", "runs", [float(len(records))])
    found.add("kills", "kills", [float(total)])
    found.at_least("kills", total, KILLS)
    found.at_most("runs that are not right", len(wrong), 0)
    found.details["wrong"] = wrong
    return found
