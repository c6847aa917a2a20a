"""Restores a run directory if the run could not start, so that invalid input leaves no files behind."""

from __future__ import annotations

import os
import shutil
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Iterator, Sequence

from mxtrain.archive.run_files import META_FILE, STATUS_FILE
from mxtrain.errors import RunDirectoryError, run_dir_setting
from mxtrain.files.durable import replace_file
from mxtrain.files.regular_files import MAX_TEXT_BYTES, read_regular

STARTUP_FILES = (".hydra", ".lock", "train.log", STATUS_FILE, META_FILE, "workers")
"""Files and folders that appear in a run directory before the first step, with any loggers."""


class RunDirRollback:
    """Records the content of a run directory before a command writes to it.

    Args:
        run_dir: the run directory; it need not exist.
        output_subdir: Hydra's folder in it.

    Raises:
        RunDirectoryError: the directory, or Hydra's files of an earlier run in it, cannot be read.
    """

    def __init__(self, run_dir: Path, output_subdir: str = ".hydra"):
        self._run_dir = run_dir
        self._startup_files = {*STARTUP_FILES, output_subdir}
        try:
            self._names = set(os.listdir(run_dir)) if run_dir.is_dir() else set()
            hydra_files = (run_dir / ".hydra").glob("*.yaml")
            self._settings = {path: read_regular(path, MAX_TEXT_BYTES) for path in hydra_files}
        except OSError as error:
            raise RunDirectoryError(
                f"{error.filename or run_dir} cannot be read: {error.strerror}. Choose another run directory with "
                f"{run_dir_setting()}=FOLDER."
            ) from None
        self.new_folders = [folder for folder in (run_dir, *run_dir.parents) if not os.path.lexists(folder)]

    def restore(self) -> None:
        """Removes new files and folders, and restores Hydra's files of an earlier run.

        Does nothing if another process has started a run there in the meantime.
        """
        with self._unless_in_use() as is_free:
            if is_free:
                self._restore()

    def _restore(self) -> None:
        if self.new_folders:
            remove_unstarted(self.new_folders)
            return
        for name in self._startup_files - self._names:
            path = self._run_dir / name
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        self._put_back_settings()

    def put_back_settings(self) -> None:
        """Restores Hydra's files of an earlier run, unless another process trains in the directory."""
        if self._settings:
            with self._unless_in_use() as is_free:
                if is_free:
                    self._put_back_settings()

    @contextmanager
    def _unless_in_use(self) -> Iterator[bool]:
        """Locks the run directory. Yields True if it exists and could be locked."""
        from mxtrain.checkpoint import lock_run_directory

        with ExitStack() as stack:
            is_free = self._run_dir.is_dir()
            if is_free:
                try:
                    stack.enter_context(lock_run_directory(self._run_dir))
                except RunDirectoryError:
                    is_free = False
            yield is_free

    def _put_back_settings(self) -> None:
        for path, content in self._settings.items():
            if not path.is_file() or read_regular(path) != content:
                replace_file(path, content)


def remove_unstarted(folders: Sequence[Path]) -> None:
    """Removes a new folder and its new parents. A folder that contains a checkpoint is kept.

    Args:
        folders: the run directory and the parents that were created for it, innermost first.
    """
    if not folders or not folders[0].is_dir() or any((folders[0] / "checkpoints").glob("*")):
        return
    shutil.rmtree(folders[0])
    for folder in folders[1:]:
        try:
            folder.rmdir()
        except OSError:
            return  # not empty: another run has been created in it
