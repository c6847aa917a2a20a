"""Two workers over links of different speed, with each store and each compressor, against one worker alone.

Each worker is in a network namespace of its own; both hang on a bridge by links that traffic control (tbf) slows down.
Scheduler and server share the first worker's namespace, as a small cluster would have them.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Callable, Dict, List, Optional, Sequence

from bench_parts.measured import Measured, Options, Series, say
from bench_parts.processes import TIMEOUT_S, ProcessFailed, mxtrain_arguments, untouched_environment
from mxtrain.errors import EXIT_BUDGET, EXIT_FINISHED
from mxtrain.kvstore import has_horovod

SUBNET, PORT = "10.213.78", 9100
RATES: Dict[str, Optional[str]] = {"not throttled": None, "1 Gbit/s": "1gbit", "100 Mbit/s": "100mbit"}
COMPRESSORS = {
    "": [], "fp16": ["kvstore.compression=fp16"], "bf16": ["kvstore.compression=bf16"],
    "2bit": ["kvstore.compression=2bit", "kvstore.threshold=0.01"],
    "topk 1 %": ["kvstore.compression=topk", "kvstore.ratio=0.01"],
}  # fmt: skip
COMMON = ("dataset=synthetic", "dataset.num_samples=16384", "trainer.log_interval=1", "trainer.limit_val_batches=1",
          "trainer.test=false", "checkpoint=off", "early_stopping=off", "logger=[jsonl]", "optimizer=sgd",
          "optimizer.lr=0.01", "trainer.max_epochs=100")  # fmt: skip
NETWORKS = {
    "ResNet-20, 32 px, batch 128": (["model=resnet", "model.depth=20", "dataset.shape=[3,32,32]",
                                     "dataset.batch_size=128"], 24),
    "ResNet-50 (24 M parameters), 32 px, batch 64": (["model=gluoncv", "model.name=resnet50_v1b",
                                                      "dataset.shape=[3,32,32]", "dataset.image_size=[32,32]",
                                                      "dataset.batch_size=64"], 10),
}  # fmt: skip
QUICK = {"MLP": (["model=mlp", "dataset.shape=[1,8,8]", "dataset.batch_size=64"], 10)}


def available() -> str:
    """Why there can be no such links here, or ""."""
    missing = [name for name in ("ip", "tc") if shutil.which(name) is None]
    if missing:
        return f"{' and '.join(missing)} (iproute2) are needed"
    return "" if os.getuid() == 0 else "network namespaces with links need root"


def measure(options: Options) -> Measured:
    found = Measured(notes=[
        "Two workers, one thread each, each in a network namespace of its own; links slowed down by tbf in both "
        "directions. One server and the scheduler beside worker 0 (dist_sync, p3); Horovod without servers, its word "
        "exchanged at the beginning. samples/s: from the difference in time between a run of N steps and one of 2 "
        "N; one worker alone is measured before and after.",
        "The table says how many times one worker alone two are; 2 is the limit, and what two processes reach on two "
        "cores that exchange nothing stands under placements.",
    ])  # fmt: skip
    reason = available()
    if reason:
        raise ProcessFailed(reason)
    stores = [("dist_sync", name) for name in COMPRESSORS] + [("p3", "")]
    stores += [("horovod", name) for name in COMPRESSORS] if has_horovod() else []
    rates = {"1 Gbit/s": "1gbit"} if options.quick else RATES
    if options.quick:
        stores = [stores[0], stores[-1]]
    found.table = [["network", "store", "compression", *rates]]
    for network, (overrides, steps) in (QUICK if options.quick else NETWORKS).items():
        alone = [one_worker(overrides, steps, options.work)]
        speeds: Dict[str, List[float]] = {}
        for store, name in stores:
            for link, rate in rates.items():
                with ExitStack() as stack:
                    hosts = Hosts(stack, rate)
                    given = [*overrides, f"kvstore={store}", *COMPRESSORS[name]]
                    ring = store == "horovod"
                    seconds = partial(hosts.two_workers, given, folder=options.work, ring=ring, stack=stack)
                    speed = rate_of(overrides, steps, seconds)
                speeds.setdefault(f"{store} {name}".strip(), []).append(speed)
                say(f"  {network}: {store} {name}, {link}: {speed:.1f} samples/s")
        alone.append(one_worker(overrides, steps, options.work))
        one = statistics.median(alone)
        found.series.append(Series(f"{network}: one worker alone", "samples/s", alone))
        for (store, name), values in zip(stores, speeds.values()):
            found.table.append([network, store, name or "none", *(f"{value / one:.2f}" for value in values)])
            for link, value in zip(rates, values):
                what = f"{network}: {store} {name or 'uncompressed'}, {link}"
                found.series.append(Series(what, "samples/s", [value]))
    return found


def one_worker(overrides: Sequence[str], steps: int, folder: Path) -> float:
    """samples/s of one process with one thread."""

    def seconds(count: int) -> float:
        work = folder / f"alone-{time.monotonic_ns()}"
        _wait([_start([], [*overrides, "kvstore=local"], count, work, {})], [work])
        return seconds_of(work)

    return rate_of(overrides, steps, seconds)


def rate_of(overrides: Sequence[str], steps: int, seconds: Callable[[int], float]) -> float:
    """samples/s, by what `steps` more steps take: rows of metrics.jsonl are read some steps late, in groups."""
    (batch,) = [int(word.partition("=")[2]) for word in overrides if word.startswith("dataset.batch_size=")]
    once = seconds(steps)
    return steps * batch / (seconds(2 * steps) - once)


class Hosts:
    """Two network namespaces on a bridge.

    Args:
        stack: takes everything back.
        rate: of each link, in tc's words; None: as fast as it goes.
    """

    def __init__(self, stack: ExitStack, rate: Optional[str]):
        self._names = [f"mxl{os.getpid()}{letter}" for letter in "hab"]
        hub, *hosts = self._names
        for name in self._names:
            _run("ip", "netns", "add", name)
            stack.callback(_run, "ip", "netns", "del", name)
        _run("ip", "-n", hub, "link", "add", "br0", "type", "bridge")
        _run("ip", "-n", hub, "link", "set", "br0", "up")
        for number, name in enumerate(hosts, 1):
            port = f"p{number}"
            _run("ip", "-n", name, "link", "add", "net0", "type", "veth", "peer", "name", port, "netns", hub)
            _run("ip", "-n", hub, "link", "set", port, "master", "br0", "up")
            _run("ip", "-n", name, "addr", "add", f"{SUBNET}.{number}/24", "dev", "net0")
            _run("ip", "-n", name, "link", "set", "lo", "up")
            _run("ip", "-n", name, "link", "set", "net0", "up")
            for space, device in ((name, "net0"), (hub, port)) if rate else ():
                _run("tc", "-n", space, "qdisc", "add", "dev", device, "root", "tbf", "rate", str(rate), "burst",
                     "256kb", "latency", "100ms")  # fmt: skip

    def on(self, number: int) -> List[str]:
        """Before a command: runs it on host 1 or 2."""
        return ["ip", "netns", "exec", self._names[number]]

    def two_workers(
        self, overrides: Sequence[str], steps: int, folder: Path, ring: bool, stack: ExitStack
    ) -> float:  # fmt: skip
        """Seconds of a run of so many steps, over both links."""
        if ring:
            orders = [(1 + rank, variables) for rank, variables in enumerate(self._ring(stack))]
        else:
            van = "p3" if "kvstore=p3" in overrides else "zmq"
            tracker = {"DMLC_PS_ROOT_URI": f"{SUBNET}.1", "DMLC_PS_ROOT_PORT": str(PORT), "DMLC_NUM_WORKER": "2",
                       "DMLC_NUM_SERVER": "1", "DMLC_PS_VAN_TYPE": van}  # fmt: skip
            roles = [(1, {"DMLC_ROLE": "scheduler"}), (1, {"DMLC_ROLE": "server"})]
            roles += [(1 + rank, {"DMLC_ROLE": "worker", "DMLC_WORKER_ID": str(rank)}) for rank in range(2)]
            orders = [(at, {**tracker, **role, "DMLC_NODE_HOST": f"{SUBNET}.{at}"}) for at, role in roles]
        work = folder / f"two-{time.monotonic_ns()}"
        given = [*overrides, "cluster.workers=2"]
        processes = [_start(self.on(at), given, steps, work, variables) for at, variables in orders]
        for process in processes:
            stack.callback(process.kill)
        _wait(processes, [work])
        return seconds_of(work)

    def _ring(self, stack: ExitStack) -> List[Dict[str, str]]:
        code = (
            "import sys, time; from mxtrain.cluster.ring import KeyValueServer; "
            f"print(KeyValueServer('{SUBNET}.1').port, flush=True); time.sleep(3600)"
        )
        server = subprocess.Popen(
            [*self.on(1), sys.executable, "-c", code], env=untouched_environment(), stdout=subprocess.PIPE, text=True
        )
        stack.callback(server.kill)
        assert server.stdout is not None
        common = {"HOROVOD_GLOO_RENDEZVOUS_ADDR": f"{SUBNET}.1", "HOROVOD_CONTROLLER": "gloo",
                  "HOROVOD_GLOO_RENDEZVOUS_PORT": server.stdout.readline().strip(), "HOROVOD_CPU_OPERATIONS": "gloo",
                  "HOROVOD_GLOO_IFACE": "net0", "HOROVOD_FUSION_THRESHOLD": "0", "HOROVOD_SIZE": "2",
                  "HOROVOD_LOCAL_RANK": "0", "HOROVOD_LOCAL_SIZE": "1", "HOROVOD_CROSS_SIZE": "2"}  # fmt: skip
        return [{**common, "HOROVOD_RANK": str(rank), "HOROVOD_CROSS_RANK": str(rank),
                 "HOROVOD_HOSTNAME": f"host{rank}"} for rank in range(2)]  # fmt: skip


def seconds_of(work: Path) -> float:
    """From the beginning of training to its end."""
    return float(json.loads((work / "run" / "status.json").read_text())["wall_s"])


def _start(
    before: Sequence[str], overrides: Sequence[str], steps: int, work: Path, variables: Dict[str, str]
) -> subprocess.Popen[str]:
    work.mkdir(exist_ok=True)
    arguments = mxtrain_arguments([*COMMON, *overrides, f"trainer.max_steps={steps}"], str(work / "run"))
    log = open(work / f"log-{time.monotonic_ns()}", "w")
    return subprocess.Popen(
        [*before, sys.executable, *arguments], env={**untouched_environment(), "OMP_NUM_THREADS": "1", **variables},
        cwd=work, stdin=subprocess.DEVNULL, stdout=log, stderr=log, text=True,
    )  # fmt: skip


def _wait(processes: Sequence[subprocess.Popen[str]], folders: Sequence[Path]) -> None:
    for process in processes:
        if process.wait(TIMEOUT_S) not in (EXIT_FINISHED, EXIT_BUDGET):
            logs = [log.read_text()[-600:] for folder in folders for log in sorted(folder.glob("log-*"))]
            raise ProcessFailed("\n".join(logs))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
