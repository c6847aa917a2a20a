"""`mxtrain eval RUN`: loss and metrics of a trained model, and what else its task has to show."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Literal, Optional, Sequence

from mxtrain.checkpoint import refuse_links
from mxtrain.cli import arguments as command_line
from mxtrain.cli.artifacts import show_artifacts, write_artifacts
from mxtrain.cli.restored import (
    refuse_what_only_trains,
    restore_description,
    restore_inputs,
    run_dir_of,
)
from mxtrain.cli.settings import split_settings
from mxtrain.dataset.base import open_splits
from mxtrain.errors import ConfigError, DataError, LoaderError
from mxtrain.files.durable import write_json_atomic
from mxtrain.task.base import require_same_names
from mxtrain.types import PathText, Positive, Spec


class EvalSettings(Spec):
    """What `eval` takes besides overrides."""

    split: Literal["auto", "train", "val", "test"] = "auto"
    """auto: test where there is one, else val."""
    which: Literal["best", "last"] = "best"
    """The checkpoint of a run to use: its last or its best one."""
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
    dataset, signature = restore_inputs(checkpoint, description, overrides)
    splits = open_splits(dataset)
    split = settings.split if settings.split != "auto" else ("test" if splits.test is not None else "val")
    source = getattr(splits, split)
    if source is None:
        raise DataError(f"split={split}: this dataset has no such split. Choose split=val or split=train.")
    folder = Path(settings.output) if settings.output else run_dir_of(checkpoint) / "eval" / split
    if not settings.output:
        refuse_links(run_dir_of(checkpoint), ("eval", f"eval/{split}"))
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    # Imports MXNet: only from here on.
    from mxtrain.trainer.loaders import build_loader
    from mxtrain.trainer.trained import load_trained

    require_same_names(signature, splits)
    trained = load_trained(checkpoint, description, signature)
    loader = build_loader(description, source, signature, trained.device, limit_batches=settings.limit_batches)
    report = description.task.build_report(description, signature, source)
    try:
        values = trained.evaluator.measure(loader, report.update)
    except LoaderError as error:
        raise DataError(str(error)) from error  # nothing was trained, nothing is written
    values = {**values, **report.values()}
    artifacts = report.artifacts(f"{split}, step {checkpoint.step}")
    measured = {
        "split": split,
        "part": loader.coverage,
        "step": checkpoint.step,
        "samples": loader.num_samples,
        **values,
    }
    write_artifacts(artifacts, folder)
    write_json_atomic(folder / "metrics.json", measured)
    show_artifacts(artifacts)
    shown = "  ".join(f"{name} {value:.4f}" for name, value in values.items() if name != "samples_per_s")
    of_part = f"{loader.coverage} only, " if loader.coverage else ""
    print(f"{split}: {shown}  ({of_part}{loader.num_samples} samples, step {checkpoint.step}, "
          f"{values['samples_per_s']:.0f} samples/s)")  # fmt: skip
    print(f"written to {folder}")
    return 0
