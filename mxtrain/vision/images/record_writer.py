"""Writes RecordIO files, which MXNet and `RecordFile` read. Writing goes on behind the last complete record.

Source of the layout: dmlc-core's recordio.h, see `mxtrain.vision.images.record_file`.
"""

from __future__ import annotations

import os
import struct
from array import array
from pathlib import Path
from types import TracebackType
from typing import Any, Optional, Sequence, Type

import numpy as np

from mxtrain.files.durable import open_file, replace_file

_MAGIC = struct.pack("<I", 0xCED7230A)
_LENGTH_BITS = 29
_FRAME = struct.Struct("<4sI")
_HEADER = struct.Struct("<IfQQ")
_WHOLE, _FIRST, _MIDDLE, _LAST = range(4)
MAX_RECORD = (1 << _LENGTH_BITS) - 1
"""Largest length of a record in bytes."""


def pack_record(number: int, label: Sequence[float], image: bytes) -> bytes:
    """Returns the content of a record: MXNet's header with the label, and the image.

    Args:
        number: number of the record.
        label: one number, which is a class; or several, as of boxes.
        image: encoded image.
    """
    if len(label) == 1:
        return _HEADER.pack(0, label[0], number, 0) + image
    return _HEADER.pack(len(label), 0.0, number, 0) + np.asarray(label, "<f4").tobytes() + image


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
        while position + _FRAME.size <= size:
            magic, word = _FRAME.unpack(os.pread(descriptor, _FRAME.size, position))
            kind, length = word >> _LENGTH_BITS, word & MAX_RECORD
            end = position + _FRAME.size + (length + 3) // 4 * 4
            if magic != _MAGIC or end > size:
                break
            begin = position if kind in (_WHOLE, _FIRST) else begin
            if kind in (_WHOLE, _LAST):
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
            parts.append((_MIDDLE if first else _FIRST, record[first:found]))
            first = found + len(_MAGIC)
        parts.append((_LAST if first else _WHOLE, record[first:]))
        for kind, part in parts:
            self._stream.write(_FRAME.pack(_MAGIC, kind << _LENGTH_BITS | len(part)))
            self._stream.write(part + bytes(-len(part) % 4))
            self._end += _FRAME.size + (len(part) + 3) // 4 * 4
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
    found = record.find(_MAGIC, begin)
    while found >= 0 and found % 4:
        found = record.find(_MAGIC, found + 1)
    return found
