"""The runner against a hand-written Gluon loop, and what `runtime=auto` is worth."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Sequence

from bench_parts import clock
from bench_parts.measured import Measured, Options, Series, in_turn
from bench_parts.processes import default_environment, run, train, tuned_environment

MIN_SHARE = 0.98
MIN_GAIN = 1.7
EXIT_BUDGET = 75


@dataclass(frozen=True)
class Case:
    """One network at one size; it is trained for `warm_up + steps` steps, of which the last `steps` count."""

    name: str
    model: str
    pixels: int
    batch_size: int
    warm_up: int
    steps: int
    repetitions: int
    with_defaults: bool = False
    """Whether the loop is measured under MXNet's own environment, too."""


CASES = (
    Case("ResNet-20, 32 px, batch 128", "resnet20", 32, 128, warm_up=30, steps=40, repetitions=9),
    Case("ResNet-50, 224 px, batch 16", "resnet50", 224, 16, warm_up=6, steps=8, repetitions=5, with_defaults=True),
)
QUICK_CASES = (
    Case("ResNet-20, 16 px, batch 8", "resnet20", 16, 8, warm_up=4, steps=4, repetitions=1),
    Case("ResNet-50, 32 px, batch 2", "resnet50", 32, 2, warm_up=4, steps=1, repetitions=1, with_defaults=True),
)
# The same code builds the network on both sides: see hand_loop.py.
MODELS = {
    "resnet20": ["model=resnet", "model.depth=20"],
    "resnet50": ["model=gluoncv", "model.name=resnet50_v1b"],
}


def run_overrides(case: Case) -> List[str]:
    """The description of a case: everything default but what is trained; epochs longer than the run."""
    batches = case.warm_up + case.steps + 4
    return [
        *MODELS[case.model], "dataset=synthetic", f"dataset.shape=[3,{case.pixels},{case.pixels}]",
        f"dataset.num_samples={int(batches * case.batch_size / 0.8) + 10}", f"dataset.batch_size={case.batch_size}",
        "optimizer=sgd", "optimizer.lr=0.1", "optimizer.momentum=0.9", "optimizer.wd=0.0001", "lr_scheduler=constant",
        f"trainer.max_steps={case.warm_up + case.steps}", f"trainer.log_interval={min(case.warm_up, case.steps)}",
        "trainer.limit_val_batches=1", "trainer.test=false",
    ]  # fmt: skip


def measure(options: Options) -> Measured:
    found = Measured(notes=[
        "The runner is `python -m mxtrain` with every default callback and logger, on `dataset=synthetic`; a callback "
        "notes the time when rows are handed over. The loop (scripts/bench_parts/hand_loop.py) has its batches on the "
        "device already, never waits for it and reads loss and accuracy at the same steps.",
        "The same code builds both networks; same batch size, optimizer and environment variables; a process each, in "
        "turn. Start-up and the first steps are left out on both sides.",
    ])  # fmt: skip
    for case in QUICK_CASES if options.quick else CASES:
        _measure_case(case, options.work / case.model, found)
    return found


def _measure_case(case: Case, folder: Path, found: Measured) -> None:
    tuned, default = tuned_environment(), default_environment()
    sides = {
        "runner": lambda number: _runner(case, folder / f"runner{number}"),
        "hand-written loop": lambda number: hand_loop(case, tuned, folder),
    }
    if case.with_defaults:
        sides["hand-written loop, MXNet's defaults"] = lambda number: hand_loop(case, default, folder)
    rates = in_turn(sides, case.repetitions)
    found.series += [Series(f"{case.name}: {name}", "samples/s", values) for name, values in rates.items()]
    runner, tuned_loop, *default_loop = rates.values()
    found.compare(f"{case.name}: runner / hand-written loop", runner, tuned_loop, MIN_SHARE)
    if default_loop:
        found.compare(f"{case.name}: what runtime=auto is worth", tuned_loop, default_loop[0], MIN_GAIN)


def _runner(case: Case, folder: Path) -> float:
    times = folder / "clock.json"
    train([*run_overrides(case), *clock.overrides(times)], folder, exit_codes=(0, EXIT_BUDGET))
    return case.batch_size / clock.seconds_per_step(times, case.warm_up, case.steps)


def hand_loop(case: Case, environment: Dict[str, str], folder: Path, extra: Sequence[str] = ()) -> float:
    """Samples per second of the loop in a process of its own."""
    arguments = [case.model, case.pixels, case.batch_size, case.warm_up, case.steps]
    done = run(["-m", "bench_parts.hand_loop", *map(str, arguments), *extra], environment, folder)
    return case.batch_size / json.loads(done.stdout.splitlines()[-1])["seconds_per_step"]
