"""Reads plain or gzip-compressed UTF-8 text files as streams of lines of limited length."""

from __future__ import annotations

import gzip
import io
import zlib
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Iterator, Optional, TextIO, cast

from mxtrain.data.checking.problems import STRICT, Findings
from mxtrain.data.loading.dataset_files import GZIP_MAGIC, open_regular, refuse_non_text, undecodable_lines
from mxtrain.errors import DataError
from mxtrain.files.regular_files import AnyPath

MAX_LINE = 64 << 20
"""Characters: a line is in memory as a whole."""
GZIP = ".gz"


def ending_of(path: AnyPath) -> str:
    """Returns the extension of a file without .gz: ".csv" for a.csv and for a.csv.gz."""
    path = Path(path)
    return Path(path.stem).suffix if path.suffix == GZIP else path.suffix


@contextmanager
def open_text(path: AnyPath, newline: Optional[str], findings: Findings = STRICT) -> Iterator[TextIO]:
    """Opens a regular text file, which is decompressed if its name ends in .gz. Skips a byte order mark.

    Args:
        path: path of the file.
        newline: as in the built-in `open`.
        findings: collects lines that are not UTF-8. A check that continues reads them with replacement characters.

    Raises:
        DataError: the file cannot be read or is not UTF-8; the message names the line.
    """
    if findings.keeps_going:
        _remark_undecodable(path, findings)
    errors = "replace" if findings.keeps_going else "strict"
    with _opened(path) as file:
        try:
            yield _Lines(file, newline, errors, path)
        except UnicodeDecodeError:
            _remark_undecodable(path, STRICT)  # says in which line, and raises
            raise


class _Lines(io.TextIOWrapper):
    """A text stream with a maximum length of lines, so that a file without line ends cannot fill the memory."""

    def __init__(self, file: BinaryIO, newline: Optional[str], errors: str, path: AnyPath) -> None:
        super().__init__(file, encoding="utf-8-sig", errors=errors, newline=newline)
        self._path = path

    def __next__(self) -> str:  # type: ignore[override]  # of text, not of bytes
        # One character more than allowed tells a line that is too long from one that just fits.
        line = self.readline(MAX_LINE + 1)
        if not line:
            raise StopIteration
        if len(line) > MAX_LINE:
            raise DataError(f"{self._path} has a line of more than {MAX_LINE:,} characters.")
        return line


@contextmanager
def _opened(path: AnyPath) -> Iterator[BinaryIO]:
    with open_regular(path) as (raw, _):
        file = cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if Path(path).suffix == GZIP else raw
        buffered: Any = io.BufferedReader(cast(Any, file), 1 << 20)
        try:
            begin = buffered.peek(4)[:4]
            if begin[:2] == GZIP_MAGIC and Path(path).suffix != GZIP:
                raise DataError(f"{path} is packed by gzip, and its name does not say so: call it {path}{GZIP}.")
            refuse_non_text(path, begin)
            yield buffered
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise DataError(f"{path} is damaged: it cannot be unpacked ({error}).") from error


def _remark_undecodable(path: AnyPath, findings: Findings) -> None:
    """Reports each line that is not UTF-8 to `findings`."""
    with _opened(path) as file:
        for problem in undecodable_lines(path, iter(lambda: file.readline(MAX_LINE), b"")):
            findings.refuse(problem)
