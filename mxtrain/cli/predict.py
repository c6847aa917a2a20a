"""`mxtrain predict RUN FILE...`: class probabilities of image files and folders, or of texts, as JSONL or CSV."""

from __future__ import annotations

import csv
import json
import logging
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Dict, Iterator, List, Literal, Optional, Sequence, TextIO, Tuple

from mxtrain.cli import arguments as command_line
from mxtrain.cli.restored import one_run, restore_description, split_settings
from mxtrain.errors import ConfigError, DataError
from mxtrain.types import Positive, Spec


class PredictSettings(Spec):
    """What `predict` takes besides overrides."""

    which: Literal["best", "last"] = "best"
    """Which checkpoint of a run."""
    output: Optional[str] = None
    """File for the predictions; default: standard output."""
    format: Literal["auto", "jsonl", "csv"] = "auto"
    """auto: csv where the output's name ends so, else jsonl."""
    top_k: Positive = 3
    """How many classes to name for each file."""


def run(arguments: Sequence[str]) -> int:
    """Predicts and writes; returns the exit code."""
    given = command_line.parse(arguments, reads_checkpoint=True)
    settings, overrides = split_settings(given, PredictSettings, "predict")
    one_run(given, "predict")
    if not given.positionals[1:]:
        raise ConfigError("predict takes a run and files or folders: `python -m mxtrain predict RUN FILE...`.")
    checkpoint, description = restore_description(given, "predict", settings.which, overrides)
    reads_text = description.dataset.gives == "text"
    if reads_text:
        source, files = open_texts(description.dataset, given.positionals[1:])
    else:
        files = find_files(given.positionals[1:])
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    # Imports MXNet: only from here on.
    from mxtrain.build import build_loader
    from mxtrain.dataset.files import open_files
    from mxtrain.trained import load_trained

    trained = load_trained(checkpoint, description)
    if not reads_text:
        source = open_files(files, shape_CHW=trained.input.shape)
    options = {"in_order": True} if reads_text else {}
    loader = build_loader(description, source, trained.input, trained.device, limit_batches=None, **options)
    as_csv = settings.format == "csv" or (settings.format == "auto" and str(settings.output).endswith(".csv"))
    rows = predict_rows(trained, loader, files, settings.top_k)
    with open_output(settings.output) as stream:
        (write_csv if as_csv else write_jsonl)(rows, stream)
    if settings.output:
        print(f"{len(files)} predictions written to {settings.output}")
    return 0


def find_files(names: Sequence[str]) -> List[Path]:
    """Files as they are, folders as all images in them.

    Raises:
        ConfigError, DataError: none was given, or one is missing.
    """
    from mxtrain.dataset.files import list_images

    found: List[Path] = []
    for name in names:
        path = Path(name)
        if not path.exists():
            raise DataError(f"{name}: there is no such file or folder.")
        images = list_images(path) if path.is_dir() else [path]
        found.extend(images)
    return found


def open_texts(dataset: Any, names: Sequence[str]) -> Tuple[Any, List[str]]:
    """All texts of the files, and where each stands: `file:line`.

    Raises:
        ConfigError, DataError: the run names no classes, or a file cannot be read.
    """
    from mxtrain.dataset.text_source import LabelledTexts

    pairs, places = [], []
    for name in names:
        if Path(name).is_dir():
            raise DataError(f"{name} is a folder: name the files in it.")
        for line, pair in dataset.read_unlabelled(name):
            pairs.append(pair)
            places.append(f"{name}:{line}")
    return LabelledTexts(pairs), places


def predict_rows(trained: Any, loader: Any, files: Sequence[Any], top_k: int) -> Iterator[Dict[str, Any]]:
    """One row per file or text: the likeliest class, its probability, and the next ones."""
    from mxtrain.backend import nd

    names = trained.input.class_names
    position = 0
    for _, logits in trained.evaluator.predict(loader):
        for probability_K in nd.softmax(logits.astype("float32")).asnumpy():
            order = (-probability_K).argsort(kind="stable")[: min(top_k, len(names))]
            top = [{"class": names[k], "probability": round(float(probability_K[k]), 6)} for k in order]
            yield {"file": str(files[position]), **top[0], "top": top}
            position += 1


def write_jsonl(rows: Iterator[Dict[str, Any]], stream: TextIO) -> None:
    """One JSON object a line."""
    for row in rows:
        stream.write(json.dumps(row) + "\n")


def write_csv(rows: Iterator[Dict[str, Any]], stream: TextIO) -> None:
    """One line a file: its name, then pairs of class and probability, likeliest first."""
    writer = csv.writer(stream)
    for number, row in enumerate(rows):
        if number == 0:
            places = range(1, len(row["top"]) + 1)
            writer.writerow(["file", *(name for k in places for name in (f"class_{k}", f"probability_{k}"))])
        writer.writerow([row["file"], *(value for one in row["top"] for value in one.values())])


@contextmanager
def open_output(name: Optional[str]) -> Iterator[TextIO]:
    """Standard output, or a file that appears only when it is complete."""
    if name is None:
        yield sys.stdout
        return
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    with open(partial, "w", newline="") as stream:
        yield stream
    partial.replace(path)
