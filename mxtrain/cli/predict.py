"""`mxtrain predict RUN FILE...`: what a trained network says of files and folders, as JSONL or CSV."""

from __future__ import annotations

import csv
import logging
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Collection, Dict, Iterator, Literal, Mapping, Optional, Sequence, TextIO

from mxtrain.cli import arguments as command_line
from mxtrain.cli.program import program
from mxtrain.cli.restored import one_run, refuse_what_only_trains, restore_description, restore_inputs, split_settings
from mxtrain.dataset.regular_files import explain
from mxtrain.errors import ConfigError, DataError, LoaderError
from mxtrain.files.durable import create_file, encode_json
from mxtrain.types import PathText, Positive, Spec

if TYPE_CHECKING:
    from mxtrain.trainer.trained import Trained


SKIP = "type skip_unreadable=true to go on without such files."


class PredictSettings(Spec):
    """What `predict` takes besides overrides."""

    which: Literal["best", "last"] = "best"
    """Which checkpoint of a run."""
    output: Optional[PathText] = None
    """File for the predictions; default: standard output."""
    format: Literal["auto", "jsonl", "csv"] = "auto"
    """auto: csv where the output's name ends so, else jsonl."""
    top_k: Positive = 3
    """How many alternatives to name for each sample, where a task has several."""
    skip_unreadable: bool = False
    """Go on where a file cannot be read, and list these at the end."""


def run(arguments: Sequence[str]) -> int:
    """Predicts and writes; returns the exit code."""
    given = command_line.parse(arguments, reads_checkpoint=True)
    settings, overrides = split_settings(given, PredictSettings, "predict")
    refuse_what_only_trains(overrides, "predict")
    one_run(given, "predict")
    if not given.positionals[1:]:
        raise ConfigError(f"predict takes a run and files or folders: `{program()} predict RUN FILE...`.")
    checkpoint, description = restore_description(given, "predict", settings.which, overrides)
    if not description.task.predicts:
        name = description.task.name or type(description.task).__name__
        raise ConfigError(f"predict: a run of task={name} has nothing to say of single files. `eval` measures it.")
    dataset, signature = restore_inputs(checkpoint, description, overrides)
    unreadable: Dict[int, str] = {}
    source, places = dataset.open_inputs(given.positionals[1:], signature, settings.skip_unreadable, unreadable)
    refuse_none(len(places), unreadable)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    # Imports MXNet: only from here on.
    from mxtrain.build import build_loader
    from mxtrain.trainer.trained import load_trained

    trained = load_trained(checkpoint, description, signature)
    loader = build_loader(description, source, signature, trained.device, in_order=True)
    as_csv = settings.format == "csv" or (settings.format == "auto" and str(settings.output).endswith(".csv"))
    rows = predict_rows(trained, loader, places, settings.top_k, unreadable)
    if as_csv:
        rows = ({"file": row.pop("file"), **description.task.cells(row)} for row in rows)
    try:
        with open_output(settings.output) as stream:
            count = (write_csv if as_csv else write_jsonl)(rows, stream)
            refuse_none(count, unreadable)
    except LoaderError as error:
        raise DataError(f"{error.fact} Replace or remove it, or {SKIP}") from error
    if settings.output:
        print(f"{count} predictions written to {settings.output}")
    if unreadable:
        lines = "".join(f"\n  {why}" for why in unreadable.values())
        print(f"files without a prediction, for they cannot be read: {len(unreadable)}{lines}", file=sys.stderr)
    return 0


def refuse_none(count: int, unreadable: Mapping[int, str]) -> None:
    """Raises: DataError: no file at all could be read."""
    if not count:
        raise DataError("\n  ".join(["no file could be read:", *unreadable.values()]))


def predict_rows(
    trained: Trained, loader: Any, places: Sequence[str], top_k: int, unreadable: Collection[int] = ()
) -> Iterator[Dict[str, Any]]:  # fmt: skip
    """One row for each sample that could be read: where it stands, and what the task predicts."""
    task, position = trained.description.task, 0
    for _, outputs in trained.evaluator.predict(loader):
        for prediction in task.decode(outputs).asnumpy():
            if position not in unreadable:
                yield {"file": places[position], **task.row(trained.signature, prediction, top_k)}
            position += 1


def write_jsonl(rows: Iterator[Dict[str, Any]], stream: TextIO) -> int:
    """One JSON object a line; returns how many."""
    count = 0
    for row in rows:
        stream.write(encode_json(row).decode() + "\n")
        count += 1
    return count


def write_csv(rows: Iterator[Dict[str, Any]], stream: TextIO) -> int:
    """One line a sample, after one with the names of the columns; returns how many."""
    writer = csv.writer(stream)
    number = -1
    for number, row in enumerate(rows):
        if number == 0:
            writer.writerow(row)
        writer.writerow(row.values())
    return number + 1


@contextmanager
def open_output(name: Optional[str]) -> Iterator[TextIO]:
    """Standard output, or a file that appears only when it is complete; in UTF-8, whatever the terminal's."""
    if name is None:
        if getattr(sys.stdout, "is_closed", False):
            raise ConfigError("predict: standard output is closed. Name a file for the predictions with output=FILE.")
        if hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
        yield sys.stdout
        return
    path = Path(name)
    partial = path.with_name(path.name + ".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        stream = open(create_file(partial), "w", newline="", encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise explain(name, error, "written") from error
    try:
        with stream:
            yield stream
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
