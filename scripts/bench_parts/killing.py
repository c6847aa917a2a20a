"""Kills at random moments and at each system call of a save: see kill_sweep.py."""

from __future__ import annotations

import json
from typing import List

from bench_parts.measured import Measured, Options, Series, Target, say
from bench_parts.processes import ROOT, run, tuned_environment

SCRIPT = ROOT / "scripts" / "bench_parts" / "kill_sweep.py"
KILLS, KILLS_PER_PLACEMENT, QUICK_KILLS = 100, 20, 2
# 3 parts x 2 replicas x 2 microbatches must divide the batch.
PLACEMENTS = {
    "data": ["parallel=data", "dataset.batch_size=96"],
    "model": ["parallel=model", "dataset.batch_size=96"],
    "pipeline": ["parallel=pipeline", "parallel.microbatches=2", "dataset.batch_size=96"],
    "hybrid": ["parallel=hybrid", "parallel.microbatches=2", "dataset.batch_size=96"],
}


def available() -> bool:
    return SCRIPT.is_file()


def measure(options: Options) -> Measured:
    """Every kill must be followed by a run that ends with the same weights and rows, to the bit."""
    found = Measured(notes=[
        "Small runs with everything on that changes numbers (shuffling, augmentation, dropout, Adam, schedule, "
        "moving average, accumulation, early stopping) are killed with SIGKILL and resumed; the final weights and "
        "all rows are compared with those of a run that was never killed. On one device a run is killed at each call "
        "of a save, under the other placements at every twentieth.",
    ])  # fmt: skip
    failures: List[str] = []
    for name, overrides in {"single": [], **({} if options.quick else PLACEMENTS)}.items():
        kills = QUICK_KILLS if options.quick else KILLS_PER_PLACEMENT if overrides else KILLS
        # It ends with 1 where a run came out different: that is a figure here, not a failure to measure.
        arguments = [str(SCRIPT), str(kills), *overrides]
        done = run(arguments, tuned_environment(), options.work, exit_codes=(0, 1))
        result = json.loads(done.stdout.splitlines()[-1])
        say(f"  {name}: {result}")
        failures += [f"{name}: {failure.replace(str(options.work), 'WORK')}" for failure in result["failures"]]
        found.series += [
            Series(f"{name}: kills at random moments", "kills", [float(result["random_kills"])]),
            Series(f"{name}: kills at a call of a save", "kills", [float(result["save_kills"])]),
        ]
        found.targets.append(
            Target(f"{name}: kills at random moments", float(result["random_kills"]), float(kills), at_least=True)
        )
        found.details[name] = {key: result[key] for key in ("moments", "runs", "random_kills_s", "save_kills_s")}
    found.details["failures"] = failures
    found.targets.append(
        Target("runs that did not end with the same weights and rows", float(len(failures)), 0, at_least=False)
    )
    return found
