"""Two workers, one of which has half of a core: shares by measured speed against equal shares."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Dict, Iterator, List, Optional, Tuple

from bench_parts.harness import (
    ENDS_WELL,
    ONE_THREAD,
    Measured,
    Options,
    ProcessFailed,
    callback,
    mxtrain_arguments,
    say,
    untouched_environment,
)

PERIOD_S, SHARE = 0.01, 0.5
"""A worker is stopped for (1 - SHARE) of each period, far less than a step takes."""
IDEAL = (1 + SHARE) / 2
"""Throughput with the slow worker relative to that of two whole ones, if all work all the time."""
WAYS: Dict[str, List[str]] = {
    "two whole workers": [],
    "half a worker, equal shares": [],
    "half a worker, balance_every": ["cluster.balance=speed", "cluster.balance_every=10"],
}
WHOLE, EQUAL, BALANCED = WAYS
WORDS = [
    "kvstore=dist_sync",
    "cluster.workers=2",
    "early_stopping=off",
    "checkpoint=off",
    "trainer.max_epochs=1000",
    "trainer.val_interval=1000",
    "trainer.limit_val_batches=1",
    "trainer.test=false",
    "trainer.log_interval=5",
]
BATCH_SIZES = {"sleep": 60, "ResNet-20": 128}
MODELS = {"sleep": ["model=sleepy"], "ResNet-20": ["model=resnet", "model.depth=20", "model.width=0.5"]}
SLEEP_S = 0.002
"""Time for a sample on a whole worker."""
SLEEPY = """
import os, time

def network(num_classes, sleep_s, slow_s):
    from mxnet import autograd, gluon

    class Sleepy(gluon.Block):
        def __init__(self):
            super().__init__()
            self.output = gluon.nn.Dense(num_classes)

        def forward(self, x):
            if autograd.is_training():
                time.sleep((slow_s if os.environ.get("MXTRAIN_WORKER") == "1" else sleep_s) * x.shape[0])
            return self.output(x.reshape((x.shape[0], -1)))

    return Sleepy()
"""


def measure(options: Options) -> Measured:
    """Samples per second of the last half of the steps, all ways in turn."""
    found = Measured()
    rates: Dict[Tuple[str, str], List[float]] = {(case, way): [] for case in MODELS for way in WAYS}
    steps = options.steps or (30 if options.quick else 120)
    for turn in range(1 if options.quick else options.turns or 3):
        for case, way in rates:
            rate = samples_per_s(case, way, steps, Path(tempfile.mkdtemp(dir=options.work)))
            rates[case, way].append(rate)
            say(f"  turn {turn}, {case}, {way}: {rate:.1f} samples/s")
    for case in MODELS:
        for way in WAYS:
            found.add(f"{case}, {way}", "samples/s", rates[case, way])
        ideal = [IDEAL * rate for rate in rates[case, WHOLE]]
        found.compare(f"{case}, {EQUAL} / ideal", rates[case, EQUAL], ideal, None)
        found.compare(f"{case}, {BALANCED} / ideal", rates[case, BALANCED], ideal, 0.9)
    return found


def samples_per_s(case: str, way: str, steps: int, folder: Path) -> float:
    """Trains; returns the samples per second of the last half of the steps."""
    (folder / "sleepy.py").write_text(SLEEPY)
    (folder / "conf" / "model").mkdir(parents=True)
    slow_s = SLEEP_S if way == WHOLE else SLEEP_S / SHARE
    settings = f"_target_: sleepy.network\nsleep_s: {SLEEP_S}\nslow_s: {slow_s}\n"
    (folder / "conf" / "model" / "sleepy.yaml").write_text(settings)
    words = [
        "--config-dir",
        str(folder / "conf"),
        *MODELS[case],
        *WORDS,
        *WAYS[way],
        f"dataset.batch_size={BATCH_SIZES[case]}",
        f"trainer.max_steps={steps}",
        *callback("StepClock", path=folder / "steps"),
    ]
    environment = {**untouched_environment(), **ONE_THREAD}
    environment["PYTHONPATH"] = f"{environment['PYTHONPATH']}:{folder}"
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, *mxtrain_arguments(words, folder / "run")],
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        with slowed(process.pid) if case != "sleep" and way != WHOLE else contextlib.nullcontext():
            code = process.wait()
    if code not in ENDS_WELL:
        raise ProcessFailed(f"exit code {code}: {(folder / 'output').read_text()[-2000:]}")
    clock = [(step, seconds) for step, seconds, *_ in json.loads((folder / "steps").read_text())]
    (last, end), (first, begin) = clock[-1], next(row for row in clock if row[0] >= clock[-1][0] / 2)
    return BATCH_SIZES[case] * (last - first) / (end - begin)


@contextlib.contextmanager
def slowed(supervisor: int) -> Iterator[None]:
    """Stops worker 1 of a run for half of each period while the block runs."""
    is_done = threading.Event()

    def slow_down() -> None:
        worker: Optional[int] = None
        while worker is None and not is_done.wait(0.05):
            worker = worker_of(supervisor, 1)
        with contextlib.suppress(ProcessLookupError):
            while worker is not None and not is_done.is_set():
                os.kill(worker, signal.SIGSTOP)
                time.sleep(PERIOD_S * (1 - SHARE))
                os.kill(worker, signal.SIGCONT)
                time.sleep(PERIOD_S * SHARE)

    thread = threading.Thread(target=slow_down)
    thread.start()
    try:
        yield
    finally:
        is_done.set()
        thread.join()


def worker_of(supervisor: int, rank: int) -> Optional[int]:
    """Returns the process of a worker among the children of its supervisor; None if it has not started."""
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError, IndexError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            variables = (folder / "environ").read_bytes().split(b"\0") if parent == supervisor else []
            if f"MXTRAIN_WORKER={rank}".encode() in variables:
                return int(folder.name)
    return None
