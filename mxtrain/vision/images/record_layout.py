"""Layout of RecordIO files: a record is one part or, if it contains the magic number, several.

Source: dmlc-core's recordio.h (magic, 3 bits of part kind and 29 of length, padded to 4 bytes) around MXNet's IRHeader
(flag, label, id, id2).
"""

from __future__ import annotations

import struct
from typing import Tuple

MAGIC = struct.pack("<I", 0xCED7230A)
"""Begins each part, and is left out between two parts of a record."""
FRAME = struct.Struct("<4sI")
"""Magic number, and kind and length of a part."""
HEADER = struct.Struct("<IfQQ")
"""Beginning of a record of MXNet: number of labels or 0, the only label, and two ids."""
LENGTH_BITS = 29
MAX_RECORD = (1 << LENGTH_BITS) - 1
"""Largest length of a record in bytes."""
WHOLE, FIRST, MIDDLE, LAST = range(4)
"""Kinds of parts."""


def split_word(word: int) -> Tuple[int, int]:
    """Returns kind and length of a part."""
    return word >> LENGTH_BITS, word & MAX_RECORD


def part_size(length: int) -> int:
    """Returns the bytes that a part of this length takes in the file."""
    return FRAME.size + (length + 3) // 4 * 4
