"""The files and folders that a command writes its results to: checked before the work, opened when it is done."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator, TextIO

import pydantic
from typing_extensions import Annotated

from mxtrain.data.loading.dataset_files import file_error
from mxtrain.errors import CheckpointError, ConfigError, disk_advice
from mxtrain.files.durable import create_file
from mxtrain.types import PathText


def check_output_file(name: str) -> str:
    """Checks that a file can be written under this name, before anything is computed that would go there.

    Raises:
        ValueError: the path is a folder, or its parent is not a writable folder.
    """
    path = Path(name)
    if path.is_dir():
        raise ValueError(f"should be a file, and this is a folder: name a file in it, such as {path / 'results'}")
    if not _is_written_in_place(path):
        _check_parents(path.parent)
    return name


def check_output_folder(name: str) -> str:
    """Checks that files can be written into a folder of this name; it may not exist yet.

    Raises:
        ValueError: the path is a file, or its first existing parent is not a writable folder.
    """
    if Path(name).exists() and not Path(name).is_dir():
        raise ValueError("should be a folder, and this is a file")
    _check_parents(Path(name))
    return name


OutputFile = Annotated[PathText, pydantic.AfterValidator(check_output_file)]
"""A setting: the path of a file that a command writes."""
OutputFolder = Annotated[PathText, pydantic.AfterValidator(check_output_folder)]
"""A setting: the path of a folder that a command writes files into."""


def require_writable(folder: Path, setting: str) -> Path:
    """Checks a default output folder, and returns it; the message suggests `setting`.

    Raises:
        ConfigError: files cannot be written there.
    """
    try:
        check_output_folder(str(folder))
    except ValueError as error:
        message = f"the results go to {folder}: it {error}. Name another place with {setting}=FOLDER."
        raise ConfigError(message) from None
    return folder


def _check_parents(folder: Path) -> None:
    """Checks that a folder can be created.

    Raises:
        ValueError: its first existing parent is not a folder or not writable.
    """
    while not os.path.lexists(folder):
        folder = folder.parent
    if not folder.is_dir():
        raise ValueError(f"should be in a folder, and '{folder}' is none")
    # Nobody can create files below /proc, but `os.access` allows it to root.
    if not os.access(folder, os.W_OK | os.X_OK) or folder.resolve().is_relative_to("/proc"):
        raise ValueError(f"should be in a folder that may be written to, and '{folder}' may not")


@contextmanager
def open_output_file(name: str) -> Iterator[TextIO]:
    """Opens a UTF-8 file that appears under its name only when it is complete.

    Devices and pipes, such as /dev/stdout, are written directly.

    Raises:
        DataError: the file cannot be written, for example because the disk is full.
    """
    path = Path(name)
    if _is_written_in_place(path):
        with _as_data_error(name):
            device = path.open("w", newline="", encoding="utf-8", errors="backslashreplace")
        with _full_disk_as_data_error(name), device:
            yield device
        return
    partial = path.with_name(path.name + ".partial")
    with _as_data_error(name):
        path.parent.mkdir(parents=True, exist_ok=True)
        stream = open(create_file(partial), "w", newline="", encoding="utf-8", errors="backslashreplace")
    try:
        with _full_disk_as_data_error(name), stream:
            yield stream
        with _as_data_error(name):
            partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def _as_data_error(name: str) -> Iterator[None]:
    """Converts each `OSError` into a `DataError` that names the file."""
    try:
        yield
    except OSError as error:
        raise file_error(name, error, "written") from error


@contextmanager
def _full_disk_as_data_error(name: str) -> Iterator[None]:
    """Converts the error of a write to a full disk into a `DataError` that names the file.

    A caller also reads files in its `with` block. Their errors, which have a file name, are raised as they are.
    """
    try:
        yield
    except OSError as error:
        if error.filename is None and disk_advice(error):
            raise file_error(name, error, "written") from error
        raise


def not_written(name: str, folder: Path, error: OSError) -> CheckpointError:
    """Returns the error about a checkpoint that cannot be written.

    Args:
        name: the checkpoint in the message, e.g. "The average".
        folder: folder that it was to be written to.
        error: reason; for a full disk, the message says what to do.
    """
    return CheckpointError(f"{name} cannot be written to {folder}: {error.strerror}.{disk_advice(error)}")


def _is_written_in_place(path: Path) -> bool:
    """Returns True if the file must not be replaced: a device, a pipe, or a name of the system such as /dev/stdout."""
    folder = path.parent.resolve()
    if folder == Path("/dev") or folder.is_relative_to("/proc"):
        return True
    return path.exists() and not (path.is_file() or path.is_dir())
