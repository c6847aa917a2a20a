"""Writes RecordIO files, which MXNet and `RecordFile` read. Writing goes on behind the last complete record."""

from __future__ import annotations

import os
from array import array
from pathlib import Path
from types import TracebackType
from typing import Any, Optional, Sequence, Type

import numpy as np

from mxtrain.files.durable import open_file, replace_file
from mxtrain.vision.images.record_layout import (
    FIRST,
    FRAME,
    HEADER,
    LAST,
    LENGTH_BITS,
    MAGIC,
    MAX_RECORD,
    MIDDLE,
    WHOLE,
    part_size,
    split_word,
)


def pack_record(number: int, label: Sequence[float], image: bytes) -> bytes:
    """Returns the content of a record: MXNet's header with the label, and the image.

    Args:
        number: number of the record.
        label: one number, which is a class; or several, as of boxes.
        image: encoded image.
    """
    if len(label) == 1:
        return HEADER.pack(0, label[0], number, 0) + image
    return HEADER.pack(len(label), 0.0, number, 0) + np.asarray(label, "<f4").tobytes() + image


class RecordWriter:
    """A .rec file and its .idx file, which is written at the end."""

    def __init__(self, path: Path) -> None:
        """Stores the path of the .rec file."""
        self._path = path
        self._offsets = array("q")
        self._end = 0

    def __len__(self) -> int:
        """Returns the number of complete records."""
        return len(self._offsets)

    def __enter__(self) -> RecordWriter:
        """Opens the file, and cuts off what follows its last complete record."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._stream: Any = os.fdopen(open_file(self._path, os.O_RDWR | os.O_CREAT), "r+b")
        self._find_records()
        self._stream.truncate(self._end)
        self._stream.seek(self._end)
        return self

    def _find_records(self) -> None:
        descriptor, position, begin = self._stream.fileno(), 0, 0
        size = os.fstat(descriptor).st_size
        while position + FRAME.size <= size:
            magic, word = FRAME.unpack(os.pread(descriptor, FRAME.size, position))
            kind, length = split_word(word)
            end = position + part_size(length)
            if magic != MAGIC or end > size:
                break
            begin = position if kind in (WHOLE, FIRST) else begin
            if kind in (WHOLE, LAST):
                self._offsets.append(begin)
                self._end = end
            position = end

    def write(self, record: bytes) -> None:
        """Appends a record.

        Raises:
            OSError: it cannot be written.
            ValueError: it is longer than `MAX_RECORD`.
        """
        if len(record) > MAX_RECORD:
            raise ValueError(f"a record of {len(record):,} bytes, and at most {MAX_RECORD:,} can be written")
        begin, parts = self._end, []
        first = 0
        while (found := _aligned(record, first)) >= 0:  # a record is split where it contains the magic number
            parts.append((MIDDLE if first else FIRST, record[first:found]))
            first = found + len(MAGIC)
        parts.append((LAST if first else WHOLE, record[first:]))
        for kind, part in parts:
            self._stream.write(FRAME.pack(MAGIC, kind << LENGTH_BITS | len(part)))
            self._stream.write(part + bytes(-len(part) % 4))
            self._end += part_size(len(part))
        self._offsets.append(begin)

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        try:
            self._stream.flush()
            os.fsync(self._stream.fileno())
        finally:
            self._stream.close()
        if error is None:
            lines = "".join(f"{number}\t{offset}\n" for number, offset in enumerate(self._offsets))
            replace_file(self._path.with_suffix(".idx"), lines.encode())


def _aligned(record: bytes, begin: int) -> int:
    """Returns the next position of the magic number that is a multiple of 4; -1 if there is none."""
    found = record.find(MAGIC, begin)
    while found >= 0 and found % 4:
        found = record.find(MAGIC, found + 1)
    return found
