"""Several workers: how long a start takes, and what stores cost."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, List, Mapping, Sequence

from bench_parts.measured import Measured, Options, Series
from bench_parts.placements import ONE_THREAD, QUICK, SPLIT
from bench_parts.processes import train
from bench_parts.runner import Case, runner, samples_per_s
from mxtrain.errors import EXIT_BUDGET
from mxtrain.kvstore import has_horovod
from mxtrain.types import Callback

WORKERS = (1, 2, 4, 8)
STARTS_EACH = 5
TINY = ["model=mlp", "model.hidden=[8]", "trainer.test=false", "trainer.limit_val_batches=1", "early_stopping=off"]
STORES = ("dist_sync", "p3", "horovod")


def measure(options: Options) -> Measured:
    found = Measured(notes=[
        "All processes on this machine, over loopback. Start-up: from the command to the end of the first step, on the "
        "default data with an MLP, one server.",
        "Throughput: two workers with one thread each against one process with one thread.",
    ])  # fmt: skip
    workers, each = ((2,), 1) if options.quick else (WORKERS, STARTS_EACH)
    for number in workers:
        seconds = [first_step_s(number, options.work / f"start-{number}-{repetition}") for repetition in range(each)]
        found.series.append(Series(f"start-up, {number} workers", "s", seconds))
    _throughput(QUICK if options.quick else SPLIT, options.work, found)
    return found


def first_step_s(workers: int, folder: Path) -> float:
    """Seconds from the command to the end of the first step."""
    folder.mkdir()
    file = folder / "first-step"
    began = time.time()
    train([*TINY, *group(workers), "trainer.max_steps=1", "checkpoint=off", *FirstStep.overrides(file)],
          folder, exit_codes=(0, EXIT_BUDGET))  # fmt: skip
    return float(json.loads(file.read_text())) - began


def group(workers: int, servers: int = 1, store: str = "dist_sync") -> List[str]:
    own = [] if store == "horovod" else [f"cluster.servers={servers}"]
    return [f"kvstore={store}", f"cluster.workers={workers}", *own]


def _throughput(case: Case, folder: Path, found: Measured) -> None:
    sides = {"1 process": runner(case, **ONE_THREAD),
             "2 processes at once": replace(runner(case, **ONE_THREAD), copies=2)}  # fmt: skip
    stores = [store for store in STORES if store != "horovod" or has_horovod()]
    if len(stores) < len(STORES):
        found.notes.append("Horovod is not built here (scripts/horovod): it was not measured.")
    for store in stores:
        sides[f"2 workers, {store}"] = runner(case, *group(2, store=store), **ONE_THREAD)
    rates = samples_per_s(case, sides, folder)
    found.series += [Series(f"{case.name}: {name}", "samples/s", values) for name, values in rates.items()]
    single, _, *joined = rates.values()
    for store, values in zip(stores, joined):
        found.compare(f"{case.name}: 2 workers with {store} / 1 process", values, single, 1.5)


class FirstStep(Callback):
    """Writes when the first step was read."""

    def __init__(self, path: str):
        self._path = Path(path)

    @staticmethod
    def overrides(path: Path) -> List[str]:
        return ["+callback.first._target_=bench_parts.workers.FirstStep", f"+callback.first.path={path}",
                "trainer.log_interval=1"]  # fmt: skip

    def on_steps(self, rows: Sequence[Mapping[str, Any]], progress: Any) -> None:
        if rows[0]["step"] == 1:
            self._path.write_text(json.dumps(time.time()))
