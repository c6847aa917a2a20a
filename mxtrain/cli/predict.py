"""`mxtrain predict RUN FILE...`: class probabilities of image files and folders, or of texts, as JSONL or CSV."""

from __future__ import annotations

import csv
import logging
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Collection, Dict, Iterator, List, Literal, Mapping, Optional, Sequence, TextIO, Tuple

from mxtrain.cli import arguments as command_line
from mxtrain.cli.program import program
from mxtrain.cli.restored import decoding_of, one_run, refuse_what_only_trains, restore_description, split_settings
from mxtrain.dataset.files import find_files
from mxtrain.dataset.regular_files import explain
from mxtrain.errors import ConfigError, DataError, LoaderError
from mxtrain.files.durable import create_file, encode_json
from mxtrain.types import PathText, Positive, Spec

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
    """How many classes to name for each file."""
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
    decoding = decoding_of(checkpoint, description, overrides)
    unreadable: Dict[int, str] = {}
    if decoding is None:
        source, files = open_texts(description.dataset, given.positionals[1:], settings.skip_unreadable, unreadable)
    else:
        files = find_files(given.positionals[1:])
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    # Imports MXNet: only from here on.
    from mxtrain.build import build_loader
    from mxtrain.dataset.files import Readable, open_files
    from mxtrain.trainer.trained import load_trained

    trained = load_trained(checkpoint, description)
    if decoding is not None:
        source = open_files(files, decoding)
        source = Readable(source, unreadable) if settings.skip_unreadable else source
    options = {"in_order": True} if decoding is None else {}
    loader = build_loader(description, source, trained.input, trained.device, limit_batches=None, **options)
    as_csv = settings.format == "csv" or (settings.format == "auto" and str(settings.output).endswith(".csv"))
    rows = predict_rows(trained, loader, files, settings.top_k, unreadable if decoding is not None else ())
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


def open_texts(
    dataset: Any, names: Sequence[str], skip_unreadable: bool, unreadable: Dict[int, str]
) -> Tuple[Any, List[str]]:  # fmt: skip
    """All texts of the files, and where each stands: `file:line`.

    Args:
        dataset: says how they are read.
        names: of the files.
        skip_unreadable: go on where one cannot be read.
        unreadable: gets why, by the file's place among `names`.

    Raises:
        ConfigError, DataError: the run names no classes, or a file cannot be read.
    """
    from mxtrain.dataset.text_source import LabelledTexts

    dataset.text_columns()  # refuses a run without classes, whatever the files are
    pairs, places = [], []
    for number, name in enumerate(names):
        try:
            found = dataset.read_unlabelled(name)
        except DataError as error:
            if not skip_unreadable:
                raise DataError(f"{error} Or {SKIP}") from error
            unreadable[number] = str(error)
            continue
        for line, pair in found:
            pairs.append(pair)
            places.append(f"{name}:{line}")
    refuse_none(len(pairs), unreadable)
    return LabelledTexts(pairs), places


def predict_rows(
    trained: Any, loader: Any, files: Sequence[Any], top_k: int, unreadable: Collection[int] = ()
) -> Iterator[Dict[str, Any]]:  # fmt: skip
    """One row per file or text that could be read: the likeliest class, its probability, and the next ones."""
    from mxtrain.engine.backend import nd

    names = trained.input.class_names
    position = 0
    for _, logits in trained.evaluator.predict(loader):
        for probability_K in nd.softmax(logits.astype("float32")).asnumpy():
            order = (-probability_K).argsort(kind="stable")[: min(top_k, len(names))]
            top = [{"class": names[k], "probability": round(float(probability_K[k]), 6)} for k in order]
            if position not in unreadable:
                yield {"file": str(files[position]), **top[0], "top": top}
            position += 1


def write_jsonl(rows: Iterator[Dict[str, Any]], stream: TextIO) -> int:
    """One JSON object a line; returns how many."""
    count = 0
    for row in rows:
        stream.write(encode_json(row).decode() + "\n")
        count += 1
    return count


def write_csv(rows: Iterator[Dict[str, Any]], stream: TextIO) -> int:
    """One line a file: its name, then pairs of class and probability, likeliest first; returns how many."""
    writer = csv.writer(stream)
    number = -1
    for number, row in enumerate(rows):
        if number == 0:
            places = range(1, len(row["top"]) + 1)
            writer.writerow(["file", *(name for k in places for name in (f"class_{k}", f"probability_{k}"))])
        writer.writerow([row["file"], *(value for one in row["top"] for value in one.values())])
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
