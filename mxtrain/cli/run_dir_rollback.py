"""Takes back what was written for a run that could not start: bad input leaves nothing behind."""

from __future__ import annotations

import os
import shutil
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Iterator, Sequence

from mxtrain.errors import RunDirectoryError
from mxtrain.files.durable import replace_file
from mxtrain.files.regular_files import MAX_TEXT_BYTES, read_regular

OURS = (".hydra", ".lock", "train.log", "status.json", "meta.json", "workers")
"""Files and folders that appear in a run directory before the first step, with any loggers."""


class RunDirRollback:
    """A run directory as a command finds it.

    Raises:
        RunDirectoryError: it, or what an earlier run says of itself there, cannot be read.
    """

    def __init__(self, run_dir: Path, output_subdir: str = ".hydra"):
        self._run_dir = run_dir
        self._ours = {*OURS, output_subdir}
        try:
            self._names = set(os.listdir(run_dir)) if run_dir.is_dir() else set()
            hydra_files = (run_dir / ".hydra").glob("*.yaml")
            self._settings = {path: read_regular(path, MAX_TEXT_BYTES) for path in hydra_files}
        except OSError as error:
            raise RunDirectoryError(
                f"{error.filename or run_dir} cannot be read: {error.strerror}. Choose another run directory with "
                "hydra.run.dir=FOLDER."
            ) from None
        self.new_folders = [folder for folder in (run_dir, *run_dir.parents) if not os.path.lexists(folder)]

    def restore(self) -> None:
        """Removes the folders that were made since, and puts back the files that say how an earlier run was made; does
        nothing where another process has begun a run there meanwhile."""
        with self._unless_in_use() as is_ours:
            if is_ours:
                self._restore()

    def _restore(self) -> None:
        if self.new_folders:
            remove_unstarted(self.new_folders)
            return
        for name in self._ours - self._names:
            path = self._run_dir / name
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
        self._put_back_settings()

    def put_back_settings(self) -> None:
        """Writes the files that say how the run was made that is there; not while another process trains there."""
        with self._unless_in_use() as is_ours:
            if is_ours:
                self._put_back_settings()

    @contextmanager
    def _unless_in_use(self) -> Iterator[bool]:
        """Locks the run directory; yields whether it is there and could be locked."""
        from mxtrain.checkpoint import lock_run_directory

        with ExitStack() as stack:
            is_ours = self._run_dir.is_dir()
            if is_ours:
                try:
                    stack.enter_context(lock_run_directory(self._run_dir))
                except RunDirectoryError:
                    is_ours = False
            yield is_ours

    def _put_back_settings(self) -> None:
        for path, content in self._settings.items():
            if not path.is_file() or read_regular(path) != content:
                replace_file(path, content)

    @property
    def holds_settings(self) -> bool:
        """True if an earlier run says how it was made."""
        return bool(self._settings)


def remove_unstarted(folders: Sequence[Path]) -> None:
    """Removes a new folder, and those above it that were made for it; one with a checkpoint in it stays."""
    if not folders or not folders[0].is_dir() or any((folders[0] / "checkpoints").glob("*")):
        return
    shutil.rmtree(folders[0])
    for folder in folders[1:]:
        try:
            folder.rmdir()
        except OSError:
            return  # another run lives there
