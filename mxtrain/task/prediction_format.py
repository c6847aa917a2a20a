"""Rows and files of predictions, as `predict` writes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Dict, Iterable, Iterator, Mapping, Protocol, Sequence, Tuple

if TYPE_CHECKING:
    import numpy as np

    from mxtrain.data.signature import Signature
    from mxtrain.data.spec import BaseDataset, Samples
    from mxtrain.types.annotations import Json, JsonObject


def class_name(names: Sequence[str], number: int) -> str:
    """Returns the name of a class; its number if the class has no name, as for labels of other data."""
    return str(names[number]) if 0 <= number < len(names) else str(number)


class RowTask(Protocol):
    """Task whose predictions are written, see `Task.row`."""

    def row(self, signature: Signature, prediction: np.ndarray, top_k: int) -> Mapping[str, Json]: ...


class JoinedFile(Protocol):
    """File of the predictions of several samples, such as the slices of a volume.

    Attributes:
        location: file whose parts are the samples, or folder that holds their files.
        ending: extension of the file that is written.
        samples: indices of the samples.
    """

    location: str
    ending: str
    samples: range

    def add(self, index: int, prediction: np.ndarray) -> bool:
        """Adds the prediction of a sample; returns True if it was the last one that was missing."""

    def encode(self) -> bytes:
        """Returns the content of the file, once it is complete."""


class PredictionFormat:
    """Converts predictions of a task to rows of JSON lines and CSV files, and to files of their own.

    By default each sample has the row that `Task.row` returns. Tasks whose rows cover several samples, or which write
    files or other formats, return a subclass from `Task.prediction_format`.

    Args:
        task: the task, with its settings.
    """

    inputs: ClassVar[str] = "FILE..."
    """Arguments after `predict RUN` in examples; empty: predictions are made for the dataset."""
    writes: ClassVar[str] = ""
    """Content of the files that `predict` writes in addition to rows, one for each sample, such as "mask"; empty:
    none."""
    writes_ending: ClassVar[str] = ".png"
    """Extension of these files."""
    writes_by_default: ClassVar[bool] = True
    """True if `predict` writes these files even if no folder was given for them."""
    formats: ClassVar[Tuple[str, ...]] = ()
    """Forms of predictions besides JSONL and CSV, see `write_as`."""
    list_field: ClassVar[Tuple[str, str]] = ("", "")
    """Name of the list in each row and its content; `predict` reports the total count."""

    def __init__(self, task: RowTask) -> None:
        self.task = task

    def prepare(self, trained: Any) -> None:
        """Prepares rows that need the network or the data of its run. Called before `rows` if the network is loaded.

        Args:
            trained: the `Trained` that predicts.
        """

    def rows(
        self, signature: Signature, source: Samples, predictions: Iterable[Tuple[int, np.ndarray]], top_k: int
    ) -> Iterator[Tuple[int, Mapping[str, Json]]]:
        """Yields (index, row) for each row that `predict` writes; index refers to the locations of `open_inputs`.

        Override it if a row covers several samples, or contains data of the source.

        Args:
            signature: signature of the network.
            source: input samples.
            predictions: (index of the sample, prediction), in order.
            top_k: see `Task.row`.
        """
        for number, prediction in predictions:
            yield number, self.task.row(signature, prediction, top_k)

    def encode_file(self, signature: Signature, prediction: np.ndarray, source: Samples, index: int) -> bytes:
        """Returns the content of the file that `predict` writes for one prediction, if it `writes` any.

        Args:
            signature: signature of the network.
            prediction: prediction of one sample, as `Task.decode` returned it.
            source: input samples.
            index: index of the sample in `source`.
        """
        raise NotImplementedError

    def joined_files(self, signature: Signature, source: Samples) -> Sequence[JoinedFile]:
        """Returns the files that hold the predictions of several samples, instead of one file for each of them. By
        default there are none.

        Args:
            signature: signature of the network.
            source: input samples.
        """
        return ()

    def cells(self, row: JsonObject) -> Dict[str, Json]:
        """Converts a row of `rows` to columns of a CSV file."""
        return dict(row)

    def format_count(self, count: int) -> str:
        """Describes the total length of the lists of all rows; see `list_field`."""
        return f"{count:,} {self.list_field[1]}"

    def sample_ids(self, form: str, locations: Sequence[str], dataset: BaseDataset) -> Mapping[str, Json]:
        """Returns location -> id of each sample in a prediction format; empty if the formats do not need ids.

        Args:
            form: "jsonl", "csv" or one of `formats`.
            locations: locations of the samples, e.g. their files.
            dataset: dataset of the run.

        Raises:
            ConfigError: predictions for these files cannot be written in this format.
        """
        return {}

    def write_as(self, form: str, signature: Signature, rows: Iterable[JsonObject]) -> Iterator[str]:
        """Yields predictions in one of `formats`, as pieces of text.

        Args:
            form: one of `formats`.
            signature: signature of the network.
            rows: rows of `predict` in JSONL: "file", the keys of `rows`, and "sample_id" where `sample_ids` returns
                one.
        """
        raise NotImplementedError
