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
from pathlib import Path
from typing import Dict, Optional, Sequence

from bench_parts import network
from bench_parts.clock import StepClock
from bench_parts.measured import Measured, Options, Series, say
from bench_parts.processes import TIMEOUT_S, ProcessFailed, mxtrain_arguments, untouched_environment
from mxtrain.errors import EXIT_BUDGET, EXIT_FINISHED
from mxtrain.kvstore import has_horovod

RATES: Dict[str, Optional[str]] = {"not throttled": None, "1 Gbit/s": "1gbit", "100 Mbit/s": "100mbit"}
WARM_UP = 6
"""Steps before the first that is measured: buffers of sockets are filled."""
COMPRESSORS = {
    "": [], "fp16": ["kvstore.compression=fp16"], "bf16": ["kvstore.compression=bf16"],
    "2bit": ["kvstore.compression=2bit", "kvstore.threshold=0.01"],
    "topk 1 %": ["kvstore.compression=topk", "kvstore.ratio=0.01"],
}  # fmt: skip
COMMON = ("dataset=synthetic", "dataset.num_samples=16384", "trainer.limit_val_batches=1",
          "trainer.test=false", "checkpoint=off", "early_stopping=off", "logger=[jsonl]", "optimizer=sgd",
          "optimizer.lr=0.01", "trainer.max_epochs=100")  # fmt: skip
NETWORKS = {
    "ResNet-20, 32 px, batch 128": (["model=resnet", "model.depth=20", "dataset.shape=[3,32,32]",
                                     "dataset.batch_size=128"], 24),
    "ResNet-50 (24 M parameters), 32 px, batch 64": (["model=gluoncv", "model.name=resnet50_v1b",
                                                      "dataset.shape=[3,32,32]", "dataset.image_size=[32,32]",
                                                      "dataset.batch_size=64"], 6),
}  # fmt: skip
QUICK = {"MLP": (["model=mlp", "dataset.shape=[1,8,8]", "dataset.batch_size=64"], 10)}


def measure(options: Options) -> Measured:
    found = Measured(notes=[
        "Two workers, one thread each, each in a network namespace of its own; links slowed down by tbf in both "
        "directions; started by cluster.launcher=ssh. One server and the scheduler beside worker 0 (dist_sync, p3). "
        "samples/s: over 24 or 6 steps after the first six, one run each; one worker alone is measured before and "
        "after the three links of a store.",
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

            def alone(overrides: Sequence[str] = overrides, steps: int = steps) -> float:
                return rate_of((), [*overrides, "kvstore=local"], options.work, steps)

            ones = [alone()]
            for store, compressor in stores:
                speeds = []
                for link, hosts in links:
                    given = [*overrides, f"kvstore={store}", "cluster.workers=2", *COMPRESSORS[compressor],
                             *hosts.over_ssh(options.work)]  # fmt: skip
                    speeds.append(rate_of(hosts.on(1), given, options.work, steps))
                    say(f"  {name}: {store} {compressor}, {link}: {speeds[-1]:.1f} samples/s")
                    what = f"{name}: {store} {compressor or 'uncompressed'}, {link}"
                    found.series.append(Series(what, "samples/s", speeds[-1:]))
                ones.append(alone())
                one = statistics.mean(ones[-2:])  # before and after: the machine drifts
                found.table.append([name, store, compressor or "none", *(f"{speed / one:.2f}" for speed in speeds)])
            found.series.append(Series(f"{name}: one worker alone", "samples/s", ones))
    return found


def _hosts(folder: Path, rate: Optional[str], stack: ExitStack) -> network.Network:
    folder.mkdir()
    hosts = network.Network(folder, stack, count=2)
    for number in (1, 2) if rate else ():
        hosts.throttle(number, str(rate))
    return hosts


def rate_of(before: Sequence[str], overrides: Sequence[str], folder: Path, steps: int) -> float:
    """samples/s of worker 0's step `WARM_UP` to the one `steps` later; its batches are those of all workers.

    Args:
        before: what the command line begins with.
        overrides: of the run; they say the batch size.
        folder: for the run.
        steps: how many are measured.

    Raises:
        ProcessFailed: the run failed.
    """
    from mxtrain.trainer.recorder import STEPS_AHEAD  # imports MXNet, after which no part could set what it reads

    (batch,) = [int(word.partition("=")[2]) for word in overrides if word.startswith("dataset.batch_size=")]
    work = folder / f"run-{time.monotonic_ns()}"
    # Rows of the last steps come all together, at the end.
    given = [*COMMON, *overrides, *StepClock.overrides(work.with_suffix(".clock")),
             f"trainer.max_steps={WARM_UP + steps + STEPS_AHEAD}"]  # fmt: skip
    environment = {**untouched_environment(), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*before, sys.executable, *mxtrain_arguments(given, str(work))], env=environment, cwd=folder,
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT_S,
    )  # fmt: skip
    if done.returncode not in (EXIT_FINISHED, EXIT_BUDGET):
        raise ProcessFailed("\n".join((done.stdout + done.stderr).splitlines()[-15:]))
    told = json.loads(work.with_suffix(".clock").read_text())  # of quick steps, several at once
    (begin, began_s), *_, (end, ended_s) = [entry for entry in told if WARM_UP <= entry[0] <= WARM_UP + steps]
    return float((end - begin) * batch / (ended_s - began_s))
