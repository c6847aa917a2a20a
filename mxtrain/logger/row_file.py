"""Base class of the loggers that append one record per row to a file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Iterable, Optional, Sequence

from mxtrain.callback.protocol import Callback, Progress, Result, RunInfo, Validation
from mxtrain.errors import RunDirectoryError, run_dir_setting
from mxtrain.files.durable import open_file
from mxtrain.logger.files import AppendedFile

if TYPE_CHECKING:
    from mxtrain.types.annotations import MetricRow


class RowFileLogger(Callback):
    """Appends rows to <run_dir>/<file_name>. A resumed run first removes the rows after its checkpoint.

    Subclasses implement `prepare`, which removes rows, and `encode`, which formats a row.
    """

    def __init__(self, file_name: str) -> None:
        self._file_name = file_name
        self._file: Optional[AppendedFile] = None

    def prepare(self, path: Path, run: RunInfo) -> None:
        """Restores the file to its content at `run.resumed_step`.

        Raises:
            RunDirectoryError: the file cannot be read or written.
        """
        raise NotImplementedError

    def encode(self, row: MetricRow) -> bytes:
        """Encodes a row as one record, including its end."""
        raise NotImplementedError

    def on_start(self, run: RunInfo) -> None:
        """Prepares and opens the file.

        Raises:
            RunDirectoryError: the file cannot be opened, or restored to the resumed step.
        """
        path = Path(run.run_dir) / self._file_name
        _require_file(path)
        self.prepare(path, run)
        self._file = AppendedFile(path)

    def on_steps(self, rows: Sequence[MetricRow], progress: Progress) -> None:
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

    def _append(self, rows: Iterable[MetricRow]) -> None:
        if self._file:
            for row in rows:
                self._file.append(self.encode(row))
            # One write for all rows, which then survive if this process is killed; `on_checkpoint` also syncs them.
            self._file.flush()


def _require_file(path: Path) -> None:
    """Rejects links, pipes and devices before they are read: a pipe never ends, and a link may lead anywhere.

    Raises:
        RunDirectoryError: the path is one of these, or cannot be written.
    """
    try:
        os.close(open_file(path, os.O_WRONLY))
    except FileNotFoundError:
        return
    except OSError as error:
        raise RunDirectoryError(
            f"Cannot write {path}: {error.strerror}. Remove it, or choose another folder with "
            f"{run_dir_setting()}=FOLDER."
        ) from error
