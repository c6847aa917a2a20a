"""`mxtrain eval RUN`: loss, metrics, confusion matrix and per-class table of a trained model."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Literal, Mapping, Optional, Sequence

from mxtrain.checkpoint import refuse_links
from mxtrain.cli import arguments as command_line
from mxtrain.cli.restored import decoding_of, refuse_what_only_trains, restore_description, run_dir_of, split_settings
from mxtrain.dataset.base import open_splits
from mxtrain.errors import ConfigError, DataError, LoaderError
from mxtrain.files.durable import write_json_atomic
from mxtrain.types import PathText, Positive, Spec


class EvalSettings(Spec):
    """What `eval` takes besides overrides."""

    split: Literal["auto", "train", "val", "test"] = "auto"
    """auto: test where there is one, else val."""
    which: Literal["best", "last"] = "best"
    """Which checkpoint of a run."""
    limit_batches: Optional[Positive] = None
    """Batches to measure, for quick trials; null: all."""
    output: Optional[PathText] = None
    """Folder for the results; default: eval/<split> in the run directory."""


def run(arguments: Sequence[str]) -> int:
    """Measures, prints and writes; returns the exit code."""
    given = command_line.parse(arguments, reads_checkpoint=True)
    settings, overrides = split_settings(given, EvalSettings, "eval")
    refuse_what_only_trains(overrides, "eval")
    if len(given.positionals) > 1:
        raise ConfigError(f"eval takes one run or checkpoint, not also '{given.positionals[1]}'.")
    checkpoint, description = restore_description(given, "eval", settings.which, overrides)
    decoding = decoding_of(checkpoint, description, overrides)
    splits = open_splits(description.dataset if decoding is None else description.dataset.decoded_as(decoding))
    split = settings.split if settings.split != "auto" else ("test" if splits.test is not None else "val")
    source = getattr(splits, split)
    if source is None:
        raise DataError(f"split={split}: this dataset has no such split. Choose split=val or split=train.")
    folder = Path(settings.output) if settings.output else run_dir_of(checkpoint) / "eval" / split
    if not settings.output:
        refuse_links(run_dir_of(checkpoint), ("eval", f"eval/{split}"))
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    # Imports MXNet: only from here on.
    from mxtrain.build import build_loader
    from mxtrain.task.report import Report, write_report
    from mxtrain.trainer.trained import load_trained

    trained = load_trained(checkpoint, description)
    if list(splits.class_names) != list(trained.input.class_names):
        raise DataError(
            f"the dataset's {len(splits.class_names)} classes are not those the model was trained on "
            f"({len(trained.input.class_names)}): {_some(splits.class_names)} against "
            f"{_some(trained.input.class_names)}. Name the right data with dataset=... or dataset.root=FOLDER."
        )
    loader = build_loader(
        description, source, trained.input, trained.device, limit_batches=settings.limit_batches
    )  # fmt: skip
    try:
        if trained.input.finds_tokens:
            return write_values(trained.evaluator.measure(loader), split, checkpoint.step, folder, loader.part)
        values, probability_NK, label_N = trained.measure(loader)
    except LoaderError as error:
        raise DataError(str(error)) from error  # nothing was trained, nothing is written
    report = Report(split, checkpoint.step, values, probability_NK, label_N, list(splits.class_names), loader.part)
    write_report(report, folder)
    report.show(folder)
    return 0


def write_values(values: Mapping[str, float], split: str, step: int, folder: Path, part: str) -> int:
    """Prints and writes loss and metrics of hidden tokens alone: as classes they are too many for a table."""
    shown = "  ".join(f"{name} {value:.4f}" for name, value in values.items() if name != "samples_per_s")
    of_part = f"{part} only, " if part else ""
    print(f"{split}: {shown}  ({of_part}step {step}, {values['samples_per_s']:.0f} samples/s)")
    folder.mkdir(parents=True, exist_ok=True)
    write_json_atomic(folder / "metrics.json", {"split": split, "part": part, "step": step, **values})
    print(f"written to {folder}")
    return 0


def _some(names: Sequence[str]) -> str:
    return ", ".join(list(names)[:3]) + (", ..." if len(names) > 3 else "")
