"""Several workers over links: bytes on the wire, throttled and slow links, and tables on parameter servers."""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from bench_parts import files, network
from bench_parts.harness import (
    ENDS_WELL,
    ONE_THREAD,
    TIMEOUT_S,
    Measured,
    Options,
    ProcessFailed,
    callback,
    mxtrain_arguments,
    rows_of,
    run,
    say,
    status_of,
    train,
    untouched_environment,
)
from bench_parts.parts import ZOO, each, seeds
from bench_parts.publish import number as shown
from mxtrain.kvstore.spec import has_horovod

COMPRESSORS: Dict[str, List[str]] = {
    "none": [],
    "fp16": ["kvstore.compression=fp16"],
    "bf16": ["kvstore.compression=bf16"],
    "2bit, threshold 0.01": ["kvstore.compression=2bit", "kvstore.threshold=0.01"],
    "topk, ratio 0.01": ["kvstore.compression=topk", "kvstore.ratio=0.01"],
}

# Bytes of a step, as the kernel counts them: in a network of its own, where nothing else talks.

MAX_SHARES = {"fp16": 0.52, "bf16": 0.52, "2bit, threshold 0.01": 0.12, "topk, ratio 0.01": 0.06}
LIMITS = [
    "dataset=synthetic",
    "dataset.shape=[3,32,32]",
    "dataset.num_samples=1000",
    "dataset.batch_size=8",
    "checkpoint=off",
    "trainer.test=false",
    "trainer.limit_val_batches=1",
    "trainer.log_interval=1000",
    "early_stopping=off",
]
OWN_NETWORK = ("unshare", "--map-root-user", "--net")


def needs_own_network(options: Optional[Options] = None) -> str:
    """Why there can be no network namespace here, or ""."""
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        return "unshare (util-linux) and ip (iproute2) are needed for a network of its own"
    done = subprocess.run([*OWN_NETWORK, "true"], capture_output=True, text=True)
    return done.stderr.strip() if done.returncode else ""


def compression(options: Options) -> Measured:
    steps = 4 if options.quick else 20
    networks = {
        "MLP, 4.7 M parameters": ["kvstore=dist_sync", "model=mlp", "model.hidden=[1024,1024,512]"],
        "ResNet-20": ["kvstore=dist_sync", *ZOO["resnet20"]],
        "ResNet-20, dist_async": ["kvstore=dist_async", *ZOO["resnet20"]],
    }
    ways = dict(COMPRESSORS)
    if options.quick:
        networks = {"MLP": ["kvstore=dist_sync", "model=mlp", "model.hidden=[64]"]}
        ways = {way: ways[way] for way in ("none", "2bit, threshold 0.01")}
    found = Measured()
    sent: Dict[str, Dict[str, float]] = {}
    for place, (name, given) in enumerate(networks.items()):
        sent[name] = {}
        for index, (way, compressor) in enumerate(ways.items()):
            folder = options.work / f"bytes-{place}-{index}"
            command = ["-m", "bench_parts.distributed", str(steps), *given, *LIMITS, *compressor]
            done = run(command, untouched_environment(), folder, before=OWN_NETWORK)
            sent[name][way] = float(done.stdout.split()[-1])
            found.add(f"{name}: {way}", "bytes a step", [sent[name][way]])
        if options.quick or place:  # whose rest is small
            for way in list(ways)[1:]:
                share = sent[name][way] / sent[name]["none"]
                found.at_most(f"{name}: bytes a step, {way} / none", share, MAX_SHARES[way])
    # Without compression two workers compute what one process does.
    alone = options.quick
    group = {
        way: [*([] if alone and way == "none" else ["kvstore=dist_sync", "cluster.workers=2"]), *compressor]
        for way, compressor in ways.items()
    }
    statuses = seeds(options, group, 3, ONE_THREAD)
    titles = {"best_value": "best validation accuracy", "test/accuracy": "test accuracy"}
    found.table = [["kvstore.compression", *(f"{name}, bytes a step" for name in networks), *titles.values()]]
    for way in ways:
        for key, title in titles.items():
            found.add(f"{title}, {way}", "fraction", each(statuses[way], key))
        sizes = [f"{shown(values[way])} ({values[way] / values['none']:.1%})" for values in sent.values()]
        found.table.append([way, *sizes, *(f"{mean(each(statuses[way], key)):.4f}" for key in titles)])
        if way != "none":
            lost = mean(each(statuses["none"], "best_value")) - mean(each(statuses[way], "best_value"))
            found.at_most(f"mean validation accuracy lost, {way}", lost, 0.01)
    return found


def _count_bytes(arguments: List[str]) -> None:
    """Prints the bytes of a step: of all processes together, with the headers of TCP and IP, in both directions."""
    steps, overrides = int(arguments[0]), arguments[1:]
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    once, twice = (_sent(overrides, count) for count in (steps, 2 * steps))
    print((twice - once) / steps)


def _sent(overrides: Sequence[str], steps: int) -> int:
    """Bytes that a run of so many steps sends: a scheduler, a server and two workers over TCP on loopback."""
    before = _loopback_bytes()
    tracker = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("DMLC_", "PS_"))},
        **ONE_THREAD,
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": "9100",  # no other host is in this network
        "DMLC_NODE_HOST": "127.0.0.1",
        "DMLC_NUM_WORKER": "2",
        "DMLC_NUM_SERVER": "1",
    }
    roles = [{"DMLC_ROLE": "scheduler"}, {"DMLC_ROLE": "server"}]
    roles += [{"DMLC_ROLE": "worker", "DMLC_WORKER_ID": str(rank)} for rank in range(2)]
    with tempfile.TemporaryDirectory(dir=".") as work, ExitStack() as stack:
        given = mxtrain_arguments([*overrides, "cluster.workers=2", f"trainer.max_steps={steps}"], work)
        started = []
        for number, role in enumerate(roles):
            log = stack.enter_context(open(Path(work) / f"log-{number}", "w+"))
            process = subprocess.Popen(
                [sys.executable, *given],
                env={**tracker, **role},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            started.append((process, log))
        for process, log in started:
            if process.wait(TIMEOUT_S) not in ENDS_WELL:
                log.seek(0)
                raise ProcessFailed("\n".join(log.read().splitlines()[-15:]))
    return _loopback_bytes() - before


def _loopback_bytes() -> int:
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == "lo":
            return int(counters.split()[8])
    raise ProcessFailed("there is no loopback interface")


# Runs whose steps are timed.


@dataclass(frozen=True)
class Timed:
    """Figures of a run.

    Attributes:
        samples_per_s: of worker 0's steps after the first ones, without what is between epochs; batches are those of
            all workers.
        wall_s: from the first step to the last, with validations and checkpoints.
        status: status.json.
    """

    samples_per_s: float
    wall_s: float
    status: Dict[str, Any]


def timed(
    overrides: Sequence[str],
    options: Options,
    warm_up: int,
    before: Sequence[str] = (),
    environment: Mapping[str, str] = ONE_THREAD,
    log_interval: int = 1,
) -> Timed:
    """Trains, by default with one thread in each process.

    Args:
        overrides: of the run; they say the batch size.
        warm_up: steps before the first that is timed: buffers of sockets are filled.
        before: what the command line begins with.
        environment: further variables of the run.
        log_interval: steps between two times.
    """
    from mxtrain.training.recorder import STEPS_AHEAD  # imports MXNet, after which no part could set what it reads

    size = next(int(word.partition("=")[2]) for word in overrides if word.startswith("dataset.batch_size="))
    folder = Path(tempfile.mkdtemp(prefix="timed-", dir=options.work))
    given = [*overrides, *callback("StepClock", path=folder / "steps"), f"trainer.log_interval={log_interval}"]
    run_dir = train(given, folder, ENDS_WELL, environment, before)
    told = [entry[:2] for entry in json.loads((folder / "steps").read_text())]
    epoch_of = {row["step"]: row["epoch"] for row in rows_of(run_dir) if row.get("split") == "train"}
    # The last steps of an epoch are told together.
    pairs = [
        (later - earlier, later_s - earlier_s)
        for (earlier, earlier_s), (later, later_s) in zip(told, told[1:])
        if earlier >= warm_up and epoch_of[earlier] == epoch_of.get(later + STEPS_AHEAD)
    ]
    rate = size * sum(steps for steps, _ in pairs) / sum(seconds for _, seconds in pairs)
    return Timed(rate, told[-1][1] - told[0][1], status_of(run_dir))


def needs_hosts(options: Options) -> str:
    return network.unsupported_reason()


def links(options: Options) -> Measured:
    """Two workers over links of different speed, with each store and each compressor, against one worker alone. Each
    worker is on a host of its own (network.py), whose link traffic control slows down; all is started by one command on
    the first host."""
    from mxtrain.training.recorder import STEPS_AHEAD

    warm_up = 6
    common = [
        "dataset=synthetic",
        "dataset.num_samples=16384",
        "trainer.limit_val_batches=1",
        "trainer.test=false",
        "checkpoint=off",
        "early_stopping=off",
        "logger=[jsonl]",
        "optimizer=sgd",
        "optimizer.lr=0.01",
        "trainer.max_epochs=100",
    ]
    large = ["dataset.shape=[3,32,32]", "dataset.image_size=[32,32]", "dataset.batch_size=64"]
    networks = {
        "ResNet-20, 32 px, batch 128": ([*ZOO["resnet20"], "dataset.shape=[3,32,32]", "dataset.batch_size=128"], 24),
        "ResNet-50 (24 M parameters), 32 px, batch 64": ([*ZOO["resnet50"], *large], 6),
    }
    rates: Dict[str, Optional[str]] = {"not throttled": None, "1 Gbit/s": "1gbit", "100 Mbit/s": "100mbit"}
    stores = [("dist_sync", name) for name in COMPRESSORS] + [("p3", "none")]
    stores += [("horovod", name) for name in COMPRESSORS] if has_horovod() else []
    if options.quick:
        rates, stores = {"1 Gbit/s": "1gbit"}, [stores[0], stores[-1]]
        networks = {"MLP": (["model=mlp", "dataset.shape=[1,8,8]", "dataset.batch_size=64"], 10)}
    found = Measured(table=[["network", "store", "compression", *rates]])
    with ExitStack() as stack:
        hosts_of = {}
        for number, (link, rate) in enumerate(rates.items()):
            (options.work / f"hosts-{number}").mkdir()
            hosts_of[link] = network.Network(options.work / f"hosts-{number}", stack, count=2)
            for host in (1, 2) if rate else ():
                hosts_of[link].throttle(host, str(rate))
        for name, (overrides, steps) in networks.items():
            # Rows of the last steps come all together, at the end.
            given = [*common, *overrides, f"trainer.max_steps={warm_up + steps + 2 * STEPS_AHEAD}"]

            def alone(given: Sequence[str] = given) -> float:
                return timed([*given, "kvstore=local"], options, warm_up).samples_per_s

            ones = [alone()]
            for store, compressor in stores:
                speeds = []
                for link, hosts in hosts_of.items():
                    own = [
                        *given,
                        f"kvstore={store}",
                        "cluster.workers=2",
                        *COMPRESSORS[compressor],
                        *hosts.over_ssh(options.work),
                    ]
                    speeds.append(timed(own, options, warm_up, hosts.on(1)).samples_per_s)
                    say(f"  {name}: {store} {compressor}, {link}: {speeds[-1]:.1f} samples/s")
                    found.add(f"{name}: {store}, compression {compressor}, {link}", "samples/s", speeds[-1:])
                ones.append(alone())
                one = mean(ones[-2:])  # before and after: the machine drifts
                found.table.append([name, store, compressor, *(f"{speed / one:.2f}" for speed in speeds)])
            found.add(f"{name}: one worker alone", "samples/s", ones)
    return found


# Tables whose rows are on parameter servers: in a worker that could not hold them, and over links with a delay.

LIMIT = 1 << 30
"""Bytes that the worker may have in memory."""
MEMORY_GROUPS = Path("/sys/fs/cgroup/memory")
"""Control groups of version 1."""
TABLE = (
    "task=tabular",
    "dataset=feature_table",
    "model=deepfm",
    "optimizer=adam",
    "early_stopping=off",
    "logger=[jsonl]",
    "trainer.test=false",
)
SPARSE = ("trainer.sparse_grad=true", "optimizer.lazy_update=true")
SERVED = ("cluster.servers=2", "kvstore.tables=servers")
OF_BENCH = "MXTRAIN_BENCH"
"""An environment variable that what this process starts has, with its number."""


def tables(options: Options) -> Measured:
    found, times = Measured(), 1 if options.quick else options.turns or 3
    if options.only.lower() in "memory":
        _tables_in_memory(options, times, found)
    if options.only.lower() in "links":
        reason = network.unsupported_reason()
        for delay_ms in () if reason else (20,) if options.quick else (0, 5, 20):
            _tables_over_link(delay_ms, options, times, found)
        found.notes += [f"links were not measured: {reason}."] if reason else []
    return found


def _tables_in_memory(options: Options, times: int, found: Measured) -> None:
    columns, warm_up = 8, 20
    rows, samples, steps = (8000, 20_000, 30) if options.quick else (10_000_000, 200_000, options.steps or 120)
    file = files.write_uniform(options.work / "uniform.csv", rows, columns, samples)
    named = ",".join(f"c{number}: {{kind: hashed, buckets: {rows // columns}}}" for number in range(columns))
    given = [
        *TABLE,
        f"dataset.train={file}",
        f"dataset.columns={{{named}}}",
        "model.units=16",
        "checkpoint=off",
        "dataset.batch_size=1024",
        "trainer.limit_val_batches=1",
        "trainer.max_epochs=100",
    ]
    sparse, on_servers = [*SPARSE, f"trainer.max_steps={warm_up + steps}"], "tables on two servers"
    sides = {
        "gradients of all rows (kvstore=local)": [
            "trainer.sparse_grad=false",
            f"trainer.max_steps={warm_up + max(steps // 4, 10)}",
        ],
        "tables at the worker (kvstore=local)": sparse,
        on_servers: [*sparse, "kvstore=dist_sync", "cluster.workers=1", *SERVED],
    }
    speeds: Dict[str, List[float]] = {name: [] for name in sides}
    for _ in range(times):
        for name, settings in sides.items():
            limit = LIMIT if name == on_servers and not options.quick else None
            with held_workers(limit) as held, peaks() as peak_MiB:
                one = timed([*given, *settings], options, warm_up)
            speeds[name].append(one.samples_per_s)
            about = found.details.setdefault(f"{rows:,} rows: {name}", {})
            about.update({f"peak of a {kind}, MiB": round(peak) for kind, peak in peak_MiB.items()})
            if held:
                about["the worker was held to 1 GiB"] = held[-1]
            for way in ("sent", "received"):
                if f"perf/tables_{way}_MB" in one.status["metrics"]:
                    kB = 1000 * one.status["metrics"][f"perf/tables_{way}_MB"] / one.status["step"]
                    about[f"kB {way} by the worker, a step"] = round(kB)
            say(f"  {name}: {one.samples_per_s:.0f} samples/s")
    for name, values in speeds.items():
        found.add(f"{rows:,} rows: {name}", "samples/s", values)


def _tables_over_link(delay_ms: int, options: Options, times: int, found: Measured) -> None:
    file, link = options.work / "skewed.csv", f"{delay_ms} ms"
    if not file.exists():
        files.write_skewed(file, 12_000 if options.quick else 60_000)
    named = ",".join(f"c{number}: {{kind: hashed, buckets: 20000}}" for number in range(4))
    given = [
        *TABLE,
        *SPARSE,
        f"dataset.train={file}",
        f"dataset.columns={{{named}}}",
        "dataset.batch_size=512",
        "optimizer.lr=0.003",
        f"trainer.max_epochs={3 if options.quick else 4}",
        "cluster.workers=4",
        *SERVED,
    ]
    found_by: Dict[str, List[Timed]] = {"dist_sync": [], "dist_async": []}
    with ExitStack() as stack:
        folder = options.work / f"network-{delay_ms}"
        folder.mkdir()
        hosts = network.Network(folder, stack, count=4)
        if delay_ms:
            hosts.delay(delay_ms)
        for seed in range(times):
            for store, those in found_by.items():
                own = [*given, f"kvstore={store}", f"trainer.seed={seed}", *hosts.over_ssh(options.work)]
                those.append(timed(own, options, 20, hosts.on(1)))
                say(f"  {link}, {store}: {those[-1].samples_per_s:.0f} samples/s")
    for store, those in found_by.items():
        what = f"{link}: {store}"
        found.add(what, "samples/s", [one.samples_per_s for one in those])
        found.add(f"{what}, all of it", "s", [one.wall_s for one in those])
        found.add(f"{what}, AUC", "AUC", [one.status["metrics"]["val/roc_auc"] for one in those])
    stale = [one.status["metrics"].get("perf/staleness_mean", 0.0) for one in found_by["dist_async"]]
    found.details[f"{link}: dist_async: mean staleness"] = round(statistics.median(stale), 2)


@contextmanager
def _watched(look: Callable[[], None], every_s: float) -> Iterator[None]:
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
        for role, path in _members():
            with suppress(OSError):
                peak = re.search(r"VmHWM:\s+(\d+) kB", (path / "status").read_text())
                if peak:
                    found[role or "worker"] = max(found.get(role or "worker", 0.0), int(peak[1]) / 1024)

    with _watched(look, 0.2):
        yield found


def _members() -> Iterator[Tuple[str, Path]]:
    """(role, or an empty string; folder in /proc) of the processes of runs that descend from this one."""
    own = os.getpid()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            command = (path / "cmdline").read_bytes()
            text = (path / "environ").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        variables: Mapping[str, str] = dict(part.partition("=")[::2] for part in text)
        if b"mxtrain" in command and int(path.name) != own and variables.get(OF_BENCH) == str(own):
            yield variables.get("DMLC_ROLE", ""), path


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
        for role, path in _members():
            if role == "worker" and path.name not in moved:
                (group / "cgroup.procs").write_text(path.name)
                moved.append(path.name)

    try:
        with _watched(look, 0.005):
            yield said
            most = int((group / "memory.max_usage_in_bytes").read_text()) >> 20
            refused = (group / "memory.failcnt").read_text().strip()
        said.append(f"yes; {len(moved)} process, at most {most} MiB with files' cache, limit met {refused} times")
    finally:
        group.rmdir()


if __name__ == "__main__":
    _count_bytes(sys.argv[1:])
