"""Reads from the headers of recordings how many bytes of sound there should be, to find files that are cut.

libsndfile silently reads the rest of a truncated file, in all formats but FLAC.
"""

from __future__ import annotations

import re
import struct
from typing import Callable, Dict, NamedTuple, Optional

_UNKNOWN_FROM = 0x7FFFE000
"""Programs that write to a pipe do not know the length. SoX writes 0x7ffff000, rounded down to whole samples of all
channels, and others 0xffffffff."""
_MAX_CHUNKS = 10_000
Read = Callable[[int, int], bytes]
"""Reads a number of bytes at a place of a file; fewer at its end."""


class SoundBytes(NamedTuple):
    """Bytes of a file that hold its sound.

    Attributes:
        begin: offset of the first byte.
        length: number of bytes according to the header; None = unknown.
    """

    begin: int
    length: Optional[int]


def find_sound_bytes(read: Read) -> Optional[SoundBytes]:
    """Returns the bytes of sound of a WAV, RF64, W64, AIFF, AU, CAF or SPHERE; None for other formats and damaged
    headers."""
    try:
        return _FORMATS[read(0, 4)](read)
    except (KeyError, struct.error):
        return None


def _known(length: int) -> Optional[int]:
    return length if 0 < length < _UNKNOWN_FROM else None


def _of_chunks(read: Read, order: str, sound: bytes) -> Optional[SoundBytes]:
    position = 12
    total_length: Optional[int] = None
    for _ in range(_MAX_CHUNKS):
        name, length = struct.unpack(f"{order}4sI", read(position, 8))
        if name == b"ds64":
            (total_length,) = struct.unpack("<Q", read(position + 16, 8))
        if name == sound:
            return SoundBytes(position + 8, _known(length) if total_length is None else total_length)
        # Chunks of RIFF and AIFF begin at even places.
        position += 8 + length + length % 2
    return None


def _of_w64(read: Read) -> Optional[SoundBytes]:
    position = 40
    for _ in range(_MAX_CHUNKS):
        name, length = struct.unpack("<4s12xQ", read(position, 24))
        if name == b"data":
            return SoundBytes(position + 24, length - 24 if length > 24 else None)
        position += max(length + -length % 8, 24)
    return None


def _of_caf(read: Read) -> Optional[SoundBytes]:
    position = 8
    for _ in range(_MAX_CHUNKS):
        name, length = struct.unpack(">4sq", read(position, 12))
        if name == b"data" or length < 0:
            return SoundBytes(position + 12, length if length > 0 else None)
        position += 12 + length
    return None


def _of_au(read: Read, order: str) -> SoundBytes:
    begin, length = struct.unpack(f"{order}II", read(4, 8))
    return SoundBytes(begin, _known(length))


def _of_sphere(read: Read) -> Optional[SoundBytes]:
    size = re.match(rb"NIST_1A\n *([0-9]{1,6})\n", read(0, 24))
    if size is None:
        return None
    header = read(0, int(size[1]))
    fields: Dict[bytes, int] = dict.fromkeys((b"sample_count", b"channel_count", b"sample_n_bytes"), 0)
    for name, value in re.findall(rb"^([a-z_]+) -i ([0-9]{1,12})$", header, re.MULTILINE):
        fields[name] = int(value)
    is_packed = re.search(rb"^sample_coding .*(?:shorten|wavpack)", header, re.MULTILINE)
    length = fields[b"sample_count"] * (fields[b"channel_count"] or 1) * fields[b"sample_n_bytes"]
    return SoundBytes(int(size[1]), None if is_packed or not length else length)


_FORMATS: Dict[bytes, Callable[[Read], Optional[SoundBytes]]] = {
    b"RIFF": lambda read: _of_chunks(read, "<", b"data"),
    b"RIFX": lambda read: _of_chunks(read, ">", b"data"),
    b"RF64": lambda read: _of_chunks(read, "<", b"data"),
    b"FORM": lambda read: _of_chunks(read, ">", b"SSND"),
    b".snd": lambda read: _of_au(read, ">"),
    b"dns.": lambda read: _of_au(read, "<"),
    b"riff": _of_w64,
    b"caff": _of_caf,
    b"NIST": _of_sphere,
}
