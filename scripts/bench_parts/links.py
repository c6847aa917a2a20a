"""Two workers over links of different speed, with each store and each compressor, against one worker alone.

Each worker is on a host of its own (network.py), whose link traffic control slows down; all is started by one command
on the first host, with cluster.launcher=ssh.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Callable, Dict, List, Optional, Sequence

from bench_parts import network
from bench_parts.measured import Measured, Options, Series, say
from bench_parts.processes import TIMEOUT_S, ProcessFailed, mxtrain_arguments, untouched_environment
from mxtrain.errors import EXIT_BUDGET, EXIT_FINISHED
from mxtrain.kvstore import has_horovod

RATES: Dict[str, Optional[str]] = {"not throttled": None, "1 Gbit/s": "1gbit", "100 Mbit/s": "100mbit"}
SLOW, FEWER = "100 Mbit/s", 3
"""Where a step takes many seconds, so many times fewer of them are measured."""
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


def measure(options: Options) -> Measured:
    found = Measured(notes=[
        "Two workers, one thread each, each in a network namespace of its own; links slowed down by tbf in both "
        "directions; started by cluster.launcher=ssh. One server and the scheduler beside worker 0 (dist_sync, p3). "
        "samples/s: from the difference in time between a run of N steps and one of 2 N; one worker alone is measured "
        "before and after.",
        "The table says how many times one worker alone two are; 2 is the limit, and what two processes reach on two "
        "cores that exchange nothing stands under placements.",
    ])  # fmt: skip
    stores = [("dist_sync", name) for name in COMPRESSORS] + [("p3", "")]
    stores += [("horovod", name) for name in COMPRESSORS] if has_horovod() else []
    rates = {"1 Gbit/s": "1gbit"} if options.quick else RATES
    if options.quick:
        stores = [stores[0], stores[-1]]
    found.table = [["network", "store", "compression", *rates]]
    with ExitStack() as stack:
        links = [(link, _hosts(options.work / f"hosts-{number}", rate, stack))
                 for number, (link, rate) in enumerate(rates.items())]  # fmt: skip
        for name, (overrides, steps) in (QUICK if options.quick else NETWORKS).items():
            alone_s = partial(seconds_of, (), [*overrides, "kvstore=local"], options.work)
            alone = [rate_of(overrides, steps, alone_s)]
            speeds: Dict[str, List[float]] = {}
            for store, compressor in stores:
                for link, hosts in links:
                    given = [*overrides, f"kvstore={store}", "cluster.workers=2", *COMPRESSORS[compressor],
                             *hosts.over_ssh(options.work)]  # fmt: skip
                    count = steps // FEWER if link == SLOW else steps
                    speed = rate_of(overrides, count, partial(seconds_of, hosts.on(1), given, options.work))
                    speeds.setdefault(f"{store} {compressor}".strip(), []).append(speed)
                    say(f"  {name}: {store} {compressor}, {link}: {speed:.1f} samples/s")
            alone.append(rate_of(overrides, steps, alone_s))
            one = statistics.median(alone)
            found.series.append(Series(f"{name}: one worker alone", "samples/s", alone))
            for (store, compressor), values in zip(stores, speeds.values()):
                found.table.append([name, store, compressor or "none", *(f"{value / one:.2f}" for value in values)])
                for (link, _), value in zip(links, values):
                    what = f"{name}: {store} {compressor or 'uncompressed'}, {link}"
                    found.series.append(Series(what, "samples/s", [value]))
    return found


def _hosts(folder: Path, rate: Optional[str], stack: ExitStack) -> network.Network:
    folder.mkdir()
    hosts = network.Network(folder, stack, count=2)
    for number in (1, 2) if rate else ():
        hosts.throttle(number, str(rate))
    return hosts


def rate_of(overrides: Sequence[str], steps: int, seconds: Callable[[int], float]) -> float:
    """samples/s, by what `steps` more steps take: rows of metrics.jsonl are read some steps late, in groups."""
    (batch,) = [int(word.partition("=")[2]) for word in overrides if word.startswith("dataset.batch_size=")]
    once = seconds(steps)
    return steps * batch / (seconds(2 * steps) - once)


def seconds_of(before: Sequence[str], overrides: Sequence[str], folder: Path, steps: int) -> float:
    """From the beginning of training to its end; `before` is what the command line begins with."""
    work = folder / f"run-{time.monotonic_ns()}"
    arguments = mxtrain_arguments([*COMMON, *overrides, f"trainer.max_steps={steps}"], str(work))
    environment = {**untouched_environment(), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*before, sys.executable, *arguments], env=environment, cwd=folder, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=TIMEOUT_S,
    )  # fmt: skip
    if done.returncode not in (EXIT_FINISHED, EXIT_BUDGET):
        raise ProcessFailed("\n".join((done.stdout + done.stderr).splitlines()[-15:]))
    return float(json.loads((work / "status.json").read_text())["wall_s"])
