"""Kills at random moments and at each system call of a save: see kill_sweep.py."""

from __future__ import annotations

import json

from bench_parts.measured import Measured, Options, Series, Target
from bench_parts.processes import ROOT, run, tuned_environment

SCRIPT = ROOT / "scripts" / "bench_parts" / "kill_sweep.py"
KILLS, QUICK_KILLS = 100, 2


def available() -> bool:
    return SCRIPT.is_file()


def measure(options: Options) -> Measured:
    """Every kill must be followed by a run that ends with the same weights and rows, to the bit."""
    kills = QUICK_KILLS if options.quick else KILLS
    # It ends with 1 where a run came out different: that is a figure here, not a failure to measure.
    done = run([str(SCRIPT), str(kills)], tuned_environment(), options.work, exit_codes=(0, 1))
    found = json.loads(done.stdout.splitlines()[-1])
    failures = [failure.replace(str(options.work), "WORK") for failure in found["failures"]]
    return Measured(
        series=[
            Series("kills at random moments", "kills", [float(found["random_kills"])]),
            Series("kills at a call of a save", "kills", [float(found["save_kills"])]),
            Series("time of the random kills", "s", [found["random_kills_s"]]),
            Series("time of the kills at calls", "s", [found["save_kills_s"]]),
        ],
        targets=[
            Target("kills at random moments", float(found["random_kills"]), float(kills), at_least=True),
            Target("runs that did not end with the same weights and rows", float(len(failures)), 0, at_least=False),
        ],
        notes=[
            "Small runs with everything on that changes numbers (shuffling, augmentation, dropout, Adam, schedule, "
            "moving average, accumulation, early stopping) are killed with SIGKILL and resumed; the final weights and "
            "all rows are compared with those of a run that was never killed."
        ],
        details={"moments": found["moments"], "runs": found["runs"], "failures": failures},
    )
