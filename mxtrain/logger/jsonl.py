"""metrics.jsonl: the rows of a run, one strict JSON object a line."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path
from typing import Any, Iterable, Mapping, Optional, Sequence

from mxtrain.errors import RunDirectoryError
from mxtrain.logger.base import Logger
from mxtrain.logger.files import RecordFile, cut_file, replace_file
from mxtrain.types import Callback, Progress, Result, RunInfo, Validation

_LOG = logging.getLogger(__name__)


class Jsonl(Logger):
    """Writes every row as one JSON object a line. Values that JSON lacks (NaN, infinity) become null."""

    file_name: str = "metrics.jsonl"
    """A name inside the run directory."""

    def build(self) -> JsonlLogger:
        return JsonlLogger(self.file_name)


class JsonlLogger(Callback):
    """Appends rows to <run_dir>/<file_name>; a resumed run first drops the rows past its checkpoint."""

    def __init__(self, file_name: str = "metrics.jsonl") -> None:
        self._file_name = file_name
        self._file: Optional[RecordFile] = None

    def on_start(self, run: RunInfo) -> None:
        """Raises RunDirectoryError where the file cannot be opened or brought back to the resumed step."""
        path = Path(run.run_dir) / self._file_name
        drop_rows_after(path, run.resumed_step)
        self._file = RecordFile(path)

    def on_steps(self, rows: Sequence[Mapping[str, Any]], progress: Progress) -> None:
        self._append(rows)

    def on_validation(self, validation: Validation, progress: Progress) -> None:
        self._append((validation.row,))

    def on_checkpoint(self, step: int) -> None:
        if self._file:
            self._file.flush(sync=True)

    def on_end(self, result: Result) -> None:
        if self._file:
            self._file.close()
            self._file = None

    def _append(self, rows: Iterable[Mapping[str, Any]]) -> None:
        if self._file:
            for row in rows:
                self._file.append(encode_row(row))
            # One write for many rows: the kernel has them even if this process is killed next.
            self._file.flush()


def encode_row(row: Mapping[str, Any]) -> bytes:
    """One line of strict JSON for `row`; NaN and infinity become null, NumPy scalars become numbers."""
    try:
        text = _ENCODER.encode(row)
    except ValueError:
        text = _ENCODER.encode(_without_non_finite(row))
    return text.encode("ascii") + b"\n"


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
        with open(path, "rb") as file:
            for line in file:
                row_step = _step_of(line)
                if row_step is None or row_step > step:
                    dropping = True
                    damaged += row_step is None
                elif dropping:
                    is_prefix = False
                else:
                    kept_size += len(line)
            size = file.tell()
        if not is_prefix:
            lines = path.read_bytes().splitlines(keepends=True)
            replace_file(path, b"".join(line for line in lines if _is_kept(line, step)))
        elif kept_size < size:
            cut_file(path, kept_size)
    except OSError as error:
        raise RunDirectoryError(f"Cannot bring {path} back to step {step}: {error.strerror}.") from error
    if damaged > 1:
        _LOG.warning("%s: dropped %d lines that are not rows.", path, damaged)


def _is_kept(line: bytes, step: int) -> bool:
    row_step = _step_of(line)
    return row_step is not None and row_step <= step


def _step_of(line: bytes) -> Optional[int]:
    """The row's step, or None where the line is torn or is no row."""
    if not line.endswith(b"\n"):
        return None
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return None


def _plain(value: Any) -> Any:
    """Numbers of NumPy and the like as Python's."""
    item = getattr(value, "item", None)
    if item is None:
        return str(value)
    number = item()
    return None if isinstance(number, float) and not math.isfinite(number) else number


def _without_non_finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_non_finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_non_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


_ENCODER = json.JSONEncoder(allow_nan=False, default=_plain)
