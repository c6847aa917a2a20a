"""Damaged and unusual video files, by the structure of AVI: chunks of a name, a length and a content."""

from __future__ import annotations

import struct


def chunk(name: bytes, content: bytes) -> bytes:
    return name + struct.pack("<I", len(content)) + content + b"\0" * (len(content) % 2)


def listed(name: bytes, *chunks: bytes) -> bytes:
    return chunk(b"LIST", name + b"".join(chunks))


def sound_alone() -> bytes:
    """An AVI file whose only stream is sound: a tenth of a second of PCM."""
    rate, sound = 8000, bytes(1600)
    main = struct.pack("<14I", 40_000, 2 * rate, 0, 0x10, 1, 0, 1, 2 * rate, 0, 0, 0, 0, 0, 0)
    header = b"auds" + struct.pack("<4sIHHIIIIIIII4H", bytes(4), 0, 0, 0, 0, 2, 2 * rate, 0, 800, 0, 0, 2, 0, 0, 0, 0)
    form = struct.pack("<HHIIHHH", 1, 1, rate, 2 * rate, 2, 16, 0)
    stream = listed(b"strl", chunk(b"strh", header), chunk(b"strf", form))
    return chunk(
        b"RIFF", b"AVI " + listed(b"hdrl", chunk(b"avih", main), stream) + listed(b"movi", chunk(b"00wb", sound))
    )


def without_frames(content: bytes) -> bytes:
    """The header of an AVI file, with no frames behind it."""
    begin = content.index(b"movi") - 8
    head = content[12:begin]
    return chunk(b"RIFF", b"AVI " + head + listed(b"movi"))
