"""metrics.jsonl: the rows of a run, one strict JSON object a line."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Iterator, Optional

from mxtrain.errors import RunDirectoryError
from mxtrain.files.durable import replace_file, to_strict_json
from mxtrain.files.json_text import parse_json
from mxtrain.files.regular_files import open_regular
from mxtrain.files.run_files import FileName
from mxtrain.logger.base import Logger
from mxtrain.logger.files import cut_file
from mxtrain.logger.row_file import RowFileLogger
from mxtrain.types import RunInfo

if TYPE_CHECKING:
    from mxtrain.annotations import MetricRow

_LOG = logging.getLogger(__name__)

_MAX_ROW_BYTES = 1 << 20


class Jsonl(Logger):
    """Writes every row as one JSON object a line. Values that JSON lacks (NaN, infinity) become null."""

    file_name: FileName = "metrics.jsonl"
    """A name inside the run directory."""

    @property
    def writes_to(self) -> str:
        return self.file_name

    def build(self) -> JsonlLogger:
        return JsonlLogger(self.file_name)


class JsonlLogger(RowFileLogger):
    """Appends rows as strict JSON."""

    def prepare(self, path: Path, run: RunInfo) -> None:
        drop_rows_after(path, run.resumed_step)

    def encode(self, row: MetricRow) -> bytes:
        return encode_row(row)


def encode_row(row: MetricRow) -> bytes:
    """One line of strict JSON for `row`; NaN and infinity become null, NumPy scalars become numbers."""
    try:
        text = _ENCODER.encode(row)
    except ValueError:
        text = _ENCODER.encode(to_strict_json(row))
    return text.encode("utf-8", "backslashreplace") + b"\n"


def drop_rows_after(path: Path, step: int) -> None:
    """Bring a file of rows back to what it was at `step`: drops rows of later steps and lines that are not rows.

    The file is cut in place, or replaced at once, so that being killed meanwhile loses nothing.

    Args:
        path: A file of rows, one JSON object a line. Nothing happens if it does not exist.
        step: The last step to keep.

    Raises:
        RunDirectoryError: The file cannot be read or written.
    """
    damaged = 0
    try:
        if not path.exists():
            return
        kept_size, is_prefix, dropping = 0, True, False
        with open_regular(path) as (file, size):
            for line in _lines(file):
                row_step = _step_of(line)
                if row_step is None or row_step > step:
                    dropping = True
                    damaged += row_step is None
                elif dropping:
                    is_prefix = False
                else:
                    kept_size += len(line)
        if not is_prefix:
            with open_regular(path) as (file, _):
                kept = b"".join(line for line in _lines(file) if _is_kept(line, step))
            replace_file(path, kept)
        elif kept_size < size:
            cut_file(path, kept_size)
    except OSError as error:
        raise RunDirectoryError(f"Cannot bring {path} back to step {step}: {error.strerror}.") from error
    if damaged > 1:
        _LOG.warning("%s: dropped %d lines that are not rows.", path, damaged)


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """The lines with their ends. A line that is too long to be a row comes in pieces, so that it never fills memory."""
    return iter(lambda: file.readline(_MAX_ROW_BYTES), b"")


def _is_kept(line: bytes, step: int) -> bool:
    row_step = _step_of(line)
    return row_step is not None and row_step <= step


def _step_of(line: bytes) -> Optional[int]:
    """The row's step, or None where the line is torn or is no row."""
    if not line.endswith(b"\n"):
        return None
    try:
        return int(parse_json(line)["step"])
    except (ValueError, KeyError, TypeError):
        return None


def _plain(value: object) -> object:
    """Numbers of NumPy and the like as Python's."""
    item = getattr(value, "item", None)
    if item is None:
        return str(value)
    number = item()
    return None if isinstance(number, float) and not math.isfinite(number) else number


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=_plain)
