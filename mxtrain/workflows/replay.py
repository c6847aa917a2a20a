"""`replay`: repeats the step at which a run failed, on one device and layer by layer."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, List, Optional, Protocol, Sequence, Tuple, Union

from mxtrain.archive.run_files import ROWS_FILE
from mxtrain.archive.run_records import last_step
from mxtrain.archive.status import read_status
from mxtrain.checkpoint import Checkpoint, open_checkpoint
from mxtrain.checkpoint.folder import CHECKPOINTS, scan
from mxtrain.config.groups import Description
from mxtrain.data.signature import signature_of
from mxtrain.errors import EXIT_FINISHED, ConfigError
from mxtrain.terminal.tables import rows_text
from mxtrain.training.replay_bundle import BUNDLE, FOLDER, ReplayBundle, StepReference, read_bundle
from mxtrain.training.restored_run import RestoredRun
from mxtrain.types import Positive, Spec
from mxtrain.workflows.output_file import OutputFile

if TYPE_CHECKING:
    from mxtrain.training.nonfinite import LayerStatistics
    from mxtrain.training.repeated_step import RepeatedStep
    from mxtrain.types.annotations import JsonObject

BUNDLE_NAME = re.compile(r"step-(\d{1,12})(?:-|$)")


class ReplaySettings(Spec):
    """Settings of `replay`, besides overrides."""

    output: Optional[OutputFile] = None
    """File for the statistics as JSON."""
    step: Optional[Positive] = None
    """Step of a run; by default the one that it wrote when it failed, else the one after its last row in
    metrics.jsonl."""


class Restorer(Protocol):
    """Describes the run of a step for one device; then MXNet may be imported."""

    def restore(self, checkpoint: Path) -> RestoredRun:
        """Opens the run of a checkpoint."""

    def describe(self, bundle: ReplayBundle) -> Description:
        """Returns the description of the run of a bundle."""


@dataclass(frozen=True)
class ReplayResult:
    """Result of `replay`; its text is what the command prints.

    Attributes:
        facts: facts of the step: ``step``, ``rank``, ``reason``, ``samples`` and ``batch_size``, ...
        repeated: ``layers``, ``gradients``, ``loss`` and ``verdict`` of the repeated step.
        weights: checkpoint of an earlier step with whose weights it was repeated; None if the run kept those of the
            step.
    """

    facts: JsonObject
    repeated: RepeatedStep
    weights: Optional[Checkpoint]

    def __str__(self) -> str:
        facts, found = self.facts, self.repeated
        lines = [f"step {facts['step']} of worker {facts['rank']}: {_line(facts['reason'])}"]
        if facts["samples"] < facts["batch_size"]:
            lines.append(
                f"the first {facts['samples']} of {facts['batch_size']} samples, since a bundle has a limited size"
            )
        if self.weights is not None:
            lines.append(
                f"note: the weights are those of {self.weights.path}, after step {self.weights.step}: the step may not "
                "fail again"
            )
        lines += [f"note: {remark}" for remark in found.remarks]
        titles = ("shape", "smallest", "largest", "mean", "non-finite")
        lines.append(rows_text(("layer", "class", "output", *titles[1:]), _rows(found.layers), indent=2))
        if found.gradients:
            title = "gradient with non-finite values"
            lines.append(rows_text((title, "", *titles), _rows(found.gradients), indent=2))
        return "\n".join([*lines, f"loss {found.loss:.6g}; {found.verdict}"])

    __repr__ = __str__


def find_step(path: Path, step: Optional[int] = None) -> Tuple[Path, Union[ReplayBundle, StepReference]]:
    """Returns the bundle or run directory with a step, and the step.

    Args:
        path: bundle or run directory.
        step: number of the step, for a run directory; by default the one that it wrote when it failed, else the one
            after its last row in metrics.jsonl.

    Raises:
        ConfigError: there is no such step, or the bundle is damaged.
    """
    if is_run_directory(path):
        written = bundle_of(path, step)
        if written is None:
            return path, refer_to_step(path, step)
        return written, read_bundle(written)
    source = read_bundle(path)
    if step is not None and isinstance(source, ReplayBundle):
        raise ConfigError(f"step={step}: {path} contains the batch of step {source.facts['step']} only.")
    return path, source


def replay_step(source: Union[ReplayBundle, StepReference], restorer: Restorer) -> ReplayResult:
    """Repeats a step. Imports MXNet.

    Args:
        source: the step.
        restorer: describes its run.

    Raises:
        ConfigError: the run cannot be described here, or there is no checkpoint before the step.
        CheckpointError: a checkpoint is damaged, or does not fit.
        DataError: the data of the step cannot be read.
    """
    if isinstance(source, StepReference):
        restored = restorer.restore(checkpoint_before(source))
        weights, signature = restored.checkpoint, restored.signature
        description = replace(restored.description, dataset=restored.dataset)
        from mxtrain.training.repeated_step import read_step_again, repeat_step  # imports MXNet: only from here on

        bundle = read_step_again(source, weights, description, signature)
        return ReplayResult(bundle.facts, repeat_step(bundle, description, signature, weights.arrays("model")), weights)
    description = restorer.describe(source)
    signature = signature_of(as_checkpoint(source), description.dataset.signature_class)
    earlier = open_checkpoint(source.checkpoint) if source.checkpoint is not None else None
    from mxtrain.training.repeated_step import repeat_step  # imports MXNet: only from here on

    arrays = source.weights if earlier is None else earlier.arrays("model")
    return ReplayResult(source.facts, repeat_step(source, description, signature, arrays), earlier)


def is_run_directory(path: Path) -> bool:
    """Returns True for the directory of a run, and for its folder of checkpoints."""
    return not (path / BUNDLE).exists() and (path / CHECKPOINTS).is_dir()


def bundle_of(run_dir: Path, step: Optional[int]) -> Optional[Path]:
    """Returns a bundle that a run wrote: of this step, or the last one of a run that failed; None if there is none."""
    status = read_status(run_dir)
    if step is None and (status is None or status.state != "failed"):
        return None
    numbered = [
        (int(match[1]), path)
        for path in sorted((run_dir / FOLDER).glob("step-*"))
        if (match := BUNDLE_NAME.match(path.name)) and (path / BUNDLE).is_file()
    ]
    last = max((number for number, _ in numbered), default=0) if step is None else step
    return next((path for number, path in numbered if number == last), None)


def refer_to_step(run_dir: Path, step: Optional[int]) -> StepReference:
    """Returns a step of a run; by default the one after the last one in metrics.jsonl, at which a process that was
    killed was working. Of a finished run, it is the last step.

    Raises:
        ConfigError: the run finished before this step.
    """
    status = read_status(run_dir)
    finished = status is not None and status.exit_code == EXIT_FINISHED
    last = last_step(run_dir)
    if step is not None:
        if finished and status is not None and step > status.step:
            raise ConfigError(f"step={step}: {run_dir} finished with step {status.step}. Type a smaller one.")
        return StepReference(run_dir, step, reason=f"a step of {run_dir}")
    step = last if finished and last else last + 1
    return StepReference(
        run_dir,
        step,
        reason=f"{'the last step' if finished else 'the step after the last one'} in {run_dir / ROWS_FILE}",
    )


def checkpoint_before(reference: StepReference) -> Path:
    """Returns the path of the last checkpoint before a step.

    Raises:
        ConfigError: there is none.
    """
    checkpoints = scan(reference.run_dir / CHECKPOINTS)
    earlier = [checkpoint for checkpoint in checkpoints if checkpoint.step < reference.step]
    if not earlier:
        available = f"the first is of step {checkpoints[0].step}" if checkpoints else "there is none"
        raise ConfigError(
            f"step {reference.step} is repeated with a checkpoint before it in {reference.run_dir / CHECKPOINTS}, and "
            f"{available}. checkpoint.keep_last=N keeps more of them."
        )
    return earlier[-1].path


def as_checkpoint(bundle: ReplayBundle) -> Checkpoint:
    """Returns the facts of a bundle in the form in which checkpoints contain them."""
    facts = bundle.facts
    return Checkpoint(bundle.path, facts["step"], facts["epoch"], {"run": facts["run"]}, None, "max", "", {}, {})


def _rows(layers: Sequence[LayerStatistics]) -> List[Tuple[str, ...]]:
    return [
        (
            one.name,
            one.kind,
            " ".join(str(list(shape)).replace(" ", "") for shape in one.shapes),
            *(f"{value:.4g}" for value in (one.smallest, one.largest, one.mean)),
            f"{one.nonfinite:.2%}" if one.nonfinite else "0",
        )
        for one in layers
    ]


def _line(text: str) -> str:
    # The bundle may be a stranger's, and its text must not control the terminal.
    return "".join(letter if letter.isprintable() else " " for letter in text)[:400]
