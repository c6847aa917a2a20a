"""`diff`: compares two runs, down to the first step whose loss differs and the first layer whose output differs.

Two runs with the same description are bitwise equal, so the first unequal loss shows where they began to differ.
Recording statistics of layers during training would cost every run.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from mxtrain.archive.compare import (
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
from mxtrain.archive.registry import ListedRun, read_run
from mxtrain.archive.run_folders import require_run
from mxtrain.checkpoint import Checkpoint
from mxtrain.errors import LoaderError, MxtrainError
from mxtrain.terminal.report import format_value
from mxtrain.terminal.tables import on_one_line
from mxtrain.training.resume import changes_result
from mxtrain.types import Spec

if TYPE_CHECKING:
    from mxtrain.training.restored_run import RestoredRun
    from mxtrain.types.annotations import Json
    from mxtrain.workflows.layer_comparison import LayerComparison

Restore = Callable[[Path], "RestoredRun"]
"""Opens the run of a checkpoint at a path."""
MAX_VALUE = 60
"""Characters of a value in text output."""


class DiffSettings(Spec):
    """Settings of `diff`."""

    replay: bool = True
    """false does not run a batch through both networks to find the first layer that differs."""
    all: bool = False
    """true also lists settings that change no result, such as those of loggers."""


@dataclass(frozen=True)
class DiffResult:
    """Result of `diff`; its text is what ``mxtrain diff`` prints outside of a terminal.

    Attributes:
        first, second: the runs.
        sections: values that differ, by section: ``settings``, ``code``, ``versions``, ``data``, ``machine``. Each has
            ``name``, ``first`` and ``second``, texts; None if a run has no such value.
        unrecorded: sections of which one of the runs has recorded nothing.
        metrics: (name, value of the first run, value of the second run) of final metrics.
        parting: the first ``step`` whose training losses differ, with the ``losses``; None if all are equal.
        weights: difference of the weights of the last checkpoints before that step; None if it was not looked for.
        layers: the first ``layer`` whose output differs for one batch; None if it was not looked for.
        remark: sentence about the weights and the layers, or why they were not compared; may be empty.
    """

    first: ListedRun
    second: ListedRun
    sections: Mapping[str, Sequence[Different]]
    unrecorded: Sequence[str]
    metrics: Sequence[Tuple[str, Optional[float], Optional[float]]]
    parting: Parting
    weights: Optional[WeightsDifference]
    layers: Optional[LayerComparison]
    remark: str

    @property
    def has_equal_weights(self) -> bool:
        """True if the last weights of both runs are recorded and bitwise equal."""
        sha256 = self.first.status.weights_sha256
        return bool(sha256) and sha256 == self.second.status.weights_sha256

    def to_json(self) -> Dict[str, Json]:
        """Returns the comparison as ``mxtrain diff format=json`` prints it."""
        return {
            "runs": [self.first.to_json(), self.second.to_json()],
            **{name: [asdict(one) for one in differences] for name, differences in self.sections.items()},
            "metrics": [{"name": name, "first": one, "second": two} for name, one, two in self.metrics],
            "curves": {**asdict(self.parting), "said": parting_sentence(self.parting)},
            "weights": asdict(self.weights) if self.weights else None,
            "replay": asdict(self.layers) if self.layers else None,
            "said": self.remark,
        }

    def metric_rows(self) -> List[List[str]]:
        """Returns name, both values and their difference of each final metric, as text."""
        rows = []
        for name, one, two in self.metrics:
            change = "" if one is None or two is None else f"{two - one:+.4g}"
            cells = ["-" if value is None else format_value(value) for value in (one, two)]
            rows.append([short_text(name), *cells, change])
        return rows

    def section_remark(self, name: str) -> str:
        """Returns a line about a section without a difference; empty if it has one."""
        if self.sections[name]:
            return ""
        if name in self.unrecorded:
            reason = "outside of a git repository" if name == "code" else "no or another meta.json"
            return f"{name}: not recorded by both runs ({reason})"
        return f"{name}: no difference"

    def closing_lines(self) -> List[str]:
        """Returns the lines about curves, weights and layers."""
        lines = [f"curves: {parting_sentence(self.parting)}"]
        if self.has_equal_weights:
            lines.append("weights: the last weights of both are equal, bit by bit")
        return [*lines, *([f"replay: {self.remark}"] if self.remark else [])]

    def __str__(self) -> str:
        lines: List[str] = []
        for name, differences in self.sections.items():
            lines += [
                f"{name}: {short_text(one.name)}: {short_text(one.first)} -> {short_text(one.second)}"
                for one in differences
            ] or [self.section_remark(name)]
        lines += [
            f"results: {name}: {before} -> {after}{f' ({change})' if change else ''}"
            for name, before, after, change in self.metric_rows()
        ]
        return "\n".join([*lines, *self.closing_lines()])

    __repr__ = __str__


def diff_runs(first: str, second: str, settings: DiffSettings, restore: Restore) -> DiffResult:
    """Compares two runs. Imports MXNet only if a batch runs through both networks.

    Args:
        first, second: run directories.
        settings: what to compare.
        restore: opens the run of a checkpoint.

    Raises:
        ConfigError: one is no run directory.
    """
    for path in (first, second):
        require_run(path, "diff")
    one, two = read_run(first), read_run(second)
    every = {*one.settings, *two.settings}
    names = [path for path in every if settings.all or changes_result(path, whole_run=True)]
    differing = compare_mappings(
        *({name: run.settings[name] for name in names if name in run.settings} for run in (one, two))
    )
    parting = find_parting(one.path, two.path)
    weights, layers, remark = compare_before(one, two, parting, restore) if settings.replay else (None, None, "")
    return DiffResult(
        one,
        two,
        {"settings": differing, **compare_origins(one, two)},
        unrecorded(one, two),
        compare_metrics(one, two),
        parting,
        weights,
        layers,
        remark,
    )


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


def compare_before(
    first: ListedRun, second: ListedRun, parting: Parting, restore: Restore
) -> Tuple[Optional[WeightsDifference], Optional[LayerComparison], str]:
    """Compares the weights of the last common checkpoints before the curves part, and runs a batch through them.

    Returns:
        Both comparisons, None if they were not possible, and a sentence about them.
    """
    if parting.step is None:
        return None, None, ""
    # The loss of a step is that of the weights before it: those after it come too late to show the cause.
    last = parting.step - 1
    try:
        common = last_common_checkpoints(first.path, second.path, last)
        if common is None:
            return None, None, missing_sentence(first, second, parting)
        weights = compare_weights(*common)
    except MxtrainError as error:
        return None, None, str(error)
    later = "" if weights.step == last else f" (step {last} is the last before, and has none. {_keeping(last)})"
    sentence = f"{weights_sentence(weights)}{later}"
    if weights.only_in_one:
        return weights, None, f"{sentence}. The networks have other layers, so no batch is run through both"
    try:
        layers = run_both(common, restore)
    except (MxtrainError, LoaderError) as error:
        return weights, None, f"{sentence}. No batch could be run through both: {error}"
    return weights, layers, f"{sentence}. {layers_sentence(layers, weights, parting)}"


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


def layers_sentence(found: LayerComparison, weights: WeightsDifference, parting: Parting) -> str:
    """Returns a sentence about the first layer that differs, and its likely cause.

    Args:
        found: outputs of the step after that of the checkpoints.
        weights: difference of the checkpoints.
        parting: first step whose training loss differs.
    """
    batches = {
        True: "the next batch is the same in both runs",
        False: "the next batch is another one in the two runs",
        None: "",
    }[found.same_batch]
    if found.layer:
        is_alone = found.difference is None
        difference = "which only one of the networks has so" if is_alone else f"by up to {found.difference:.3g}"
        return (
            f"With one batch, the first layer whose output differs is '{on_one_line(found.layer)}' ({found.kind}), "
            f"{difference}, after {found.num_layers} equal ones; {batches}"
        )
    if found.same_batch is False:
        return f"With one batch, all {found.num_layers} layers compute the same, but {batches}: see data and dataset"
    step = found.step + 1
    if weights.different:
        cause = "weights that the batch does not reach"
    elif parting.step == step:
        cause = "the loss or its target"
    elif parting.last_equal is not None and parting.last_equal >= step:  # so the loss is the same function
        cause = f"an update of the weights from step {step} on: the optimizer or its learning rate"
    else:  # the loss of this step was not logged
        cause = "the loss, its target, the optimizer or its learning rate"
    return f"With one batch, all {found.num_layers} layers compute the same, and {batches}: what differs is {cause}"


def run_both(common: Tuple[Checkpoint, Checkpoint], restore: Restore) -> LayerComparison:
    """Restores both networks and runs one batch through them. Imports MXNet.

    Raises:
        MxtrainError: a network cannot be restored on this machine.
    """
    first, second = (restore(Path(checkpoint.path)) for checkpoint in common)
    from mxtrain.workflows.layer_comparison import compare_layers  # imports MXNet: only from here on

    return compare_layers(first, second)


def short_text(text: Optional[str]) -> str:
    """Returns untrusted text on one line, shortened; None becomes "(not set)"."""
    plain = "(not set)" if text is None else on_one_line(text)
    return plain if len(plain) <= MAX_VALUE else f"{plain[: MAX_VALUE - 3]}..."
