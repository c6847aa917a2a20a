"""What a checkpoint every 50 steps costs, as a share of the time without."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Sequence

from bench_parts import clock
from bench_parts.measured import Measured, Options, Series, Target, in_turn, ratios
from bench_parts.processes import train

MAX_SHARE = 0.035
EXIT_BUDGET = 75


@dataclass(frozen=True)
class Case:
    """What is trained; the first `every` steps are not counted."""

    name: str
    folder: str
    overrides: Sequence[str]
    batch_size: int
    every: int
    steps: int
    repetitions: int


RESNET = ("model=resnet", "model.depth=20", "optimizer=sgd", "dataset.shape=[3,32,32]")
LENET = ("model=lenet", "optimizer=adam", "dataset.shape=[1,8,8]")
CASES = (
    Case("ResNet-20, 32 px, batch 128", "resnet20", RESNET, 128, every=50, steps=150, repetitions=5),
    Case("LeNet, 8 px, batch 64", "lenet", LENET, 64, every=50, steps=1500, repetitions=7),
)
QUICK_CASES = (Case("LeNet, 8 px, batch 8", "lenet", LENET, 8, every=10, steps=40, repetitions=1),)


def measure(options: Options) -> Measured:
    """Both ways in turn; everything else is default, logging and validation at the same steps."""
    found = Measured(notes=[
        "`python -m mxtrain` with `checkpoint.every_steps=50` and without checkpoints, `dataset=synthetic`, in turn. "
        "The window begins at a step that saves and ends before one: each of its saves has been written in it.",
    ])  # fmt: skip
    for case in QUICK_CASES if options.quick else CASES:
        _measure_case(case, options.work / case.folder, found)
    return found


def _measure_case(case: Case, folder: Path, found: Measured) -> None:
    sides = {
        "with": lambda number: _milliseconds_per_step(case, str(case.every), folder / f"with{number}"),
        "without": lambda number: _milliseconds_per_step(case, "null", folder / f"without{number}"),
    }
    times = in_turn(sides, case.repetitions)
    for name, values in times.items():
        found.series.append(Series(f"{case.name}: a step {name} checkpoints", "ms", values))
    shares = [ratio - 1 for ratio in ratios(times["with"], times["without"])]
    costs = Series(f"{case.name}: cost, pair by pair", "share", shares)
    found.series.append(costs)
    name = f"{case.name}: cost of a checkpoint every {case.every} steps, median of pairs"
    found.targets.append(Target(name, costs.median, MAX_SHARE, at_least=False))


def _milliseconds_per_step(case: Case, every_steps: str, folder: Path) -> float:
    times, total = folder / "clock.json", case.every + case.steps
    overrides = [
        "dataset=synthetic", *case.overrides, f"dataset.batch_size={case.batch_size}", "lr_scheduler=constant",
        f"dataset.num_samples={int((total + 4) * case.batch_size / 0.8) + 10}", f"trainer.max_steps={total}",
        f"trainer.log_interval={case.every}", "trainer.limit_val_batches=1", "trainer.test=false",
        f"checkpoint.every_steps={every_steps}", "checkpoint.every_epochs=null", "checkpoint.every_minutes=null",
        *clock.overrides(times),
    ]  # fmt: skip
    train(overrides, folder, exit_codes=(0, EXIT_BUDGET))
    return 1000 * clock.seconds_per_step(times, case.every, case.steps)
