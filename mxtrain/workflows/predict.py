"""Predicts with a trained network: rows for objects of Python code, or rows written to a stream for files."""

from __future__ import annotations

import csv
import itertools
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import (
    TYPE_CHECKING,
    Any,
    Collection,
    ContextManager,
    Dict,
    Iterable,
    Iterator,
    List,
    Literal,
    Mapping,
    Optional,
    Sequence,
    Set,
    TextIO,
    Tuple,
)

import pydantic
from typing_extensions import Annotated

from mxtrain.checkpoint import Checkpoint, refuse_links
from mxtrain.checkpoint.folder import run_dir_of
from mxtrain.data.loading.dataset_files import file_error, stream_reason
from mxtrain.data.loading.described_paths import local_name
from mxtrain.data.loading.input_files import key_of_file
from mxtrain.data.predict_inputs import open_given
from mxtrain.data.spec import choose_split, open_splits, warn_unseen
from mxtrain.errors import ConfigError, DataError, LoaderError, did_you_mean, with_addresses
from mxtrain.files.durable import encode_json, replace_file
from mxtrain.files.text_numbers import parse_number
from mxtrain.task.sample_results import location_texts
from mxtrain.task.spec import Task
from mxtrain.types import Positive, ProperFraction
from mxtrain.workflows.output_file import OutputFile, OutputFolder, require_writable
from mxtrain.workflows.passes import WHOLE, Passes, PassSettings

if TYPE_CHECKING:
    import numpy as np

    from mxtrain.data.loading.loader import EpochLoader
    from mxtrain.data.signature import Signature
    from mxtrain.data.spec import BaseDataset, Samples
    from mxtrain.task.prediction_format import JoinedFile
    from mxtrain.training.restored_run import RestoredRun
    from mxtrain.training.trained import Trained
    from mxtrain.types.annotations import Json


log = logging.getLogger(__name__)
Split = Literal["train", "val", "test"]
SKIP = "type skip_unreadable=true to go on without such files."


def read_columns(value: object) -> object:
    """Splits text such as `id`, `id,name` or `[id, name]` into unique column names. Other values are returned as is."""
    if not isinstance(value, str):
        return value
    return list(dict.fromkeys(name for part in value.strip("[] ").split(",") if (name := part.strip(" '\""))))


def read_share(value: object) -> object:
    """Converts the text of a number to the number. Other values are returned as is."""
    number = parse_number(value) if isinstance(value, str) else None
    return value if number is None else number


class PredictSettings(PassSettings):
    """Settings of `predict` besides overrides."""

    which: Literal["best", "last"] = "best"
    """The checkpoint of a run to use: its last or its best one."""
    output: Optional[OutputFile] = None
    """File for the predictions; default: standard output."""
    folder: Optional[OutputFolder] = None
    """Folder for files that a task predicts; default: predict in the run directory."""
    format: str = "auto"
    """Output format: jsonl, csv, or one of the task's own formats; auto = csv if the name of the output ends in .csv,
    else jsonl."""
    top_k: Positive = 3
    """Number of alternatives per sample, for tasks that have several."""
    threshold: Annotated[Optional[ProperFraction], pydantic.BeforeValidator(read_share)] = None
    """Least probability of a predicted class, for task=multi_label; of the second class, for tasks with two classes;
    null = `task.threshold`."""
    keep: Annotated[Optional[List[str]], pydantic.BeforeValidator(read_columns)] = None
    """Columns of tables to copy beside the predictions, e.g. [id,name]; default: columns with names of ids that are no
    inputs."""
    fuse: bool = False
    """Join operators on a CPU (oneDNN): faster for most convolutional networks, and equal but for the last bits. The
    first batch of each shape is computed both ways; where they differ by more than 1e-5, nothing is joined."""
    skip_unreadable: bool = False
    """Skip files that cannot be read, and list them at the end."""
    sample: Optional[Positive] = None
    """Number of samples of a split of the run's own data to predict for, instead of files; null: all, if split is
    given."""
    split: Optional[Split] = None
    """Predict for this split of the run's own data instead of files; null: files, or with sample= the test split (else
    the validation split)."""


class Predictions(List[Dict[str, Any]]):
    """List of the rows that `predict` writes, one for each input.

    Attributes:
        arrays: decoded outputs, one array per sample, e.g. class probabilities (K,).
    """

    def __init__(self, rows: Sequence[Dict[str, Any]], arrays: Sequence[np.ndarray]):
        super().__init__(rows)
        self.arrays = list(arrays)


@dataclass(frozen=True)
class PredictResult:
    """Result of `write_predictions`.

    Attributes:
        count: number of rows.
        listed: number of elements of the list column of all rows, e.g. objects; 0 if the task has none.
        folder: folder with a file for each prediction; None if the task writes none.
        unreadable: a line for each file that could not be read.
        num_files: number of files in the folder.
    """

    count: int
    listed: int
    folder: Optional[Path]
    unreadable: Sequence[str]
    num_files: int


@dataclass(frozen=True)
class PredictedFiles:
    """Files that `predict` writes for samples, such as masks: one for each sample, or one for several.

    A file of several samples is written if all of them can be read.

    Attributes:
        paths: path for each sample; empty: nothing is written.
        joined: files of several samples.
        unreadable: indices of samples that cannot be read; may grow until the last sample is read.
    """

    paths: Sequence[Path] = ()
    joined: Sequence[JoinedFile] = ()
    unreadable: Collection[int] = ()

    def is_complete(self, file: JoinedFile) -> bool:
        """Returns True if all samples of a joined file can be read; final when they have been read."""
        return not any(index in self.unreadable for index in file.samples)

    def count(self, num_rows: int) -> int:
        """Returns the number of files that are written.

        Args:
            num_rows: number of samples that could be read.
        """
        num_joined = sum(index not in self.unreadable for file in self.joined for index in file.samples)
        return num_rows - num_joined + sum(map(self.is_complete, self.joined))


NO_FILES = PredictedFiles()


def predict_objects(
    trained: Trained, dataset: BaseDataset, value: Any, top_k: int, plan: Passes = WHOLE
) -> Predictions:
    """Predicts for paths, or for objects that the dataset decodes in memory.

    Args:
        trained: the network.
        dataset: dataset of the run, restored from its checkpoint.
        value: one path or object, or a list of one kind.
        top_k: number of alternatives in each row, for tasks with several.
        plan: passes for each sample; the network is that of `Passes.for_run`.

    Raises:
        ConfigError: the dataset reads no such objects, or the run's task predicts nothing.
        DataError: a file cannot be read, or an object holds a wrong value.
    """
    if isinstance(value, (list, tuple)) and not value:
        return Predictions([], [])
    source, locations = open_given(dataset, value, trained.signature)
    if not locations:
        return Predictions([], [])
    trained = plan.for_batches(trained)
    warn_unseen(source, trained.signature)
    arrays: List[np.ndarray] = []
    predictions = _recorded(numbered(trained, source, predicted_arrays(trained, source, plan)), arrays)
    rows = list(predict_rows(trained, source, locations, predictions, top_k))
    for row in rows:
        if not row["file"]:
            del row["file"]
    return Predictions(rows, arrays)


def write_predictions(
    run: RestoredRun, names: Sequence[str], settings: PredictSettings, destination: ContextManager[TextIO]
) -> PredictResult:
    """Writes the predictions for files, or for samples of a split, as JSONL, CSV or a format of the task.

    Checks all that it can before it imports MXNet.

    Args:
        run: the run.
        names: files and folders; empty with `settings.sample` or `settings.split`.
        settings: settings; `output` only chooses the format, and is refused as one of the inputs.
        destination: opened when all was checked; gets the rows.

    Raises:
        ConfigError: a setting does not fit the task, or an input would be overwritten.
        DataError: a file cannot be read or written, or there is nothing to predict for.
    """
    run = run.with_threshold(settings.threshold)
    plan = settings.passes(run.description, run.signature)
    run = plan.for_run(run)
    task, dataset, signature = run.description.task, run.dataset, run.signature
    is_own_data = settings.sample is not None or settings.split is not None
    output_format = choose_format(task, settings)
    unreadable: Dict[int, str] = {}
    names = list(map(local_name, names))
    locations: Sequence[str]
    if is_own_data:
        source, locations = open_samples(dataset, settings.split, settings.sample)
    else:
        source, locations = dataset.open_inputs(names, signature, settings.skip_unreadable, unreadable)
    require_samples(len(locations), unreadable)
    readable = [name for number, name in enumerate(names) if key_of_file(number) not in unreadable]
    copied = {} if is_own_data else dataset.copied_cells(readable, settings.keep, signature)
    folder = files_folder(task, settings, run.checkpoint)
    form = task.prediction_format()
    # Of a split, some slices of a volume may be left out.
    joined = [] if folder is None or is_own_data else form.joined_files(signature, source)
    paths = [] if folder is None else [folder / name for name in file_names(locations, form.writes_ending, joined)]
    files = PredictedFiles(paths, joined, unreadable)
    outputs = [*paths, *([Path(settings.output)] if settings.output else [])]
    refuse_overwriting(outputs, [*locations, *names, *(file.location for file in joined)])
    sample_ids = form.sample_ids(output_format, locations, dataset)
    warn_unseen(source, signature)
    # These modules import MXNet, which takes seconds: wrong arguments are reported before that.
    from mxtrain.training.trained import load_trained

    trained = load_trained(run.checkpoint, run.description, signature, settings.fuse, exported=True)
    trained = plan.for_batches(trained)
    try:
        arrays = predicted_arrays(trained, source, plan, len(locations))
    except LoaderError as error:
        raise unread_error(error) from error
    predictions = numbered(trained, source, arrays, files)
    predicted = predict_rows(trained, source, locations, predictions, settings.top_k, files, copied)
    if is_own_data:
        predicted = itertools.islice(predicted, len(locations))  # a split has more samples than are asked for
    rows = CountingIterator(predicted, form.list_field[0])
    try:
        with destination as stream:
            columns = list(next(iter(copied.values()), ()))
            write_rows(output_format, task, trained.signature, rows, stream, sample_ids, columns)
            require_samples(rows.count, unreadable)
    except LoaderError as error:
        raise unread_error(error) from error
    return PredictResult(rows.count, rows.listed, folder, list(unreadable.values()), files.count(rows.count))


def unread_error(error: LoaderError) -> DataError:
    """Returns the error for a file that cannot be read, with the setting that leaves such files out."""
    return DataError(f"{error.fact} Replace or remove it, or {SKIP}")


def open_samples(dataset: BaseDataset, split: Optional[Split], count: Optional[int]) -> Tuple[Samples, Sequence[str]]:
    """Opens a split of a dataset.

    Args:
        dataset: the dataset.
        split: name of the split; None: the test split, or the validation split if there is no test split.
        count: number of samples; None: all.

    Returns:
        The split, and the locations of its first `count` samples: their files, or e.g. `test:0`.

    Raises:
        DataError: the dataset has no such split.
    """
    name, source = choose_split(open_splits(dataset), split or "auto")
    return source, location_texts(source, name, range(len(source) if count is None else min(count, len(source))))


def refuse_streams(names: Sequence[str], skip_unreadable: bool) -> None:
    """Rejects standard input, pipes and devices, which have no end. With `skip_unreadable` the last two are skipped.

    Raises:
        ConfigError: names the first of them.
    """
    for name in names:
        reason = "" if skip_unreadable else stream_reason(name)
        if name == "-" and not os.path.exists(name):
            reason = "predict reads files, not standard input."
        if reason:
            raise ConfigError(
                f"{reason} Write it into a file whose name ends as its format says (x.jsonl, x.txt, x.png), and name "
                f"that instead of {name}."
            )


def require_samples(count: int, unreadable: Mapping[int, str]) -> None:
    """Checks that there is something to predict for.

    Args:
        count: number of samples.
        unreadable: a line for each file that could not be read, by the file's number.

    Raises:
        DataError: no file could be read, or the files are empty.
    """
    if not count:
        lines = ["no file could be read:", *unreadable.values()] if unreadable else ["there is nothing in these files."]
        raise DataError("\n  ".join(lines))


def choose_format(task: Task, settings: PredictSettings) -> str:
    """Returns the output format: "jsonl", "csv" or one of the task's own formats.

    Raises:
        ConfigError: the task does not have the format.
    """
    allowed = ("auto", "jsonl", "csv", *task.prediction_format().formats)
    if settings.format not in allowed:
        raise ConfigError(
            f"predict: format={settings.format}: there is no such format."
            f"{did_you_mean(settings.format, allowed)} It may "
            f"be {', '.join(allowed)}."
        )
    if settings.format != "auto":
        return settings.format
    return "csv" if str(settings.output).endswith(".csv") else "jsonl"


def files_folder(task: Task, settings: PredictSettings, checkpoint: Checkpoint) -> Optional[Path]:
    """Returns the folder for the files that a task writes; None if it writes none.

    Raises:
        ConfigError: `folder` is given, but the task writes no files.
    """
    form = task.prediction_format()
    if not form.writes:
        if settings.folder is not None:
            raise ConfigError(f"predict: folder={settings.folder}, and task={task.name} writes no files. Leave it out.")
        return None
    if settings.folder is not None:
        return Path(settings.folder)
    if not form.writes_by_default:
        return None
    refuse_links(run_dir_of(checkpoint.path), ("predict",))
    return require_writable(run_dir_of(checkpoint.path) / "predict", "folder")


def joined_by_sample(joined: Sequence[JoinedFile]) -> Dict[int, JoinedFile]:
    """Returns the index of a sample -> file of several samples to which it belongs."""
    return {index: file for file in joined for index in file.samples}


def file_names(locations: Sequence[str], ending: str = ".png", joined: Sequence[JoinedFile] = ()) -> List[str]:
    """Returns an output path for each input, relative to the common parent folder of all inputs. Paths are unique,
    except for the inputs of a joined file.

    Inputs that differ only in their extension keep it, except for the first: `x.png`, `x.jpg.png`. The name for a line
    of a file contains the line number: `x-3.png`.

    Args:
        locations: location of each input.
        ending: extension of the files.
        joined: files of several inputs.
    """
    file_of = joined_by_sample(joined)
    folders = [os.path.dirname(os.path.abspath(location)) for location in locations]
    common = os.path.commonpath(folders) if folders else ""
    names: List[str] = []
    used: Set[str] = set()
    for index, location in enumerate(locations):
        file = file_of.get(index)
        if file is not None and index > file.samples.start:
            names.append(names[-1])
            continue
        place = os.path.abspath(file.location if file else location)
        path = numbered_line(Path(os.path.relpath(place, common)))
        if os.path.isdir(place):  # its name has no extension, but may have dots
            path = path if path.name else Path(os.path.basename(place) or "volume")
            stem = path
        else:
            path = path.with_name(path.name[:-3]) if path.name.lower().endswith(".nii.gz") else path
            stem = path.with_suffix("")
        numbered = (path.with_name(f"{path.name}-{number}") for number in itertools.count(2))
        candidates = (str(candidate) for candidate in itertools.chain([stem, path], numbered))
        name = next(name for name in candidates if name.lower() not in used)
        used.add(name.lower())  # file systems may ignore case
        names.append(f"{name}{file.ending if file else ending}")
    return names


def numbered_line(path: Path) -> Path:
    """Converts the location of a line, `x.jsonl:3`, to the name `x-3`; other paths are unchanged."""
    name, _, line = path.name.rpartition(":")
    return path.with_name(f"{Path(name.removesuffix('.gz')).stem}-{line}") if name and line.isdigit() else path


def refuse_overwriting(outputs: Iterable[Path], locations: Sequence[str]) -> None:
    """Refuses to overwrite an input file.

    Raises:
        ConfigError: names the first such file.
    """
    # Links and other spellings of a path lead to the same file.
    inputs = {os.path.realpath(location) for location in locations}
    for path in outputs:
        if os.path.realpath(path) in inputs:
            raise ConfigError(
                f"predict: '{path}' would be written, and it is one of the files to predict for. Name another place "
                "with folder=FOLDER or output=FILE."
            )


def predict_rows(
    trained: Trained,
    source: Samples,
    locations: Sequence[str],
    predictions: Iterator[Tuple[int, np.ndarray]],
    top_k: int,
    files: PredictedFiles = NO_FILES,
    copied: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
) -> Iterator[Dict[str, Json]]:
    """Yields the output row of each readable sample: source location, copied cells, prediction, path of its file.

    Rows of a file of several samples are yielded after the last of them was read: only then is it known to be written.
    The path in the rows of a file that is not written is None.

    Args:
        trained: the network.
        source: samples to predict for.
        locations: location of each sample.
        predictions: result of `numbered`.
        top_k: number of alternatives for each sample.
        files: files that the task writes.
        copied: location -> column -> cell to copy.

    Raises:
        ConfigError: a column of `copied` has the name of a column of the predictions.
    """
    form = trained.description.task.prediction_format()
    form.prepare(trained)
    empty = dict.fromkeys(next(iter(copied.values()), ()), "")
    file_of = joined_by_sample(files.joined)
    rows = form.rows(trained.signature, source, predictions, top_k)
    for file, group in itertools.groupby(rows, lambda numbered_row: file_of.get(numbered_row[0])):
        for number, prediction in group if file is None else list(group):
            cells = copied.get(locations[number], empty)
            for name in cells:
                if name in prediction or name == "file":
                    fact = f"keep={name}: predictions have a column '{name}' of their own."
                    raise ConfigError(f"{fact} Rename the table's.")
            row = {"file": with_addresses(locations[number]), **cells, **prediction}
            if files.paths:
                is_written = file is None or files.is_complete(file)
                row[form.writes] = str(files.paths[number]) if is_written else None
            yield row


def _recorded(
    predictions: Iterator[Tuple[int, np.ndarray]], arrays: List[np.ndarray]
) -> Iterator[Tuple[int, np.ndarray]]:
    """Yields the predictions unchanged, and appends their arrays to `arrays`."""
    for number, prediction in predictions:
        arrays.append(prediction)
        yield number, prediction


def predicted_arrays(
    trained: Trained, source: Samples, plan: Passes, count: Optional[int] = None
) -> Iterator[np.ndarray]:
    """Returns an iterator over the decoded predictions for samples, in order.

    Args:
        trained: the network.
        source: the samples.
        plan: passes for each sample.
        count: number of samples that are needed; None: all.

    Raises:
        LoaderError: with tiles, the size of a sample cannot be read.
    """
    from mxtrain.training.loaders import build_loader

    if plan.tiles is not None:
        return plan.tiles.predictions(trained, source, count)
    loader = build_loader(trained.description, source, trained.signature, trained.device, in_order=True)
    return decoded_arrays(trained, loader)


def decoded_arrays(trained: Trained, loader: EpochLoader) -> Iterator[np.ndarray]:
    """Yields the decoded prediction of each sample of a loader."""
    from mxtrain.engine.predictions import to_host

    decode = trained.evaluator.decode
    assert decode is not None
    for batch, outputs in trained.evaluator.predict(loader):
        yield from to_host(decode(outputs, batch))


def numbered(
    trained: Trained,
    source: Samples,
    predictions: Iterator[np.ndarray],
    files: PredictedFiles = NO_FILES,
) -> Iterator[Tuple[int, np.ndarray]]:
    """Yields the index and the prediction of each readable sample, and writes its file.

    Args:
        trained: the network.
        source: samples to predict for.
        predictions: prediction for each sample, in order.
        files: files that the task writes.
    """
    form = trained.description.task.prediction_format()
    paths, file_of = files.paths, joined_by_sample(files.joined)
    incomplete: Set[Path] = set()
    for position, prediction in enumerate(predictions):
        file = file_of.get(position)
        if position in files.unreadable:
            if file is not None and paths[position] not in incomplete:
                incomplete.add(paths[position])
                log.warning("'%s' is not written, for parts of '%s' cannot be read", paths[position], file.location)
            continue
        if file is not None:
            if file.add(position, prediction):
                write_file(paths[position], file.encode())
        elif position < len(paths):
            write_file(paths[position], form.encode_file(trained.signature, prediction, source, position))
        yield position, prediction


def write_file(path: Path, content: bytes) -> None:
    """Writes one of the files that a task predicts.

    Raises:
        DataError: the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Not synced: predictions can be computed again, and an fsync for each of thousands of files takes long.
        replace_file(path, content, durable=False)
    except OSError as error:
        raise file_error(str(path), error, "written") from error


class CountingIterator:
    """Iterates over rows and counts them, and the elements of their list column `list_column`, if it is not empty."""

    def __init__(self, rows: Iterator[Dict[str, Json]], list_column: str = ""):
        self._rows, self._list_column = rows, list_column
        self.count = self.listed = 0

    def __iter__(self) -> Iterator[Dict[str, Json]]:
        for row in self._rows:
            self.count += 1
            self.listed += len(row.get(self._list_column) or ())  # type: ignore[arg-type]  # a list
            yield row


def write_rows(
    output_format: str,
    task: Task,
    signature: Signature,
    rows: Iterable[Dict[str, Json]],
    stream: TextIO,
    sample_ids: Mapping[str, Json],
    copied: Sequence[str],
) -> None:
    """Writes predictions as JSONL, CSV or a format of the task; arguments as in `PredictionFormat.write_as`.

    Args:
        output_format: "jsonl", "csv" or one of the task's own formats.
        copied: columns of a table in the rows, which `PredictionFormat.cells` does not know.
    """
    form = task.prediction_format()
    if output_format == "jsonl":
        for row in rows:
            stream.write(encode_json(row).decode() + "\n")
    elif output_format == "csv":
        first = ("file", *copied)
        write_csv(({**{name: row.pop(name) for name in first}, **form.cells(row)} for row in rows), stream)
    else:
        rows_with_ids = ({**row, "sample_id": sample_ids[str(row["file"])]} for row in rows) if sample_ids else rows
        for part in form.write_as(output_format, signature, rows_with_ids):
            stream.write(part)


def write_csv(rows: Iterable[Mapping[str, Json]], stream: TextIO) -> None:
    """Writes a header with the names of the columns, and one line per sample."""
    writer = csv.writer(stream)
    for number, row in enumerate(rows):
        if number == 0:
            writer.writerow(row)
        writer.writerow(row.values())
