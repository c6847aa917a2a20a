"""Evaluation against PyTorch: the race's networks and batches, in inference mode, in turns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from bench_parts.measured import Measured, Options
from bench_parts.processes import train, untouched_environment
from bench_parts.race import DTYPES, QUICK_RACES, RACES, Race, both_sides, folder_of, overrides_of, rates_of
from bench_parts.turns import Side
from mxtrain.errors import EXIT_BUDGET

NETWORKS = ("ResNet-50", "ResNet-20, 32 px, batch 128", "BERT-base", "BERT with")
TIMES = 3
"""So many times the steps of training make a block here."""


def measure(options: Options) -> Measured:
    found = Measured(notes=[
        "Ours: what `python -m mxtrain eval` measures, loss and accuracy, with its data through the loader. PyTorch's: "
        "scripts/bench_parts/torch_loop.py, channels last, inference mode, autocast, batches on hand; of eager and "
        "torch.compile, the one that was faster in a short trial. As many threads each as there are cores.",
        "Networks, batches and texts are those of training's race.",
    ])  # fmt: skip
    for race in QUICK_RACES if options.quick else RACES:
        if options.quick or race.name.startswith(NETWORKS):
            _run(replace(race, block_steps=TIMES * race.block_steps), options, found)
    return found


def _run(race: Race, options: Options, found: Measured) -> None:
    folder = folder_of(race, options)
    rates = rates_of(race, both_sides(race, _ours, folder, options.torch_python, "eval"), folder, found)
    for dtype in DTYPES.values():
        ours, theirs = rates[f"mxtrain, {dtype}"], rates[f"PyTorch, {dtype}"]
        found.compare(f"{race.name}: mxtrain / PyTorch, evaluation, {dtype}", ours, theirs, 1.0)


def _ours(race: Race, amp: str, folder: Path) -> Side:
    """Evaluates a network that was trained for a step."""
    given = [*overrides_of(race, amp, folder), f"dataset.eval_batch_size={race.batch_size}",
             "trainer.max_steps=1", "trainer.limit_val_batches=1", "trainer.test=false"]  # fmt: skip
    run_dir = train(given, folder / f"trained-{amp}", exit_codes=(EXIT_BUDGET,))
    arguments = ["-m", "bench_parts.eval_loop", str(run_dir), str(race.block_steps)]
    return Side(arguments, untouched_environment())
