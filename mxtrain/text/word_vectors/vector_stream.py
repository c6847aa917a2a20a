"""Opens files of word vectors as streams of bytes: plain, compressed by gzip, or in a ZIP archive."""

from __future__ import annotations

import gzip
import io
import zipfile
import zlib
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, BinaryIO, Iterator, List, Optional, cast

from mxtrain.data.loading.dataset_files import GZIP_MAGIC, is_hidden, open_regular
from mxtrain.errors import DataError

BUFFER_BYTES = 1 << 20
MAX_LINE = 1 << 20
"""Longest line in bytes: a vector of tens of thousands of numbers."""
MAX_WORD = 10_000
"""Longest word in bytes in a binary file."""
VECTOR_ENDINGS = (".txt", ".vec", ".bin")
_ZIP_MAGIC = b"PK\x03\x04"
_DAMAGE = (
    EOFError,
    gzip.BadGzipFile,
    zlib.error,
    zipfile.BadZipFile,
    # Of zipfile: an encrypted member, and an unknown method of compression.
    RuntimeError,
    NotImplementedError,
)


@dataclass(frozen=True)
class VectorStream:
    """A file of word vectors that can be opened several times.

    Attributes:
        path: path of the file or archive.
        member: name in a ZIP archive; None = the file itself.
    """

    path: str
    member: Optional[str] = None

    def __str__(self) -> str:
        return self.path if self.member is None else f"{self.path}:{self.member}"

    @contextmanager
    def open(self) -> Iterator[BinaryIO]:
        """Opens the unpacked content for reading; `seek` works, but is slow backwards in a packed file.

        Raises:
            DataError: the file cannot be read, or is damaged, also later in the `with` block.
        """
        with ExitStack() as stack:
            raw, _ = stack.enter_context(open_regular(self.path))
            try:
                yield self._unpacked(stack, raw)
            except _DAMAGE as error:
                raise DataError(f"{self} is damaged: it cannot be unpacked ({error}).") from error

    def _unpacked(self, stack: ExitStack, raw: BinaryIO) -> BinaryIO:
        if self.member is not None:
            packed = stack.enter_context(zipfile.ZipFile(raw)).open(self.member)  # lint: an open file
        elif raw.read(2) == GZIP_MAGIC:
            raw.seek(0)
            packed = cast(Any, gzip.GzipFile(fileobj=raw))
        else:
            raw.seek(0)
            packed = cast(Any, raw)
        return cast(BinaryIO, stack.enter_context(io.BufferedReader(cast(Any, packed), BUFFER_BYTES)))


def open_streams(path: str) -> List[VectorStream]:
    """Returns the file, or each file in a ZIP archive whose name ends in .txt, .vec or .bin.

    Raises:
        DataError: the file cannot be read, or is an archive without such a file.
    """
    with open_regular(path) as (file, _):
        if file.read(4) != _ZIP_MAGIC:
            return [VectorStream(path)]
        try:
            names = zipfile.ZipFile(file).namelist()  # lint: an open file
        except _DAMAGE as error:
            raise DataError(f"{path} is a damaged archive ({error}).") from error
    found = [
        name
        for name in sorted(names)
        if name.lower().endswith(VECTOR_ENDINGS) and not any(map(is_hidden, PurePosixPath(name).parts))
    ]
    if not found:
        raise DataError(
            f"model.embeddings: {path} is an archive without a file of word vectors, whose name ends in .txt, .vec or "
            ".bin."
        )
    return [VectorStream(path, name) for name in found]


def read_until(file: BinaryIO, end: bytes) -> Optional[bytes]:
    """Returns the bytes before the next byte `end`, which is read, too; None if it does not follow a word."""
    parts: List[bytes] = []
    while len(parts) <= MAX_WORD:
        byte = file.read(1)
        if byte == end:
            return b"".join(parts)
        if not byte:
            return None
        parts.append(byte)
    return None
