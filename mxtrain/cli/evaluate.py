"""`mxtrain eval RUN`: loss and metrics of a trained model, and what else its task has to show."""

from __future__ import annotations

import logging
import sys
from typing import Sequence

from mxtrain.cli.artifacts import show_artifacts
from mxtrain.cli.commands import Command
from mxtrain.cli.restored import restore_named
from mxtrain.errors import EXIT_FINISHED
from mxtrain.terminal.progress import ProgressDisplay
from mxtrain.terminal.report import format_value
from mxtrain.workflows.evaluate import EvalResult, EvalSettings, evaluate

COMMAND = Command(
    "eval",
    position=20,
    listed="eval RUN",
    help="metrics, tables and figures of a run or checkpoint",
    usage="RUN|CHECKPOINT [--config-dir DIR | --trust-code] [setting=value ...] [group.field=value ...]",
    settings="EvalSettings",
    examples=("eval outputs/2030-01-31/12-00-00-abcd", "eval RUN split=val which=last", "eval RUN dataset.root=FOLDER"),
)


def run(arguments: Sequence[str]) -> int:
    """Measures, prints and writes; returns the exit code."""
    restored, settings = restore_named(arguments, EvalSettings, "eval")
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    result = evaluate(restored, settings, ProgressDisplay(), show)
    print(f"written to {result.folder}")
    return EXIT_FINISHED


def show(result: EvalResult) -> None:
    """Prints the newest part."""
    part = result.parts[-1]
    if part.warning:
        print(f"warning: {part.warning}", file=sys.stderr)
    if part.title:
        print(f"\n{part.title}", end="")
    if len(result.parts) > 1:
        print()
    show_artifacts(part.artifacts)
    if len(result.parts) > 1:
        return
    values = {name: value for name, value in result.values.items() if name != "samples_per_s"}
    shown = "  ".join(f"{name} {format_value(value)}" for name, value in values.items())
    of_passes = f"{result.passes}, " if result.passes else ""
    of_part = f"{result.coverage} only, " if result.coverage else ""
    rate = f"{result.values['samples_per_s']:.0f} samples/s"
    print(f"{result.split}: {shown}  ({of_passes}{of_part}{result.num_samples} samples, step {result.step}, {rate})")
