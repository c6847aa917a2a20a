"""`mxtrain slim RUN`: the network of a run without the channels that callback=prune_channels has set to 0, as a run
directory of its own, which `eval`, `predict` and `export` take."""

from __future__ import annotations

import logging
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Dict, List, Mapping, Sequence

from mxtrain.archive.run_records import read_meta_object
from mxtrain.cli.commands import Command
from mxtrain.cli.restored import restore_named
from mxtrain.errors import EXIT_FINISHED
from mxtrain.terminal.program import program
from mxtrain.terminal.progress import ProgressDisplay
from mxtrain.workflows.slim import SlimSettings, slim

if TYPE_CHECKING:
    from mxtrain.training.slimming import SlimReport

PRUNING = ("prune", "prune_channels")
LEFT_OUT = ("-", "hydra.", "model.widths", *(f"callback.{name}." for name in PRUNING))
"""Beginnings of words that the command for training from scratch does not repeat."""

COMMAND = Command(
    "slim",
    position=70,
    listed="slim RUN",
    help="the network without the channels that callback=prune_channels has set to 0",
    usage="RUN|CHECKPOINT [--config-dir DIR | --trust-code] [setting=value ...]",
    settings="SlimSettings",
    examples=("slim RUN", "slim RUN out=FOLDER which=last", "eval RUN/slim"),
)


def run(arguments: Sequence[str]) -> int:
    """Writes the smaller network; returns the exit code."""
    restored, settings = restore_named(arguments, SlimSettings, "slim")
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    print_report(slim(restored, settings, ProgressDisplay()), restored.run_dir)
    return EXIT_FINISHED


def print_report(report: SlimReport, run_dir: Path) -> None:
    """Prints sizes before and after, and what to compare them with."""
    before, after = report.before, report.after
    for layer, (old, new) in report.channels.items():
        print(f"{layer}: {old} -> {new} channels")
    print(f"parameters: {before.parameters:,} -> {after.parameters:,} ({after.parameters / before.parameters:.1%})")
    if before.flops:
        print(f"FLOPs of one sample: {before.flops:,} -> {after.flops:,} ({after.flops / before.flops:.1%})")
    for count, seconds in before.seconds.items():
        now = after.seconds[count]
        print(
            f"forward pass of {count} here: {1e3 * seconds:.2f} -> {1e3 * now:.2f} ms ({seconds / now:.1f} times as "
            "fast; shortest time)"
        )
    print(f"largest relative difference of the outputs: {report.error:.1e}")
    print(f"written to {report.folder}")
    print(f"  {program()} eval {shlex.quote(str(report.folder))}")
    print(
        "The network of this size, trained from scratch, is what to compare it with. It is often as good after as many "
        "epochs:"
    )
    print("  " + scratch_command(report.widths, _recorded_arguments(run_dir)))


def _recorded_arguments(run_dir: Path) -> List[str]:
    """Returns the overrides that the run was started with; empty if they are not known."""
    try:
        argv = read_meta_object(run_dir).get("argv")
    except (OSError, ValueError):
        return []
    kept = argv if isinstance(argv, list) else []
    # The command is printed, and meta.json may be untrusted: words must not control the terminal.
    return [word for word in kept if isinstance(word, str) and word.isprintable()]


def scratch_command(widths: Mapping[str, int], arguments: Sequence[str]) -> str:
    """Returns the command that trains a network of these widths from scratch.

    Args:
        widths: `model.widths`.
        arguments: the command line of the run.
    """
    kept: Dict[str, None] = {}
    for word in arguments:
        key, is_override, value = word.partition("=")
        if not is_override or key.startswith(LEFT_OUT):
            continue
        if key == "callback":
            names = [name for name in map(str.strip, value.strip("[]").split(",")) if name and name not in PRUNING]
            if not names:
                continue
            word = f"callback=[{','.join(names)}]"
        kept[word] = None
    listed = ",".join(f"{name}: {width}" for name, width in widths.items())
    kept[f"model.widths={{{listed}}}"] = None
    return " ".join([program(), *map(shlex.quote, kept)])
