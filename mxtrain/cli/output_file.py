"""Opens the file that a command writes its results to."""

from __future__ import annotations

import errno
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator, TextIO

from mxtrain.dataset.loading.regular_files import explain
from mxtrain.files.durable import create_file


@contextmanager
def open_output_file(name: str) -> Iterator[TextIO]:
    """A file that appears only when it is complete; in UTF-8, whatever the terminal's. A device or a pipe, such as
    /dev/stdout, is written to.

    Raises:
        DataError: it cannot be written there.
    """
    path = Path(name)
    if _stays(path):
        try:
            device = path.open("w", newline="", encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            raise explain(name, error, "written") from error
        with device:
            yield device
        return
    partial = path.with_name(path.name + ".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        stream = open(create_file(partial), "w", newline="", encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise explain(name, error, "written") from error
    try:
        with stream:
            yield stream
        partial.replace(path)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT) and error.filename is None:
            error.filename = str(path)  # a write does not say where the disk is full
        raise
    finally:
        partial.unlink(missing_ok=True)


def _stays(path: Path) -> bool:
    """Whether the name is a device's or a pipe's, or one that the system makes (/dev/stdout): none to be replaced."""
    folder = path.parent.resolve()
    if folder == Path("/dev") or folder.is_relative_to("/proc"):
        return True
    return path.exists() and not (path.is_file() or path.is_dir())
