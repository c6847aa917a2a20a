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
from typing import Callable, Dict, Iterator, List, Optional

from bench_parts.harness import (
    ENDS_WELL,
    ONE_THREAD,
    Measured,
    Options,
    ProcessFailed,
    callback,
    mxtrain_arguments,
    untouched_environment,
)
from bench_parts.records import Records, noting_gaps

TICK_S, SHARE = 0.001, 0.5
"""After each TICK_S in which the slow worker computes, it is stopped until it has had the share of the time."""
WAYS: Dict[str, List[str]] = {
    "two whole workers": ["kvstore=dist_sync"],
    "equal shares": ["kvstore=dist_sync"],
    "balance=speed, balance_every=10": [
        "kvstore=dist_sync",
        "cluster.balance=speed",
        "cluster.balance_every=10",
    ],
    "two whole workers, asynchronous": ["kvstore=dist_async"],
    "equal shares, asynchronous": ["kvstore=dist_async"],
    "balance=speed, asynchronous": ["kvstore=dist_async", "cluster.balance=speed"],
    "balance=dynamic, asynchronous": ["kvstore=dist_async", "cluster.balance=dynamic"],
}
WHOLE = {
    "kvstore=dist_sync": "two whole workers",
    "kvstore=dist_async": "two whole workers, asynchronous",
}
"""The way without a slow worker that each store is compared with."""
ALONE, SLOW_ALONE = "one worker alone", "the slow worker alone"
WORDS = [
    "early_stopping=off",
    "checkpoint=off",
    "trainer.max_steps=null",
    "trainer.limit_val_batches=1",
    "trainer.test=false",
    "trainer.log_interval=1",
]
EPOCHS = {"sleep": 5, "ResNet-20": 12}
BATCH_SIZES = {"sleep": 60, "ResNet-20": 64}
MODELS = {"sleep": ["model=sleepy"], "ResNet-20": ["model=resnet", "model.depth=20", "model.width=0.5"]}
NUM_SAMPLES = 1257
"""Training samples of the digits."""
SLEEP_S = 0.002
"""Time for a sample on a whole worker."""
SLEEPY = """
import os, time

def network(num_classes, sleep_s, slow_s, slow_rank):
    from mxnet import autograd, gluon

    class Sleepy(gluon.Block):
        def __init__(self):
            super().__init__()
            self.output = gluon.nn.Dense(num_classes)

        def forward(self, x):
            if autograd.is_training():
                time.sleep((slow_s if os.environ.get("MXTRAIN_WORKER", "0") == slow_rank else sleep_s) * x.shape[0])
            return self.output(x.reshape((x.shape[0], -1)))

    return Sleepy()
"""


def measure(options: Options) -> Measured:
    """Samples per second of whole epochs, all ways in turn."""
    found, records = Measured(), Records(options)
    for case in (name for name in MODELS if options.only in name):
        with noting_gaps(found):
            _measure_case(case, options, records, found)
    return found


def _measure_case(case: str, options: Options, records: Records, found: Measured) -> None:
    epochs = options.steps or (3 if options.quick else EPOCHS[case])
    rates: Dict[str, List[float]] = {way: [] for way in (ALONE, SLOW_ALONE, *WAYS)}
    for turn in range(1 if options.quick else options.turns or 3):
        for way in rates:
            folder = Path(tempfile.mkdtemp(dir=options.work))
            rates[way].append(records.require([case, way, turn], samples_per_s, case, way, epochs, folder))
    for way in rates:
        found.add(f"{case}, {way}", "samples/s", rates[way])
    found.compare(f"{case}, {SLOW_ALONE} / {ALONE}", rates[SLOW_ALONE], rates[ALONE], None)
    # The speed of both workers together, if neither ever waits for the other.
    ideals = [(1 + slow / whole) / 2 for slow, whole in zip(rates[SLOW_ALONE], rates[ALONE])]
    for way, words in WAYS.items():
        whole = WHOLE[words[0]]
        if way != whole:
            ideal = [part * rate for part, rate in zip(ideals, rates[whole])]
            limit = None if way.startswith("equal") else 0.9
            found.compare(f"{case}, {way} / ideal", rates[way], ideal, limit)


def samples_per_s(case: str, way: str, epochs: int, folder: Path) -> float:
    """Trains; returns the samples per second from the second epoch's first step to the last epoch's first step.

    Workers meet at the end of each epoch for a validation of one batch.
    """
    (folder / "sleepy.py").write_text(SLEEPY)
    (folder / "conf" / "model").mkdir(parents=True)
    is_slow = way not in (ALONE, *WHOLE.values())
    slow_s = SLEEP_S / SHARE if is_slow else SLEEP_S
    slow_rank = 0 if way == SLOW_ALONE else 1
    settings = f"_target_: sleepy.network\nsleep_s: {SLEEP_S}\nslow_s: {slow_s}\nslow_rank: '{slow_rank}'\n"
    (folder / "conf" / "model" / "sleepy.yaml").write_text(settings)
    words = [
        "--config-dir",
        str(folder / "conf"),
        *MODELS[case],
        *WORDS,
        *(["cluster.workers=2", *WAYS[way]] if way in WAYS else []),
        # Alone, a worker has the share that it has of two.
        f"dataset.batch_size={BATCH_SIZES[case] // (1 if way in WAYS else 2)}",
        f"trainer.max_epochs={epochs}",
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
        find_slow = (lambda: worker_of(process.pid, 1)) if way in WAYS else (lambda: process.pid)
        with slowed(find_slow) if case != "sleep" and is_slow else contextlib.nullcontext():
            code = process.wait()
    if code not in ENDS_WELL:
        raise ProcessFailed(f"exit code {code}: {(folder / 'output').read_text()[-2000:]}")
    rows = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    epoch_of = {row["step"]: row["epoch"] for row in rows if row["split"] == "train"}
    begins: Dict[int, float] = {}
    for step, seconds, *_ in json.loads((folder / "steps").read_text()):
        begins.setdefault(epoch_of[step], seconds)
    return NUM_SAMPLES * (epochs - 2) / (begins[epochs] - begins[2])


@contextlib.contextmanager
def slowed(find: Callable[[], Optional[int]]) -> Iterator[None]:
    """Lets a process compute for the share of the time only, while the block runs.

    It is stopped for as long as it has computed, so that waiting for others takes no longer than on a whole core.
    """
    is_done = threading.Event()

    def slow_down() -> None:
        pid: Optional[int] = None
        while pid is None and not is_done.wait(0.05):
            pid = find()
        with contextlib.suppress(ProcessLookupError, OSError):
            owed_s, computed_s, now = 0.0, processor_s(pid), time.monotonic()
            while pid is not None and not is_done.is_set():
                time.sleep(TICK_S)
                before_s, before = computed_s, now
                computed_s, now = processor_s(pid), time.monotonic()
                # Several threads of the process may compute at once.
                owed_s += min(computed_s - before_s, now - before) * (1 / SHARE - 1)
                if owed_s > TICK_S:
                    os.kill(pid, signal.SIGSTOP)
                    time.sleep(owed_s)
                    os.kill(pid, signal.SIGCONT)
                    owed_s, now = owed_s - (time.monotonic() - now), time.monotonic()

    thread = threading.Thread(target=slow_down)
    thread.start()
    try:
        yield
    finally:
        is_done.set()
        thread.join()


def processor_s(pid: Optional[int]) -> float:
    """Returns the processor time of all threads of another process, by Linux's clock of that process."""
    return 0.0 if pid is None else time.clock_gettime((~pid << 3) | 2)


def worker_of(supervisor: int, rank: int) -> Optional[int]:
    """Returns the process of a worker among the children of its supervisor; None if it has not started."""
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError, IndexError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            variables = (folder / "environ").read_bytes().split(b"\0") if parent == supervisor else []
            if f"MXTRAIN_WORKER={rank}".encode() in variables:
                return int(folder.name)
    return None
