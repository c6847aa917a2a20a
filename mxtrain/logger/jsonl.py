"""Writes metrics.jsonl: the rows of a run, one strict JSON object per line."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Iterator, Optional

from mxtrain.archive.run_files import ROWS_FILE, FileName
from mxtrain.archive.run_records import MAX_ROW_BYTES
from mxtrain.callback.protocol import RunInfo
from mxtrain.errors import RunDirectoryError
from mxtrain.files.durable import replace_file, to_strict_json
from mxtrain.files.json_text import parse_json
from mxtrain.files.regular_files import open_regular
from mxtrain.logger.files import cut_file
from mxtrain.logger.row_file import RowFileLogger
from mxtrain.logger.spec import Logger

if TYPE_CHECKING:
    from mxtrain.types.annotations import MetricRow

_LOG = logging.getLogger(__name__)

NO_ROWS = "{}: there is no such file. It is written by logger=jsonl, which is on by default."


class Jsonl(Logger):
    """Writes each row as a line with one JSON object. NaN and infinity, which JSON lacks, become null."""

    file_name: FileName = ROWS_FILE
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
    """Encodes a row as one line of strict JSON. NaN and infinity become null, NumPy scalars become numbers."""
    try:
        text = _ENCODER.encode(row)  # most rows are finite, and converting each value first is slow
    except ValueError:
        text = _ENCODER.encode(to_strict_json(row))
    # File names that are no UTF-8 come as single surrogates, which UTF-8 cannot encode.
    return text.encode("utf-8", "backslashreplace") + b"\n"


def drop_rows_after(path: Path, step: int) -> None:
    """Restores a file of rows to its content at `step`: removes rows of later steps and lines that are not rows.

    The file is truncated in place or replaced atomically, so that no row is lost if the process is killed.

    Args:
        path: file with one JSON object per line. If it does not exist, nothing is done.
        step: last step to keep.

    Raises:
        RunDirectoryError: the file cannot be read or written.
    """
    damaged = 0
    try:
        if not path.exists():
            return
        # Kept rows at the beginning of the file; if all kept rows are there, the file is truncated.
        kept_size, are_kept_first, has_dropped = 0, True, False
        with open_regular(path) as (file, size):
            for line in _lines(file):
                row_step = _step_of(line)
                if row_step is None or row_step > step:
                    has_dropped = True
                    damaged += row_step is None
                elif has_dropped:
                    are_kept_first = False
                else:
                    kept_size += len(line)
        if not are_kept_first:
            with open_regular(path) as (file, _):
                kept_lines = b"".join(line for line in _lines(file) if _is_kept(line, step))
            replace_file(path, kept_lines)
        elif kept_size < size:
            cut_file(path, kept_size)
    except OSError as error:
        raise RunDirectoryError(f"Cannot bring {path} back to step {step}: {error.strerror}.") from error
    if damaged > 1:  # a single one is the usual incomplete last line of a killed run
        _LOG.warning("%s: dropped %d lines that are not rows.", path, damaged)


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """Iterates over the lines with their ends. A line too long to be a row is split, so that it cannot fill memory."""
    return iter(lambda: file.readline(MAX_ROW_BYTES), b"")


def _is_kept(line: bytes, step: int) -> bool:
    row_step = _step_of(line)
    return row_step is not None and row_step <= step


def _step_of(line: bytes) -> Optional[int]:
    """Returns the step of a row; None if the line is incomplete or not a row."""
    if not line.endswith(b"\n"):
        return None
    try:
        return int(parse_json(line)["step"])
    except (ValueError, KeyError, TypeError):
        return None


def _plain(value: object) -> object:
    """Converts scalars of NumPy and similar libraries to Python numbers, and other objects to text."""
    item = getattr(value, "item", None)
    if item is None:
        return str(value)
    number = item()
    return None if isinstance(number, float) and not math.isfinite(number) else number


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=_plain)
