"""What a checkpoint every 50 steps costs, as a share of the time without."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Sequence

from bench_parts.measured import Measured, Options, Series, Target, ratios
from bench_parts.processes import mxtrain_arguments, untouched_environment
from bench_parts.turns import Side, TurnsCallback, in_turns

MAX_SHARE = 0.035


@dataclass(frozen=True)
class Case:
    """What is trained, in blocks of so many steps, the first of which is preceded by a save."""

    name: str
    overrides: Sequence[str]
    batch_size: int
    every: int
    block_steps: int
    blocks: int


RESNET = ("model=resnet", "model.depth=20", "optimizer=sgd", "dataset.shape=[3,32,32]")
LENET = ("model=lenet", "optimizer=adam", "dataset.shape=[1,8,8]")
CASES = (
    Case("ResNet-20, 32 px, batch 128", RESNET, 128, every=50, block_steps=50, blocks=11),
    Case("LeNet, 8 px, batch 64", LENET, 64, every=50, block_steps=250, blocks=15),
)
QUICK_CASES = (Case("LeNet, 8 px, batch 8", LENET, 8, every=10, block_steps=20, blocks=2),)


def measure(options: Options) -> Measured:
    """Both ways in turns; everything else is default, logging at the same steps."""
    found = Measured(notes=[
        "`python -m mxtrain` with `checkpoint.every_steps=50` and without checkpoints, `dataset=synthetic`, both "
        "started once and training in turns, 50 (LeNet: 250) steps each. Such a block begins with a save, and ends "
        "when all is computed.",
    ])  # fmt: skip
    for case in QUICK_CASES if options.quick else CASES:
        _measure_case(case, options.work, found)
    return found


def _measure_case(case: Case, folder: Path, found: Measured) -> None:
    seconds = in_turns({"with": _side(case, str(case.every)), "without": _side(case, "null")}, case.blocks, folder)
    for name, values in seconds.items():
        times = [1000 * value / case.block_steps for value in values]
        found.series.append(Series(f"{case.name}: a step {name} checkpoints", "ms", times))
    costs = Series(f"{case.name}: cost, pair by pair", "share", [r - 1 for r in ratios(*seconds.values())])
    found.series.append(costs)
    name = f"{case.name}: cost of a checkpoint every {case.every} steps, median of pairs"
    found.targets.append(Target(name, costs.median, MAX_SHARE, at_least=False))


def _side(case: Case, every_steps: str) -> Side:
    samples = int(case.block_steps * (case.blocks + 5) * case.batch_size / 0.8) + 10
    overrides = [
        "dataset=synthetic", *case.overrides, f"dataset.batch_size={case.batch_size}", "lr_scheduler=constant",
        f"dataset.num_samples={samples}",
        f"checkpoint.every_steps={every_steps}", "checkpoint.every_epochs=null", "checkpoint.every_minutes=null",
        *TurnsCallback.overrides(case.block_steps),
    ]  # fmt: skip
    return Side(mxtrain_arguments(overrides), untouched_environment())
