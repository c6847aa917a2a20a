"""Append-only files of whole records. A full disk delays or drops records, but never truncates one or stops a run."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path
from typing import Any

from mxtrain.errors import RunDirectoryError, run_dir_setting
from mxtrain.files.durable import append_to, open_file

_LOG = logging.getLogger(__name__)

MAX_PENDING_BYTES = 32 * 2**20


class OnceLogger:
    """Logs one warning of each kind of problem."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._logged_kinds: set[str] = set()

    def warn(self, kind: str, message: str, *arguments: object) -> None:
        """Logs a warning, unless one of its kind was logged before."""
        if kind not in self._logged_kinds:
            self._logged_kinds.add(kind)
            self._log.warning(message, *arguments)


class AppendedFile:
    """An append-only file. A record is either completely in the file or not at all.

    A failed write (disk full, quota, file-size limit) is undone. Its records wait in memory for the next write that
    succeeds. If more than `max_pending_bytes` wait, the newest are dropped. Each kind of problem is logged once.
    """

    def __init__(self, path: Path, max_pending_bytes: int = MAX_PENDING_BYTES) -> None:
        """Opens `path` for appending, and creates it if needed.

        Raises:
            RunDirectoryError: the file cannot be opened.
        """
        self.path = path
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._max_pending_bytes = max_pending_bytes
        self._problems = OnceLogger(_LOG)
        self._failing = False
        try:
            self._fd = open_file(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            self._complete_size = os.fstat(self._fd).st_size
        except OSError as error:
            raise RunDirectoryError(
                f"Cannot write {path}: {error.strerror}. Fix the permissions of its folder, or choose "
                f"another folder with {run_dir_setting()}=FOLDER."
            ) from error

    def append(self, record: bytes) -> None:
        """Adds one complete record, which the next `flush` writes."""
        if self._pending_bytes + len(record) > self._max_pending_bytes and not self.flush():
            self._problems.warn("drop", "%s: too much waits to be written; newer records are dropped.", self.path)
            return
        self._pending.append(record)
        self._pending_bytes += len(record)

    def flush(self, sync: bool = False) -> bool:
        """Writes all waiting records; with `sync` also syncs the file to the disk.

        Returns:
            True if all records are in the file now.
        """
        if self._fd < 0:
            return False
        try:
            self._write(b"".join(self._pending))
            if sync:
                self._sync()
        except OSError as error:
            self._failing = True
            self._problems.warn(
                "fail",
                "Cannot write %s: %s. Training goes on; the records wait in memory for room.",
                self.path,
                error.strerror,
            )
            return False
        if self._failing:
            self._failing = False
            _LOG.info("Writing %s works again.", self.path)
        return True

    def close(self) -> None:
        """Writes all waiting records and closes the file. A second call does nothing."""
        if self._fd >= 0:
            self.flush(sync=True)
            os.close(self._fd)
            self._fd = -1

    def _write(self, data: bytes) -> None:
        if self._failing:
            # If the last write failed and cutting failed too, a part of a record is at the end of the file.
            self._cut_incomplete_record()
        written = 0
        try:
            while written < len(data):
                written += os.write(self._fd, data[written:] if written else data)
        except OSError:
            self._cut_incomplete_record()
            raise
        self._complete_size += len(data)
        self._pending.clear()
        self._pending_bytes = 0

    def _cut_incomplete_record(self) -> None:
        if os.fstat(self._fd).st_size > self._complete_size:
            os.ftruncate(self._fd, self._complete_size)

    def _sync(self) -> None:
        status = os.fstat(self._fd)
        if status.st_nlink == 0:
            self._problems.warn("gone", "%s was deleted while the run writes to it; what follows is lost.", self.path)
        elif stat.S_ISREG(status.st_mode):
            # Only of regular files: fsync refuses pipes and devices (EINVAL).
            os.fsync(self._fd)


def cut_file(path: Path, size: int) -> None:
    """Truncates a file to `size` bytes, in one system call that needs no space on the disk, and syncs it."""
    with open(open_file(path, os.O_RDWR), "r+b") as file:
        file.truncate(size)
        os.fsync(file.fileno())


class LogFile(logging.FileHandler):
    """Writes a log into a run directory (conf/hydra/job_logging).

    After `close` lines are dropped: a `FileHandler` would open the file again, although its run is over.
    """

    _is_closed = False

    def _open(self) -> Any:
        return append_to(self.baseFilename, "a", encoding=self.encoding)

    def close(self) -> None:
        self._is_closed = True
        super().close()

    def emit(self, record: logging.LogRecord) -> None:
        if self._is_closed:
            return
        try:
            super().emit(record)
        except OSError:  # from opening the file, which logging does not handle itself
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:
        """Drops the line. A full disk or a removed folder must not stop a run, and the terminal shows the line too."""
