"""`mxtrain predict RUN FILE...`: writes the predictions of a trained network for files and folders, or for other inputs
of the run's task, as JSONL or CSV."""

from __future__ import annotations

import logging
import sys
from contextlib import contextmanager
from typing import Iterator, Optional, Sequence, TextIO

from mxtrain.cli import arguments as command_line
from mxtrain.cli.commands import Command
from mxtrain.cli.restored import one_run, restore_run
from mxtrain.cli.settings import refuse_misspelled_groups, split_settings
from mxtrain.errors import ConfigError
from mxtrain.task.prediction_format import PredictionFormat
from mxtrain.task.spec import Task
from mxtrain.terminal.program import program
from mxtrain.workflows.output_file import open_output_file
from mxtrain.workflows.predict import PredictResult, PredictSettings, refuse_streams, write_predictions

COMMAND = Command(
    "predict",
    position=30,
    listed="predict RUN FILE...",
    help="predictions for files, folders or users, as JSONL or CSV",
    usage="RUN|CHECKPOINT FILE|FOLDER... [--config-dir DIR | --trust-code] [setting=value ...] [group.field=value ...]",
    settings="PredictSettings",
    examples=(
        "predict RUN photo.jpg",
        "predict RUN photos/ output=predictions.csv top_k=5",
        "predict RUN table.csv",
        "predict RUN all",
    ),
)


def run(arguments: Sequence[str]) -> int:
    """Predicts, writes and prints; returns the exit code."""
    parsed = command_line.parse(arguments, reads_checkpoint=True)
    settings, overrides = split_settings(parsed, PredictSettings, "predict")
    refuse_misspelled_groups(overrides, "predict", parsed.config_dirs)
    one_run(parsed, "predict")  # before the files are looked at
    names = parsed.positionals[1:]
    refuse_streams(names, settings.skip_unreadable)
    restored = restore_run(parsed, settings, overrides, "predict")
    task = restored.description.task
    check_inputs(task, names, settings)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    result = write_predictions(restored, names, settings, open_output(settings.output))
    print_counts(task, settings, result)
    return 0


def check_inputs(task: Task, names: Sequence[str], settings: PredictSettings) -> None:
    """Checks that the command names what to predict for: files, samples of the run's own data, or what the task plays.

    Raises:
        ConfigError: says what to type instead.
    """
    if not task.predicts:
        name = task.name or type(task).__name__
        raise ConfigError(f"predict: a run of task={name} has nothing to say of single files. `eval` measures it.")
    if settings.sample is not None or settings.split is not None:
        refuse_samples(task, names, "sample" if settings.split is None else "split")
    elif task.prediction_format().inputs and not names:
        inputs = task.prediction_format().inputs
        hint = f", or `{program()} predict RUN sample=5` for its own data" if inputs == PredictionFormat.inputs else ""
        raise ConfigError(f"predict takes a run and what to predict for: `{program()} predict RUN {inputs}`{hint}.")


def refuse_samples(task: Task, names: Sequence[str], setting: str) -> None:
    """Rejects `sample=` or `split=` together with files, and for tasks that do not predict for files.

    Raises:
        ConfigError: says what to type instead.
    """
    if names:
        raise ConfigError(
            f"predict: {setting}= takes samples of the run's own data, and '{names[0]}' is named. Type one of them."
        )
    if task.prediction_format().inputs != PredictionFormat.inputs:
        inputs = f"{program()} predict RUN {task.prediction_format().inputs}".rstrip()
        raise ConfigError(
            f"predict: {setting}= is for tasks that predict for files. For task={task.name} type `{inputs}`."
        )


def print_counts(task: Task, settings: PredictSettings, result: PredictResult) -> None:
    """Prints the number of predictions that were written to files, and the files that could not be read."""
    written = task.prediction_format()
    holding = f": {written.format_count(result.listed)}" if written.list_field[0] else ""
    if result.folder is not None:
        count_text = f"{result.num_files} {'file' if result.num_files == 1 else 'files'}"
        print(f"{count_text} written to {result.folder}{'' if settings.output else holding}", file=sys.stderr)
    if settings.output:
        plural = "" if result.count == 1 else "s"
        print(f"{result.count} prediction{plural} written to {settings.output}{holding}")
    if result.unreadable:
        lines = "".join(f"\n  {reason}" for reason in result.unreadable)
        print(f"files without a prediction, for they cannot be read: {len(result.unreadable)}{lines}", file=sys.stderr)


@contextmanager
def open_output(name: Optional[str]) -> Iterator[TextIO]:
    """Opens standard output, or a file that appears only once it is complete. Writes UTF-8 whatever the locale."""
    if name is None:
        if getattr(sys.stdout, "is_closed", False):
            raise ConfigError("predict: standard output is closed. Name a file for the predictions with output=FILE.")
        if hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
        yield sys.stdout
        return
    with open_output_file(name) as stream:
        yield stream
