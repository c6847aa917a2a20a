"""Optimizer state divided among workers: memory of each worker and time of a step."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import List, Sequence

from bench_parts.distributed import held_workers, peaks
from bench_parts.harness import ENDS_WELL, Measured, Options, callback, in_turn, train
from bench_parts.parts import Race, language_overrides

CASE = Race("GPT-2 small, two workers, 2 x 64 tokens", "gpt2", 64, 2, 4, 1, None, None)
QUICK_CASE = Race("GPT of 2 layers, two workers, 2 x 8 tokens", "gpt_tiny", 8, 2, 3, 1, None, None)
SIDES = {"whole": "false", "divided": "true"}


def measure(options: Options) -> Measured:
    found, case = Measured(), QUICK_CASE if options.quick else CASE
    steps = options.steps or case.steps
    given = language_overrides(replace(case, steps=steps), "off", options.work)
    sides = {name: partial(_train, given, value, steps, options.work) for name, value in SIDES.items()}
    taken = in_turn(sides, 1 if options.quick else options.turns or 3)
    for position, (name, unit) in enumerate((("peak memory of the larger worker", "MiB"), ("time of a step", "s"))):
        for side, rows in taken.items():
            found.add(f"{case.name}: {name}, {side}", unit, [row[position] for row in rows])
        ratios = [divided[position] / whole[position] for whole, divided in zip(taken["whole"], taken["divided"])]
        found.add(f"{case.name}: {name}, divided / whole, pair by pair", "ratio", ratios)
        if position == 0 and not options.quick:
            found.at_most(f"{case.name}: {name}, divided / whole, median of pairs", median(ratios), 0.9)
    return found


def _train(given: Sequence[str], divides: str, steps: int, folder: Path, number: int) -> List[float]:
    """Returns MiB of the larger worker at most, and seconds of a step."""
    own = folder / f"{divides}{number}"
    own.mkdir()
    # Rows are read three steps after they were queued, so a run has steps besides those that are timed.
    more = [
        "kvstore=horovod",
        "cluster.workers=2",
        f"kvstore.shard_optimizer={divides}",
        f"trainer.max_steps={steps + 3}",
        "trainer.log_interval=1",
        "trainer.test=false",
        "trainer.limit_val_batches=1",
        "checkpoint.save_on_end=false",
        *callback("StepMemory", path=own / "noted"),
    ]
    with held_workers(None), peaks() as peak_by_role:
        train([*given, *more], own, ENDS_WELL)
    (first, _, _, begin_s), *_, (last, _, _, end_s) = json.loads((own / "noted").read_text())
    return [max(peak_by_role.values()), (end_s - begin_s) / (last - first)]
