"""`mxtrain diff A B` compares two runs: settings, code, versions, data, machine, results, the first step whose training
loss differs, and the first layer whose output differs.

For the layer, the next training batch runs through both networks, with the weights of the last checkpoints that both
have before the curves part. `replay=false` leaves that out, and then MXNet is not needed."""

from __future__ import annotations

import logging
import os
import sys
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, List, Literal, Optional, Sequence, Tuple

from mxtrain.archive.comparison import (
    Different,
    Parting,
    WeightsDifference,
    checkpoint_steps,
    compare_mappings,
    compare_metrics,
    compare_origins,
    compare_weights,
    find_parting,
    last_common_checkpoints,
    unrecorded,
)
from mxtrain.archive.registry import ListedRun, is_run_dir, read_run
from mxtrain.archive.run_folders import require_folder
from mxtrain.cli.run_words import parse_words, print_json
from mxtrain.composing.arguments import Arguments
from mxtrain.composing.restored import restore
from mxtrain.errors import EXIT_FINISHED, ConfigError, LoaderError, MxtrainError
from mxtrain.terminal.report import format_value
from mxtrain.terminal.tables import on_one_line, print_rows
from mxtrain.training.resume import changes_result
from mxtrain.types import Spec

if TYPE_CHECKING:
    from mxtrain.checkpoint import Checkpoint
    from mxtrain.workflows.layer_comparison import ReplayResult, ReplaySide

MAX_LINES = 40
MAX_VALUE = 60


class DiffSettings(Spec):
    """Settings of `diff`."""

    replay: bool = True
    """false does not run a batch through both networks to find the first layer that differs."""
    all: bool = False
    """true also lists settings that change no result, such as those of loggers."""
    format: Literal["auto", "table", "lines", "json"] = "auto"
    """auto: tables on a terminal, else plain lines; json: all as JSON."""


@dataclass(frozen=True)
class Replayed:
    """The part of a comparison that reads checkpoints: their weights, the replay, and a sentence about both."""

    weights: Optional[WeightsDifference]
    result: Optional[ReplayResult]
    sentence: str


def run(arguments: Sequence[str]) -> int:
    """Compares and prints; returns the exit code."""
    parsed, settings, _ = parse_words(arguments, DiffSettings, "diff", reads_checkpoint=True)
    first, second = (read_run(path) for path in two_runs(parsed))
    every = {*first.settings, *second.settings}
    names = [path for path in every if settings.all or changes_result(path, whole_run=True)]
    settings_found = compare_mappings(
        *({name: one.settings[name] for name in names if name in one.settings} for one in (first, second))
    )
    sections = {"settings": settings_found, **compare_origins(first, second)}
    parting = find_parting(first.path, second.path)
    replayed = replay_before(first, second, parting, settings.replay, parsed)
    metrics = compare_metrics(first, second)
    if settings.format == "json":
        print_json(
            {
                "runs": [first.to_json(), second.to_json()],
                **{name: [asdict(one) for one in differences] for name, differences in sections.items()},
                "metrics": [{"name": name, "first": one, "second": two} for name, one, two in metrics],
                "curves": {**asdict(parting), "said": parting_sentence(parting)},
                "weights": asdict(replayed.weights) if replayed.weights else None,
                "replay": asdict(replayed.result) if replayed.result else None,
                "said": replayed.sentence,
            }
        )
        return EXIT_FINISHED
    is_table = settings.format == "table" or (settings.format == "auto" and sys.stdout.isatty())
    unknown = unrecorded(first, second)
    for name, differences in sections.items():
        if name in unknown and not differences:
            reason = "outside of a git repository" if name == "code" else "no or another meta.json"
            print(f"{name}: not recorded by both runs ({reason})")
        else:
            _print_section(name, differences, first, second, is_table)
    _print_metrics(metrics, first, second, is_table)
    print(f"curves: {parting_sentence(parting)}")
    if first.status.weights_sha256 and first.status.weights_sha256 == second.status.weights_sha256:
        print("weights: the last weights of both are equal, bit by bit")
    if replayed.sentence:
        print(f"replay: {replayed.sentence}")
    sys.stdout.flush()
    return EXIT_FINISHED


def two_runs(parsed: Arguments) -> Tuple[str, str]:
    """Returns the two run directories.

    Raises:
        ConfigError: there are not two, or one is none.
    """
    words = parsed.positionals
    if len(words) != 2:
        count = f"{len(words)} {'was' if len(words) == 1 else 'were'} given" if words else "none was given"
        raise ConfigError(f"diff takes two run directories, and {count}. `mxtrain runs` lists those that there are.")
    for word in words:
        require_folder(word, "diff")
        try:
            names = os.listdir(word)
        except OSError as error:
            raise ConfigError(f"diff: {word} cannot be read: {error.strerror}.") from error
        if not is_run_dir(word, names):
            raise ConfigError(
                f"diff: {word} is no run directory: it has no status.json. `mxtrain runs {word}` lists runs below it."
            )
    return words[0], words[1]


# The first step at which the losses differ.


def parting_sentence(parting: Parting) -> str:
    """Returns a sentence about the step at which the curves part."""
    if not parting.num_common:
        return "the runs have logged no common step"
    if parting.step is None:
        return f"the training losses of all {parting.num_common:,} common steps are equal"
    first, second = ("not finite" if loss is None else f"{loss:.9g}" for loss in parting.losses)
    before = "no earlier step is equal" if parting.last_equal is None else f"equal up to step {parting.last_equal}"
    visible = f"; they differ by more than 1 % from step {parting.visible_step} on" if parting.visible_step else ""
    differs = f"the first training loss that differs is that of step {parting.step}: {first} and {second}"
    return f"{differs} ({before}){visible}"


def replay_before(first: ListedRun, second: ListedRun, parting: Parting, replays: bool, parsed: Arguments) -> Replayed:
    """Compares the weights of the last common checkpoints before the curves part, and runs a batch through them."""
    if parting.step is None or not replays:
        return Replayed(None, None, "")
    last = parting.step - 1
    try:
        common = last_common_checkpoints(first.path, second.path, last)
        if common is None:
            return Replayed(None, None, missing_sentence(first, second, parting))
        weights = compare_weights(*common)
    except MxtrainError as error:
        return Replayed(None, None, str(error))
    later = "" if weights.step == last else f" (step {last} is the last before, and has none. {_keeping(last)})"
    sentence = f"{weights_sentence(weights)}{later}"
    if weights.only_in_one:
        return Replayed(weights, None, f"{sentence}. The networks have other layers, so no batch is run through both")
    try:
        result = run_both(common, parsed)
    except (MxtrainError, LoaderError) as error:
        return Replayed(weights, None, f"{sentence}. No batch could be run through both: {error}")
    return Replayed(weights, result, f"{sentence}. {replay_sentence(result, weights, parting)}")


def missing_sentence(first: ListedRun, second: ListedRun, parting: Parting) -> str:
    """Returns a sentence about the missing checkpoints and the settings that keep them."""
    assert parting.step is not None
    last = parting.step - 1
    parts = []
    for run in (first, second):
        steps = sorted(checkpoint_steps(run.path))
        listed = f"those of steps {', '.join(map(str, steps[:5]))}{', ...' if steps[5:] else ''}" if steps else "none"
        parts.append(f"{on_one_line(os.path.normpath(run.path))} has {listed}")
    needed = f"step {last} or before" if last else "step 0"
    return f"both runs need a checkpoint of {needed}, and {'; '.join(parts)}. {_keeping(last)}"


def _keeping(step: int) -> str:
    if step == 0:
        return "checkpoint.keep_last=1000 keeps that of the start, in both runs"
    return f"checkpoint.every_steps={step} checkpoint.keep_last=1000 keep it, in both runs"


def weights_sentence(weights: WeightsDifference) -> str:
    """Returns a sentence about equal or different weights."""
    at = f"after step {weights.step}" if weights.step else "at the start"
    if weights.only_in_one:
        return (
            f"{at}, {len(weights.only_in_one)} parameters are only in one network or have another shape, such as "
            f"'{on_one_line(weights.only_in_one[0])}'"
        )
    if not weights.different:
        return f"{at}, all {weights.num_arrays} parameters are equal"
    count = f"{len(weights.different)} of {weights.num_arrays} parameters"
    first = on_one_line(weights.different[0])
    return f"{at}, {count} differ, by up to {weights.largest:.3g}; the first is '{first}'"


def replay_sentence(result: ReplayResult, weights: WeightsDifference, parting: Parting) -> str:
    """Returns a sentence about the first layer that differs, and its likely cause.

    Args:
        result: outputs of the step after that of the checkpoints.
        weights: difference of the checkpoints.
        parting: first step whose training loss differs.
    """
    batches = {
        True: "the next batch is the same in both runs",
        False: "the next batch is another one in the two runs",
        None: "",
    }[result.same_batch]
    if result.layer:
        is_alone = result.difference is None
        difference = "which only one of the networks has so" if is_alone else f"by up to {result.difference:.3g}"
        return (
            f"With one batch, the first layer whose output differs is '{on_one_line(result.layer)}' ({result.kind}), "
            f"{difference}, after {result.num_layers} equal ones; {batches}"
        )
    if result.same_batch is False:
        return f"With one batch, all {result.num_layers} layers compute the same, but {batches}: see data and dataset"
    step = result.step + 1
    if weights.different:
        cause = "weights that the batch does not reach"
    elif parting.step == step:
        cause = "the loss or its target"
    elif parting.last_equal is not None and parting.last_equal >= step:  # so the loss is the same function
        cause = f"an update of the weights from step {step} on: the optimizer or its learning rate"
    else:  # the loss of this step was not logged
        cause = "the loss, its target, the optimizer or its learning rate"
    return f"With one batch, all {result.num_layers} layers compute the same, and {batches}: what differs is {cause}"


def run_both(common: Tuple[Checkpoint, Checkpoint], parsed: Arguments) -> ReplayResult:
    """Restores both networks and runs one batch through them. Imports MXNet.

    Raises:
        MxtrainError: a network cannot be restored on this machine.
    """
    restored = [
        restore(
            checkpoint.path,
            which="last",
            config_dirs=parsed.config_dirs,
            trust_code=parsed.trusts_code,
            command="diff",
        )
        for checkpoint in common
    ]
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    sides: List[ReplaySide] = []
    from mxtrain.workflows.layer_comparison import ReplaySide, replay  # imports MXNet: only from here on

    for one in restored:
        sides.append(ReplaySide(one.checkpoint, replace(one.description, dataset=one.dataset), one.signature))
    return replay(*sides)


# Output.


def _print_section(
    name: str, differing: Sequence[Different], first: ListedRun, second: ListedRun, is_table: bool
) -> None:
    if not differing:
        print(f"{name}: no difference")
        return
    if is_table:
        shown = differing[:MAX_LINES]
        rows = [[_short(entry.name), _short(entry.first), _short(entry.second)] for entry in shown]
        print()
        print_rows([name, *_titles(first, second)], rows)
    else:
        for entry in differing[:MAX_LINES]:
            print(f"{name}: {_short(entry.name)}: {_short(entry.first)} -> {_short(entry.second)}")
    if len(differing) > MAX_LINES:
        print(f"and {len(differing) - MAX_LINES} more: format=json lists all")


def _print_metrics(
    metrics: Sequence[Tuple[str, Optional[float], Optional[float]]],
    first: ListedRun,
    second: ListedRun,
    is_table: bool,
) -> None:
    rows = []
    for name, one, two in metrics:
        change = "" if one is None or two is None else f"{two - one:+.4g}"
        cells = ["-" if value is None else format_value(value) for value in (one, two)]
        rows.append([_short(name), *cells, change])
    if is_table:
        print()
        print_rows(["results", *_titles(first, second), "change"], rows)
        print()
    else:
        for row in rows:
            name, before, after, change = row
            print(f"results: {name}: {before} -> {after}{f' ({change})' if change else ''}")


def _titles(first: ListedRun, second: ListedRun) -> List[str]:
    return [on_one_line(os.path.normpath(run.path)) for run in (first, second)]


def _short(text: Optional[str]) -> str:
    plain = "(not set)" if text is None else on_one_line(text)
    return plain if len(plain) <= MAX_VALUE else f"{plain[: MAX_VALUE - 3]}..."
