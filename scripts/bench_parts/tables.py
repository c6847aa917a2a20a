"""Tables whose rows are on parameter servers: in a worker that could not hold them, and over links with a delay."""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from bench_parts import network
from bench_parts.clock import StepClock
from bench_parts.measured import Measured, Options, Series, say
from bench_parts.processes import TIMEOUT_S, ProcessFailed, mxtrain_arguments, untouched_environment
from mxtrain.errors import EXIT_BUDGET, EXIT_FINISHED

LIMIT = 1 << 30
"""Bytes that the worker may have in memory."""
MEMORY_GROUPS = Path("/sys/fs/cgroup/memory")
"""Control groups of version 1."""
WARM_UP, UNITS, COLUMNS = 20, 16, 8
DELAYS_MS = (0, 5, 20)
COMMON = ("task=tabular", "dataset=feature_table", "model=deepfm", "optimizer=adam", "early_stopping=off",
          "logger=[jsonl]", "trainer.test=false")  # fmt: skip
SPARSE = ("trainer.sparse_grad=true", "optimizer.lazy_update=true")
DENSE, AT_WORKER, ON_SERVERS = (
    "gradients of all rows (kvstore=local)",
    "tables at the worker (kvstore=local)",
    "tables on two servers",
)


@dataclass(frozen=True)
class Found:
    """What a run told.

    Attributes:
        samples_per_s: of worker 0's steps after the first ones, without what is between epochs; batches are those of
            all workers.
        wall_s: of the training with its validations and checkpoints.
        metrics: of status.json.
        steps: that were made.
        peak_MiB: resident set of each kind of process.
    """

    samples_per_s: float
    wall_s: float
    metrics: Dict[str, float]
    steps: int
    peak_MiB: Dict[str, float]


def measure(options: Options) -> Measured:
    found = Measured(notes=[
        f"memory: rows x ({UNITS} + 1) numbers of DeepFM, Adam with lazy updates, {COLUMNS} ids a sample, each as "
        "likely as another, batches of 1024. With gradients of all rows Adam is as it is, and a quarter of the steps "
        "are made. One thread in each process. The worker with its tables on servers is held to 1 GiB by a control "
        "group where that can be (it says so); peaks are the kernel's VmHWM.",
        "links: four workers and two servers on four hosts (network namespaces); a packet between two of them is on "
        "its way for so many milliseconds (a process in user space holds it back); the same number of epochs, three "
        "seeds. samples/s without validations and checkpoints; s from the first step to the last with them. AUC is "
        "that of the validation rows.",
    ])  # fmt: skip
    if options.only.lower() in "memory":
        _memory(options, found)
    reason = network.reason_against()
    if options.only.lower() in "links" and reason:
        found.notes.append(f"links were not measured: {reason}.")
    elif options.only.lower() in "links":
        _links(options, found)
    return found


def _turns(options: Options) -> int:
    return 1 if options.quick else options.turns or 3


def _memory(options: Options, found: Measured) -> None:
    rows, samples, steps = (8000, 20_000, 30) if options.quick else (10_000_000, 200_000, options.steps or 120)
    file = write_uniform(options.work / "uniform.csv", rows, samples)
    columns = ",".join(f"c{number}: {{kind: hashed, buckets: {rows // COLUMNS}}}" for number in range(COLUMNS))
    given = [*COMMON, f"dataset.train={file}", f"dataset.columns={{{columns}}}", f"model.units={UNITS}",
             "checkpoint=off", "dataset.batch_size=1024", "trainer.limit_val_batches=1",
             "trainer.max_epochs=100"]  # fmt: skip
    sparse = [*SPARSE, f"trainer.max_steps={WARM_UP + steps}"]
    sides = {
        DENSE: ["trainer.sparse_grad=false", f"trainer.max_steps={WARM_UP + max(steps // 4, 10)}"],
        AT_WORKER: sparse,
        ON_SERVERS: [*sparse, "kvstore=dist_sync", "cluster.workers=1", "cluster.servers=2", "kvstore.tables=servers"],
    }
    speeds: Dict[str, List[float]] = {name: [] for name in sides}
    for _ in range(_turns(options)):
        for name, settings in sides.items():
            with held_workers(LIMIT if name == ON_SERVERS and not options.quick else None) as held:
                one = run((), [*given, *settings], options.work)
            speeds[name].append(one.samples_per_s)
            for kind, peak in one.peak_MiB.items():
                found.details[f"{rows:,} rows: {name}: peak of a {kind}, MiB"] = round(peak)
            if held:
                found.details[f"{rows:,} rows: {name}: the worker was held to 1 GiB"] = held[-1]
            if "perf/tables_sent_MB" in one.metrics:
                for way in ("sent", "received"):
                    kB = 1000 * one.metrics[f"perf/tables_{way}_MB"] / one.steps
                    found.details[f"{rows:,} rows: {name}: kB {way} by the worker, a step"] = round(kB)
            say(f"  {name}: {one.samples_per_s:.0f} samples/s")
    for name, values in speeds.items():
        found.series.append(Series(f"{rows:,} rows: {name}", "samples/s", values))


def _links(options: Options, found: Measured) -> None:
    file = write_skewed(options.work / "skewed.csv", 12_000 if options.quick else 60_000)
    columns = ",".join(f"c{number}: {{kind: hashed, buckets: 20000}}" for number in range(4))
    given = [*COMMON, *SPARSE, f"dataset.train={file}", f"dataset.columns={{{columns}}}", "dataset.batch_size=512",
             "optimizer.lr=0.003", f"trainer.max_epochs={3 if options.quick else 4}", "cluster.workers=4",
             "cluster.servers=2", "kvstore.tables=servers"]  # fmt: skip
    for delay_ms in DELAYS_MS[-1:] if options.quick else DELAYS_MS:
        _over_link(delay_ms, given, options, found)


def _over_link(delay_ms: int, given: Sequence[str], options: Options, found: Measured) -> None:
    link = f"{delay_ms} ms"
    found_by: Dict[str, List[Found]] = {"dist_sync": [], "dist_async": []}
    with ExitStack() as stack:
        folder = options.work / f"network-{delay_ms}"
        folder.mkdir()
        hosts = network.Network(folder, stack, count=4)
        if delay_ms:
            hosts.delay(delay_ms)
        for seed in range(_turns(options)):
            for store, those in found_by.items():
                settings = [f"kvstore={store}", f"trainer.seed={seed}", *hosts.over_ssh(options.work)]
                one = run(hosts.on(1), [*given, *settings], options.work)
                those.append(one)
                say(f"  {link}, {store}: {one.samples_per_s:.0f} samples/s, {one.metrics['val/roc_auc']:.4f}")
    for store, those in found_by.items():
        what = f"{link}: {store}"
        found.series.append(Series(what, "samples/s", [one.samples_per_s for one in those]))
        found.series.append(Series(f"{what}, all of it", "s", [one.wall_s for one in those]))
        found.series.append(Series(f"{what}, AUC", "AUC", [one.metrics["val/roc_auc"] for one in those]))
    staleness = [one.metrics.get("perf/staleness_mean", 0.0) for one in found_by["dist_async"]]
    found.details[f"{link}: dist_async: mean staleness"] = round(statistics.median(staleness), 2)


def write_uniform(path: Path, rows: int, samples: int) -> Path:
    """Codes that are as likely as each other, and a target that none of them says."""
    import numpy as np

    rng = np.random.default_rng(0)
    codes = rng.integers(0, rows, (samples, COLUMNS))
    lines = [",".join([*(f"v{code}" for code in row), str(row[0] % 2)]) for row in codes.tolist()]
    path.write_text("\n".join([",".join([*(f"c{n}" for n in range(COLUMNS)), "target"]), *lines]) + "\n")
    return path


def write_skewed(path: Path, samples: int) -> Path:
    """Codes of which few are frequent, and a target that is drawn from the sum of an effect of each."""
    import numpy as np

    rng = np.random.default_rng(0)
    codes = (10_000 * rng.random((samples, 4)) ** 3).astype(int)
    effects = rng.normal(size=(4, 10_000))
    chance = 1 / (1 + np.exp(-sum(effects[number, codes[:, number]] for number in range(4))))
    target = (rng.random(samples) < chance).astype(int)
    lines = [",".join([*(f"v{code}" for code in row), str(one)]) for row, one in zip(codes.tolist(), target)]
    path.write_text("\n".join(["c0,c1,c2,c3,target", *lines]) + "\n")
    return path


def run(before: Sequence[str], overrides: Sequence[str], folder: Path) -> Found:
    """Trains; raises `ProcessFailed` where that fails. `before`: what the command line begins with."""
    work = folder / f"run-{time.monotonic_ns()}"
    clock = work.with_suffix(".clock")
    environment = {**untouched_environment(), "OMP_NUM_THREADS": "1"}
    command = [*before, sys.executable, *mxtrain_arguments([*overrides, *StepClock.overrides(clock)], str(work))]
    with peaks() as peak_MiB:
        done = subprocess.run(
            command, env=environment, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=TIMEOUT_S,
        )  # fmt: skip
    if done.returncode not in (EXIT_FINISHED, EXIT_BUDGET):
        raise ProcessFailed("\n".join((done.stdout + done.stderr).splitlines()[-15:]))
    status = json.loads((work / "status.json").read_text())
    told = json.loads(clock.read_text())
    rows = [json.loads(line) for line in (work / "metrics.jsonl").read_text().splitlines()]
    epoch_of = {row["step"]: row["epoch"] for row in rows if row.get("split") == "train"}
    size = next(int(word.partition("=")[2]) for word in overrides if word.startswith("dataset.batch_size="))
    wall_s = told[-1][1] - told[0][1]
    return Found(size / seconds_per_step(told, epoch_of), wall_s, status["metrics"], status["step"], dict(peak_MiB))


def seconds_per_step(told: Sequence[Tuple[int, float]], epoch_of: Mapping[int, int]) -> float:
    """Of (step, seconds), after the warm-up, without what is between two epochs: their last steps are told together."""
    from mxtrain.trainer.recorder import STEPS_AHEAD  # imports MXNet, after which no part could set what it reads

    pairs = [(later - earlier, later_s - earlier_s) for (earlier, earlier_s), (later, later_s) in zip(told, told[1:])
             if earlier >= WARM_UP and epoch_of[earlier] == epoch_of.get(later + STEPS_AHEAD)]  # fmt: skip
    return sum(seconds for _, seconds in pairs) / sum(steps for steps, _ in pairs)


@contextmanager
def watched(look: Callable[[], None], every_s: float) -> Iterator[None]:
    """Looks now and then, in a thread, as long as this lasts."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(every_s):
            look()

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def peaks() -> Iterator[Dict[str, float]]:
    """The largest resident set of each kind of process of a run, as long as this lasts: worker where none is said."""
    found: Dict[str, float] = {}

    def look() -> None:
        for role, path in members():
            try:
                peak = re.search(r"VmHWM:\s+(\d+) kB", (path / "status").read_text())
            except OSError:
                continue
            if peak:
                found[role or "worker"] = max(found.get(role or "worker", 0.0), int(peak[1]) / 1024)

    with watched(look, 0.2):
        yield found


def members() -> Iterator[Tuple[str, Path]]:
    """(role, or an empty string; folder in /proc) of the processes of runs that descend from this one."""
    own = os.getpid()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            command = (path / "cmdline").read_bytes()
            text = (path / "environ").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        variables = dict(part.partition("=")[::2] for part in text)
        if b"mxtrain" not in command or int(path.name) == own or variables.get(OF_BENCH) != str(own):
            continue
        yield variables.get("DMLC_ROLE", ""), path


OF_BENCH = "MXTRAIN_BENCH"
"""An environment variable that what this process starts has, with its number."""


@contextmanager
def held_workers(limit: Optional[int]) -> Iterator[List[str]]:
    """Puts each worker that begins meanwhile into a control group that may have so many bytes; how that went."""
    said: List[str] = []
    os.environ[OF_BENCH] = str(os.getpid())
    if limit is None or not (MEMORY_GROUPS / "memory.limit_in_bytes").exists():
        if limit is not None:
            said.append("no: control groups cannot be made here")
        yield said
        return
    group = MEMORY_GROUPS / f"mxtrain-bench-{os.getpid()}"
    group.mkdir()
    (group / "memory.limit_in_bytes").write_text(str(limit))
    moved: List[str] = []

    def look() -> None:
        for role, path in members():
            if role == "worker" and path.name not in moved:
                (group / "cgroup.procs").write_text(path.name)
                moved.append(path.name)

    try:
        with watched(look, 0.005):
            yield said
            most = int((group / "memory.max_usage_in_bytes").read_text()) >> 20
            refused = (group / "memory.failcnt").read_text().strip()
        said.append(f"yes; {len(moved)} process, at most {most} MiB with files' cache, limit met {refused} times")
    finally:
        group.rmdir()
