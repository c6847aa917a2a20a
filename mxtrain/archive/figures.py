"""Reads the tables and figures of a run: evaluation results, and validation figures in TensorBoard's files.

Everything is limited in number and size, and nothing is decoded here: browsers show PNG files of moderate dimensions.
"""

from __future__ import annotations

import csv
import io
import os
import re
import struct
from collections import Counter
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from mxtrain.files.json_text import read_json
from mxtrain.files.regular_files import open_regular, read_regular, read_regular_text

if TYPE_CHECKING:
    from mxtrain.types.annotations import Json

_PNG = b"\x89PNG\r\n\x1a\n"
_MAX_PNG_BYTES, _MAX_SIDE = 4 << 20, 8192
_MAX_TABLE_BYTES, MAX_ROWS, _MAX_COLUMNS = 1 << 20, 40, 16
_MAX_FIGURES, _MAX_TABLES, _MAX_SPLITS = 6, 5, 4
_MAX_EVENT_BYTES, _MAX_EVENTS_BYTES = 16 << 20, 256 << 20
_PREDICTIONS, _PAGE, _WORST = "predictions.csv", "confusion.html", "worst"
"""Files with results of single samples: all rows; the page of tasks with classes; the largest losses."""
_MAX_PREDICTIONS_BYTES, _MAX_PREDICTIONS, _MAX_CELLS, _MAX_LISTED = 64 << 20, 200_000, 2500, 20
"""Limits of the confusion matrix: of the file, of its rows, of pairs of names, and of the listed rows of a pair."""
_FILE = re.compile(r"[\w.-]{1,100}\.(png|csv)")
_TAG = re.compile(r"(val|test)/\w{1,60}")


@dataclass(frozen=True)
class ShownFigure:
    """A PNG file."""

    title: str
    content: bytes
    width: int


@dataclass(frozen=True)
class ShownTable:
    """A table of strings."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    num_rows: int
    """Rows of the file, of which `rows` are the first."""


@dataclass(frozen=True)
class Confusion:
    """Pairs of true and predicted names.

    Attributes:
        count_of: (true, predicted) -> number of rows in predictions.csv.
        listed: (true, predicted) -> the first of these rows, by column.
    """

    count_of: Mapping[Tuple[str, str], int]
    listed: Mapping[Tuple[str, str], Sequence[Mapping[str, str]]]


@dataclass(frozen=True)
class Evaluation:
    """Results of `mxtrain eval` for one split."""

    split: str
    values: Mapping[str, Json]
    figures: Sequence[ShownFigure]
    tables: Sequence[ShownTable]
    confusion: Optional[Confusion] = None


def read_evaluations(run_dir: str) -> List[Evaluation]:
    """Returns the evaluations in the folder `eval` of a run directory. Links are not followed."""
    folder = os.path.join(run_dir, "eval")
    try:
        with os.scandir(folder) as entries:
            names = sorted(one.name for one in entries if one.is_dir(follow_symlinks=False))
    except OSError:
        return []
    if os.path.islink(folder):
        return []
    evaluations = (read_evaluation(os.path.join(folder, name), name) for name in names[:_MAX_SPLITS])
    return [one for one in evaluations if one is not None]


def read_evaluation(folder: str, split: str) -> Optional[Evaluation]:
    """Returns the content of one folder; None if it holds no evaluation."""
    try:
        values = read_json(os.path.join(folder, "metrics.json"), _MAX_TABLE_BYTES)
    except (OSError, ValueError):
        return None
    if not isinstance(values, dict):
        return None
    listed = values.get("files")
    files = [one for one in listed if isinstance(one, str) and _FILE.fullmatch(one)] if isinstance(listed, list) else []
    figures: Dict[str, ShownFigure] = {}
    for name in files:
        figure = _read_png(folder, name) if name.endswith(".png") else None
        if figure is not None and len(figures) < _MAX_FIGURES:
            figures[name[:-4]] = figure
    tables: List[ShownTable] = []
    for name in files:
        is_shown = name.endswith(".csv") and name != _PREDICTIONS and (name[:-4] not in figures or name[:-4] == _WORST)
        table = _read_table(folder, name) if is_shown else None
        if table is not None and len(tables) < _MAX_TABLES:
            tables.append(table)
    plain = {str(name): value for name, value in list(values.items())[:50] if name != "files"}
    confusion = read_confusion(folder) if isinstance(listed, list) and _PAGE in listed else None
    return Evaluation(split, plain, list(figures.values()), tables, confusion)


def read_confusion(folder: str) -> Optional[Confusion]:
    """Counts the pairs of true and predicted names in predictions.csv; None if there is no such file, or no pair."""
    if _is_link(folder, _PREDICTIONS):
        return None
    count_of: Counter = Counter()
    listed: Dict[Tuple[str, str], List[Mapping[str, str]]] = {}
    try:
        with open_regular(os.path.join(folder, _PREDICTIONS), _MAX_PREDICTIONS_BYTES) as (file, _):
            # Without newline="" Python would change line breaks inside of quoted cells.
            rows = csv.reader(io.TextIOWrapper(file, "utf-8", "replace", newline=""))
            columns = next(rows, [])[:_MAX_COLUMNS]
            for row in islice(rows, _MAX_PREDICTIONS):
                cells = {name: cell[:200] for name, cell in zip(columns, row)}
                key = cells["true"], cells["predicted"]
                if key not in count_of and len(count_of) == _MAX_CELLS:
                    continue
                count_of[key] += 1
                shown = listed.setdefault(key, [])
                if len(shown) < _MAX_LISTED:
                    shown.append(cells)
    except (OSError, ValueError, KeyError, csv.Error):
        return None
    return Confusion(count_of, listed) if count_of else None


def _is_link(folder: str, name: str) -> bool:
    return os.path.islink(os.path.join(folder, name))


def _read_png(folder: str, name: str) -> Optional[ShownFigure]:
    try:
        if _is_link(folder, name):
            return None
        return png_of(read_regular(os.path.join(folder, name), _MAX_PNG_BYTES), name[:-4])
    except OSError:
        return None


def png_of(content: bytes, title: str) -> Optional[ShownFigure]:
    """Returns a figure for the content of a PNG file; None if it is not a PNG file, or too large to be shown."""
    if len(content) > _MAX_PNG_BYTES or not content.startswith(_PNG) or content[12:16] != b"IHDR" or len(content) < 33:
        return None
    # A PNG of a few kilobytes can unpack to gigabytes in the browser, so the sides count and not only the bytes.
    width, height = struct.unpack(">II", content[16:24])
    return ShownFigure(title, content, width) if 0 < width <= _MAX_SIDE and 0 < height <= _MAX_SIDE else None


def _read_table(folder: str, name: str) -> Optional[ShownTable]:
    try:
        if _is_link(folder, name):
            return None
        text = read_regular_text(os.path.join(folder, name), _MAX_TABLE_BYTES)
        rows = [row[:_MAX_COLUMNS] for row in csv.reader(io.StringIO(text, newline=""))]
    except (OSError, ValueError, csv.Error):
        return None
    if len(rows) < 2:
        return None
    return ShownTable(name[:-4], rows[0], rows[1 : MAX_ROWS + 1], len(rows) - 1)


def read_validation_figures(run_dir: str) -> List[Tuple[int, ShownFigure]]:
    """Returns the last figure of each tag in TensorBoard's files of a run, with its step."""
    try:
        names = sorted(name for name in os.listdir(run_dir) if name.startswith("events.out.tfevents."))
    except OSError:
        return []
    figure_of_tag: Dict[str, Tuple[int, ShownFigure]] = {}
    # Each start of a run begins a new file; the names contain the time, so the last ones are the newest.
    for name in names[-20:]:
        if not _is_link(run_dir, name):
            for step, figure in _figures_in(os.path.join(run_dir, name)):
                if figure.title in figure_of_tag or len(figure_of_tag) < _MAX_FIGURES:
                    figure_of_tag[figure.title] = step, figure
    return list(figure_of_tag.values())


def _figures_in(path: str) -> Iterator[Tuple[int, ShownFigure]]:
    from google.protobuf.message import DecodeError
    from tensorboardX.proto.event_pb2 import Event

    for content in _records(path):
        if _PNG not in content:
            continue  # most records are numbers, which need not be decoded
        try:
            event = Event.FromString(content)
        except DecodeError:
            continue
        for value in event.summary.value:
            if value.HasField("image") and _TAG.fullmatch(value.tag):
                figure = png_of(value.image.encoded_image_string, value.tag)
                if figure is not None:
                    yield int(event.step), figure


def _records(path: str) -> Iterator[bytes]:
    """Yields the records of a TFRecord file: length, checksum, content, checksum. Stops where it is damaged."""
    try:
        with open_regular(path) as (file, size):
            while file.tell() < min(size, _MAX_EVENTS_BYTES):
                header = file.read(12)
                if len(header) < 12:
                    return
                (length,) = struct.unpack("<Q", header[:8])
                # A run that is being trained, or was killed, ends within a record.
                if not 0 < length <= size - file.tell():
                    return
                if length > _MAX_EVENT_BYTES:
                    file.seek(length + 4, os.SEEK_CUR)
                    continue
                content = file.read(length)
                file.seek(4, os.SEEK_CUR)
                yield content
    except OSError:
        return
