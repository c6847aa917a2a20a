"""Replicas and stages on CPU devices, one thread each, against one device; and what the strategy layer costs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, List, Mapping, Sequence

from bench_parts.measured import Measured, Options, Series, Target, ratios
from bench_parts.processes import train, tuned_environment
from bench_parts.runner import Case, description, hand_loop, runner, samples_per_s
from bench_parts.turns import Side
from mxtrain.errors import EXIT_BUDGET
from mxtrain.types import Callback, Result

ONE_THREAD = {"OMP_NUM_THREADS": "1"}
CORES = 2

SPLIT = Case("ResNet-20, 32 px, batch 128", "resnet20", 32, 128, block_steps=8, blocks=21)
PIPELINED = Case("ResNet-20, 32 px, batch 256", "resnet20", 32, 256, block_steps=4, blocks=21)
QUICK = Case("ResNet-20, 16 px, batch 32", "resnet20", 16, 32, block_steps=2, blocks=2)

DATA = ("parallel=data", "parallel.devices=cpu:2")
HYBRID = ("parallel=hybrid", "parallel.devices=cpu:4", "parallel.stages=2", "parallel.microbatches=4")
PIPELINE_2 = ("parallel=pipeline", "parallel.devices=cpu:2", "parallel.microbatches=8")
PIPELINE_4 = ("parallel=pipeline", "parallel.devices=cpu:4", "parallel.microbatches=16")


def measure(options: Options) -> Measured:
    found = Measured(notes=[
        "`python -m mxtrain` on `dataset=synthetic` with everything default but what is trained and where; every CPU "
        "device computes with one thread. All sides are started once and train in turns "
        "(scripts/bench_parts/turns.py).",
        "The hand-written loop is Gluon's own way: split_and_load, one forward and backward per device, gluon.Trainer "
        "with kvstore=device (scripts/bench_parts/hand_loop.py).",
        "What two cores allow at all is shown by two processes that train at the same time and exchange nothing; the "
        "samples/s are those of one of them.",
        "A pipeline of p stages and m microbatches keeps each device busy for m/(m+p-1) of the time at best; with more "
        "stages than cores the cores are the limit.",
        "Peak memory is VmHWM of a run of four steps.",
    ])  # fmt: skip
    split, pipelined = (QUICK, QUICK) if options.quick else (SPLIT, PIPELINED)
    _replicas(split, options.work, found)
    _pipelines(pipelined, options.work, found)
    _memory(replace(pipelined, batch_size=2 * pipelined.batch_size), options.work, found)
    return found


def _rates(case: Case, sides: Dict[str, Side], folder: Path, found: Measured) -> List[List[float]]:
    rates = samples_per_s(case, sides, folder)
    found.series += [Series(f"{case.name}: {name}", "samples/s", values) for name, values in rates.items()]
    return list(rates.values())


def _replicas(case: Case, folder: Path, found: Measured) -> None:
    sides = {
        "1 device": runner(case, **ONE_THREAD),
        "data, 2 devices": runner(case, *DATA, **ONE_THREAD),
        "hybrid, 2 x 2 devices": runner(case, *HYBRID, **ONE_THREAD),
        "hand-written loop, 2 devices": hand_loop(case, {**tuned_environment(CORES), **ONE_THREAD}, num_devices=2),
        "2 processes at once, 1 device each": replace(runner(case, **ONE_THREAD), copies=2),
    }
    single, data, hybrid, loop, process_of_two = _rates(case, sides, folder, found)
    both = [2 * rate for rate in process_of_two]
    found.series.append(
        Series(f"{case.name}: 2 processes at once / 1 alone, pair by pair", "ratio", ratios(both, single))
    )
    found.compare(f"{case.name}: data on 2 devices / 1 device", data, single, 1.9)
    found.compare(f"{case.name}: hybrid 2 x 2 / data on 2", hybrid, data, 0.9)
    found.compare(f"{case.name}: data on 2 / hand-written loop on 2", data, loop, 0.98)


def _pipelines(case: Case, folder: Path, found: Measured) -> None:
    sides = {
        "1 device": runner(case, **ONE_THREAD),
        "pipeline, 2 stages, 8 microbatches": runner(case, *PIPELINE_2, **ONE_THREAD),
        "pipeline, 4 stages, 16 microbatches": runner(case, *PIPELINE_4, **ONE_THREAD),
    }
    single, two, four = _rates(case, sides, folder, found)
    ideal = [rate * 2 * 8 / (8 + 2 - 1) for rate in single]
    found.compare(f"{case.name}: 2 stages x 8 microbatches / ideal {16 / 9:.2f} times 1 device", two, ideal, 0.9)
    limit = [rate * min(CORES, 4 * 16 / (16 + 4 - 1)) for rate in single]
    found.compare(f"{case.name}: 4 stages x 16 microbatches / {CORES} cores", four, limit, 0.85)


def _memory(case: Case, folder: Path, found: Measured) -> None:
    ways = {
        "1 device": (),
        "4 stages x 16 microbatches, gpipe": (*PIPELINE_4, "parallel.schedule=gpipe"),
        "4 stages x 16 microbatches, 1f1b": (*PIPELINE_4, "parallel.schedule=1f1b"),
    }
    peaks = {}
    for name, overrides in ways.items():
        given = [*description(replace(case, blocks=1), *overrides), *PeakMemory.overrides(folder / "peak")]
        limits = ["trainer.max_steps=4", f"trainer.log_interval={case.block_steps}", "trainer.test=false",
                  "trainer.limit_val_batches=1"]  # fmt: skip
        train([*given, *limits],
              folder / f"memory{len(peaks)}", exit_codes=(0, EXIT_BUDGET))  # fmt: skip
        peaks[name] = json.loads((folder / "peak").read_text())
        found.series.append(Series(f"batch {case.batch_size}: peak memory, {name}", "MiB", [peaks[name]]))
    _, gpipe, one_f_one_b = peaks.values()
    found.targets.append(Target(f"batch {case.batch_size}: peak memory 1f1b / gpipe", one_f_one_b / gpipe, 1.0, False))


class PeakMemory(Callback):
    """Writes the most memory that the process ever held, in MiB."""

    def __init__(self, path: str):
        self._path = Path(path)

    @staticmethod
    def overrides(path: Path) -> List[str]:
        return ["+callback.peak._target_=bench_parts.placements.PeakMemory", f"+callback.peak.path={path}"]

    def on_steps(self, rows: Sequence[Mapping[str, Any]], progress: Any) -> None:
        self._write()

    def on_end(self, result: Result) -> None:
        self._write()

    def _write(self) -> None:
        status = Path("/proc/self/status").read_text()
        kib = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
        self._path.write_text(json.dumps(kib / 1024))
