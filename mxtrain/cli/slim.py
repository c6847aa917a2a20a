"""`mxtrain slim RUN`: the network of a run without the channels that callback=prune_channels has set to 0, as a run
directory of its own, which `eval`, `predict` and `export` take."""

from __future__ import annotations

import logging
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Dict, List, Literal, Mapping, Optional, Sequence

from mxtrain.amp.spec import FULL
from mxtrain.archive.run_records import read_meta
from mxtrain.checkpoint import Checkpoint, refuse_links
from mxtrain.checkpoint.folder import CHECKPOINTS, run_dir_of
from mxtrain.cli.commands import Command
from mxtrain.composing import arguments as command_line
from mxtrain.composing.restored import one_run, restore
from mxtrain.composing.settings import refuse_misspelled_groups, split_settings
from mxtrain.data.spec import choose_split, open_splits
from mxtrain.errors import EXIT_FINISHED, CheckpointError, ConfigError, DataError, LoaderError
from mxtrain.parallel.spec import Single
from mxtrain.terminal.program import program
from mxtrain.types import Spec
from mxtrain.workflows.output_file import OutputFolder, require_writable

if TYPE_CHECKING:
    from mxtrain.workflows.slim import SlimReport

SLIMMED = "slim"
PRUNING = ("prune", "prune_channels")
LEFT_OUT = ("-", "hydra.", "model.widths", *(f"callback.{name}." for name in PRUNING))
"""Beginnings of words that the command for training from scratch does not repeat."""


class SlimSettings(Spec):
    """Settings of `slim`."""

    out: Optional[OutputFolder] = None
    """Run directory to write; default: slim in the run directory. One that `slim` wrote before is replaced."""
    which: Literal["best", "last"] = "best"
    """The checkpoint of a run to use: its last or its best one after the last channel was pruned."""


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
    parsed = command_line.parse(arguments, reads_checkpoint=True)
    settings, overrides = split_settings(parsed, SlimSettings, "slim")
    refuse_misspelled_groups(overrides, "slim", parsed.config_dirs)
    if len(parsed.positionals) > 1:
        raise ConfigError(f"slim takes one run or checkpoint, not also '{parsed.positionals[1]}'.")
    restored = restore(
        one_run(parsed, "slim"),
        which=settings.which,
        overrides=overrides,
        config_dirs=parsed.config_dirs,
        trust_code=parsed.trusts_code,
        command="slim",
        settings=SlimSettings.model_fields,
    )
    checkpoint, description = restored.checkpoint, restored.description
    dataset, signature = restored.dataset, restored.signature
    run_dir = run_dir_of(checkpoint.path)
    if settings.out is None:
        refuse_links(run_dir, (SLIMMED, f"{SLIMMED}/{CHECKPOINTS}"))
    folder = require_writable(Path(settings.out) if settings.out else run_dir / SLIMMED, "out")
    _require_own(folder)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    alone = replace(description, parallel=Single(devices="cpu:1"), amp=FULL)
    _, source = choose_split(open_splits(dataset), "val")
    from mxtrain.workflows.slim import slim  # imports MXNet: only from here on

    try:
        report = slim(checkpoint, alone, signature, source, folder)
    except LoaderError as error:
        raise DataError(str(error)) from error
    except OSError as error:
        raise CheckpointError(f"The network cannot be written to {folder}: {error.strerror}.") from error
    print_report(report, checkpoint, run_dir)
    return EXIT_FINISHED


def _require_own(folder: Path) -> None:
    """Refuses a folder that holds something else than a network that `slim` wrote.

    Raises:
        ConfigError: it does.
    """
    from mxtrain.checkpoint import open_checkpoint
    from mxtrain.checkpoint.average import SLIM

    if not folder.exists() or not any(folder.iterdir()):
        return
    try:
        is_own = SLIM in open_checkpoint(folder, which="last").state
    except CheckpointError:
        is_own = False
    if not is_own:
        raise ConfigError(f"slim.out={folder}: the folder holds something else. Name another one with out=FOLDER.")


def print_report(report: SlimReport, checkpoint: Checkpoint, run_dir: Path) -> None:
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
    print("  " + scratch_command(report.widths, _typed(run_dir)))


def _typed(run_dir: Path) -> List[str]:
    """Returns the overrides that the run was started with; empty if they are not known."""
    try:
        argv = read_meta(run_dir).get("argv")
    except (OSError, ValueError):
        return []
    words = argv if isinstance(argv, list) else []
    return [word for word in words if isinstance(word, str) and word.isprintable()]


def scratch_command(widths: Mapping[str, int], typed: Sequence[str]) -> str:
    """Returns the command that trains a network of these widths from scratch.

    Args:
        widths: `model.widths`.
        typed: the command line of the run.
    """
    words: Dict[str, None] = {}
    for word in typed:
        key, is_override, value = word.partition("=")
        if not is_override or key.startswith(LEFT_OUT):
            continue
        if key == "callback":
            names = [name for name in map(str.strip, value.strip("[]").split(",")) if name and name not in PRUNING]
            if not names:
                continue
            word = f"callback=[{','.join(names)}]"
        words[word] = None
    listed = ",".join(f"{name}: {width}" for name, width in widths.items())
    words[f"model.widths={{{listed}}}"] = None
    return " ".join([program(), *map(shlex.quote, words)])
