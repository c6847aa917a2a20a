"""`mxtrain replay BUNDLE` repeats the step at which a run failed, on one device and layer by layer.

When a loss or weight becomes non-finite, or a step raises an error, a run writes the step below replay/ in its
directory and prints this command. It prints smallest, largest and mean value and the share of non-finite values of
each layer's outputs, names the first layer with a non-finite output, and the parameters with non-finite gradients.

`mxtrain replay RUN` reads the batch again from the dataset, and the weights from the last checkpoint before the step:
for a process that was killed, which could not write its step, or for any other step of a run (step=N)."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, List, Optional, Sequence, Tuple

from mxtrain.archive.run_files import ROWS_FILE
from mxtrain.archive.run_records import last_step
from mxtrain.archive.status import read_status
from mxtrain.checkpoint import Checkpoint, open_checkpoint
from mxtrain.checkpoint.folder import CHECKPOINTS, scan
from mxtrain.composing import arguments as command_line
from mxtrain.composing.arguments import Arguments
from mxtrain.composing.composer import Composer
from mxtrain.composing.environment import describe_here, set_environment
from mxtrain.composing.restored import amend, for_one_device, restore
from mxtrain.composing.settings import refuse_misspelled_groups, split_settings
from mxtrain.config.groups import Description
from mxtrain.config.trust import require_trusted
from mxtrain.data.signature import signature_of
from mxtrain.errors import EXIT_FINISHED, ConfigError
from mxtrain.files.durable import encode_json
from mxtrain.terminal.tables import print_rows
from mxtrain.training.replay_bundle import BUNDLE, FOLDER, ReplayBundle, StepReference, read_bundle
from mxtrain.types import Positive, Spec
from mxtrain.workflows.output_file import OutputFile, open_output_file

if TYPE_CHECKING:
    from mxtrain.training.nonfinite import LayerStatistics
    from mxtrain.training.repeated_step import RepeatedStep


BUNDLE_NAME = re.compile(r"step-(\d{1,12})(?:-|$)")


class ReplaySettings(Spec):
    """Settings of `replay`, besides overrides."""

    output: Optional[OutputFile] = None
    """File for the statistics as JSON."""
    step: Optional[Positive] = None
    """Step of a run; by default the one that it wrote when it failed, else the one after its last row in
    metrics.jsonl."""


def run(arguments: Sequence[str]) -> int:
    """Repeats and prints; returns the exit code."""
    parsed = command_line.parse(arguments, reads_checkpoint=True)
    settings, overrides = split_settings(parsed, ReplaySettings, "replay")
    refuse_misspelled_groups(overrides, "replay", parsed.config_dirs)
    if len(parsed.positionals) != 1:
        raise ConfigError(
            f"replay takes one bundle or run directory, and {len(parsed.positionals)} were given. A run's bundles are "
            "the folders in its replay/."
        )
    path = Path(parsed.positionals[0])
    if is_run_directory(path) and (written := bundle_of(path, settings.step)) is not None:
        print(f"the run wrote this step to {written}")
        path, settings = written, settings.model_copy(update={"step": None})
    source = refer_to_step(path, settings.step) if is_run_directory(path) else read_bundle(path)
    if isinstance(source, StepReference):
        repeated = repeat_reference(source, overrides, parsed)
    elif settings.step is not None:
        raise ConfigError(f"step={settings.step}: {path} contains the batch of step {source.facts['step']} only.")
    else:
        repeated = repeat_bundle(source, overrides, parsed)
    if settings.output:
        with open_output_file(settings.output) as stream:
            stream.write(encode_json(repeated.to_json(), indent=2).decode() + "\n")
    return EXIT_FINISHED


def repeat_bundle(bundle: ReplayBundle, overrides: Sequence[str], parsed: Arguments) -> RepeatedStep:
    """Repeats and prints the step of a bundle."""
    description = describe_bundle(bundle, overrides, parsed)
    stand_in = as_checkpoint(bundle)
    signature = signature_of(stand_in, description.dataset.signature_class)
    weights = open_checkpoint(bundle.checkpoint) if bundle.checkpoint is not None else None
    set_environment(description)
    # Imports MXNet: only from here on.
    from mxtrain.training.repeated_step import repeat_step

    arrays = bundle.weights if weights is None else weights.arrays("model")
    repeated = repeat_step(bundle, description, signature, arrays)
    show(bundle, repeated, weights)
    return repeated


def repeat_reference(reference: StepReference, overrides: Sequence[str], parsed: Arguments) -> RepeatedStep:
    """Repeats and prints a step with the weights of the last checkpoint before it."""
    path = checkpoint_before(reference)
    restored = restore(
        path,
        which="last",
        overrides=overrides,
        config_dirs=parsed.config_dirs,
        trust_code=parsed.trusts_code,
        command="replay",
        settings=ReplaySettings.model_fields,
    )
    checkpoint, signature = restored.checkpoint, restored.signature
    description = replace(restored.description, dataset=restored.dataset)
    set_environment(description)
    # Imports MXNet: only from here on.
    from mxtrain.training.repeated_step import read_step_again, repeat_step

    bundle = read_step_again(reference, checkpoint, description, signature)
    repeated = repeat_step(bundle, description, signature, checkpoint.arrays("model"))
    show(bundle, repeated, checkpoint)
    return repeated


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
    places = scan(reference.run_dir / CHECKPOINTS)
    earlier = [place for place in places if place.step < reference.step]
    if not earlier:
        available = f"the first is of step {places[0].step}" if places else "there is none"
        raise ConfigError(
            f"step {reference.step} is repeated with a checkpoint before it in {reference.run_dir / CHECKPOINTS}, and "
            f"{available}. checkpoint.keep_last=N keeps more of them."
        )
    return earlier[-1].path


def describe_bundle(bundle: ReplayBundle, overrides: Sequence[str], parsed: Arguments) -> Description:
    """Returns the description of the run for one device. Imports no MXNet.

    Raises:
        ConfigError: an override is wrong, or the bundle names code that was not declared trusted.
    """
    with Composer(parsed.config_dirs) as composer:
        config = for_one_device(bundle.facts["run"]["description"], composer)
        if not parsed.trusts_code:
            typed = [o.key_or_group for o in composer.parse(overrides) if not isinstance(o.value(), dict)]
            # Before anything in it is looked up in the environment, imported or set.
            require_trusted(config, str(bundle.path / BUNDLE), "replay", typed, parsed.config_dirs)
        config = amend(config, overrides, composer, ReplaySettings.model_fields)
    return describe_here(config, lambda path: f"the bundle's own {path.split('.')[0]}")


def as_checkpoint(bundle: ReplayBundle) -> Checkpoint:
    """Returns the facts of a bundle in the form in which checkpoints contain them."""
    facts = bundle.facts
    return Checkpoint(bundle.path, facts["step"], facts["epoch"], {"run": facts["run"]}, None, "max", "", {}, {})


def show(bundle: ReplayBundle, result: RepeatedStep, weights: Optional[Checkpoint]) -> None:
    """Prints the statistics and the verdict."""
    facts = bundle.facts
    print(f"step {facts['step']} of worker {facts['rank']}: {_line(facts['reason'])}")
    if facts["samples"] < facts["batch_size"]:
        print(f"the first {facts['samples']} of {facts['batch_size']} samples, since a bundle has a limited size")
    if weights is not None:
        print(f"note: the weights are those of {weights.path}, after step {weights.step}: the step may not fail again")
    for remark in result.remarks:
        print(f"note: {remark}")
    print_rows(
        ("layer", "class", "output", "smallest", "largest", "mean", "non-finite"), _rows(result.layers), indent=2
    )
    if result.gradients:
        print_rows(
            ("gradient with non-finite values", "", "shape", "smallest", "largest", "mean", "non-finite"),
            _rows(result.gradients),
            indent=2,
        )
    print(f"loss {result.loss:.6g}; {result.verdict}")
    sys.stdout.flush()


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
    return "".join(letter if letter.isprintable() else " " for letter in text)[:400]
