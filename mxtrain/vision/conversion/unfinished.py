"""The folder of a conversion that is not complete: it has a name of its own until everything in it was written and read
again, so that a conversion goes on after a crash."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import Mapping, Optional, Type

from mxtrain.data.loading.dataset_files import file_error
from mxtrain.errors import ConfigError, DataError
from mxtrain.files.durable import encode_json, fsync_directory, open_file, replace_file
from mxtrain.files.regular_files import read_regular

ENDING = ".unfinished"
_DESCRIPTION = ".conversion.json"
_LOCK = ".conversion.lock"


def require_free(target: Path) -> None:
    """Checks that nothing has the name of the target, except an empty folder.

    Raises:
        ConfigError: something has it.
    """
    if os.path.lexists(target) and not (target.is_dir() and not target.is_symlink() and not os.listdir(target)):
        raise ConfigError(f"'{target}' exists already. Name another folder, or remove it.")


class UnfinishedFolder:
    """The folder `TARGET.unfinished`, locked in a context."""

    def __init__(self, target: Path, description: Mapping[str, object]) -> None:
        """Stores the names; nothing is written yet.

        Args:
            target: folder that the conversion writes.
            description: what is converted, and how. Only the same conversion goes on in an existing folder.
        """
        self._target, self._content = target, encode_json(description, indent=2)
        self.path = target.with_name(target.name + ENDING)
        self._lock = -1
        self.resumes = False
        """True if the folder existed."""

    def __enter__(self) -> UnfinishedFolder:
        """Creates or finds the folder, and locks it.

        Raises:
            ConfigError: it belongs to another conversion, or another process writes to it.
            DataError: it cannot be written.
        """
        description = self.path / _DESCRIPTION
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = open_file(self.path / _LOCK, os.O_RDWR | os.O_CREAT)
            self._take_lock()
            if description.exists():
                self.resumes = True
                if read_regular(description) != self._content:
                    raise ConfigError(
                        f"'{self.path}' belongs to another conversion, or the source was changed since. Remove it to "
                        "begin again, or name another target."
                    )
            elif set(os.listdir(self.path)) - {_LOCK, f".tmp-{_DESCRIPTION}"}:
                raise ConfigError(f"'{self.path}' is no folder of a conversion. Remove it, or name another target.")
            else:
                replace_file(description, self._content)
        except OSError as error:
            self._release()
            raise file_error(self.path, error, "written") from error
        except ConfigError:
            self._release()
            raise
        return self

    def _take_lock(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(f"another process writes to '{self.path}' now.") from error

    def _release(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        """Releases the lock.

        Raises:
            DataError: a file could not be written; the message says how to go on.
        """
        self._release()
        if isinstance(error, OSError):
            reason = file_error(error.filename or self.path, error, "written")
            raise DataError(
                f"{reason} What is complete stays in '{self.path}': the same command goes on from there."
            ) from error

    def finish(self) -> None:
        """Gives the folder its name."""
        os.rename(self.path, self._target)
        # Only now: without its lock, another process could begin to write to the folder before it is renamed.
        (self._target / _LOCK).unlink(missing_ok=True)
        (self._target / _DESCRIPTION).unlink(missing_ok=True)
        fsync_directory(self._target.parent)
