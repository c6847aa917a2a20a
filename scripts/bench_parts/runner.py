"""The runner against a hand-written Gluon loop, and what `runtime=auto` is worth."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List

from bench_parts.measured import Measured, Options, Series
from bench_parts.processes import default_environment, mxtrain_arguments, tuned_environment, untouched_environment
from bench_parts.turns import Side, TurnsCallback, in_turns

MIN_SHARE = 0.98
MIN_GAIN = 1.7


@dataclass(frozen=True)
class Case:
    """One network at one size, trained in blocks."""

    name: str
    model: str
    pixels: int
    batch_size: int
    block_steps: int
    blocks: int
    with_defaults: bool = False
    """Whether the loop is measured under MXNet's own environment, too."""


CASES = (
    Case("ResNet-20, 32 px, batch 128", "resnet20", 32, 128, block_steps=10, blocks=40),
    Case("ResNet-50, 224 px, batch 16", "resnet50", 224, 16, block_steps=4, blocks=12, with_defaults=True),
)
QUICK_CASES = (Case("ResNet-20, 16 px, batch 8", "resnet20", 16, 8, block_steps=1, blocks=1, with_defaults=True),)
# The same code builds the network on both sides: see hand_loop.py.
MODELS = {
    "resnet20": ["model=resnet", "model.depth=20"],
    "resnet50": ["model=gluoncv", "model.name=resnet50_v1b"],
}


def measure(options: Options) -> Measured:
    found = Measured(notes=[
        "The runner is `python -m mxtrain` with every default callback and logger, on `dataset=synthetic`. The loop "
        "(scripts/bench_parts/hand_loop.py) has its batches on the device already, never waits for it and reads loss "
        "and accuracy at the same steps. The same code builds both networks; same batch size, optimizer and "
        "environment variables.",
        "Both are started once and train in turns, a block of steps each (scripts/bench_parts/turns.py); start-up and "
        "the first two blocks are left out on all sides.",
    ])  # fmt: skip
    for case in QUICK_CASES if options.quick else CASES:
        _measure_case(case, options.work, found)
    return found


def _measure_case(case: Case, folder: Path, found: Measured) -> None:
    sides = {"runner": runner(case), "hand-written loop": hand_loop(case, tuned_environment())}
    if case.with_defaults:
        sides["hand-written loop, MXNet's defaults"] = hand_loop(case, default_environment())
    rates = samples_per_s(case, sides, folder)
    found.series += [Series(f"{case.name}: {name}", "samples/s", values) for name, values in rates.items()]
    own, tuned, *default = rates.values()
    found.compare(f"{case.name}: runner / hand-written loop", own, tuned, MIN_SHARE)
    if default:
        found.compare(f"{case.name}: what runtime=auto is worth", tuned, default[0], MIN_GAIN)


def samples_per_s(case: Case, sides: Dict[str, Side], folder: Path) -> Dict[str, List[float]]:
    """Of each block of each side."""
    seconds = in_turns(sides, case.blocks, folder)
    return {name: [case.block_steps * case.batch_size / value for value in values] for name, values in seconds.items()}


def description(case: Case, *overrides: str) -> List[str]:
    """Everything default but what is trained; one epoch that does not end."""
    batches = case.block_steps * (case.blocks + 5)
    return [
        *MODELS[case.model], "dataset=synthetic", f"dataset.shape=[3,{case.pixels},{case.pixels}]",
        f"dataset.num_samples={int(batches * case.batch_size / 0.8) + 10}", f"dataset.batch_size={case.batch_size}",
        "optimizer=sgd", "optimizer.lr=0.1", "optimizer.momentum=0.9", "optimizer.wd=0.0001", "lr_scheduler=constant",
        *overrides,
    ]  # fmt: skip


def runner(case: Case, *overrides: str, **environment: str) -> Side:
    """The runner on a case."""
    given = [*description(case, *overrides), *TurnsCallback.overrides(case.block_steps)]
    return Side(mxtrain_arguments(given), {**untouched_environment(), **environment})


def hand_loop(case: Case, environment: Dict[str, str], num_devices: int = 1) -> Side:
    """The loop on so many devices."""
    arguments = [case.model, case.pixels, case.batch_size, case.block_steps, num_devices]
    return Side(["-m", "bench_parts.hand_loop", *map(str, arguments)], environment)
