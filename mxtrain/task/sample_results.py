"""Results of single samples of an evaluation: location, true and predicted value, metrics and loss of each.

Rows are written while the pass runs, so memory does not grow with the contents of the data: per sample, only a loss and
a file offset are kept.

The loss is divided by the weight of the sample, so long texts do not have the largest losses because of their length.

Legend: B batch, N samples.
"""

from __future__ import annotations

import csv
import heapq
import io
from dataclasses import dataclass
from typing import (
    TYPE_CHECKING,
    Any,
    BinaryIO,
    Callable,
    Dict,
    Iterable,
    Iterator,
    List,
    Optional,
    Sequence,
    Set,
    Tuple,
    Type,
    Union,
)

import numpy as np

from mxtrain.data.checking.checks import checks_of
from mxtrain.errors import with_addresses
from mxtrain.metric.host import HostMetric
from mxtrain.task.confusion_page import FILE, render_confusion
from mxtrain.task.evaluated_sample import EvaluatedSample
from mxtrain.task.fit import has_one_class
from mxtrain.task.spec import Task
from mxtrain.types import Artifact, Figure, Table
from mxtrain.types.kinds import Images, SampleKind

if TYPE_CHECKING:
    from mxnet.ndarray import NDArray

    from mxtrain.config.description import Description
    from mxtrain.data.checking.problems import DataLocation
    from mxtrain.data.signature import Signature
    from mxtrain.data.spec import Samples, Source
    from mxtrain.engine.predictions import Decode, Predictions
    from mxtrain.files.durable import HashedFile
    from mxtrain.types import Batch

    Take = Callable[[int], Source]
    """Function (index of a sample) -> a source with only this sample."""

SAMPLE, LOSS, WEIGHT, TRUE, PREDICTED = "sample", "loss", "weight", "true", "predicted"
NUM_WORST = 24
"""Samples with the largest losses that are shown."""
MAX_LISTED, MAX_LISTED_PER_CELL = 20_000, 200
"""Samples that are listed for the cells of a confusion matrix: of all cells, and of one."""
Cells = Dict[str, Any]


@dataclass(frozen=True)
class ResultReader:
    """Converts batches of an evaluation to rows of samples.

    Attributes:
        description, signature: description and signature of the run.
        source: evaluated split.
        split: name of the split.
        decode: function (outputs, batch) -> predictions; None if the task makes none.
    """

    description: Description
    signature: Signature
    source: Samples
    split: str
    decode: Optional[Decode] = None

    @property
    def has_one_class(self) -> bool:
        """Returns True if each sample has one true and one predicted class."""
        return has_one_class(self.description.task, self.description.dataset)

    def predictions(self, batch: Batch, outputs: Tuple[NDArray, ...]) -> Optional[Predictions]:
        """Returns the predictions that rows need, still on the device; None if they need none."""
        from mxtrain.engine.predictions import JoinedPredictions

        task = self.description.task
        if isinstance(outputs, JoinedPredictions):
            return outputs
        is_decoded = any(metric.on_host for metric in self.description.metric.values())
        if self.decode is None or type(task).result is Task.result or (task.decodes_slowly and not is_decoded):
            return None
        return task.result_predictions(self.decode, outputs, batch)

    def rows(
        self, batch: Batch, predictions: Optional[Predictions], losses: Sequence[np.ndarray]
    ) -> Iterator[Tuple[int, Cells]]:
        """Yields index and row of each sample of a batch.

        Args:
            batch: the batch.
            predictions: result of `predictions`.
            losses: loss (B,) of each sample, and its weight (B,) if the loss is weighted.
        """
        from mxtrain.engine.predictions import to_host

        assert batch.index_B is not None
        values = None if predictions is None else to_host(predictions)
        targets = [] if predictions is None else [target.asnumpy() for target in batch.targets]
        checks = checks_of(self.source)
        for row, index in enumerate(batch.index_B.tolist()):
            meta = None if batch.meta is None else batch.meta[row]
            record = self.description.task.record_of(index, meta)
            location = None if record is None or len(checks) != len(self.source) else checks.location(record)
            cells: Cells = {FILE: with_addresses(location_text(location, self.split, index)), SAMPLE: index}
            if values is not None:
                sample = EvaluatedSample(index, values[row], [target[row] for target in targets], meta)
                cells.update(self.description.task.result(self.signature, self.source, sample))
                cells.update(self._metrics(sample))
            loss = float(losses[0][row])
            if len(losses) > 1:  # the loss of a batch is sum(loss) / sum(weight)
                cells[WEIGHT] = weight = float(losses[1][row])
                loss = loss / weight if weight else 0.0
            cells[LOSS] = loss
            yield index, cells

    def _metrics(self, sample: EvaluatedSample) -> Iterator[Tuple[str, float]]:
        for name, metric in self.description.task.metrics(self.description, self.signature).items():
            if isinstance(metric, HostMetric) and metric.of_single_samples:
                collected = metric.collects.from_metrics([metric])
                index_1, meta_1 = np.array([sample.index]), None if sample.meta is None else [sample.meta]
                collected.update(index_1, [sample.prediction], [sample.targets[0]], meta_1)  # type: ignore[arg-type]
                yield name, metric.compute(collected)


def location_text(location: Optional[DataLocation], split: str, index: int) -> str:
    """Returns the source location of a sample, as `predict` names it: the file, or `file:line`; `split:index` for a
    sample that comes from no file."""
    if location is None or not location.file:
        return f"{split}:{index}"
    number = location.line if location.line is not None else location.record
    return location.file if number is None else f"{location.file}:{number}"


def location_texts(source: Samples, split: str, indices: Iterable[int]) -> List[str]:
    """Returns `location_text` of samples of a split; `split:index` for all if the source has no location of each."""
    checks = checks_of(source)
    has_locations = len(checks) == len(source)
    return [location_text(checks.location(index) if has_locations else None, split, index) for index in indices]


class SampleResults:
    """Writes the rows of all samples as CSV, and keeps the few that are shown.

    Args:
        reader: converts batches to rows.
        stream: binary stream, readable and writable, for rows in the order of the pass.
        losses: function (batch, outputs) -> loss (B,), and weight (B,) if the loss is weighted, on the device.

    Attributes:
        columns: names of the columns; empty before the first row.
        worst: rows with the largest losses.
        confusion: (true, predicted) -> number of samples, for tasks with classes.
        listed: (true, predicted) -> first rows, for tasks with classes.
    """

    def __init__(
        self, reader: ResultReader, stream: BinaryIO, losses: Callable[[Batch, Tuple[NDArray, ...]], List[NDArray]]
    ) -> None:
        self._reader, self._stream, self._losses = reader, stream, losses
        self._pending: List[Tuple[Batch, Optional[Predictions], List[NDArray]]] = []
        self._offsets: List[Tuple[int, int]] = []
        self._heap: List[Tuple[float, int, Cells]] = []
        self._num_listed = 0
        self._seen: Set[int] = set()
        self.columns: List[str] = []
        self.confusion: Dict[Tuple[str, str], int] = {}
        self.listed: Dict[Tuple[str, str], List[Cells]] = {}

    def update(self, batch: Batch, outputs: Tuple[NDArray, ...]) -> None:
        """Adds a batch; waits for the device only a few batches late."""
        from mxtrain.engine.predictions import BATCHES_AHEAD

        if batch.index_B is None:
            return
        predictions, losses = self._reader.predictions(batch, outputs), self._losses(batch, outputs)
        self._pending.append((batch.without_inputs(), predictions, losses))
        if len(self._pending) > BATCHES_AHEAD:
            self._add(*self._pending.pop(0))

    def finish(self) -> None:
        """Adds pending batches."""
        while self._pending:
            self._add(*self._pending.pop(0))

    def _add(self, batch: Batch, predictions: Optional[Predictions], losses: List[NDArray]) -> None:
        arrays = [loss.asnumpy() for loss in losses]
        for index, cells in self._reader.rows(batch, predictions, arrays):
            if index in self._seen:
                continue
            self._seen.add(index)
            self.columns = self.columns or list(cells)
            self._offsets.append((index, self._stream.tell()))
            self._stream.write(csv_line([cells.get(name, "") for name in self.columns]))
            self._keep(index, cells)

    def _keep(self, index: int, cells: Cells) -> None:
        loss = float(cells[LOSS])
        # NaN has no order in a heap and counts as the worst; indices are unique, so dicts are never compared.
        item = (np.inf if np.isnan(loss) else loss, -index, cells)
        if len(self._heap) < NUM_WORST:
            heapq.heappush(self._heap, item)
        else:
            heapq.heappushpop(self._heap, item)
        if self._reader.has_one_class and TRUE in cells:
            key = (str(cells[TRUE]), str(cells[PREDICTED]))
            self.confusion[key] = self.confusion.get(key, 0) + 1
            rows = self.listed.setdefault(key, [])
            if len(rows) < MAX_LISTED_PER_CELL and self._num_listed < MAX_LISTED:
                rows.append(cells)
                self._num_listed += 1

    @property
    def worst(self) -> List[Cells]:
        """Returns the rows with the largest losses, largest first; of equal losses the first sample."""
        return [cells for _, _, cells in sorted(self._heap, key=lambda item: item[:2], reverse=True)]

    def copy_to(self, stream: Union[BinaryIO, HashedFile]) -> None:
        """Writes a header and all rows in the order of the samples, each sample once."""
        self.finish()
        if self.columns:
            stream.write(csv_line(self.columns))
        for _, offset in sorted(self._offsets):
            self._stream.seek(offset)
            line = self._stream.readline()
            while line.count(b'"') % 2:  # a cell contains the end of a line
                line += self._stream.readline()
            stream.write(line)


def csv_line(cells: Sequence[object]) -> bytes:
    """Returns a line of a CSV file; lone surrogates of file names are escaped, NaN is an empty cell."""
    text = io.StringIO()
    # Python quotes a cell with a carriage return only if it is part of the end of the line.
    csv.writer(text, lineterminator="\r\n").writerow(["" if cell != cell else cell for cell in cells])
    return text.getvalue()[:-2].encode("utf-8", "backslashreplace") + b"\n"


WORST, PAGE = "worst", "confusion.html"


def worst_samples(results: SampleResults, take: Take, sample: Type[SampleKind], title: str) -> List[Artifact]:
    """Returns the samples with the largest losses as a table, and for images also as a figure.

    Args:
        results: results of all samples.
        take: reads a sample of the split.
        sample: kind of the samples.
        title: title of the figure.
    """
    worst = results.worst
    rows = [[cells[name] for name in results.columns] for cells in worst]
    table = Table(WORST, results.columns, rows, is_shown=False)
    if not issubclass(sample, Images):
        return [table]
    return [table, Figure(WORST, lambda max_samples: draw_worst(take, worst, title))]


def sample_pages(results: SampleResults, signature: Signature, title: str) -> Dict[str, str]:
    """Returns HTML pages by file name: the confusion matrix with its samples, if the task has classes."""
    if not results.confusion:
        return {}
    return {PAGE: render_confusion(results.confusion, results.listed, list(signature.class_names), title)}


def draw_worst(take: Take, worst: List[Cells], title: str) -> object:
    """Draws the images with the largest losses, with two lines below each."""
    from mxtrain.task.sample_figure import draw_captioned, images_of

    images = [images_of(take(int(cells[SAMPLE])))[0] for cells in worst]
    return draw_captioned(images, [captions_of(cells) for cells in worst], list(map(is_wrong, worst)), title)


def is_wrong(cells: Cells) -> bool:
    """Returns True if the predicted class is not the true one; numbers, boxes and masks are not right or wrong."""
    return isinstance(cells.get(TRUE), str) and cells[TRUE] != cells[PREDICTED]


def captions_of(cells: Cells) -> List[str]:
    """Returns two lines for an image: the true class, then prediction and loss; or its first two results."""
    loss = f"loss {cells[LOSS]:.3g}"
    if TRUE in cells:
        return [str(cells[TRUE]), f"{cells[PREDICTED]}, {loss}"]
    shown = [name for name in ("missed", "false_positives", "mean_iou", "mean_error") if name in cells]
    return [", ".join(f"{name.replace('_', ' ')} {np.round(cells[name], 3)}" for name in shown), loss]
