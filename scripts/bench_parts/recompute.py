"""Activation recomputation: memory and time of a step with activations kept and recomputed."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Callable, List, Optional, Sequence

from bench_parts.harness import ENDS_WELL, Measured, Options, callback, in_turn, train
from bench_parts.parts import Race, language_overrides, race_overrides
from bench_parts.records import Records

CASES = (
    Race("GPT-2 small, 8 x 1024 tokens", "gpt2", 1024, 8, 4, 1, None, None),
    Race("BERT-base, 32 x 128 tokens", "bert_base", 128, 32, 4, 1, None, None),
)
QUICK_CASES = (Race("GPT of 2 layers, 2 x 8 tokens", "gpt_tiny", 8, 2, 3, 1, None, None),)
SIDES = ("off", "auto")
FIGURES = (
    ("peak memory", "MiB", 0.7),
    ("peak memory less that before the first step", "MiB", None),
    ("time of a step", "s", 1.35),
)
"""Name, unit and largest ratio of recomputed to kept."""


def measure(options: Options) -> Measured:
    """Measures all cases, a run after the other; runs in `options.records` are not repeated."""
    found, records = Measured(), Records(options)
    for case in QUICK_CASES if options.quick else CASES:
        if options.only.lower() not in case.name.lower():
            continue
        folder = options.work / case.network
        folder.mkdir()
        overrides = race_overrides if case.network.startswith("bert") else language_overrides
        steps = options.steps or case.steps
        given = overrides(replace(case, steps=steps), "off", folder)
        keyed = {
            side: partial(_recorded, records, case.name, partial(_train, given, side, steps, folder), side)
            for side in SIDES
        }
        taken = in_turn(keyed, 1 if options.quick else options.turns or 3)
        pairs = [pair for pair in zip(*taken.values()) if None not in pair]
        if not pairs:
            found.notes.append(f"Not measured: {case.name}.")
            continue
        for position, (name, unit, limit) in enumerate(FIGURES):
            for side, rows in zip(SIDES, zip(*pairs)):
                found.add(f"{case.name}: {name}, recompute={side}", unit, [row[position] for row in rows])
            ratios = [auto[position] / off[position] for off, auto in pairs]
            found.add(f"{case.name}: {name}, auto / off, pair by pair", "ratio", ratios)
            if limit is not None:
                found.at_most(f"{case.name}: {name}, auto / off, median of pairs", median(ratios), limit)
    return found


def _recorded(
    records: Records, name: str, measure: Callable[[int], List[float]], side: str, number: int
) -> Optional[List[float]]:
    return records.get((name, side, number), partial(measure, number))


def _train(given: Sequence[str], recompute: str, steps: int, folder: Path, number: int) -> List[float]:
    """Returns MiB at most, the same less what the process had before the first step, and seconds of a step."""
    own = folder / f"{recompute}{number}"
    own.mkdir()
    # Rows are read three steps after they were queued, so a run has steps besides those that are timed.
    more = [
        f"parallel.recompute={recompute}",
        f"trainer.max_steps={steps + 3}",
        "trainer.log_interval=1",
        "trainer.test=false",
        "trainer.limit_val_batches=1",
        "checkpoint.save_on_end=false",
        *callback("StepMemory", path=own / "noted"),
    ]
    train([*given, *more], own, ENDS_WELL)
    (first, _, _, begin_s), *_, (last, before, peak, end_s) = json.loads((own / "noted").read_text())
    return [peak, peak - before, (end_s - begin_s) / (last - first)]
